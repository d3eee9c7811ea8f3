//! Packet sequence numbers: wrapping 24-bit counters.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A packet sequence number (PSN): 24 bits, wrapping.
///
/// Because PSNs wrap, their order is the sign of the shorter distance between them (vol. 1, 9.7.2). This order is not
/// transitive, so `Psn` doesn't implement `Ord`; [`since`](Psn::since) returns the signed distance.
///
/// ```
/// # mod adverb { pub use adverb_wire as verbs; }
/// use adverb::verbs::Psn;
///
/// let last = Psn::MAX;
/// let next = last + 1;
/// assert_eq!(next, Psn::ZERO);
/// assert!(last.is_before(next));
/// assert_eq!(next.since(last), 1);
/// assert_eq!(last.since(next), -1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// PSN 0.
    pub const ZERO: Psn = Psn(0);
    /// The last PSN before the wrap: 2²⁴ − 1.
    pub const MAX: Psn = Psn(MASK);

    /// Creates the PSN `value`. Returns `None` if `value` has more than 24 bits.
    pub const fn new(value: u32) -> Option<Psn> {
        if value <= MASK { Some(Psn(value)) } else { None }
    }

    /// Creates a PSN from the low 24 bits of `value`, such as a random number or a wider counter.
    pub const fn wrapping(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// Returns the number, below 2²⁴.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the signed distance from `earlier` to this PSN, in −2²³ .. 2²³. The distance is negative if this PSN
    /// precedes `earlier`.
    ///
    /// If the two PSNs are exactly 2²³ apart, the distance is −2²³ in both directions, so each one
    /// [is before](Psn::is_before) the other.
    pub const fn since(self, earlier: Psn) -> i32 {
        // Shifted up by 8, the 24-bit sign becomes the sign of an i32, and the shift down extends it.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }

    /// Whether this PSN precedes `other`.
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }

    /// Whether this PSN follows `other`.
    ///
    /// ```
    /// # mod adverb { pub use adverb_wire as verbs; }
    /// use adverb::verbs::Psn;
    ///
    /// assert!(Psn::ZERO.is_after(Psn::MAX));
    /// ```
    pub const fn is_after(self, other: Psn) -> bool {
        self.since(other) > 0
    }

    /// Whether this PSN is one of the `count` PSNs that start with `first`.
    ///
    /// ```
    /// # mod adverb { pub use adverb_wire as verbs; }
    /// use adverb::verbs::Psn;
    ///
    /// assert!(Psn::ZERO.is_within(Psn::MAX, 2));
    /// assert!(!Psn::MAX.is_within(Psn::ZERO, 2));
    /// ```
    pub const fn is_within(self, first: Psn, count: u32) -> bool {
        self.0.wrapping_sub(first.0) & MASK < count
    }

    pub(crate) const fn from_be_bytes(bytes: [u8; 3]) -> Psn {
        Psn(u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]))
    }

    pub(crate) const fn to_be_bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl Add<u32> for Psn {
    type Output = Psn;

    fn add(self, count: u32) -> Psn {
        Psn::wrapping(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Psn {
    type Output = Psn;

    fn sub(self, count: u32) -> Psn {
        Psn::wrapping(self.0.wrapping_sub(count))
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> u32 {
        psn.0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({})", self.0)
    }
}

const MASK: u32 = 0x00ff_ffff;
