//! Queue pair numbers.

use core::fmt;

/// A queue pair number (QPN): 24 bits.
///
/// ```
/// # mod adverb { pub use adverb_wire as verbs; }
/// use adverb::verbs::Qpn;
///
/// let qpn = Qpn::new(0x12).expect("24 bits");
/// assert_eq!(qpn.to_string(), "0x000012");
/// assert_eq!(Qpn::new(1 << 24), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The QPN of the general service interface (GSI), which sends and receives CM messages (vol. 1, 3.9.3).
    pub const GSI: Qpn = Qpn(1);
    /// The destination QPN of multicast datagrams (vol. 1, 10.5.2).
    pub const MULTICAST: Qpn = Qpn(MASK);

    /// Creates the QPN `value`. Returns `None` if `value` has more than 24 bits.
    pub const fn new(value: u32) -> Option<Qpn> {
        if value <= MASK { Some(Qpn(value)) } else { None }
    }

    /// Creates a QPN from the low 24 bits of `value`.
    pub const fn truncate(value: u32) -> Qpn {
        Qpn(value & MASK)
    }

    /// Returns the number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_be_bytes(bytes: [u8; 3]) -> Qpn {
        Qpn(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    pub(crate) const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl From<Qpn> for u32 {
    fn from(qpn: Qpn) -> u32 {
        qpn.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

const MASK: u32 = 0x00ff_ffff;
