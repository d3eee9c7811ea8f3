//! REP: the reply that accepts a REQ.

use core::fmt;

use super::ece::EceAt;
use super::layout::{At, layout};
use super::{Bits, DATA_LEN, Ece, Failover, PrivateData, Timeout};
use crate::{Psn, Qpn};

layout! {
    /// The reply that accepts a request for communication (vol. 1, 12.6.8, table 110).
    ///
    /// "Local" means the sender of the REP, "remote" means its receiver, which sent the REQ.
    pub struct Rep in DATA_LEN {
        /// The sender's communication ID.
        pub local_comm_id: u32 = At<0>,
        /// The receiver's communication ID, from the REQ.
        pub remote_comm_id: u32 = At<4>,
        /// The Q_Key of the sender's queue pair; for reliable datagrams only.
        pub qkey: u32 = At<8>,
        /// The number of the sender's queue pair.
        pub qpn: Qpn = At<12>,
        /// The enhanced connection establishment (ECE) options that the sender accepts from the REQ.
        pub ece: Ece = EceAt<15, 19, 23>,
        /// The sender's end-to-end context (EECN) for reliable datagrams; for XRC, the sender's target queue pair.
        pub eecn: Bits<24> = At<16>,
        /// The first PSN of the *receiver's* requests, which is the first PSN that the sender expects (vol. 1, 12.7;
        /// `cm_rep_handler` in Linux's `cm.c`).
        pub starting_psn: Psn = At<20>,
        /// The maximum number of RDMA READs and atomics outstanding from the receiver to the sender.
        pub responder_resources: u8 = At<24>,
        /// The maximum number of RDMA READs and atomics outstanding from the sender to the receiver.
        pub initiator_depth: u8 = At<25>,
        /// The maximum time that the sender takes to acknowledge a request.
        pub target_ack_delay: Timeout = At<26>,
        /// The sender's response to the alternate path of the REQ.
        pub failover: Failover = At<26, 5>,
        /// Whether the sender's channel adapter supports end-to-end flow control.
        pub end_to_end_flow_control: bool = At<26, 7>,
        /// The maximum number of times that the receiver retries a request after an RNR NAK; 7 means no limit.
        pub rnr_retry_count: Bits<3> = At<27>,
        /// Whether the sender's queue pair has a shared receive queue.
        pub srq: bool = At<27, 3>,
        /// The GUID of the sender's channel adapter.
        pub ca_guid: u64 = At<28>,
        /// The private data.
        pub private_data: PrivateData<196> = At<36>,
    }
}

/// Prints one line with the most important fields.
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
