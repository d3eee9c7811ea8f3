//! Completion statuses (`ibv_wc_status`).

use super::{Explanation, Kind};

/// The fields that all statuses share.
const STATUS: Explanation = Explanation {
    kind: Kind::CompletionStatus,
    reference: "InfiniBand vol. 1, 11.6.2; `enum ibv_wc_status`",
    ..Explanation::EMPTY
};

/// The fields that the statuses of reliable datagrams share.
const RELIABLE_DATAGRAMS: Explanation = Explanation {
    meaning: "The status belongs to the reliable datagram transport (RD), which RoCE does not have and rdma-core cannot \
              create. A device that reports it has a defect in its driver or firmware.",
    causes: &["the device's driver or firmware reports a wrong status"],
    checks: &["check the vendor error of the completion, and update the device's driver and firmware"],
    ..STATUS
};

/// The explanations of statuses, in the order of their codes.
pub(super) const STATUSES: &[Explanation] = &[
    Explanation {
        name: "IBV_WC_SUCCESS",
        aliases: &["Success"],
        codes: &[0..=0],
        summary: "success",
        meaning: "The request was executed. On RC, a successful send request means that the peer's device has acknowledged \
                  it, and a READ or atomic that the result is in local memory; on UC and UD, a successful send request means \
                  that its packets were sent. A successful receive request means that a message is in its buffers. Only with \
                  this status are all fields of the completion valid.",
        causes: &["the device executed the request"],
        checks: &[
            "do not conclude that the peer's program has processed a message: its device acknowledges, not the program",
        ],
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_LOC_LEN_ERR",
        aliases: &["LocalLength", "local length error"],
        codes: &[1..=1],
        summary: "the message does not fit in the buffer (local length error)",
        meaning: "For a receive request: the message is longer than the request's buffers together. On RC the peer's send \
                  request fails with IBV_WC_REM_INV_REQ_ERR. For a send request: the message is longer than the transport \
                  allows, which is the path MTU on UD, and the port's `max_msg_sz` otherwise.",
        causes: &[
            "a receive buffer is smaller than the message that the peer sent",
            "a UD receive buffer lacks room for the 40 bytes of the global route header (GRH)",
            "a UD message is longer than the path MTU",
        ],
        checks: &[
            "compare the length of the receive buffers with the longest message that the peer sends",
            "compare the length of a UD message with the active MTU of the port (`ibv_devinfo`, `adverb devices`)",
        ],
        hint: Some("post receive buffers of the peer's maximum message size, plus 40 bytes for UD"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_LOC_QP_OP_ERR",
        aliases: &["LocalQpOperation", "local QP operation error"],
        codes: &[2..=2],
        summary: "the queue pair could not execute the request (local QP operation error)",
        meaning: "The local device could not execute the request, for a reason that is neither a wrong length nor a \
                  protection error: the request does not fit the queue pair, or the device failed while processing it. \
                  Nothing is wrong with the peer.",
        causes: &[
            "the operation is not allowed on a queue pair of this type or with its capabilities",
            "the request has more segments or inline bytes than the queue pair was created for",
            "a local invalidate names a key that cannot be invalidated, or that is not in use",
            "the device could not read or write the memory of a valid key",
        ],
        checks: &[
            "compare the request with the capabilities that `ibv_create_qp` returned",
            "check the vendor error of the completion and the kernel's log: drivers report internal failures there",
        ],
        hint: Some("check the request's segments and keys against the queue pair's limits"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_LOC_EEC_OP_ERR",
        aliases: &["LocalEecOperation", "local EE context operation error"],
        codes: &[3..=3],
        summary: "local EEC operation error",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IBV_WC_LOC_PROT_ERR",
        aliases: &["LocalProtection", "local protection error"],
        codes: &[4..=4],
        summary: "a segment is outside its memory region, or its key is wrong (local protection error)",
        meaning: "A segment of the request is not covered by the memory region of its local key: the key is unknown or of \
                  another protection domain, the range exceeds the region, or the region lacks the access that the \
                  operation needs. The device has not accessed the memory.",
        causes: &[
            "the address or length of a segment is outside the registered region",
            "the local key (lkey) is wrong, or the region was deregistered while the request was outstanding",
            "region and queue pair belong to different protection domains",
            "a receive, READ or atomic uses a region without LOCAL_WRITE",
        ],
        checks: &[
            "print address, length and lkey of each segment, and compare them with the region",
            "check that regions are deregistered only after the last completion of their requests",
        ],
        hint: Some(
            "check that the region is registered, belongs to the queue pair's protection domain, and has LOCAL_WRITE access",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_WR_FLUSH_ERR",
        aliases: &["Flushed", "Work Request Flushed Error", "flush error"],
        codes: &[5..=5],
        summary: "flushed: the queue pair entered the error state before the request was executed",
        meaning: "The queue pair is in the error state, and all its outstanding requests complete with this status. The \
                  status says nothing about the cause. A flushed send request may or may not have been executed by the peer.",
        causes: &[
            "an earlier request of the queue pair failed with another status",
            "the program or the connection manager moved the queue pair to the error state, for example because the peer \
             disconnected",
            "a request was posted while the queue pair was in the error state",
        ],
        checks: &[
            "find the first completion of the queue pair with another status, in both of its completion queues",
            "if there is none, check for a disconnect, and for asynchronous events of the queue pair and its completion queues",
        ],
        hint: Some(
            "check the first failed completion of this queue pair with another status: it has the cause",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_MW_BIND_ERR",
        aliases: &["WindowBind", "memory management operation error", "memory window bind error"],
        codes: &[6..=6],
        summary: "the memory window could not be bound",
        meaning: "A bind request failed: the region does not permit the window, or the window cannot be bound. The window \
                  keeps its previous state, and the queue pair moves to the error state.",
        causes: &[
            "the region was registered without IBV_ACCESS_MW_BIND",
            "the window grants an access that the region does not have, or remote write without the region's LOCAL_WRITE",
            "the range of the window exceeds the region",
            "window, region and queue pair belong to different protection domains, or a type 2 window is already bound",
        ],
        checks: &["compare range and access flags of the window with those of its region"],
        hint: Some(
            "use a region that has WINDOW_BIND and all access flags of the window, and contains its range",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_BAD_RESP_ERR",
        aliases: &["BadResponse", "bad response error"],
        codes: &[7..=7],
        summary: "the peer's response was invalid (bad response)",
        meaning: "The requester received a response with an opcode or a length that the protocol does not allow at this \
                  point, for example a READ response that is longer or shorter than requested.",
        causes: &[
            "the two ends use a different path MTU, so READ responses have packets of an unexpected length",
            "the peer's device or its software violates the protocol",
        ],
        checks: &[
            "compare the path MTU of both queue pairs (`ibv_query_qp`)",
            "capture the packets, and compare the responses with the request",
        ],
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_LOC_ACCESS_ERR",
        aliases: &["LocalAccess", "local access error"],
        codes: &[8..=8],
        summary: "the device has no access to the buffer (local access error)",
        meaning: "The memory on this side does not permit the access that the operation needs. The specification defines \
                  the status for a protection error while the device executes a WRITE with immediate data of the peer; a \
                  wrong segment of a request is IBV_WC_LOC_PROT_ERR.",
        causes: &[
            "the region of a receive buffer, or of the destination of a READ, has no LOCAL_WRITE access",
            "the region was deregistered while the request was outstanding",
        ],
        checks: &["check the access flags of the regions whose memory the device writes"],
        hint: Some("register receive buffers and the local memory of READ requests with LOCAL_WRITE"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_REM_INV_REQ_ERR",
        aliases: &["RemoteInvalidRequest", "remote invalid request error", "remote invalid request"],
        codes: &[9..=9],
        summary: "the peer rejected the request as invalid (remote invalid request)",
        meaning: "The peer responded with the NAK `invalid request`: it received the request, but its queue pair cannot \
                  accept such a request. The peer's queue pair usually moves to the error state, too.",
        causes: &[
            "the message is longer than the receive buffer that the peer posted",
            "the peer's queue pair does not allow the operation: READ, WRITE or atomics are not enabled in its \
             `qp_access_flags`",
            "more READs and atomics were outstanding than the peer's `max_dest_rd_atomic`",
            "an atomic's remote address is not a multiple of 8",
        ],
        checks: &[
            "check the completions and the asynchronous events of the peer's queue pair: IBV_WC_LOC_LEN_ERR means a short \
             buffer, and IBV_EVENT_QP_REQ_ERR a request that is not allowed",
            "compare this side's `max_rd_atomic` with the peer's `max_dest_rd_atomic`",
        ],
        hint: Some(
            "check that the message fits in the peer's receive buffer, and that the peer's queue pair allows the operation",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_REM_ACCESS_ERR",
        aliases: &["RemoteAccess", "remote access error"],
        codes: &[10..=10],
        summary: "the peer's memory does not allow the access (remote access error)",
        meaning: "The peer responded with the NAK `remote access error`: its device checked the remote key, address and \
                  length of a WRITE, READ or atomic, and refused the access. The peer's program sees only an asynchronous \
                  event, and its queue pair moves to the error state.",
        causes: &[
            "the remote key (rkey) is wrong, old, or of another protection domain than the peer's queue pair",
            "the range exceeds the peer's region",
            "the region, the memory window or the peer's queue pair lacks REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC",
            "the peer deregistered the memory, or exited and restarted with new keys",
        ],
        checks: &[
            "compare address, length and rkey of the request with the region at the peer, byte order included",
            "check that the peer keeps the region registered until this side stops using it",
        ],
        hint: Some(
            "check the remote key, the address range, the region's access flags, and that it is still registered",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_REM_OP_ERR",
        aliases: &["RemoteOperation", "remote operation error"],
        codes: &[11..=11],
        summary: "the peer could not complete the request (remote operation error)",
        meaning: "The peer responded with the NAK `remote operational error`: the request was valid, but the peer failed to \
                  execute it because of a problem on its own side.",
        causes: &[
            "a receive request at the peer has an invalid segment or key, so the peer's device could not store the message",
            "the peer's device failed internally",
        ],
        checks: &[
            "check the completion of the receive request at the peer: its status has the cause, often IBV_WC_LOC_PROT_ERR",
            "check the kernel's log at the peer",
        ],
        hint: Some("check the completions of the peer's queue pair for the cause"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_RETRY_EXC_ERR",
        aliases: &["RetryExceeded", "retry exceeded", "transport retry counter exceeded"],
        codes: &[12..=12],
        summary: "the peer did not acknowledge the request (transport retries exceeded)",
        meaning: "The requester sent the request, retransmitted it `retry_cnt` times, and received no acknowledgement \
                  within the timeout of each attempt (4.096 µs × 2^`timeout`, which devices may extend). The peer may have \
                  executed the request: the acknowledgements may be lost.",
        causes: &[
            "the peer's process exited, its queue pair was destroyed, or is in the error state: a device does not answer \
             packets for such a queue pair",
            "the peer's queue pair is not yet in the state ready to receive",
            "queue pair number, GID, LID or GID index of the connection are wrong, or the two ends use different RoCE versions",
            "the network drops packets: UDP port 4791 is filtered, the path MTU exceeds an MTU on the path, or congestion \
             without flow control (PFC, ECN) causes loss",
            "the timeout is too short for the path or for a loaded peer",
        ],
        checks: &[
            "check that the peer's program runs, and look for its own errors: its first failure is often the cause",
            "test the path: `adverb doctor PEER` tests TCP, RoCE packets and the path MTU",
            "exchange small messages first: if only long ones fail, compare the path MTU with the MTU of each interface and \
             switch on the path",
            "check the counters of both ends (`adverb stat`): retransmissions, packets out of sequence, discards",
            "capture packets at both ends (UDP port 4791), to see whether requests or acknowledgements are lost",
        ],
        hint: Some(
            "check that the peer is up and its queue pair ready to receive, then test the path with `adverb doctor PEER`: \
             RoCE packets may be blocked, or the GID or the MTU may be wrong",
        ),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_RNR_RETRY_EXC_ERR",
        aliases: &[
            "RnrRetryExceeded",
            "RNR retry exceeded",
            "RNR retry counter exceeded",
            "receiver not ready",
        ],
        codes: &[13..=13],
        summary: "the peer had no receive buffer (receiver-not-ready retries exceeded)",
        meaning: "The peer responded with RNR NAKs: its device received the message, but had no receive request for it. The \
                  requester waited for the RNR backoff and retried `rnr_retry` times. The value 7 means retries without limit.",
        causes: &[
            "the peer posts fewer receive requests than this side sends messages, or posts them too late",
            "a WRITE with immediate data was sent, which consumes a receive request, too",
            "the peer's program is slow or stopped, and does not repost receive requests",
            "`rnr_retry` is 0 or small, and the peer's `min_rnr_timer` is short",
        ],
        checks: &[
            "check that the peer posts receive requests before it connects, and reposts them after each completion",
            "compare the number of outstanding messages with the depth of the peer's receive queue: credits prevent an excess",
        ],
        hint: Some("post receive requests at the peer before sending, raise `rnr_retry`, or use credits"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_LOC_RDD_VIOL_ERR",
        aliases: &["LocalRddViolation", "local RDD violation error"],
        codes: &[14..=14],
        summary: "local RDD violation",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IBV_WC_REM_INV_RD_REQ_ERR",
        aliases: &["RemoteInvalidRdRequest", "remote invalid RD request"],
        codes: &[15..=15],
        summary: "remote invalid RD request",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IBV_WC_REM_ABORT_ERR",
        aliases: &["RemoteAborted", "aborted error", "remote aborted"],
        codes: &[16..=16],
        summary: "the peer aborted the request (remote aborted)",
        meaning: "The operation was aborted at the responder before it completed. Devices seldom report the status.",
        causes: &["the queue pair of the responder left its state while the operation was in progress"],
        checks: &[
            "check the state and the completions of the peer's queue pair, and the vendor error of this completion",
        ],
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_INV_EECN_ERR",
        aliases: &["InvalidEecNumber", "invalid EE context number"],
        codes: &[17..=17],
        summary: "invalid EEC number",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IBV_WC_INV_EEC_STATE_ERR",
        aliases: &["InvalidEecState", "invalid EE context state"],
        codes: &[18..=18],
        summary: "invalid EEC state",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IBV_WC_FATAL_ERR",
        aliases: &["Fatal", "fatal error"],
        codes: &[19..=19],
        summary: "the device has failed (fatal error)",
        meaning: "The device cannot continue: all its queue pairs, completion queues and regions are lost. The device also \
                  reports the event IBV_EVENT_DEVICE_FATAL.",
        causes: &[
            "the device's hardware or firmware failed, or its driver reset it",
            "the device was removed",
        ],
        checks: &[
            "check the kernel's log for messages of the driver",
            "close all objects of the device, and open it again after it has recovered",
        ],
        hint: Some("check the kernel's log, then close the device and open it again"),
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_RESP_TIMEOUT_ERR",
        aliases: &["ResponseTimeout", "response timeout error", "response timeout"],
        codes: &[20..=20],
        summary: "the peer did not respond in time (response timeout)",
        meaning: "The response to a request did not arrive in time. Linux uses the status for management datagrams (MADs), \
                  such as messages of the connection manager and queries to the subnet manager. A reliable connection \
                  reports IBV_WC_RETRY_EXC_ERR instead.",
        causes: &[
            "the peer, or the subnet manager on InfiniBand, is down or not reachable",
            "management datagrams are lost on the network",
        ],
        checks: &["check the path to the peer, and on InfiniBand the subnet manager (`sminfo`)"],
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_GENERAL_ERR",
        aliases: &["General", "general error"],
        codes: &[21..=21],
        summary: "general error",
        meaning: "The device failed to execute the request for a reason that no other status describes.",
        causes: &["an internal error of the device or its driver"],
        checks: &[
            "check the vendor error of the completion and the kernel's log, and update driver and firmware",
        ],
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_TM_ERR",
        aliases: &["TagMatching", "TM error", "tag matching error"],
        codes: &[22..=22],
        summary: "tag matching error",
        meaning: "An operation on the tag-matching list of a shared receive queue (IBV_SRQT_TM) failed. Queues without \
                  hardware tag matching never report it.",
        causes: &[
            "a tag was added while the list was full, or out of sync with the software's list",
            "a tag was removed that the device had already matched",
        ],
        checks: &[
            "compare the number of outstanding tags with `max_num_tags` of the shared receive queue, and synchronize the \
             list (IBV_WR_TAG_SYNC)",
        ],
        reference: "`enum ibv_wc_status`; `ibv_post_srq_ops`",
        ..STATUS
    },
    Explanation {
        name: "IBV_WC_TM_RNDV_INCOMPLETE",
        aliases: &[
            "TagMatchingRendezvousIncomplete",
            "TM software rendezvous",
            "tag matching rendezvous incomplete",
        ],
        codes: &[23..=23],
        summary: "tag matching rendezvous incomplete",
        meaning: "A tag-matching device received a rendezvous request that matches a tag, but cannot read the peer's data \
                  itself. This is not a failure: the software must read the data and complete the rendezvous.",
        causes: &[
            "the rendezvous request needs more than the device supports, so the device passes it to the software",
        ],
        checks: &[
            "complete the rendezvous in software, with the header that the device stored in the buffer",
        ],
        reference: "`enum ibv_wc_status`; `ibv_create_srq_ex`",
        ..STATUS
    },
];
