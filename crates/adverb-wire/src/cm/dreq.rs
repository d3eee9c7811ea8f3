//! DREQ and DREP: the end of a connection.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, PrivateData};
use crate::Qpn;

layout! {
    /// A request for disconnection (vol. 1, 12.6.10, table 112).
    pub struct Dreq in DATA_LEN {
        /// The sender's name for the connection.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's name for the connection.
        pub remote_comm_id: u32 = At<4>,
        /// The receiver's queue pair, to make sure that the right connection is meant.
        pub remote_qpn: Qpn = At<8>,
        /// For the consumer.
        pub private_data: PrivateData<220> = At<12>,
    }
}

/// One line with what matters most.
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
    /// The reply to a request for disconnection (vol. 1, 12.6.11, table 113).
    pub struct Drep in DATA_LEN {
        /// The sender's name for the connection.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's name for the connection.
        pub remote_comm_id: u32 = At<4>,
        /// For the consumer.
        pub private_data: PrivateData<224> = At<8>,
    }
}

/// One line with what matters most.
impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM DREP local {:#x} remote {:#x}", self.local_comm_id, self.remote_comm_id)
    }
}
