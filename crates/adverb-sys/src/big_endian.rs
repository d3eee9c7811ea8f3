//! Integers that C's headers mark as being in network byte order.

/// Sixteen bits, most significant byte first: read with [`u16::from_be`].
pub type __be16 = u16;

/// Thirty-two bits, most significant byte first: read with [`u32::from_be`].
pub type __be32 = u32;

/// Sixty-four bits, most significant byte first: read with [`u64::from_be`].
pub type __be64 = u64;
