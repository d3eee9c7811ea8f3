//! What a device has counted.

/// Declares the counters once: their fields, and the names by which others know them.
macro_rules! statistics {
    ($($(#[$doc:meta])* $field:ident: $name:literal,)*) => {
        /// Counters of a device since it was made.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Statistics {
            /// The counters by name, as the counters of a device are known in `adverb::verbs`: those of Linux's rxe
            /// (`rxe_hw_counters.c`) where it counts the same, else those of the mlx5 driver, else in their style.
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
    /// Packets handed out to be sent.
    packets_sent: "sent_pkts",
    /// Packets that passed all checks up to the queue pair.
    packets_received: "rcvd_pkts",
    /// Payload bytes in packets handed out.
    bytes_sent: "sent_bytes",
    /// Payload bytes in packets received.
    bytes_received: "rcvd_bytes",
    /// Packets dropped: see the other counters for some of the reasons.
    packets_dropped: "rcvd_dropped_pkts",
    /// Packets whose ICRC was wrong.
    icrc_errors: "rcvd_icrc_err",
    /// Packets for a queue pair that isn't there, or isn't ready.
    unknown_qp: "rcvd_unknown_qp_err",
    /// Packets from or to an address, or in a partition, that isn't the queue pair's.
    wrong_address: "rcvd_address_err",
    /// Packets that the link could not send: no route, a forbidden destination, a source address that isn't the link's.
    unsendable_packets: "sent_dropped_pkts",
    /// Request packets sent again.
    retransmitted_packets: "retransmitted_pkts",
    /// Times that no acknowledgement came in time.
    ack_timeouts: "local_ack_timeout_err",
    /// Sequence-error NAKs received.
    sequence_naks_received: "rcvd_seq_err",
    /// Sequence-error NAKs sent: requests that came ahead of their turn.
    out_of_sequence: "out_of_seq_request",
    /// Receiver-not-ready NAKs received.
    rnr_naks_received: "rcvd_rnr_err",
    /// Receiver-not-ready NAKs sent.
    rnr_naks_sent: "send_rnr_err",
    /// Responses dropped because they don't match the outstanding requests: of another kind, or with a message sequence
    /// number that the peer can't have reached.
    mismatched_responses: "rcvd_mismatched_response",
    /// Answers that showed an earlier answer to be lost.
    implied_naks: "implied_nak_seq_err",
    /// Requests that had been executed before.
    duplicate_requests: "duplicate_request",
    /// READs and atomics answered again.
    replays: "duplicate_replay",
    /// NAKs sent that end a connection: invalid request, access, operational.
    fatal_naks_sent: "sent_fatal_nak",
    /// NAKs received that end a connection.
    fatal_naks_received: "rcvd_fatal_nak",
    /// Requests that failed because no acknowledgement came.
    retries_exceeded: "retry_exceeded_err",
    /// Requests that failed because the peer had no receive posted.
    rnr_retries_exceeded: "retry_rnr_exceeded_err",
    /// Completions of any kind.
    completions: "completions",
    /// Completions lost because a queue was full.
    completions_lost: "cq_overrun",
    /// Messages of unreliable transports that came, in whole or in part, and weren't delivered: a packet was missing,
    /// no receive was posted, or they weren't allowed.
    messages_dropped: "messages_dropped",
    /// Packets of unreliable connections that didn't come in their turn.
    packets_missing: "packet_seq_err",
    /// Datagrams with another queue key than that of their queue pair.
    qkey_violations: "qkey_violations",
    /// Packets that came marked by a congested switch.
    ecn_marked_packets: "np_ecn_marked_roce_packets",
    /// Congestion notifications sent.
    cnps_sent: "np_cnp_sent",
    /// Congestion notifications received.
    cnps_received: "rp_cnp_handled",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_names_of_their_own() {
        let names: std::collections::HashSet<_> =
            Statistics::default().counters().map(|(name, _)| name).collect();
        assert_eq!(names.len(), Statistics::default().counters().len());
    }

    #[test]
    fn counter_under_a_name_is_that_of_its_field() {
        let statistics = Statistics { rnr_naks_sent: 7, cnps_received: 9, ..Statistics::default() };
        let counted: Vec<_> = statistics.counters().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("send_rnr_err", 7), ("rp_cnp_handled", 9)]);
    }
}
