//! The share of one process in an address that several processes have.

use adverb_wire::Qpn;

/// The part of the numbers that one link has at an address that links of several processes share: a 128th of the queue
/// pair numbers and of the communication IDs. So a packet's numbers determine the process that it is for.
///
/// ```
/// use adverb_soft::link::AddressShare;
/// use adverb_wire::Qpn;
///
/// let share = AddressShare::new(3).unwrap();
/// let qpn = Qpn::truncate(share.qpn(0x1234_5678));
/// assert!(share.contains(qpn));
/// assert_eq!(AddressShare::of_qpn(qpn), share);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AddressShare(u8);

impl AddressShare {
    /// The number of shares: the maximum number of links at an address.
    pub const MAX_COUNT: u8 = 128;

    /// The share with index 0.
    pub(crate) const FIRST: AddressShare = AddressShare(0);

    /// The maximum number of queue pairs of a link with a share: 7/8 of its numbers, so that a free one is found soon.
    pub const MAX_QUEUE_PAIRS: usize = 7 << (AddressShare::QPN_SHIFT - 3);

    /// The number of lower bits of a queue pair number that are not the share.
    pub(crate) const QPN_SHIFT: u32 = 17;

    /// The number of lower bits of a communication ID that are not the share.
    const COMM_ID_SHIFT: u32 = 25;

    /// Creates the share with an index below [`MAX_COUNT`](AddressShare::MAX_COUNT).
    pub const fn new(index: u8) -> Option<AddressShare> {
        if index < AddressShare::MAX_COUNT { Some(AddressShare(index)) } else { None }
    }

    /// Returns the share that a queue pair number belongs to.
    pub const fn of_qpn(qpn: Qpn) -> AddressShare {
        AddressShare((qpn.get() >> AddressShare::QPN_SHIFT) as u8)
    }

    /// Returns the share of the queue pair number to which a packet is sent, unless it is queue pair 0 or 1, which belong to no
    /// share.
    pub(super) fn of_packet(bytes: &[u8]) -> Option<AddressShare> {
        // The word of the base transport header with the destination.
        let word = bytes.get(4..8)?.first_chunk()?;
        let qpn = Qpn::truncate(u32::from_be_bytes(*word));
        (qpn.get() > 1).then(|| AddressShare::of_qpn(qpn))
    }

    /// Returns the share that a communication ID belongs to.
    pub const fn of_comm_id(id: u32) -> AddressShare {
        AddressShare((id >> AddressShare::COMM_ID_SHIFT) as u8)
    }

    /// Returns the index.
    pub const fn index(self) -> u8 {
        self.0
    }

    /// Returns a queue pair number of this share with the lower bits of `random`.
    pub const fn qpn(self, random: u32) -> u32 {
        (self.0 as u32) << AddressShare::QPN_SHIFT | random & ((1 << AddressShare::QPN_SHIFT) - 1)
    }

    /// Returns a communication ID of this share with the lower bits of `random`.
    pub const fn comm_id(self, random: u32) -> u32 {
        (self.0 as u32) << AddressShare::COMM_ID_SHIFT | random & ((1 << AddressShare::COMM_ID_SHIFT) - 1)
    }

    /// Whether a queue pair with this number belongs to the link. Queue pairs 0 and 1 belong to no share: a message to
    /// queue pair 1 is for the process that has the connection or listens on the service.
    pub const fn contains(self, qpn: Qpn) -> bool {
        qpn.get() >> AddressShare::QPN_SHIFT == self.0 as u32 && qpn.get() > 1
    }
}
