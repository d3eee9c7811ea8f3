//! The CMA header: IP addresses in private data, which identify the client to a listener (Annex A11).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::layout::Block;
use super::{DataTooLong, PrivateData};

/// The header with IP addresses that `rdma_cm` puts at the start of the private data of a REQ or SIDR_REQ (Annex A11;
/// `struct cma_hdr` in Linux's `drivers/infiniband/core/cma.c`).
///
/// The header does not contain the destination port, which is in the [`ServiceId`](super::ServiceId).
///
/// ```
/// use adverb_wire::cm::{CmaHeader, PrivateData};
/// use core::net::Ipv4Addr;
///
/// let header = CmaHeader {
///     source_port: 40_000,
///     addresses: (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)).into(),
/// };
/// let private: PrivateData<92> = header.prepend_to(b"hello").expect("at most 56 bytes");
/// let (parsed, rest) = CmaHeader::split(private.as_bytes()).expect("a header");
/// assert_eq!(parsed, header);
/// assert_eq!(rest.len(), 56);
/// assert_eq!(rest[..5], *b"hello");
/// assert_eq!(parsed.to_string(), "10.0.0.1:40000 > 10.0.0.2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CmaHeader {
    /// The client's port.
    pub source_port: u16,
    /// The source and destination addresses.
    pub addresses: IpPair,
}

/// A source and a destination address of the same family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IpPair {
    /// IPv4 addresses.
    V4 {
        /// The client's address.
        source: Ipv4Addr,
        /// The server's address.
        destination: Ipv4Addr,
    },
    /// IPv6 addresses.
    V6 {
        /// The client's address.
        source: Ipv6Addr,
        /// The server's address.
        destination: Ipv6Addr,
    },
}

impl CmaHeader {
    /// The length of the header in bytes.
    pub const LEN: usize = 36;

    /// Creates a header. Returns `None` if one address is IPv4 and the other IPv6. The destination port belongs in the
    /// [`ServiceId`](super::ServiceId).
    pub fn new(source: SocketAddr, destination: IpAddr) -> Option<CmaHeader> {
        let addresses = match (source.ip(), destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => IpPair::V4 { source, destination },
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpPair::V6 { source, destination },
            _ => return None,
        };
        Some(CmaHeader { source_port: source.port(), addresses })
    }

    /// Splits private data into the header at its start and the consumer's data.
    ///
    /// # Errors
    ///
    /// Returns [`CmaHeaderError::TooShort`] if there are fewer than 36 bytes. Otherwise, returns the same errors as
    /// [`from_bytes`](CmaHeader::from_bytes).
    pub fn split(private: &[u8]) -> Result<(CmaHeader, &[u8]), CmaHeaderError> {
        let too_short = CmaHeaderError::TooShort { len: private.len() };
        let (bytes, rest) = private.split_first_chunk().ok_or(too_short)?;
        Ok((CmaHeader::from_bytes(bytes)?, rest))
    }

