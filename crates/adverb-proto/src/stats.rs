//! Counters of a device.

/// Declares the counters: their fields, and the names under which they are exported.
macro_rules! statistics {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Counters of a device since its creation.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Statistics {
            /// Returns the counters with the names that `adverb::verbs` uses: those of Linux's rxe
            /// (`rxe_hw_counters.c`) if it has the counter, otherwise those of the mlx5 driver, otherwise names in
            /// their style.
            ///
            /// ```
            /// let device = adverb_proto::Device::new(());
            /// assert!(device.statistics().counters().any(|counter| counter == ("sent_pkts", 0)));
            /// ```
            pub fn counters(&self) -> impl ExactSizeIterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }
        }
    };
}

statistics! {
    /// Packets that the device returned for sending.
    packets_sent: "sent_pkts",
    /// Received packets that passed the checks of queue pair, addresses, partition, ICRC and transport. A multicast
    /// packet counts once for each member of the group. Congestion notification packets (CNPs) are counted separately.
    packets_received: "rcvd_pkts",
    /// Payload bytes of sent packets.
    bytes_sent: "sent_bytes",
    /// Payload bytes of received packets.
    bytes_received: "rcvd_bytes",
    /// Received packets that were dropped. Other counters give some of the reasons.
    packets_dropped: "rcvd_dropped_pkts",
    /// Packets with a wrong ICRC.
    icrc_errors: "rcvd_icrc_err",
    /// Packets for a queue pair that does not exist or is not ready.
    unknown_qp_packets: "rcvd_unknown_qp_err",
    /// Packets whose addresses or partition key do not match the queue pair's.
    wrong_address_packets: "rcvd_address_err",
    /// Packets that the link could not send: no route, a forbidden destination, or a source address of another link.
    unsendable_packets: "sent_dropped_pkts",
    /// Request packets retransmitted.
    retransmitted_packets: "retransmitted_pkts",
    /// Expirations of the acknowledgement timeout.
    ack_timeouts: "local_ack_timeout_err",
    /// Sequence-error NAKs received.
    sequence_naks_received: "rcvd_seq_err",
    /// Sequence-error NAKs sent, for requests ahead of the expected sequence number.
    sequence_naks_sent: "out_of_seq_request",
    /// Receiver-not-ready NAKs received.
    rnr_naks_received: "rcvd_rnr_err",
    /// Receiver-not-ready NAKs sent.
    rnr_naks_sent: "send_rnr_err",
    /// Responses dropped because they don't match the outstanding requests: they are of another kind, or have a message
    /// sequence number that the peer can't have reached.
    mismatched_responses: "rcvd_mismatched_response",
    /// Responses that arrived while an earlier response was missing.
    implied_naks: "implied_nak_seq_err",
    /// Received request packets below the expected sequence number: duplicates and, on unreliable connections, also
    /// late packets.
    duplicate_requests: "duplicate_request",
    /// Responses to READs, atomics, FLUSHes and ATOMIC WRITEs that were retransmitted.
    retransmitted_responses: "duplicate_replay",
    /// NAKs sent that end a connection: invalid request, remote access error, remote operational error. The NAK of a
    /// duplicate READ whose memory is no longer accessible is counted too, although the connection can continue.
    fatal_naks_sent: "sent_fatal_nak",
    /// NAKs received that end a connection.
    fatal_naks_received: "rcvd_fatal_nak",
    /// Requests that failed because the peer did not acknowledge them.
    retries_exceeded: "retry_exceeded_err",
    /// Requests that failed because the peer had no receive posted.
    rnr_retries_exceeded: "retry_rnr_exceeded_err",
    /// Completions of any kind, including lost ones.
    completions: "completions",
    /// Completions lost because a queue was full.
    completions_lost: "cq_overrun",
    /// Messages of unreliable transports that were received at least in part, but not delivered: a packet was missing,
    /// no receive was posted, or the request was not allowed.
    messages_dropped: "messages_dropped",
    /// Packets of unreliable connections that did not arrive, as gaps in the sequence numbers show.
    packets_missing: "packet_seq_err",
    /// Datagrams whose queue key does not match the queue pair's.
    qkey_violations: "qkey_violations",
    /// Received packets that a congested switch marked (ECN).
    ecn_marked_packets: "np_ecn_marked_roce_packets",
    /// Congestion notification packets (CNPs) sent.
    cnps_sent: "np_cnp_sent",
    /// Congestion notification packets (CNPs) received.
    cnps_received: "rp_cnp_handled",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_names_are_unique() {
        let names: std::collections::HashSet<_> =
            Statistics::default().counters().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Statistics::default().counters().len());
    }

    #[test]
    fn counter_names_match_their_fields() {
        let statistics = Statistics { rnr_naks_sent: 7, cnps_received: 9, ..Statistics::default() };
        let counted: Vec<_> = statistics.counters().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("send_rnr_err", 7), ("rp_cnp_handled", 9)]);
    }
}
