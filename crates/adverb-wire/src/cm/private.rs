//! Private data and additional reject information.

use core::fmt;

/// The private data of a message: `N` bytes that one consumer sends to the other.
///
/// Messages carry no length of the private data: all `N` bytes are sent, padded with zeros. A consumer that needs the
/// length must include it in the data.
///
/// ```
/// use adverb_wire::cm::PrivateData;
///
/// let data = PrivateData::<196>::new(b"hello").expect("at most 196 bytes");
/// assert_eq!(data.as_bytes()[..6], *b"hello\0");
/// assert!(PrivateData::<4>::new(b"hello").is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>([u8; N]);

impl<const N: usize> PrivateData<N> {
    /// No private data: all zeros.
    pub const EMPTY: PrivateData<N> = PrivateData([0; N]);

    /// Creates private data from `data`, padded with zeros.
    ///
    /// # Errors
    ///
    /// Returns [`DataTooLong`] if `data` is longer than `N` bytes.
    pub fn new(data: &[u8]) -> Result<PrivateData<N>, DataTooLong> {
        let mut bytes = [0; N];
        let target = bytes.get_mut(..data.len()).ok_or(DataTooLong { len: data.len(), max: N })?;
        target.copy_from_slice(data);
        Ok(PrivateData(bytes))
    }

    /// Returns all `N` bytes, including the padding.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> PrivateData<N> {
        PrivateData::EMPTY
    }
}

impl<const N: usize> From<[u8; N]> for PrivateData<N> {
    fn from(bytes: [u8; N]) -> PrivateData<N> {
        PrivateData(bytes)
    }
}

/// Prints the bytes in hexadecimal, without trailing zeros.
impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = N - self.0.iter().rev().take_while(|byte| **byte == 0).count();
        write!(f, "PrivateData<{N}>({})", Hex(self.0.get(..used).unwrap_or_default()))
    }
}

/// Additional information on a rejection, up to 72 bytes; for example, a value that would be accepted (vol. 1, 12.6.7
/// for a REJ, 12.11.2 for a SIDR_REP).
///
/// A received length above 72 is invalid and parsed as 72.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AdditionalInfo {
    /// The length, at most [`MAX_LEN`](AdditionalInfo::MAX_LEN).
    length: u8,
    /// The information, padded with zeros.
    bytes: PrivateData<72>,
}

impl AdditionalInfo {
    /// The maximum length in bytes.
    pub const MAX_LEN: usize = 72;
    /// No additional information.
    pub const EMPTY: AdditionalInfo = AdditionalInfo { length: 0, bytes: PrivateData::EMPTY };

    /// Creates additional information from `info`.
    ///
    /// # Errors
    ///
    /// Returns [`DataTooLong`] if `info` is longer than 72 bytes.
    pub fn new(info: &[u8]) -> Result<AdditionalInfo, DataTooLong> {
        let bytes = PrivateData::new(info)?;
        let length = u8::try_from(info.len()).unwrap_or(u8::MAX);
        Ok(AdditionalInfo { length, bytes })
    }

    /// Returns the bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.as_bytes().get(..usize::from(self.length)).unwrap_or_default()
    }

    /// Returns the length, which messages carry in a separate field.
    pub(super) fn length(&self) -> u32 {
        self.length.into()
    }

    /// Returns all 72 bytes, including the padding.
    pub(super) fn padded(&self) -> &PrivateData<72> {
        &self.bytes
    }

    /// Creates the information of a received message. `length` is capped at 72, and the bytes after it are ignored.
    pub(super) fn received(length: u32, bytes: PrivateData<72>) -> AdditionalInfo {
        let (length, bytes) = (usize::try_from(length).unwrap_or(usize::MAX), bytes.as_bytes());
        AdditionalInfo::new(bytes.get(..length).unwrap_or(bytes)).unwrap_or_default()
    }
}

impl Default for AdditionalInfo {
    fn default() -> AdditionalInfo {
        AdditionalInfo::EMPTY
    }
}

/// Prints the bytes in hexadecimal.
impl fmt::Debug for AdditionalInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdditionalInfo({})", Hex(self.as_bytes()))
    }
}

/// The error for data that exceeds its field in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DataTooLong {
    /// The length of the data in bytes.
    pub len: usize,
    /// The maximum length in bytes.
    pub max: usize,
}

impl fmt::Display for DataTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of data exceed the maximum of {} bytes", self.len, self.max)
    }
}

impl core::error::Error for DataTooLong {}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn data_is_padded_with_zeros_and_never_truncated() {
        assert_eq!(*PrivateData::<4>::new(&[1, 2]).unwrap().as_bytes(), [1, 2, 0, 0]);
        assert_eq!(*PrivateData::<4>::new(&[1, 2, 3, 4]).unwrap().as_bytes(), [1, 2, 3, 4]);
        assert_eq!(PrivateData::<4>::new(&[0; 5]), Err(DataTooLong { len: 5, max: 4 }));
        assert_eq!(PrivateData::<4>::new(&[]), Ok(PrivateData::default()));
    }

    #[test]
    fn debug_trims_the_zeros_at_the_end_only() {
        let data = PrivateData::<8>::new(&[0, 0xab, 0, 1]).unwrap();
        assert_eq!(format!("{data:?}"), "PrivateData<8>(00ab0001)");
        assert_eq!(format!("{:?}", PrivateData::<8>::EMPTY), "PrivateData<8>()");
        let info = AdditionalInfo::new(&[1, 0]).unwrap();
        assert_eq!(format!("{info:?}"), "AdditionalInfo(0100)");
    }

    #[test]
    fn a_received_length_above_the_maximum_becomes_the_maximum() {
        for length in [72, 73, 127, u32::MAX] {
            assert_eq!(AdditionalInfo::received(length, [7; 72].into()).as_bytes(), [7; 72]);
        }
        let info = AdditionalInfo::received(3, [7; 72].into());
        assert_eq!(info, AdditionalInfo::new(&[7; 3]).unwrap());
        assert_eq!(info.padded().as_bytes().iter().filter(|byte| **byte != 0).count(), 3);
        assert!(AdditionalInfo::new(&[0; 73]).is_err());
    }
}
