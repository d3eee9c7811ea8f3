//! Ids of work requests.

use crate::PeerId;

/// The id of a work request: the peer, the session, the queue, and the position in it.
///
/// A completion of an earlier session of the same peer has another session number, so it can't be mistaken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrId {
    pub(crate) peer: PeerId,
    pub(crate) session: u16,
    pub(crate) queue: Queue,
    /// The sequence number of a send request (31 bits), or the slot of a receive request.
    pub(crate) index: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queue {
    Send,
    Recv,
}

/// The bits of an index.
pub(crate) const INDEX_MASK: u32 = u32::MAX >> 1;

impl WrId {
    pub(crate) fn encode(self) -> u64 {
        let queue = match self.queue {
            Queue::Send => 0,
            Queue::Recv => 1 << 31,
        };
        u64::from(self.peer.0) << 48
            | u64::from(self.session) << 32
            | queue
            | u64::from(self.index & INDEX_MASK)
    }

    pub(crate) fn decode(wr_id: u64) -> WrId {
        WrId {
            peer: PeerId((wr_id >> 48) as u16),
            session: (wr_id >> 32) as u16,
            queue: if wr_id & 1 << 31 == 0 { Queue::Send } else { Queue::Recv },
            index: wr_id as u32 & INDEX_MASK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for queue in [Queue::Send, Queue::Recv] {
            let id = WrId { peer: PeerId(u16::MAX), session: 0xbeef, queue, index: INDEX_MASK };
            assert_eq!(WrId::decode(id.encode()), id);
            let id = WrId { peer: PeerId(3), session: 1, queue, index: 0 };
            assert_eq!(WrId::decode(id.encode()), id);
        }
    }
}
