//! Asynchronous events (`ibv_event_type`).

use super::{Explanation, Kind};
use crate::event::QueueEvent;
use crate::types::DeviceEvent;

/// Returns the explanation of a device's event, or `None` for an unknown [`DeviceEvent::Other`].
///
/// ```
/// # mod adverb { pub mod verbs { pub use adverb_proto::{explain, types::*}; } }
/// use adverb::verbs::{DeviceEvent, explain};
///
/// assert_eq!(explain::device_event(DeviceEvent::PortError(1)).unwrap().name, "IBV_EVENT_PORT_ERR");
/// ```
pub const fn device_event(event: DeviceEvent) -> Option<&'static Explanation> {
    Kind::AsyncEvent.explanation(match event {
        DeviceEvent::CompletionQueueError => 0,
        DeviceEvent::QueuePairFatal(_) => 1,
        DeviceEvent::QueuePairRequestError(_) => 2,
        DeviceEvent::QueuePairAccessError(_) => 3,
        DeviceEvent::Established(_) => 4,
        DeviceEvent::SendQueueDrained(_) => 5,
        DeviceEvent::DeviceFatal => 8,
        DeviceEvent::PortActive(_) => 9,
        DeviceEvent::PortError(_) => 10,
        DeviceEvent::SharedReceiveQueueError(_) => 14,
        DeviceEvent::SharedReceiveQueueLimit(_) => 15,
        DeviceEvent::LastReceiveReached(_) => 16,
        DeviceEvent::GidsChanged(_) => 18,
        DeviceEvent::Other(number) => number,
    })
}

/// Returns the explanation of an event of the engine.
pub const fn queue_event(event: QueueEvent) -> Option<&'static Explanation> {
    Kind::AsyncEvent.explanation(match event {
        QueueEvent::CqOverflow(_) => 0,
        QueueEvent::Fatal(_) => 1,
        QueueEvent::RequestError(_) => 2,
        QueueEvent::AccessError(_) => 3,
        QueueEvent::Established(_) => 4,
        QueueEvent::SendQueueDrained(_) => 5,
        QueueEvent::SrqLimit(_) => 15,
        QueueEvent::LastReceiveReached(_) => 16,
    })
}

/// The fields that all events share.
const EVENT: Explanation = Explanation {
    kind: Kind::AsyncEvent,
    reference: "InfiniBand vol. 1, 11.6.3; `enum ibv_event_type`",
    ..Explanation::EMPTY
};