    /// Parses the header.
    ///
    /// # Errors
    ///
    /// Returns [`CmaHeaderError::Version`] if the header's version isn't 0.0, and [`CmaHeaderError::IpVersion`] if the
    /// IP version is neither 4 nor 6.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<CmaHeader, CmaHeaderError> {
        let block = Block(*bytes);
        let [version, ip_version] = block.array(0);
        if version != VERSION {
            return Err(CmaHeaderError::Version(version));
        }
        let addresses = [block.array(SOURCE), block.array(DESTINATION)].map(u128::from_be_bytes);
        let addresses = match ip_version >> 4 {
            4 => {
                let [source, destination] = addresses.map(|address| {
                    // The twelve bytes before an IPv4 address are ignored, as in the kernel.
                    let [.., a, b, c, d] = address.to_be_bytes();
                    Ipv4Addr::new(a, b, c, d)
                });
                IpPair::V4 { source, destination }
            }
            6 => {
                let [source, destination] = addresses.map(Ipv6Addr::from_bits);
                IpPair::V6 { source, destination }
            }
            other => return Err(CmaHeaderError::IpVersion(other)),
        };
        Ok(CmaHeader { source_port: u16::from_be_bytes(block.array(PORT)), addresses })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let (ip_version, source, destination): (u8, u128, u128) = match self.addresses {
            IpPair::V4 { source, destination } => (4, source.to_bits().into(), destination.to_bits().into()),
            IpPair::V6 { source, destination } => (6, source.to_bits(), destination.to_bits()),
        };
        let mut block = Block([0; Self::LEN]);
        block.put_array(0, &[VERSION, ip_version << 4]);
        block.put_array(PORT, &self.source_port.to_be_bytes());
        block.put_array(SOURCE, &source.to_be_bytes());
        block.put_array(DESTINATION, &destination.to_be_bytes());
        block.0
    }

    /// Returns private data that consists of this header and the consumer's `data`.
    ///
    /// # Errors
    ///
    /// Returns [`DataTooLong`] if `data` is longer than `N` − 36 bytes: 56 in a REQ, 180 in a SIDR_REQ.
    pub fn prepend_to<const N: usize>(&self, data: &[u8]) -> Result<PrivateData<N>, DataTooLong> {
        let too_long = DataTooLong { len: data.len(), max: N.saturating_sub(Self::LEN) };
        let mut bytes = [0; N];
        let (header, rest) = bytes.split_first_chunk_mut().ok_or(too_long)?;
        *header = self.to_bytes();
        rest.get_mut(..data.len()).ok_or(too_long)?.copy_from_slice(data);
        Ok(PrivateData::from(bytes))
    }

    /// Returns the client's address and port.
    pub fn source(&self) -> SocketAddr {
        SocketAddr::new(self.addresses.source(), self.source_port)
    }

    /// Returns the server's address. The server's port is in the [`ServiceId`](super::ServiceId).
    pub fn destination(&self) -> IpAddr {
        self.addresses.destination()
    }
}

/// Prints source and destination, as in `10.0.0.1:40000 > 10.0.0.2`.
impl fmt::Display for CmaHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} > {}", self.source(), self.destination())
    }
}

impl IpPair {
    /// Returns the client's address.
    pub const fn source(&self) -> IpAddr {
        match self {
            IpPair::V4 { source, .. } => IpAddr::V4(*source),
            IpPair::V6 { source, .. } => IpAddr::V6(*source),
        }
    }

    /// Returns the server's address.
    pub const fn destination(&self) -> IpAddr {
        match self {
            IpPair::V4 { destination, .. } => IpAddr::V4(*destination),
            IpPair::V6 { destination, .. } => IpAddr::V6(*destination),
        }
    }
}

/// Creates a pair from source and destination.
impl From<(Ipv4Addr, Ipv4Addr)> for IpPair {
    fn from((source, destination): (Ipv4Addr, Ipv4Addr)) -> IpPair {
        IpPair::V4 { source, destination }
    }
}

/// Creates a pair from source and destination.
impl From<(Ipv6Addr, Ipv6Addr)> for IpPair {
    fn from((source, destination): (Ipv6Addr, Ipv6Addr)) -> IpPair {
        IpPair::V6 { source, destination }
    }
}

/// The error for private data that doesn't start with a valid [`CmaHeader`]. A CM rejects a REQ that lacks a required
/// header with [`RejectReason::ConsumerReject`](super::RejectReason::ConsumerReject) (Annex A11).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CmaHeaderError {
    /// The private data is shorter than the header.
    TooShort {
        /// The length of the private data in bytes.
        len: usize,
    },
    /// The header's version isn't 0.0. The major version is in the high four bits, the minor in the low four.
    Version(u8),
    /// The IP version is neither 4 nor 6.
    IpVersion(u8),
}

