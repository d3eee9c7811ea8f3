//! MRA: the answer will take a while.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, MessageKind, PrivateData, Timeout};

layout! {
    /// A message receipt acknowledgement: the message has come, but the answer takes longer than its sender
    /// expects (vol. 1, 12.6.6, table 107).
    pub struct Mra in DATA_LEN {
        /// The sender's name for the connection.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's name for the connection.
        pub remote_comm_id: u32 = At<4>,
        /// Which message has come.
        pub acknowledged: MessageKind = At<8>,
        /// How long the answer takes at most, counted from this message.
        pub service_timeout: Timeout = At<9>,
        /// For the consumer.
        pub private_data: PrivateData<222> = At<10>,
    }
}

/// One line with what matters most.
impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM MRA local {:#x} remote {:#x} of {} wait {}",
            self.local_comm_id, self.remote_comm_id, self.acknowledged, self.service_timeout
        )
    }
}
