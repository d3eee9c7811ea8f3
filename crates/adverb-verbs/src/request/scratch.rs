//! Memory that posting reuses.

use adverb_proto::types::Segment;

use super::{Batch, RecvRequest};
use crate::backend::{self, RecvList, SendSlot};

/// Reusable memory, so that posting doesn't allocate.
pub(crate) struct Scratch {
    pub(crate) send: SendSlot,
    /// The batch, unless a thread fills it.
    pub(crate) batch: Option<Box<Batch>>,
    pub(crate) recv_list: RecvList,
    pub(crate) recvs: Vec<RecvRequest>,
    /// The segments of a request that has several.
    pub(crate) segments: Vec<Segment>,
}

impl Scratch {
    #[cfg(all(test, feature = "soft", not(loom)))]
    pub(super) fn of_a_software_nic() -> Scratch {
        let recv_list = RecvList::soft();
        Scratch { send: SendSlot::Soft, batch: None, recv_list, recvs: Vec::new(), segments: Vec::new() }
    }

    pub(crate) fn new(device: &backend::Device) -> Scratch {
        Scratch {
            send: device.send_slot(),
            batch: None,
            recv_list: device.recv_list(),
            recvs: Vec::new(),
            segments: Vec::new(),
        }
    }
}
