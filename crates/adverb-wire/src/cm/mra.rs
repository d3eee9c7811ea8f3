//! MRA: the message receipt acknowledgement.

use core::fmt;

use super::layout::{At, layout};
use super::{DATA_LEN, MessageKind, PrivateData, Timeout};

layout! {
    /// A message receipt acknowledgement: the sender has received the message, but its reply takes longer than the
    /// peer's timeout (vol. 1, 12.6.6, table 107).
    pub struct Mra in DATA_LEN {
        /// The sender's communication ID.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID.
        pub remote_comm_id: u32 = At<4>,
        /// The kind of message that this MRA acknowledges.
        pub acknowledged: MessageKind = At<8>,
        /// The maximum time until the reply, counted from this message.
        pub service_timeout: Timeout = At<9>,
        /// The private data.
        pub private_data: PrivateData<222> = At<10>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM MRA local {:#x} remote {:#x} of {} wait {}",
            self.local_comm_id, self.remote_comm_id, self.acknowledged, self.service_timeout
        )
    }
}
