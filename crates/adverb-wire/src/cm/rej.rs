//! REJ: the rejection of a connection.

use core::fmt;

use super::layout::{At, Block, layout};
use super::{AdditionalInfo, Bits, DATA_LEN, MessageKind, PrivateData, RejectReason};

layout! {
    /// A rejection: the sender rejects the connection, or aborts its establishment (vol. 1, 12.6.7, table 108).
    pub struct Rej in DATA_LEN {
        /// The sender's communication ID, or 0 if the sender assigned none.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID, or 0 if the sender doesn't know it yet.
        pub remote_comm_id: u32 = At<4>,
        /// The kind of message that this REJ rejects.
        pub rejected: MessageKind = At<8>,
        /// The reason for the rejection.
        pub reason: RejectReason = At<10>,
        /// Details of the reason; for some reasons, a value that would be accepted.
        pub additional_info: AdditionalInfo = InfoAt<9, 7, 12>,
        /// The private data; after a [consumer reject](RejectReason::ConsumerReject), the consumer's explanation.
        pub private_data: PrivateData<148> = At<84>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REJ local {:#x} remote {:#x} of {} reason: {}",
            self.local_comm_id, self.remote_comm_id, self.rejected, self.reason
        )
    }
}

/// The position of additional information: its length in `WIDTH` bits of byte `LENGTH`, and its 72 bytes from byte
/// `BYTES`.
pub(super) struct InfoAt<const LENGTH: usize, const WIDTH: usize, const BYTES: usize>;

impl<const LENGTH: usize, const WIDTH: usize, const BYTES: usize> InfoAt<LENGTH, WIDTH, BYTES> {
    pub(super) fn get<const LEN: usize>(block: &Block<LEN>) -> AdditionalInfo {
        let length: Bits<WIDTH> = At::<LENGTH>::get(block);
        AdditionalInfo::received(length.get(), At::<BYTES>::get(block))
    }

    pub(super) fn put<const LEN: usize>(block: &mut Block<LEN>, info: &AdditionalInfo) {
        At::<LENGTH>::put(block, &Bits::<WIDTH>::truncate(info.length()));
        At::<BYTES>::put(block, info.padded());
    }
}
