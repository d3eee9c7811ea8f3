//! Reject reasons of the connection manager (REJ messages).

use super::{Explanation, Kind};

/// The fields that all reasons share.
const REASON: Explanation = Explanation {
    kind: Kind::RejectReason,
    reference: "InfiniBand vol. 1, 12.6.7; `enum ib_cm_rej_reason`",
    ..Explanation::EMPTY
};

/// The fields that the reasons about reliable datagrams share.
const RELIABLE_DATAGRAMS: Explanation = Explanation {
    meaning: "The reason belongs to the reliable datagram transport (RD), which RoCE does not have.",
    causes: &["the peer's connection manager is defective, or the packet is corrupt"],
    checks: &["capture the messages, and check the peer's software"],
    ..REASON
};

/// The fields that the reasons about an attribute of the primary path share.
const PRIMARY_PATH: Explanation = Explanation {
    meaning: "The connect request (REQ) describes the path of the connection. The peer does not accept this attribute of the \
              primary path. The additional information of the REJ may have an acceptable value.",
    causes: &["the route that the connector resolved does not agree with the peer's ports or configuration"],
    checks: &["compare the path in a capture of the REQ with the attributes of the peer's port"],
    ..REASON
};

/// The fields that the reasons about an attribute of the alternate path share.
const ALTERNATE_PATH: Explanation = Explanation {
    meaning: "The connect request (REQ) has an alternate path for automatic path migration, and the peer does not accept this \
              attribute of it. The additional information of the REJ may have an acceptable value.",
    causes: &["the alternate path does not agree with the peer's ports or configuration"],
    checks: &["connect without an alternate path, or compare it with the attributes of the peer's port"],
    ..REASON
};

const NO_RESOURCES_HINT: &str =
    "close connections at the peer, or raise its limits: it has no resources left";

