//! Message layouts: each field is declared once with its position, which both reading and writing use.
//!
//! A position is a byte offset and, for fields that aren't whole bytes, a bit offset in that byte, counted from the
//! most significant bit as in the specification's tables. The compiler checks that each field lies within its message,
//! so reading and writing can't fail.

use core::net::Ipv6Addr;

use super::{Bits, PrivateData, ServiceId, Timeout};
use crate::{Psn, Qpn};

/// Declares a struct whose fields have positions in a [`Block`].
macro_rules! layout {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident in $len:path {
            $( $(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty = $position:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        $vis struct $name {
            $( $(#[$field_meta])* $field_vis $field: $type, )*
        }

        impl $name {
            pub(in crate::cm) fn read(block: &$crate::cm::layout::Block<{ $len }>) -> $name {
                $name { $( $field: <$position>::get(block), )* }
            }

            /// Writes the fields in the order of their declaration; reserved bits are left as they are.
            pub(in crate::cm) fn write(&self, block: &mut $crate::cm::layout::Block<{ $len }>) {
                $( <$position>::put(block, &self.$field); )*
            }
        }
    };
}

pub(super) use layout;

/// The position of a field: bit `BIT` of byte `BYTE`.
pub(super) struct At<const BYTE: usize, const BIT: usize = 0>;

impl<const BYTE: usize, const BIT: usize> At<BYTE, BIT> {
    pub(super) fn get<T: Field, const LEN: usize>(block: &Block<LEN>) -> T {
        const { assert!(fits(BYTE, BIT, T::WIDTH, LEN), "a field lies within its message") };
        T::get(block, BYTE, BIT)
    }

    pub(super) fn put<T: Field, const LEN: usize>(block: &mut Block<LEN>, value: &T) {
        const { assert!(fits(BYTE, BIT, T::WIDTH, LEN), "a field lies within its message") };
        value.put(block, BYTE, BIT);
    }
}

/// Whether a field of `width` bits lies within `len` bytes and, if it doesn't start at a byte boundary, within 32 bits.
const fn fits(byte: usize, bit: usize, width: usize, len: usize) -> bool {
    width > 0 && byte * 8 + bit + width <= len * 8 && (bit == 0 || bit + width <= 32)
}

/// The bytes of a message.
pub(super) struct Block<const LEN: usize>(pub(super) [u8; LEN]);

impl<const LEN: usize> Block<LEN> {
    /// Returns the `N` bytes at `byte`. Bytes after the end read as zero.
    pub(super) fn array<const N: usize>(&self, byte: usize) -> [u8; N] {
        let mut array = [0; N];
        array.iter_mut().zip(self.0.iter().skip(byte)).for_each(|(to, from)| *to = *from);
        array
    }

    /// Writes `array` at `byte`. Bytes after the end are dropped.
    pub(super) fn put_array<const N: usize>(&mut self, byte: usize, array: &[u8; N]) {
        self.0.iter_mut().skip(byte).zip(array).for_each(|(to, from)| *to = *from);
    }

    /// Returns the `width` bits (1 to 32) that start at bit `bit` of `byte`. `bit + width` is at most 32.
    fn bits(&self, byte: usize, bit: usize, width: usize) -> u32 {
        (u32::from_be_bytes(self.array(byte)) << bit) >> (32 - width)
    }

    /// Writes the low `width` bits of `value` from bit `bit` of `byte` on, and leaves all other bits unchanged.
    fn put_bits(&mut self, byte: usize, bit: usize, width: usize, value: u32) {
        let mask = (u32::MAX << (32 - width)) >> bit;
        let window = u32::from_be_bytes(self.array(byte));
        let value = (value << (32 - width)) >> bit;
        self.put_array(byte, &(window & !mask | value).to_be_bytes());
    }
}

/// A value that can be a field.
pub(super) trait Field {
    /// The width in bits.
    const WIDTH: usize;

    fn get<const LEN: usize>(block: &Block<LEN>, byte: usize, bit: usize) -> Self;

    fn put<const LEN: usize>(&self, block: &mut Block<LEN>, byte: usize, bit: usize);
}

/// A field of up to 32 bits.
pub(super) trait SmallField: Copy {
    const WIDTH: usize;

    fn from_bits(bits: u32) -> Self;

    fn to_bits(self) -> u32;
}

impl<T: SmallField> Field for T {
    const WIDTH: usize = T::WIDTH;

    fn get<const LEN: usize>(block: &Block<LEN>, byte: usize, bit: usize) -> T {
        T::from_bits(block.bits(byte, bit, T::WIDTH))
    }

    fn put<const LEN: usize>(&self, block: &mut Block<LEN>, byte: usize, bit: usize) {
        block.put_bits(byte, bit, T::WIDTH, self.to_bits());
    }
}

/// Implements [`SmallField`] by two expressions.
macro_rules! small_field {
    ($type:ty, $width:literal, |$bits:ident| $from:expr, |$value:ident| $to:expr) => {
        impl $crate::cm::layout::SmallField for $type {
            const WIDTH: usize = $width;

            fn from_bits($bits: u32) -> $type {
                $from
            }

            fn to_bits(self) -> u32 {
                let $value = self;
                $to
            }
        }
    };
}

pub(super) use small_field;

small_field!(bool, 1, |bits| bits != 0, |value| value.into());
small_field!(u8, 8, |bits| Bits::<8>::truncate(bits).into(), |value| value.into());
small_field!(u16, 16, |bits| u16::try_from(bits).unwrap_or(u16::MAX), |value| value.into());
small_field!(u32, 32, |bits| bits, |value| value);
small_field!(Psn, 24, |bits| Psn::wrapping(bits), |value| value.get());
small_field!(Qpn, 24, |bits| Qpn::truncate(bits), |value| value.get());
small_field!(
    Timeout,
    5,
    |bits| Timeout::new(Bits::<5>::truncate(bits).into()).unwrap_or(Timeout::MAX),
    |value| value.code().into()
);

impl<const N: usize> SmallField for Bits<N> {
    const WIDTH: usize = N;

    fn from_bits(bits: u32) -> Bits<N> {
        Bits::truncate(bits)
    }

    fn to_bits(self) -> u32 {
        self.get()
    }
}

/// Implements [`Field`] for a type of whole bytes by conversions from and to an array.
macro_rules! array_field {
    ($type:ty, $len:literal, $from:expr, $to:expr) => {
        impl $crate::cm::layout::Field for $type {
            const WIDTH: usize = $len * 8;

            fn get<const LEN: usize>(
                block: &$crate::cm::layout::Block<LEN>,
                byte: usize,
                _bit: usize,
            ) -> $type {
                let array: [u8; $len] = block.array(byte);
                $from(array)
            }

            fn put<const LEN: usize>(
                &self,
                block: &mut $crate::cm::layout::Block<LEN>,
                byte: usize,
                _bit: usize,
            ) {
                let array: [u8; $len] = $to(*self);
                block.put_array(byte, &array);
            }
        }
    };
}

pub(super) use array_field;

array_field!(u64, 8, u64::from_be_bytes, u64::to_be_bytes);
array_field!(ServiceId, 8, |id| ServiceId::new(u64::from_be_bytes(id)), |id: ServiceId| id
    .get()
    .to_be_bytes());
array_field!(Ipv6Addr, 16, Ipv6Addr::from, |address: Ipv6Addr| address.octets());

impl<const N: usize> Field for PrivateData<N> {
    const WIDTH: usize = N * 8;

    fn get<const LEN: usize>(block: &Block<LEN>, byte: usize, _bit: usize) -> PrivateData<N> {
        PrivateData::from(block.array(byte))
    }

    fn put<const LEN: usize>(&self, block: &mut Block<LEN>, byte: usize, _bit: usize) {
        block.put_array(byte, self.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_most_significant() {
        let mut block = Block([0; 4]);
        block.put_bits(1, 2, 3, 0b101);
        assert_eq!(block.0, [0, 0b0010_1000, 0, 0]);
        assert_eq!(block.bits(1, 2, 3), 0b101);
        assert_eq!(block.bits(1, 0, 8), 0b0010_1000);
    }

    #[test]
    fn put_bits_changes_no_adjacent_bits() {
        let mut block = Block([0xff; 4]);
        block.put_bits(1, 4, 20, 0);
        assert_eq!(block.0, [0xff, 0xf0, 0, 0]);
        block.put_bits(0, 0, 32, 0x1234_5678);
        assert_eq!(block.0, [0x12, 0x34, 0x56, 0x78]);
    }

    #[test]
    fn put_bits_reaches_the_last_bits_of_a_block() {
        let mut block = Block([0; 4]);
        block.put_bits(3, 5, 3, 0xffff_ffff);
        assert_eq!(block.0, [0, 0, 0, 7]);
        assert_eq!(block.bits(3, 5, 3), 7);
    }
}
