//! DREQ and DREP: the end of a connection.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, PrivateData};
use crate::Qpn;

layout! {
    /// A disconnection request (vol. 1, 12.6.10, table 112).
    pub struct Dreq in DATA_LEN {
        /// The sender's communication ID.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID.
        pub remote_comm_id: u32 = At<4>,
        /// The number of the receiver's queue pair, which must match the connection.
        pub remote_qpn: Qpn = At<8>,
        /// The private data.
        pub private_data: PrivateData<220> = At<12>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM DREQ local {:#x} remote {:#x} qp {}",
            self.local_comm_id, self.remote_comm_id, self.remote_qpn
        )
    }
}

layout! {
    /// The reply to a disconnection request (vol. 1, 12.6.11, table 113).
    pub struct Drep in DATA_LEN {
        /// The sender's communication ID.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID.
        pub remote_comm_id: u32 = At<4>,
        /// The private data.
        pub private_data: PrivateData<224> = At<8>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM DREP local {:#x} remote {:#x}", self.local_comm_id, self.remote_comm_id)
    }
}
