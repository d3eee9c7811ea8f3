//! The path MTU: the maximum payload of a packet.

use core::fmt;

use super::Bits;
use super::layout::small_field;

/// A path MTU: the maximum payload of a packet, one of five sizes.
///
/// The codes are those of the field "path packet payload MTU" of a REQ (vol. 1, 12.7) and of `ibv_mtu` in libibverbs.
///
/// ```
/// # mod adverb { pub use adverb_wire::cm as verbs; }
/// use adverb::verbs::PathMtu;
///
/// // With an Ethernet MTU of 1500 bytes, IPv6 and the headers of a WRITE with immediate data leave 1416 bytes for the
/// // payload, so the path MTU is 1024.
/// assert_eq!(PathMtu::at_most(1416), Some(PathMtu::Mtu1024));
/// assert_eq!(PathMtu::Mtu1024.bytes(), 1024);
/// assert_eq!(PathMtu::from_code(3), Some(PathMtu::Mtu1024));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// All path MTUs in ascending order.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Returns the MTU with the code `code`, or `None` if `code` isn't in the range 1 to 5.
    pub const fn from_code(code: u8) -> Option<PathMtu> {
        match code {
            1 => Some(PathMtu::Mtu256),
            2 => Some(PathMtu::Mtu512),
            3 => Some(PathMtu::Mtu1024),
            4 => Some(PathMtu::Mtu2048),
            5 => Some(PathMtu::Mtu4096),
            _ => None,
        }
    }

    /// Returns the largest MTU of at most `bytes` bytes, or `None` if `bytes` is below 256.
    pub fn at_most(bytes: usize) -> Option<PathMtu> {
        Self::ALL.into_iter().rev().find(|mtu| usize::from(mtu.bytes()) <= bytes)
    }

    /// Returns the code on the wire and in libibverbs, 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the MTU in bytes.
    pub const fn bytes(self) -> u16 {
        128 << self.code()
    }
}

/// Prints the number of bytes.
impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes(), f)
    }
}

/// A 4-bit MTU code that is not a [`PathMtu`].
///
/// Only parsing creates values of this type. An unknown code isn't a parse error, because the CM needs the rest of the
/// REQ to reject it with [`RejectReason::InvalidPathMtu`](super::RejectReason::InvalidPathMtu).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnknownMtu(pub(crate) Bits<4>);

impl UnknownMtu {
    /// Returns the received code: 0 or 6 to 15.
    pub fn code(self) -> u8 {
        self.0.into()
    }
}

impl fmt::Display for UnknownMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown MTU code {}", self.0)
    }
}

impl core::error::Error for UnknownMtu {}

type MtuField = Result<PathMtu, UnknownMtu>;

small_field!(
    MtuField,
    4,
    |bits| {
        let code = Bits::truncate(bits);
        PathMtu::from_code(code.into()).ok_or(UnknownMtu(code))
    },
    |mtu| match mtu {
        Ok(mtu) => mtu.code().into(),
        Err(unknown) => unknown.0.into(),
    }
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::layout::SmallField;

    #[test]
    fn every_code_round_trips() {
        for code in 0..16 {
            let field = MtuField::from_bits(code);
            assert_eq!(field.to_bits(), code);
            assert_eq!(field.is_ok(), (1..=5).contains(&code));
        }
    }

    #[test]
    fn at_most_returns_the_largest_mtu_that_fits() {
        assert_eq!(PathMtu::at_most(255), None);
        assert_eq!(PathMtu::at_most(usize::MAX), Some(PathMtu::Mtu4096));
        for mtu in PathMtu::ALL {
            let bytes = usize::from(mtu.bytes());
            assert_eq!(PathMtu::at_most(bytes), Some(mtu));
            assert!(PathMtu::at_most(bytes - 1) < Some(mtu));
            assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
        }
    }
}
