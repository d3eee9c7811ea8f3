//! Statuses of service ID resolution (SIDR): the connection manager's replies to queries for UD queue pairs.

use super::{Explanation, Kind};

/// The fields that all statuses share.
const SIDR: Explanation = Explanation {
    kind: Kind::SidrStatus,
    reference: "InfiniBand vol. 1, 12.11.2; `enum ib_cm_sidr_status`",
    ..Explanation::EMPTY
};

/// The explanations of statuses, in the order of their codes.
pub(super) const STATUSES: &[Explanation] = &[
    Explanation {
        name: "IB_SIDR_SUCCESS",
        aliases: &["Valid"],
        codes: &[0..=0],
        summary: "the reply has the number and the Q_Key of the peer's UD queue pair",
        meaning: "The peer accepted the query. Its reply has the queue pair number and the Q_Key that datagrams need.",
        causes: &["the peer's program accepted the query"],
        checks: &["send datagrams with the queue pair number and the Q_Key of the reply"],
        ..SIDR
    },
    Explanation {
        name: "IB_SIDR_UNSUPPORTED",
        aliases: &["ServiceIdNotSupported", "service ID not supported"],
        codes: &[1..=1],
        summary: "the peer has no listener for the service ID",
        meaning: "The peer's connection manager is up, and no program listens for datagrams at the port of the query.",
        causes: &[
            "the program is not running, listens on another port, or listens for connections instead of datagrams",
        ],
        checks: &["check the port and the port space (RDMA_PS_UDP) of the listener at the peer"],
        ..SIDR
    },
    Explanation {
        name: "IB_SIDR_REJECT",
        aliases: &["Rejected", "rejected by the service provider"],
        codes: &[2..=2],
        summary: "the peer's program rejected the query",
        meaning: "A program listens at the port, and rejected the query. Its private data may have the reason.",
        causes: &["the program accepts no further peer, or not this one"],
        checks: &["check the private data of the reply, and the log of the peer's program"],
        ..SIDR
    },
    Explanation {
        name: "IB_SIDR_NO_QP",
        aliases: &["NoQueuePair", "no queue pair available"],
        codes: &[3..=3],
        summary: "the peer has no queue pair for the service",
        meaning: "A program listens at the port, and has no queue pair to offer.",
        causes: &["the peer has reached its limit of queue pairs"],
        checks: &["check the resources of the peer (`rdma resource`)"],
        ..SIDR
    },
    Explanation {
        name: "IB_SIDR_REDIRECT",
        aliases: &["Redirected"],
        codes: &[4..=4],
        summary: "the client must query another port",
        meaning: "The service is at another port of the fabric, which the additional information of the reply names.",
        causes: &["the peer's connection manager redirects queries"],
        checks: &[
            "query the port in the additional information: Adverb does not follow redirections by itself",
        ],
        ..SIDR
    },
    Explanation {
        name: "IB_SIDR_UNSUPPORTED_VERSION",
        aliases: &["UnsupportedVersion", "class version not supported"],
        codes: &[5..=5],
        summary: "the peer's connection manager supports another class version",
        meaning: "The peer does not understand the version of the management class of the query.",
        causes: &["the peer has a very old or defective connection manager, or the packet is corrupt"],
        checks: &["check the versions of both sides, and capture the query"],
        ..SIDR
    },
];
