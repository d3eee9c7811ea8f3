//! What a device has counted.

/// Counters of a device since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Packets handed out to be sent.
    pub packets_sent: u64,
    /// Packets that passed all checks up to the queue pair.
    pub packets_received: u64,
    /// Payload bytes in packets handed out.
    pub bytes_sent: u64,
    /// Payload bytes in packets received.
    pub bytes_received: u64,
    /// Packets dropped: see the other counters for some of the reasons.
    pub packets_dropped: u64,
    /// Packets whose ICRC was wrong.
    pub icrc_errors: u64,
    /// Packets for a queue pair that isn't there, or isn't ready.
    pub unknown_qp: u64,
    /// Packets from or to an address, or in a partition, that isn't the queue pair's.
    pub wrong_address: u64,
    /// Request packets sent again.
    pub retransmitted_packets: u64,
    /// Times that no acknowledgement came in time.
    pub ack_timeouts: u64,
    /// Sequence-error NAKs received.
    pub sequence_naks_received: u64,
    /// Sequence-error NAKs sent: requests that came ahead of their turn.
    pub out_of_sequence: u64,
    /// Receiver-not-ready NAKs received.
    pub rnr_naks_received: u64,
    /// Receiver-not-ready NAKs sent.
    pub rnr_naks_sent: u64,
    /// Answers that showed an earlier answer to be lost.
    pub implied_naks: u64,
    /// Requests that had been executed before.
    pub duplicate_requests: u64,
    /// READs and atomics answered again.
    pub replays: u64,
    /// NAKs sent that end a connection: invalid request, access, operational.
    pub fatal_naks_sent: u64,
    /// NAKs received that end a connection.
    pub fatal_naks_received: u64,
    /// Requests that failed because no acknowledgement came.
    pub retries_exceeded: u64,
    /// Requests that failed because the peer had no receive posted.
    pub rnr_retries_exceeded: u64,
    /// Completions of any kind.
    pub completions: u64,
    /// Completions lost because a queue was full.
    pub completions_lost: u64,
    /// Messages of unreliable transports that came, in whole or in part, and weren't delivered: a packet was missing,
    /// no receive was posted, or they weren't allowed.
    pub messages_dropped: u64,
    /// Packets of unreliable connections that didn't come in their turn.
    pub packets_missing: u64,
    /// Datagrams with another queue key than that of their queue pair.
    pub qkey_violations: u64,
    /// Packets that came marked by a congested switch.
    pub ecn_marked_packets: u64,
    /// Congestion notifications sent.
    pub cnps_sent: u64,
    /// Congestion notifications received.
    pub cnps_received: u64,
}
