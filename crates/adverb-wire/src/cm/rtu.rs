//! RTU: ready to use.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, PrivateData};

layout! {
    /// Ready to use: the sender of the REQ confirms the REP, and the connection is established (vol. 1, 12.6.9, table
    /// 111).
    pub struct Rtu in DATA_LEN {
        /// The sender's communication ID.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID.
        pub remote_comm_id: u32 = At<4>,
        /// The private data. Linux's `rdma_cm` sends none, and delivers none to the consumer.
        pub private_data: PrivateData<224> = At<8>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM RTU local {:#x} remote {:#x}", self.local_comm_id, self.remote_comm_id)
    }
}
