//! Enhanced connection establishment (ECE) options.

use core::fmt;

use super::Bits;
use super::layout::{At, Block};

/// Enhanced connection establishment (ECE) options, which are specific to a vendor. A REQ offers options, and a REP
/// or SIDR_REP accepts them.
///
/// ConnectX NICs use ECE. [`Ece::NONE`] is always safe to send. The vendor ID is in formerly reserved bytes of the
/// message, and the options are in the attribute modifier of the MAD header (see `ibv_ece` in libibverbs).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ece {
    /// The vendor's 24-bit OUI.
    pub vendor_id: Bits<24>,
    /// The options, whose meaning the vendor defines.
    pub options: u32,
}

impl Ece {
    /// No options.
    pub const NONE: Ece = Ece { vendor_id: Bits::ZERO, options: 0 };
}

/// Prints vendor and options, as in `0x0002c9/0x1`.
impl fmt::Display for Ece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}/{:#x}", self.vendor_id, self.options)
    }
}

/// The positions of the three bytes of a vendor ID. The options are in the MAD header instead: see [`Ece`].
pub(super) struct EceAt<const HIGH: usize, const MIDDLE: usize, const LOW: usize>;

impl<const HIGH: usize, const MIDDLE: usize, const LOW: usize> EceAt<HIGH, MIDDLE, LOW> {
    pub(super) fn get<const LEN: usize>(block: &Block<LEN>) -> Ece {
        let bytes = [0, At::<HIGH>::get(block), At::<MIDDLE>::get(block), At::<LOW>::get(block)];
        Ece { vendor_id: Bits::truncate(u32::from_be_bytes(bytes)), options: 0 }
    }

    pub(super) fn put<const LEN: usize>(block: &mut Block<LEN>, ece: &Ece) {
        let [_, high, middle, low] = ece.vendor_id.get().to_be_bytes();
        At::<HIGH>::put(block, &high);
        At::<MIDDLE>::put(block, &middle);
        At::<LOW>::put(block, &low);
    }
}
