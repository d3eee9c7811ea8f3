//! Integers that the C headers mark as big-endian.

/// A big-endian 16-bit integer, converted by [`u16::from_be`].
pub type __be16 = u16;

/// A big-endian 32-bit integer, converted by [`u32::from_be`].
pub type __be32 = u32;

/// A big-endian 64-bit integer, converted by [`u64::from_be`].
pub type __be64 = u64;
