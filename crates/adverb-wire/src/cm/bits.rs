//! Numbers of a fixed width in bits.

use core::fmt;

/// A number of `N` bits, for message fields whose width isn't that of an integer type.
///
/// The value always fits the field, so sending never truncates the value.
///
/// ```
/// use adverb_wire::cm::Bits;
///
/// let retries = Bits::<3>::new(6).expect("below 8");
/// assert_eq!(u8::from(retries), 6);
/// assert_eq!(Bits::<3>::new(8), None);
/// assert_eq!(Bits::<3>::MAX.get(), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bits<const N: usize>(u32);

impl<const N: usize> Bits<N> {
    /// Zero.
    pub const ZERO: Bits<N> = Bits(0);
    /// The largest number of `N` bits: all ones.
    pub const MAX: Bits<N> = Bits(if N >= 32 { u32::MAX } else { (1 << N) - 1 });

    /// Creates the number `value`. Returns `None` if `value` has more than `N` bits.
    pub const fn new(value: u32) -> Option<Bits<N>> {
        if value <= Self::MAX.0 { Some(Bits(value)) } else { None }
    }

    /// Creates a number from the low `N` bits of `value`.
    pub const fn truncate(value: u32) -> Bits<N> {
        Bits(value & Self::MAX.0)
    }

    /// Returns the number, below 2ᴺ.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl<const N: usize> From<Bits<N>> for u32 {
    fn from(bits: Bits<N>) -> u32 {
        bits.0
    }
}

/// Conversions to `u8` for the widths that fit.
macro_rules! into_byte {
    ($($n:literal)*) => {
        $(
            impl From<Bits<$n>> for u8 {
                fn from(bits: Bits<$n>) -> u8 {
                    let [.., low] = bits.0.to_be_bytes();
                    low
                }
            }
        )*
    };
}

into_byte!(1 2 3 4 5 6 7 8);

impl<const N: usize> fmt::Display for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl<const N: usize> fmt::Debug for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<const N: usize> fmt::LowerHex for Bits<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_never_exceeds_its_width() {
        assert_eq!(Bits::<1>::MAX.get(), 1);
        assert_eq!(Bits::<24>::MAX.get(), 0x00ff_ffff);
        assert_eq!(Bits::<32>::MAX.get(), u32::MAX);
        for value in 0..256 {
            assert_eq!(Bits::<5>::new(value).is_some(), value < 32);
            assert_eq!(Bits::<5>::truncate(value).get(), value % 32);
        }
        assert_eq!(u8::from(Bits::<6>::truncate(0xffff)), 63);
    }
}