/// The explanations of events, in the order of their codes.
pub(super) const EVENTS: &[Explanation] = &[
    Explanation {
        name: "IBV_EVENT_CQ_ERR",
        aliases: &["CompletionQueueError", "CqOverflow", "CQ error", "CQ overrun"],
        codes: &[0..=0],
        summary: "a completion queue has overflowed or failed",
        meaning: "The device could not write a completion, so completions are lost and the completion queue can no longer be \
                  used. The queue pairs that use it move to the error state.",
        causes: &[
            "more requests were outstanding on the queue pairs of the completion queue than it has entries",
            "the program polls too seldom",
        ],
        checks: &[
            "compare the depth of the completion queue with the depths of all send and receive queues that use it",
            "destroy the queue pairs and the completion queue, and create larger ones",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_QP_FATAL",
        aliases: &["QueuePairFatal", "local work queue catastrophic error"],
        codes: &[1..=1],
        summary: "a queue pair has failed and moved to the error state",
        meaning: "The device found an error of a queue pair that it cannot attribute to one request, or cannot report as a \
                  completion. The queue pair is in the error state, and its outstanding requests are flushed.",
        causes: &[
            "the completion queue of the queue pair has failed (IBV_EVENT_CQ_ERR)",
            "the device could not read or process the queue pair's requests, or failed internally",
        ],
        checks: &[
            "check the completions of the queue pair for a status other than IBV_WC_WR_FLUSH_ERR",
            "check the kernel's log for messages of the driver",
            "reset the queue pair and connect it again, or create a new one",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_QP_REQ_ERR",
        aliases: &["QueuePairRequestError", "RequestError", "invalid request local work queue error"],
        codes: &[2..=2],
        summary: "a queue pair has failed because its peer sent an invalid request",
        meaning: "This side is the responder. A request of the peer was not allowed on the queue pair, the device sent the \
                  NAK `invalid request`, and the queue pair moved to the error state. The peer's request fails with \
                  IBV_WC_REM_INV_REQ_ERR.",
        causes: &[
            "the peer uses an operation that the queue pair's `qp_access_flags` do not allow",
            "the peer has more READs and atomics outstanding than the queue pair's `max_dest_rd_atomic`",
            "the path MTU of the two ends differs",
        ],
        checks: &[
            "compare access flags, `max_dest_rd_atomic` and path MTU with the values that the peer assumes",
        ],
        hint: Some("compare the access flags, `max_dest_rd_atomic` and path MTU of both sides"),
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_QP_ACCESS_ERR",
        aliases: &[
            "QueuePairAccessError",
            "AccessError",
            "local access violation work queue error",
            "local access violation error",
        ],
        codes: &[3..=3],
        summary: "a queue pair has failed because its peer's request violated access rights",
        meaning: "This side is the responder. The remote key, address or length of a peer's WRITE, READ or atomic did not \
                  permit the access, the device sent the NAK `remote access error`, and the queue pair moved to the error \
                  state. The peer's request fails with IBV_WC_REM_ACCESS_ERR.",
        causes: &[
            "the peer uses an old or wrong key, or a range outside the region",
            "this side deregistered or invalidated the memory while the peer still used it",
            "the region lacks the remote access flag, or belongs to another protection domain than the queue pair",
        ],
        checks: &[
            "compare the keys and ranges that this side told the peer with the regions that are registered now",
            "look for a defect of the peer's program, or an attack: the peer accessed memory that it may not access",
        ],
        hint: Some(
            "check the keys and ranges that the peer uses: the memory is not registered for this access",
        ),
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_COMM_EST",
        aliases: &["Established", "communication established"],
        codes: &[4..=4],
        summary: "the first packet of a connection arrived before the queue pair was ready to send",
        meaning: "A packet arrived on a queue pair that is ready to receive, but not yet ready to send. The peer is therefore \
                  connected, although the last message of the connection manager (RTU) has not arrived. This is not an error.",
        causes: &["the peer's first message overtook the RTU, or the RTU was lost"],
        checks: &["tell the connection manager (`rdma_notify`), and move the queue pair to ready to send"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_SQ_DRAINED",
        aliases: &["SendQueueDrained", "send queue drained"],
        codes: &[5..=5],
        summary: "the send queue of a queue pair is drained",
        meaning: "The queue pair was moved to the state send queue drained (SQD), and all requests that had been started are \
                  complete. Attributes that can be modified only in this state can be modified now. This is not an error.",
        causes: &["the program moved the queue pair to SQD and requested the event (`en_sqd_async_notify`)"],
        checks: &["modify the queue pair, and move it back to ready to send"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_PATH_MIG",
        aliases: &["path migrated"],
        codes: &[6..=6],
        summary: "a connection has migrated to its alternate path",
        meaning: "Automatic path migration (APM) moved the connection to the alternate path that was loaded before. Requests \
                  continue.",
        causes: &["the primary path failed, or one side requested the migration"],
        checks: &["check the primary path, and load a new alternate path"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_PATH_MIG_ERR",
        aliases: &["path migration request error"],
        codes: &[7..=7],
        summary: "a connection failed to migrate to its alternate path",
        meaning: "The peer requested a migration to the alternate path, and this side could not accept it.",
        causes: &["no alternate path is loaded, or it does not agree with the peer's"],
        checks: &["compare the alternate paths of both queue pairs (`ibv_query_qp`)"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_DEVICE_FATAL",
        aliases: &["DeviceFatal", "local catastrophic error"],
        codes: &[8..=8],
        summary: "the device and all its objects have failed",
        meaning: "The device cannot continue. No completion or event of its objects will follow, and every call except \
                  destruction fails.",
        causes: &[
            "the device's hardware or firmware failed, or its driver reset it",
            "the device was removed from the system",
            "with the software NIC: its progress thread panicked, or its link failed",
        ],
        checks: &[
            "check the kernel's log for messages of the driver",
            "destroy all objects, close the device, and open it again after it has recovered",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_PORT_ACTIVE",
        aliases: &["PortActive", "port active"],
        codes: &[9..=9],
        summary: "the link of a port has become active",
        meaning: "The port can send and receive. Queue pairs whose retries ran out while the port was down stay in the error \
                  state.",
        causes: &["the cable or the peer port came up, or the interface was enabled"],
        checks: &["connect the failed queue pairs again"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_PORT_ERR",
        aliases: &["PortError", "port error"],
        codes: &[10..=10],
        summary: "a port has lost its link",
        meaning: "The port cannot send or receive. Queue pairs do not fail at once: their requests are retransmitted, and fail \
                  with IBV_WC_RETRY_EXC_ERR if the port stays down for longer than the retries last.",
        causes: &[
            "a cable, a transceiver, or the switch port failed",
            "the network interface was disabled (`ip link set … down`)",
        ],
        checks: &[
            "check the link: `rdma link`, `ip link`, `ethtool`, and the log of the switch",
            "use another port or path for important connections",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_LID_CHANGE",
        aliases: &["LID change"],
        codes: &[11..=11],
        summary: "the subnet manager has changed the LID of a port",
        meaning: "The local identifier (LID) of an InfiniBand port has changed, so peers reach the port at another LID. \
                  Ethernet ports have no LID.",
        causes: &["the subnet manager restarted or reassigned LIDs"],
        checks: &["exchange addresses with the peers again, and connect again"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_PKEY_CHANGE",
        aliases: &["P_Key change", "P_Key table change"],
        codes: &[12..=12],
        summary: "the partition key table of a port has changed",
        meaning: "An index of the partition key (P_Key) table may now refer to another partition. Queue pairs use their \
                  `pkey_index`, so packets may be sent in another partition, or be dropped by the peer.",
        causes: &["the subnet manager changed the partitions of the port"],
        checks: &["compare the table (`ibv_query_pkey`) with the indexes of the queue pairs"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_SM_CHANGE",
        aliases: &["SM change"],
        codes: &[13..=13],
        summary: "the subnet manager of a port has changed",
        meaning: "Another subnet manager serves the InfiniBand subnet. Existing connections continue.",
        causes: &["the subnet manager failed over or was restarted"],
        checks: &["check the subnet manager (`sminfo`), and register services with it again"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_SRQ_ERR",
        aliases: &["SharedReceiveQueueError", "SRQ catastrophic error"],
        codes: &[14..=14],
        summary: "a shared receive queue has failed",
        meaning: "The device can take no more requests from the shared receive queue. Queue pairs that need a receive request \
                  from it fail.",
        causes: &["the device could not read the queue, or failed internally"],
        checks: &[
            "check the kernel's log for messages of the driver",
            "destroy the queue pairs and the shared receive queue, and create new ones",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_SRQ_LIMIT_REACHED",
        aliases: &["SharedReceiveQueueLimit", "SrqLimit", "SRQ limit reached"],
        codes: &[15..=15],
        summary: "a shared receive queue holds fewer requests than its limit",
        meaning: "The number of receive requests in the queue fell below `srq_limit`. The event is sent once; the program \
                  must set the limit again. This is a warning, not an error.",
        causes: &["messages arrive faster than the program posts receive requests"],
        checks: &["post more receive requests, then set the limit again (`ibv_modify_srq`)"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_QP_LAST_WQE_REACHED",
        aliases: &["LastReceiveReached", "last WQE reached"],
        codes: &[16..=16],
        summary: "a queue pair in the error state has consumed its last request from its shared receive queue",
        meaning: "The queue pair is in the error state, and will take no further request from its shared receive queue. After \
                  the remaining completions are polled, the queue pair can be destroyed without losing a receive request.",
        causes: &["a queue pair with a shared receive queue moved to the error state"],
        checks: &["poll the completion queue until it is empty, then reset or destroy the queue pair"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_CLIENT_REREGISTER",
        aliases: &["client reregistration"],
        codes: &[17..=17],
        summary: "the subnet manager requests that clients register again",
        meaning: "The subnet manager has lost its subscriptions, for example of multicast groups and services, and asks the \
                  clients of the port to register again.",
        causes: &["the subnet manager restarted or failed over"],
        checks: &["join multicast groups and register services again"],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_GID_CHANGE",
        aliases: &["GidsChanged", "GID table change"],
        codes: &[18..=18],
        summary: "the GID table of a port has changed: an index may refer to another GID than before",
        meaning: "Addresses of the port were added or removed. On RoCE, the GIDs follow the IP addresses of the network \
                  interface, so the event accompanies changes of addresses, bonds and VLANs.",
        causes: &[
            "an IP address of the interface was added, removed or changed",
            "the interface changed its state",
        ],
        checks: &[
            "read the GID table again (`adverb devices`): a stored GID index may be wrong",
            "connect the queue pairs again that use a removed GID",
        ],
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_WQ_FATAL",
        aliases: &["WQ fatal"],
        codes: &[19..=19],
        summary: "a work queue has failed",
        meaning: "A receive work queue of a raw packet queue pair (`ibv_create_wq`) has moved to the error state.",
        causes: &["the device could not read or process the work queue, or failed internally"],
        checks: &["check the kernel's log for messages of the driver, and create the work queue again"],
        reference: "`enum ibv_event_type`",
        ..EVENT
    },
    Explanation {
        name: "IBV_EVENT_DEVICE_SPEED_CHANGE",
        aliases: &["Device link speed change"],
        codes: &[20..=20],
        summary: "the speed of a port of the device has changed",
        meaning: "The speed of at least one port has changed. This is not an error, but the bandwidth may be lower than before.",
        causes: &["the link was negotiated again, or its configuration or the state of a bond changed"],
        checks: &["check the speed of the ports (`rdma link`, `ibv_devinfo -v`, `ethtool`)"],
        reference: "`enum ibv_event_type`",
        ..EVENT
    },
];
