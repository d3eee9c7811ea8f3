//! REP: the answer to a REQ that is taken.

use core::fmt;

use super::ece::EceAt;
use super::layout::{At, layout};
use super::{Bits, DATA_LEN, Ece, Failover, PrivateData, Timeout};
use crate::{Psn, Qpn};

layout! {
    /// The reply to a request for communication: the receiver of the REQ agrees (vol. 1, 12.6.8, table 110).
    ///
    /// "Local" is the sender of the REP and "remote" its receiver, who sent the REQ.
    pub struct Rep in DATA_LEN {
        /// The sender's name for the connection.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's name for the connection, from the REQ.
        pub remote_comm_id: u32 = At<4>,
        /// The queue pair's Q_Key; for reliable datagrams only.
        pub qkey: u32 = At<8>,
        /// The sender's queue pair.
        pub qpn: Qpn = At<12>,
        /// The vendor's options that are taken of those in the REQ.
        pub ece: Ece = EceAt<15, 19, 23>,
        /// The sender's end-to-end context, for reliable datagrams; in XRC its target queue pair.
        pub eecn: Bits<24> = At<16>,
        /// The PSN with which the *receiver* of this message is to begin: the first that the sender expects (vol. 1,
        /// 12.7; `cm_req_handler` in Linux's `cm.c`).
        pub starting_psn: Psn = At<20>,
        /// How many reads and atomics the sender takes from its peer at once.
        pub responder_resources: u8 = At<24>,
        /// How many reads and atomics the sender will have outstanding at its peer.
        pub initiator_depth: u8 = At<25>,
        /// How long the sender takes for an acknowledgement at most.
        pub target_ack_delay: Timeout = At<26>,
        /// Whether the REQ's alternate path is taken.
        pub failover: Failover = At<26, 5>,
        /// The sender's channel adapter can do end-to-end flow control.
        pub end_to_end_flow_control: bool = At<26, 7>,
        /// How often the receiver is to repeat a request that finds no receive buffer; 7 is for ever.
        pub rnr_retry_count: Bits<3> = At<27>,
        /// The sender's queue pair has a shared receive queue.
        pub srq: bool = At<27, 3>,
        /// The sender's channel adapter.
        pub ca_guid: u64 = At<28>,
        /// For the consumer.
        pub private_data: PrivateData<196> = At<36>,
    }
}

/// One line with what matters most.
impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM REP local {:#x} remote {:#x} qp {} psn {} resources {} depth {} rnr {}",
            self.local_comm_id,
            self.remote_comm_id,
            self.qpn,
            self.starting_psn,
            self.responder_resources,
            self.initiator_depth,
            self.rnr_retry_count
        )?;
        if self.ece == Ece::NONE { Ok(()) } else { write!(f, " ece {}", self.ece) }
    }
}