impl fmt::Display for CmaHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CmaHeaderError::TooShort { len } => {
                write!(
                    f,
                    "{len} bytes of private data are too short for the CMA header of {} bytes",
                    CmaHeader::LEN
                )
            }
            CmaHeaderError::Version(version) => {
                write!(f, "CMA header version {}.{} is not supported, only 0.0", version >> 4, version & 0xf)
            }
            CmaHeaderError::IpVersion(version) => {
                write!(f, "the CMA header's IP version {version} is neither 4 nor 6")
            }
        }
    }
}

impl core::error::Error for CmaHeaderError {}

/// The only version: major and minor, four bits each.
const VERSION: u8 = 0x00;

// The offsets of the fields. The version and the IP version (the high four bits of its byte) precede them.
const PORT: usize = 2;
const SOURCE: usize = 4;
const DESTINATION: usize = 20;

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn an_ipv4_address_is_in_the_last_four_bytes() {
        let source = SocketAddr::from(([192, 0, 2, 1], 0x1234));
        let header = CmaHeader::new(source, [192, 0, 2, 9].into()).unwrap();
        let mut expected = [0; 36];
        expected[1] = 0x40;
        expected[2..4].copy_from_slice(&[0x12, 0x34]);
        expected[16..20].copy_from_slice(&[192, 0, 2, 1]);
        expected[32..36].copy_from_slice(&[192, 0, 2, 9]);
        assert_eq!(header.to_bytes(), expected);
        assert_eq!(CmaHeader::from_bytes(&expected), Ok(header));
    }

    #[test]
    fn an_ipv6_address_takes_all_sixteen_bytes() {
        let (source, destination) = (Ipv6Addr::from([0xaa; 16]), Ipv6Addr::from([0xbb; 16]));
        let header = CmaHeader { source_port: 1, addresses: (source, destination).into() };
        let bytes = header.to_bytes();
        assert_eq!(bytes[..4], [0, 0x60, 0, 1]);
        assert_eq!(bytes[4..20], [0xaa; 16]);
        assert_eq!(bytes[20..], [0xbb; 16]);
        assert_eq!(CmaHeader::from_bytes(&bytes), Ok(header));
        assert_eq!((header.source().ip(), header.destination()), (source.into(), destination.into()));
    }

    #[test]
    fn addresses_of_two_families_are_rejected() {
        let source = SocketAddr::from(([192, 0, 2, 1], 1));
        assert_eq!(CmaHeader::new(source, Ipv6Addr::LOCALHOST.into()), None);
    }

    #[test]
    fn an_invalid_header_is_rejected() {
        let good =
            CmaHeader::new(SocketAddr::from(([1, 2, 3, 4], 5)), [6, 7, 8, 9].into()).unwrap().to_bytes();
        for length in 0..36 {
            assert_eq!(CmaHeader::split(&good[..length]), Err(CmaHeaderError::TooShort { len: length }));
        }
        assert_eq!(CmaHeader::split(&good).map(|(_, rest)| rest.len()), Ok(0));
        for version in 1..=255 {
            let mut bytes = good;
            bytes[0] = version;
            assert_eq!(CmaHeader::from_bytes(&bytes), Err(CmaHeaderError::Version(version)));
        }
        for ip_version in (0..16).filter(|version| ![4, 6].contains(version)) {
            let mut bytes = good;
            bytes[1] = ip_version << 4 | 4;
            let error = CmaHeader::from_bytes(&bytes).unwrap_err();
            assert_eq!(error, CmaHeaderError::IpVersion(ip_version));
            assert!(error.to_string().contains("neither 4 nor 6"));
        }
    }

    #[test]
    fn consumer_data_that_does_not_fit_after_the_header_is_rejected() {
        let header = CmaHeader::new(SocketAddr::from(([1, 2, 3, 4], 5)), [6, 7, 8, 9].into()).unwrap();
        assert!(header.prepend_to::<92>(&[1; 56]).is_ok());
        assert_eq!(header.prepend_to::<92>(&[1; 57]), Err(DataTooLong { len: 57, max: 56 }));
        assert_eq!(header.prepend_to::<35>(&[]), Err(DataTooLong { len: 0, max: 0 }));
    }
}
