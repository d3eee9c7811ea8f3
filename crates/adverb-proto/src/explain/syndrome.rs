//! Syndromes of acknowledgement packets: ACK, RNR NAK, NAK.

use super::{Explanation, Kind};

/// The fields that all syndromes share.
const SYNDROME: Explanation = Explanation {
    kind: Kind::Syndrome,
    reference: "InfiniBand vol. 1, 9.7.5 and tables 43 to 47",
    ..Explanation::EMPTY
};

/// The explanations of syndromes, in the order of their first codes.
pub(super) const SYNDROMES: &[Explanation] = &[
    Explanation {
        name: "ACK",
        aliases: &["positive acknowledgement", "AETH_ACK", "AETH_ACK_UNLIMITED"],
        codes: &[0x00..=0x1f],
        summary: "the responder has received all packets up to the PSN of the ACK",
        meaning: "The responder has accepted all packets up to the PSN of the acknowledgement, and its message sequence \
                  number (MSN) counts the messages that it has completed. The low five bits are end-to-end credits: the \
                  number of messages for which the responder has receive requests. The code 31 means no credit limit, as \
                  with a shared receive queue.",
        causes: &["a request packet asked for an acknowledgement (AckReq), or a READ or atomic was executed"],
        checks: &[
            "if the credits are 0, check the receive queue of the responder: it has no receive request for a message",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "RNR NAK",
        aliases: &["RNR", "RnrNak", "receiver not ready", "AETH_RNR_NAK", "min_rnr_timer"],
        codes: &[0x20..=0x3f],
        summary: "the responder has no receive request posted; the requester must wait and retry",
        meaning: "A SEND or a WRITE with immediate data arrived while the responder had no receive request for it. The low \
                  five bits are the timer code that the responder's `min_rnr_timer` sets: the requester waits for this RNR \
                  backoff and retransmits, at most `rnr_retry` times (7: without limit). The codes 1 to 31 are 10 µs to \
                  491.52 ms, and code 0 is the longest backoff, 655.36 ms. If no retry is left, the request fails with \
                  IBV_WC_RNR_RETRY_EXC_ERR.",
        causes: &[
            "the responder posts receive requests too late, or fewer than messages are sent to it",
            "a shared receive queue is empty because its other queue pairs used its requests",
            "with on-demand paging, the memory of the receive request is not resident: devices request a retry in this way",
        ],
        checks: &[
            "post receive requests before connecting, and repost them after each completion",
            "raise `rnr_retry` at the requester; `min_rnr_timer` at the responder determines the wait per retry",
            "let the program count credits, so that a message is sent only if a receive request waits for it",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "reserved syndrome",
        aliases: &["Reserved", "ReservedSyndrome", "AETH_RSVD"],
        codes: &[0x40..=0x5f, 0x65..=0xff],
        summary: "a value that the specification reserves",
        meaning: "The specification defines no acknowledgement with this value. Receivers drop the packet; Adverb counts it \
                  as dropped.",
        causes: &["the packet is corrupt or forged, or its sender violates the protocol"],
        checks: &["capture the packet, and check its ICRC and its sender"],
        ..SYNDROME
    },
    Explanation {
        name: "NAK PSN sequence error",
        aliases: &[
            "SequenceError",
            "PSN sequence error",
            "nak: PSN sequence error",
            "AETH_NAK_PSN_SEQ_ERROR",
        ],
        codes: &[0x60..=0x60],
        summary: "packets are missing: the requester retransmits from the PSN of the NAK",
        meaning: "The responder received a packet with a higher PSN than it expects, so at least one packet was lost or \
                  reordered. The PSN of the NAK is the expected one; the requester retransmits from there. Each such \
                  retransmission counts against `retry_cnt`, and the program sees no error unless the retries run out \
                  (IBV_WC_RETRY_EXC_ERR).",
        causes: &[
            "the network or a receiving NIC dropped packets, usually because of congestion",
            "the network reordered packets of one flow, for example by per-packet load balancing",
        ],
        checks: &[
            "check the discard counters of the switches and of both NICs, and that flow control (PFC) and ECN work on the path",
            "compare the rates of `adverb stat` at both ends: many NAKs with few lost packets mean reordering",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "NAK invalid request",
        aliases: &["InvalidRequest", "nak: invalid request", "AETH_NAK_INVALID_REQ"],
        codes: &[0x61..=0x61],
        summary: "the responder rejected the request as invalid",
        meaning: "The responder received the request, and cannot execute it: the opcode is unexpected at this point or not \
                  allowed, the length is wrong, or too many READs and atomics are outstanding. The request fails with \
                  IBV_WC_REM_INV_REQ_ERR, and both queue pairs move to the error state.",
        causes: &[
            "the message is longer than the receive request of the responder",
            "the responder's queue pair does not allow WRITE, READ or atomics",
            "the requester's `max_rd_atomic` exceeds the responder's `max_dest_rd_atomic`",
            "the address of an atomic is not a multiple of 8",
        ],
        checks: &[
            "check completions and asynchronous events of the responder: IBV_WC_LOC_LEN_ERR or IBV_EVENT_QP_REQ_ERR",
            "compare the queue pairs' attributes of both ends: access flags, depths of READs and atomics, path MTU",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "NAK remote access error",
        aliases: &["remote access error", "nak: remote access error", "AETH_NAK_REM_ACC_ERR"],
        codes: &[0x62..=0x62],
        summary: "remote key, address range or access rights do not permit the request",
        meaning: "The responder checked the remote key, address and length of a WRITE, READ or atomic, and refused the \
                  access. The request fails with IBV_WC_REM_ACCESS_ERR. The responder's queue pair moves to the error state, \
                  and its program receives IBV_EVENT_QP_ACCESS_ERR.",
        causes: &[
            "the remote key is wrong, was invalidated, or belongs to another protection domain",
            "the range exceeds the memory region or window",
            "the region, window or queue pair lacks the remote access flag",
        ],
        checks: &[
            "read address, length and rkey in the packet's RDMA header (RETH), and compare them with the responder's region",
            "check that the responder has not deregistered the region or restarted",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "NAK remote operational error",
        aliases: &[
            "RemoteOperational",
            "remote operational error",
            "nak: remote operational error",
            "AETH_NAK_REM_OP_ERR",
        ],
        codes: &[0x63..=0x63],
        summary: "the responder failed to execute a valid request",
        meaning: "The request was valid, and the responder failed because of an error on its own side. The request fails \
                  with IBV_WC_REM_OP_ERR.",
        causes: &[
            "a segment or key of the receive request at the responder is invalid",
            "the responder's device failed internally",
        ],
        checks: &[
            "check the failed completion of the responder's receive request, and the kernel's log there",
        ],
        ..SYNDROME
    },
    Explanation {
        name: "NAK invalid RD request",
        aliases: &["InvalidRdRequest", "invalid RD request", "nak: invalid RD request"],
        codes: &[0x64..=0x64],
        summary: "an invalid request of a reliable datagram, which RoCE does not have",
        meaning: "The NAK belongs to the reliable datagram transport (RD). RoCE has no such transport, so a correct responder \
                  never sends it.",
        causes: &["the packet is corrupt or forged, or the responder violates the protocol"],
        checks: &["capture the packet, and check its ICRC and its sender"],
        ..SYNDROME
    },
];
