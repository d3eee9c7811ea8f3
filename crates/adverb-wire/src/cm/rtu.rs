//! RTU: ready to use.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, PrivateData};

layout! {
    /// Ready to use: the sender of the REQ has the REP, and the connection stands (vol. 1, 12.6.9, table
    /// 111).
    pub struct Rtu in DATA_LEN {
        /// The sender's name for the connection.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's name for the connection.
        pub remote_comm_id: u32 = At<4>,
        /// For the consumer. Linux sends none and hands none on.
        pub private_data: PrivateData<224> = At<8>,
    }
}

/// One line with what matters most.
impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM RTU local {:#x} remote {:#x}", self.local_comm_id, self.remote_comm_id)
    }
}