/// The explanations of reasons, in the order of their codes.
pub(super) const REASONS: &[Explanation] = &[
    Explanation {
        name: "IB_CM_REJ_NO_QP",
        aliases: &["NoQueuePair", "no queue pair available"],
        codes: &[1..=1],
        summary: "the peer has no queue pair for the connection",
        meaning: "The peer could not create or find a queue pair for the connection.",
        causes: &["the peer's device or program has reached its limit of queue pairs"],
        checks: &["check the resources of the peer (`rdma resource`) against the maxima of its device"],
        hint: Some(NO_RESOURCES_HINT),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_NO_EEC",
        aliases: &["NoEeContext", "no end-to-end context available"],
        codes: &[2..=2],
        summary: "the peer has no end-to-end context",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IB_CM_REJ_NO_RESOURCES",
        aliases: &["NoResources", "no resources available"],
        codes: &[3..=3],
        summary: "the peer lacks a resource for the connection",
        meaning: "A resource other than queue pairs is exhausted at the peer, for example its backlog of connect requests.",
        causes: &["too many connect requests arrive at a time, or the peer is out of memory"],
        checks: &["raise the backlog of the peer's listener, and accept requests faster"],
        hint: Some(NO_RESOURCES_HINT),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_TIMEOUT",
        aliases: &["Timeout"],
        codes: &[4..=4],
        summary: "the peer waited too long for a message of this side",
        meaning: "The peer had sent a message of the handshake, and the next message of this side did not arrive in time.",
        causes: &[
            "this side's program took too long to accept or to establish the connection",
            "messages of the connection manager are lost on the network",
        ],
        checks: &[
            "check that this side handles connect events promptly",
            "check the network for lost packets (UDP port 4791)",
        ],
        hint: Some("try again: the peer timed out waiting for a message of this side"),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_UNSUPPORTED",
        aliases: &["UnsupportedRequest", "unsupported request"],
        codes: &[5..=5],
        summary: "the peer does not support the request",
        meaning: "The peer's connection manager does not support a feature that the request uses.",
        causes: &["the request uses a transport or an option that the peer lacks"],
        checks: &["compare the options of both sides, and their software versions"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_COMM_ID",
        aliases: &["InvalidCommId", "invalid communication ID"],
        codes: &[6..=6],
        summary: "the peer does not know the communication ID",
        meaning: "A message names a connection that the peer does not have, or no longer.",
        causes: &["the peer's process restarted, or ended the connection already"],
        checks: &["connect again"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_COMM_INSTANCE",
        aliases: &["InvalidCommInstance", "invalid communication instance"],
        codes: &[7..=7],
        summary: "the two communication IDs belong to different connections",
        meaning: "The local and the remote communication ID of a message do not belong together.",
        causes: &["one side has reused an ID, or a message was delayed, corrupted or forged"],
        checks: &["connect again; if it happens repeatedly, capture the messages"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_SERVICE_ID",
        aliases: &["InvalidServiceId", "invalid service ID"],
        codes: &[8..=8],
        summary: "no program at the peer listens on the port",
        meaning: "The peer's connection manager has no listener for the service ID, which contains the port space and the port. \
                  This corresponds to `connection refused` of TCP.",
        causes: &[
            "the peer's program is not running, or listens on another port",
            "the program listens at another address or device of the host, or in another port space (RDMA_PS_TCP, RDMA_PS_UDP)",
        ],
        checks: &["list the listeners at the peer (`rdma resource show cm_id`)"],
        hint: Some("check the port: no program on the host listens on it"),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_TRANSPORT_TYPE",
        aliases: &["InvalidTransportType", "invalid transport service type"],
        codes: &[9..=9],
        summary: "the service uses another transport",
        meaning: "The request asks for a transport (RC, UC, RD or XRC) that the listener does not offer.",
        causes: &["the queue pairs of the two programs have different types"],
        checks: &["compare the types of the queue pairs (`ibv_create_qp`) at both sides"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_STALE_CONN",
        aliases: &["StaleConnection", "stale connection"],
        codes: &[10..=10],
        summary: "the peer still has a connection with this queue pair number",
        meaning: "The peer has a connection, possibly in time-wait, whose remote queue pair has the number of this request. It \
                  rejects the new connection, because packets of the old one could arrive late.",
        causes: &[
            "this side restarted, or reused a queue pair number before the time-wait of its last connection was over",
            "the disconnect messages of the last connection were lost",
        ],
        checks: &["connect again with a new queue pair, or after the time-wait of the old connection"],
        hint: Some(
            "try again with a new queue pair: the peer still has a connection with this queue pair number",
        ),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_RDC_NOT_EXIST",
        aliases: &["RdcDoesNotExist", "RDC does not exist"],
        codes: &[11..=11],
        summary: "the reliable datagram channel does not exist",
        ..RELIABLE_DATAGRAMS
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_GID",
        aliases: &["InvalidPrimaryGid", "primary remote port GID rejected"],
        codes: &[12..=12],
        summary: "the remote GID of the primary path is not the peer's",
        meaning: "The request was delivered to the peer, but the destination GID in it is not an address of the peer's device.",
        causes: &[
            "the peer's address moved to another device or was removed",
            "the network translates addresses (NAT)",
        ],
        checks: &["compare the peer's GIDs (`adverb devices`) with the address that this side connects to"],
        hint: Some("check the peer's addresses: its device no longer has this one"),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_LID",
        aliases: &["InvalidPrimaryLid", "primary remote port LID rejected"],
        codes: &[13..=13],
        summary: "the remote LID of the primary path is not the peer's",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_SL",
        aliases: &["InvalidPrimarySl", "invalid primary SL"],
        codes: &[14..=14],
        summary: "the service level of the primary path is invalid",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_TRAFFIC_CLASS",
        aliases: &["InvalidPrimaryTrafficClass", "invalid primary traffic class"],
        codes: &[15..=15],
        summary: "the traffic class of the primary path is invalid",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_HOP_LIMIT",
        aliases: &["InvalidPrimaryHopLimit", "invalid primary hop limit"],
        codes: &[16..=16],
        summary: "the hop limit of the primary path is invalid",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_PACKET_RATE",
        aliases: &["InvalidPrimaryPacketRate", "invalid primary packet rate"],
        codes: &[17..=17],
        summary: "the packet rate of the primary path is invalid",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_GID",
        aliases: &["InvalidAlternateGid", "alternate remote port GID rejected"],
        codes: &[18..=18],
        summary: "the remote GID of the alternate path is not the peer's",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_LID",
        aliases: &["InvalidAlternateLid", "alternate remote port LID rejected"],
        codes: &[19..=19],
        summary: "the remote LID of the alternate path is not the peer's",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_SL",
        aliases: &["InvalidAlternateSl", "invalid alternate SL"],
        codes: &[20..=20],
        summary: "the service level of the alternate path is invalid",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_TRAFFIC_CLASS",
        aliases: &["InvalidAlternateTrafficClass", "invalid alternate traffic class"],
        codes: &[21..=21],
        summary: "the traffic class of the alternate path is invalid",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_HOP_LIMIT",
        aliases: &["InvalidAlternateHopLimit", "invalid alternate hop limit"],
        codes: &[22..=22],
        summary: "the hop limit of the alternate path is invalid",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_PACKET_RATE",
        aliases: &["InvalidAlternatePacketRate", "invalid alternate packet rate"],
        codes: &[23..=23],
        summary: "the packet rate of the alternate path is invalid",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_PORT_CM_REDIRECT",
        aliases: &["PortAndCmRedirection", "port and CM redirection"],
        codes: &[24..=24],
        summary: "the client must use another port and connection manager",
        meaning: "The service is at another port, whose connection manager is named in the additional information of the REJ.",
        causes: &["the peer balances its connections over several ports"],
        checks: &[
            "connect to the port in the additional information: Adverb does not follow redirections by itself",
        ],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_PORT_REDIRECT",
        aliases: &["PortRedirection", "port redirection"],
        codes: &[25..=25],
        summary: "the client must use another port",
        meaning: "The service is at another port, which is named in the additional information of the REJ.",
        causes: &["the peer balances its connections over several ports"],
        checks: &[
            "connect to the port in the additional information: Adverb does not follow redirections by itself",
        ],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_MTU",
        aliases: &["InvalidPathMtu", "invalid path MTU"],
        codes: &[26..=26],
        summary: "the path MTU is invalid, or exceeds the peer's maximum",
        meaning: "The path MTU in the request is larger than the active MTU of the peer's port. The additional information of \
                  the REJ has the peer's maximum.",
        causes: &["the interfaces of the two ends have different MTUs, for example 9000 and 1500 bytes"],
        checks: &[
            "compare the MTU of both interfaces (`ip link`) and the active MTU of both ports (`ibv_devinfo`)",
        ],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INSUFFICIENT_RESP_RESOURCES",
        aliases: &["InsufficientResponderResources", "insufficient responder resources"],
        codes: &[27..=27],
        summary: "the peer does not support so many outstanding READs and atomics",
        meaning: "The request asks for more outstanding READs and atomics than the peer's queue pair can serve.",
        causes: &["`initiator_depth` of the request exceeds `max_qp_rd_atom` of the peer's device"],
        checks: &["connect with smaller depths (`initiator_depth`, `responder_resources`)"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_CONSUMER_DEFINED",
        aliases: &["ConsumerReject", "consumer reject", "consumer defined"],
        codes: &[28..=28],
        summary: "the peer's program rejected the request",
        meaning: "A program listens on the port, and it or its connection manager rejected the request. Private data in the REJ \
                  may have the program's reason.",
        causes: &[
            "the program called `rdma_reject`, because of its own rules",
            "the program exited or closed its listener while the request waited",
            "the request's private data or address does not fit the listener",
        ],
        checks: &["check the private data and the log of the peer's program"],
        hint: Some(
            "check the private data for the program's reason; the program may also have exited, or listen at another address \
             of the host",
        ),
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_RNR_RETRY",
        aliases: &["RnrRetryCountReject", "RNR retry count rejected"],
        codes: &[29..=29],
        summary: "the peer rejected the RNR retry count",
        meaning: "The peer does not accept the number of RNR retries in the request or reply.",
        causes: &["the `rnr_retry_count` is outside the peer's range"],
        checks: &["connect with another `rnr_retry_count` (0 to 7)"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_DUPLICATE_LOCAL_COMM_ID",
        aliases: &["DuplicateLocalCommId", "duplicate local communication ID"],
        codes: &[30..=30],
        summary: "a connection with this communication ID is already being established",
        meaning: "The peer already has a connect request with the communication ID of this one.",
        causes: &["this side used a communication ID twice, or restarted and used the same one"],
        checks: &["connect again, with a new ID"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_CLASS_VERSION",
        aliases: &["InvalidClassVersion", "invalid class version"],
        codes: &[31..=31],
        summary: "the peer's connection manager supports another class version",
        meaning: "The peer does not understand the version of the management class of the message.",
        causes: &["the peer has a very old or defective connection manager, or the packet is corrupt"],
        checks: &["check the versions of both sides, and capture the message"],
        ..REASON
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_FLOW_LABEL",
        aliases: &["InvalidPrimaryFlowLabel", "invalid primary flow label"],
        codes: &[32..=32],
        summary: "the flow label of the primary path is invalid",
        ..PRIMARY_PATH
    },
    Explanation {
        name: "IB_CM_REJ_INVALID_ALT_FLOW_LABEL",
        aliases: &["InvalidAlternateFlowLabel", "invalid alternate flow label"],
        codes: &[33..=33],
        summary: "the flow label of the alternate path is invalid",
        ..ALTERNATE_PATH
    },
    Explanation {
        name: "IB_CM_REJ_VENDOR_OPTION_NOT_SUPPORTED",
        aliases: &["VendorOptionNotSupported", "vendor option not supported"],
        codes: &[35..=35],
        summary: "the peer does not support the vendor options",
        meaning: "The request has options of enhanced connection establishment (ECE), which the peer's device does not support.",
        causes: &["the devices of the two sides are of different vendors or generations"],
        checks: &["connect without ECE options (`rdma_set_local_ece`)"],
        ..REASON
    },
];
