//! Integers that the C headers mark as big-endian.

/// A big-endian 16-bit integer. [`u16::from_be`] converts it to native byte order.
pub type __be16 = u16;

/// A big-endian 32-bit integer. [`u32::from_be`] converts it to native byte order.
pub type __be32 = u32;

/// A big-endian 64-bit integer. [`u64::from_be`] converts it to native byte order.
pub type __be64 = u64;
