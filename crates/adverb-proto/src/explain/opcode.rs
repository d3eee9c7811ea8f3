//! Opcodes of packets.

use super::{Explanation, Kind};

/// Declares the explanation of an opcode: its value, names, headers, summary and meaning, and the fields that the packets
/// of its operation share.
macro_rules! opcode {
    ($code:literal, $name:literal, $variant:literal, $text:literal, $headers:literal, $summary:literal, $meaning:expr, $base:expr) => {
        Explanation {
            name: $name,
            aliases: &[$variant, $text],
            codes: &[$code..=$code],
            summary: $summary,
            meaning: concat!($meaning, " Headers: ", $headers, "."),
            ..$base
        }
    };
}

macro_rules! first {
    () => {
        "The message is longer than the path MTU, and this is its first packet. The payload is exactly one path MTU; a last \
         packet follows, with middle packets before it if necessary."
    };
}

macro_rules! middle {
    () => {
        "The packet is neither the first nor the last of its message. The payload is exactly one path MTU."
    };
}

macro_rules! last {
    () => {
        "The packet is the last of a message that is longer than the path MTU. The payload is 1 byte to one path MTU."
    };
}

macro_rules! only {
    () => {
        "The message fits in one packet."
    };
}

/// The fields that all opcodes share.
const OPCODE: Explanation = Explanation {
    kind: Kind::Opcode,
    reference: "InfiniBand vol. 1, 9.2 and table 38; Linux, `include/rdma/ib_pack.h`",
    ..Explanation::EMPTY
};

const RC_SEND: Explanation = Explanation {
    causes: &[
        "the requester's program posted IBV_WR_SEND, with or without immediate data, or IBV_WR_SEND_WITH_INV",
    ],
    checks: &[
        "if the packet is repeated, look for a NAK, an RNR NAK (no receive request) or a missing ACK of the responder",
        "if the responder rejects it, compare the message with the length of the posted receive request",
    ],
    ..OPCODE
};

const RC_WRITE: Explanation = Explanation {
    causes: &["the requester's program posted IBV_WR_RDMA_WRITE, with or without immediate data"],
    checks: &[
        "if the responder sends the NAK `remote access error`, compare address, key and length in the RETH with its region",
        "if the packet is repeated, look for lost packets and for a missing ACK of the responder",
    ],
    ..OPCODE
};

const RC_READ_RESPONSE: Explanation = Explanation {
    causes: &["the responder's device executes a READ request, without its program"],
    checks: &[
        "if responses are missing, the requester sends the READ request again, from the first missing byte: look for lost packets",
        "compare the path MTU of both ends: it determines the lengths of the responses",
    ],
    ..OPCODE
};

const RC_ATOMIC: Explanation = Explanation {
    checks: &[
        "check that the remote address is a multiple of 8: other addresses are rejected (NAK `invalid request`)",
        "check that queue pair and region at the responder have REMOTE_ATOMIC, and compare address and key with the region",
    ],
    ..OPCODE
};

const UC_SEND: Explanation = Explanation {
    causes: &["the requester's program posted IBV_WR_SEND on an unreliable connection"],
    checks: &[
        "if messages do not arrive, look for lost packets: the responder drops the rest of the message, without a NAK",
    ],
    ..OPCODE
};

const UC_WRITE: Explanation = Explanation {
    causes: &["the requester's program posted IBV_WR_RDMA_WRITE on an unreliable connection"],
    checks: &[
        "if data does not arrive, compare address, key and length in the RETH with the responder's region: there is no NAK",
    ],
    ..OPCODE
};

const UD_SEND: Explanation = Explanation {
    causes: &[
        "a program posted IBV_WR_SEND on a datagram queue pair",
        "a connection manager sent a message (to queue pair 1)",
    ],
    checks: &[
        "if datagrams do not arrive, check the Q_Key, the destination queue pair, the receive requests of the receiver, and \
         that its buffers have 40 bytes more than the message",
    ],
    ..OPCODE
};

/// The explanations of opcodes, in the order of their values.
pub(super) const OPCODES: &[Explanation] = &[
    opcode!(
        0x00,
        "IB_OPCODE_RC_SEND_FIRST",
        "RcSendFirst",
        "RC SEND first",
        "BTH",
        "the first packet of a SEND",
        first!(),
        RC_SEND
    ),
    opcode!(
        0x01,
        "IB_OPCODE_RC_SEND_MIDDLE",
        "RcSendMiddle",
        "RC SEND middle",
        "BTH",
        "a middle packet of a SEND",
        middle!(),
        RC_SEND
    ),
    opcode!(
        0x02,
        "IB_OPCODE_RC_SEND_LAST",
        "RcSendLast",
        "RC SEND last",
        "BTH",
        "the last packet of a SEND",
        last!(),
        RC_SEND
    ),
    opcode!(
        0x03,
        "IB_OPCODE_RC_SEND_LAST_WITH_IMMEDIATE",
        "RcSendLastWithImm",
        "RC SEND last+imm",
        "BTH, ImmDt",
        "the last packet of a SEND with immediate data",
        last!(),
        RC_SEND
    ),
    opcode!(
        0x04,
        "IB_OPCODE_RC_SEND_ONLY",
        "RcSendOnly",
        "RC SEND only",
        "BTH",
        "a SEND in one packet",
        only!(),
        RC_SEND
    ),
    opcode!(
        0x05,
        "IB_OPCODE_RC_SEND_ONLY_WITH_IMMEDIATE",
        "RcSendOnlyWithImm",
        "RC SEND only+imm",
        "BTH, ImmDt",
        "a SEND with immediate data in one packet",
        only!(),
        RC_SEND
    ),
    opcode!(
        0x06,
        "IB_OPCODE_RC_RDMA_WRITE_FIRST",
        "RcWriteFirst",
        "RC WRITE first",
        "BTH, RETH",
        "the first packet of an RDMA WRITE",
        concat!(
            first!(),
            " Only this packet has the remote address, the remote key and the length of the message."
        ),
        RC_WRITE
    ),
    opcode!(
        0x07,
        "IB_OPCODE_RC_RDMA_WRITE_MIDDLE",
        "RcWriteMiddle",
        "RC WRITE middle",
        "BTH",
        "a middle packet of an RDMA WRITE",
        middle!(),
        RC_WRITE
    ),
    opcode!(
        0x08,
        "IB_OPCODE_RC_RDMA_WRITE_LAST",
        "RcWriteLast",
        "RC WRITE last",
        "BTH",
        "the last packet of an RDMA WRITE",
        last!(),
        RC_WRITE
    ),
    opcode!(
        0x09,
        "IB_OPCODE_RC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        "RcWriteLastWithImm",
        "RC WRITE last+imm",
        "BTH, ImmDt",
        "the last packet of an RDMA WRITE with immediate data",
        concat!(last!(), " The immediate data consumes a receive request of the responder."),
        RC_WRITE
    ),
    opcode!(
        0x0a,
        "IB_OPCODE_RC_RDMA_WRITE_ONLY",
        "RcWriteOnly",
        "RC WRITE only",
        "BTH, RETH",
        "an RDMA WRITE in one packet",
        only!(),
        RC_WRITE
    ),
    opcode!(
        0x0b,
        "IB_OPCODE_RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        "RcWriteOnlyWithImm",
        "RC WRITE only+imm",
        "BTH, RETH, ImmDt",
        "an RDMA WRITE with immediate data in one packet",
        concat!(only!(), " The immediate data consumes a receive request of the responder."),
        RC_WRITE
    ),
    opcode!(
        0x0c,
        "IB_OPCODE_RC_RDMA_READ_REQUEST",
        "RcReadRequest",
        "RC READ request",
        "BTH, RETH",
        "an RDMA READ request",
        "The requester reads remote memory. The responder's device answers with READ responses, which use one PSN for each packet.",
        Explanation {
            causes: &[
                "the requester's program posted IBV_WR_RDMA_READ",
                "the requester repeats a READ from its first missing byte"
            ],
            checks: &[
                "if the responder sends the NAK `remote access error`, compare address, key and length in the RETH with its region",
                "if it sends `invalid request`, compare the number of outstanding READs with its `max_dest_rd_atomic`",
            ],
            ..OPCODE
        }
    ),
    opcode!(
        0x0d,
        "IB_OPCODE_RC_RDMA_READ_RESPONSE_FIRST",
        "RcReadResponseFirst",
        "RC READ response first",
        "BTH, AETH",
        "the first packet of an RDMA READ response",
        first!(),
        RC_READ_RESPONSE
    ),
    opcode!(
        0x0e,
        "IB_OPCODE_RC_RDMA_READ_RESPONSE_MIDDLE",
        "RcReadResponseMiddle",
        "RC READ response middle",
        "BTH",
        "a middle packet of an RDMA READ response",
        middle!(),
        RC_READ_RESPONSE
    ),
    opcode!(
        0x0f,
        "IB_OPCODE_RC_RDMA_READ_RESPONSE_LAST",
        "RcReadResponseLast",
        "RC READ response last",
        "BTH, AETH",
        "the last packet of an RDMA READ response",
        last!(),
        RC_READ_RESPONSE
    ),
    opcode!(
        0x10,
        "IB_OPCODE_RC_RDMA_READ_RESPONSE_ONLY",
        "RcReadResponseOnly",
        "RC READ response only",
        "BTH, AETH",
        "an RDMA READ response in one packet",
        concat!(only!(), " Without payload it is also the response to FLUSH and ATOMIC WRITE."),
        RC_READ_RESPONSE
    ),
    opcode!(
        0x11,
        "IB_OPCODE_RC_ACKNOWLEDGE",
        "RcAcknowledge",
        "RC ACK",
        "BTH, AETH",
        "an ACK or a NAK, depending on its syndrome",
        "The responder acknowledges or rejects requests. The syndrome in the AETH is an ACK (0x00-0x1f), an RNR NAK (0x20-0x3f) \
         or a NAK (0x60-0x64). An ACK covers all packets up to its PSN.",
        Explanation {
            causes: &[
                "a request packet asked for an acknowledgement (AckReq), or the responder cannot execute a request"
            ],
            checks: &["explain the syndrome: `adverb explain syndrome 0x62`"],
            ..OPCODE
        }
    ),
    opcode!(
        0x12,
        "IB_OPCODE_RC_ATOMIC_ACKNOWLEDGE",
        "RcAtomicAcknowledge",
        "RC ATOMIC ACK",
        "BTH, AETH, AtomicAckETH",
        "the response to an atomic operation, with the original value",
        "The responder executed a compare-and-swap or a fetch-and-add, and returns the value before the operation.",
        Explanation {
            causes: &["the responder's device executed an atomic operation"],
            checks: &[
                "if a compare-and-swap had no effect, the original value differs from the compare value"
            ],
            ..OPCODE
        }
    ),
    opcode!(
        0x13,
        "IB_OPCODE_RC_COMPARE_SWAP",
        "RcCompareSwap",
        "RC CAS",
        "BTH, AtomicETH",
        "an atomic compare-and-swap",
        "The responder replaces the 64-bit word at the remote address if it equals the compare value, and returns the old value.",
        Explanation { causes: &["the requester's program posted IBV_WR_ATOMIC_CMP_AND_SWP"], ..RC_ATOMIC }
    ),
    opcode!(
        0x14,
        "IB_OPCODE_RC_FETCH_ADD",
        "RcFetchAdd",
        "RC FAA",
        "BTH, AtomicETH",
        "an atomic fetch-and-add",
        "The responder adds a value to the 64-bit word at the remote address, and returns the old value.",
        Explanation { causes: &["the requester's program posted IBV_WR_ATOMIC_FETCH_AND_ADD"], ..RC_ATOMIC }
    ),
    opcode!(
        0x16,
        "IB_OPCODE_RC_SEND_LAST_WITH_INVALIDATE",
        "RcSendLastInvalidate",
        "RC SEND last+inv",
        "BTH, IETH",
        "the last packet of a SEND that invalidates a remote key",
        last!(),
        RC_SEND
    ),
    opcode!(
        0x17,
        "IB_OPCODE_RC_SEND_ONLY_WITH_INVALIDATE",
        "RcSendOnlyInvalidate",
        "RC SEND only+inv",
        "BTH, IETH",
        "a SEND that invalidates a remote key, in one packet",
        only!(),
        RC_SEND
    ),
    opcode!(
        0x1c,
        "IB_OPCODE_RC_FLUSH",
        "RcFlush",
        "RC FLUSH",
        "BTH, FETH, RETH",
        "a request to make earlier writes visible or persistent",
        "The responder makes earlier WRITEs to a range or a region globally visible or persistent, and responds when they are.",
        Explanation {
            causes: &["the requester's program posted IBV_WR_FLUSH"],
            checks: &[
                "check that device and region of the responder support the placement type (IBV_ACCESS_FLUSH_GLOBAL, \
                       IBV_ACCESS_FLUSH_PERSISTENT)"
            ],
            reference: "InfiniBand vol. 1, annex A19; Linux, `include/rdma/ib_pack.h`",
            ..OPCODE
        }
    ),
    opcode!(
        0x1d,
        "IB_OPCODE_RC_ATOMIC_WRITE",
        "RcAtomicWrite",
        "RC ATOMIC WRITE",
        "BTH, RETH",
        "an atomic write of eight bytes",
        "The responder writes eight bytes at once, so that no reader sees a part of them. The payload is exactly eight bytes.",
        Explanation {
            causes: &["the requester's program posted IBV_WR_ATOMIC_WRITE"],
            checks: &[
                "check that the remote address is a multiple of 8, and that the device of the responder supports the operation"
            ],
            reference: "InfiniBand vol. 1, annex A19; Linux, `include/rdma/ib_pack.h`",
            ..OPCODE
        }
    ),
    opcode!(
        0x20,
        "IB_OPCODE_UC_SEND_FIRST",
        "UcSendFirst",
        "UC SEND first",
        "BTH",
        "the first packet of a SEND over an unreliable connection",
        first!(),
        UC_SEND
    ),
    opcode!(
        0x21,
        "IB_OPCODE_UC_SEND_MIDDLE",
        "UcSendMiddle",
        "UC SEND middle",
        "BTH",
        "a middle packet of a SEND over an unreliable connection",
        middle!(),
        UC_SEND
    ),
    opcode!(
        0x22,
        "IB_OPCODE_UC_SEND_LAST",
        "UcSendLast",
        "UC SEND last",
        "BTH",
        "the last packet of a SEND over an unreliable connection",
        last!(),
        UC_SEND
    ),
    opcode!(
        0x23,
        "IB_OPCODE_UC_SEND_LAST_WITH_IMMEDIATE",
        "UcSendLastWithImm",
        "UC SEND last+imm",
        "BTH, ImmDt",
        "the last packet of a SEND with immediate data over an unreliable connection",
        last!(),
        UC_SEND
    ),
    opcode!(
        0x24,
        "IB_OPCODE_UC_SEND_ONLY",
        "UcSendOnly",
        "UC SEND only",
        "BTH",
        "a SEND in one packet over an unreliable connection",
        only!(),
        UC_SEND
    ),
    opcode!(
        0x25,
        "IB_OPCODE_UC_SEND_ONLY_WITH_IMMEDIATE",
        "UcSendOnlyWithImm",
        "UC SEND only+imm",
        "BTH, ImmDt",
        "a SEND with immediate data in one packet over an unreliable connection",
        only!(),
        UC_SEND
    ),
    opcode!(
        0x26,
        "IB_OPCODE_UC_RDMA_WRITE_FIRST",
        "UcWriteFirst",
        "UC WRITE first",
        "BTH, RETH",
        "the first packet of an RDMA WRITE over an unreliable connection",
        concat!(
            first!(),
            " Only this packet has the remote address, the remote key and the length of the message."
        ),
        UC_WRITE
    ),
    opcode!(
        0x27,
        "IB_OPCODE_UC_RDMA_WRITE_MIDDLE",
        "UcWriteMiddle",
        "UC WRITE middle",
        "BTH",
        "a middle packet of an RDMA WRITE over an unreliable connection",
        middle!(),
        UC_WRITE
    ),
    opcode!(
        0x28,
        "IB_OPCODE_UC_RDMA_WRITE_LAST",
        "UcWriteLast",
        "UC WRITE last",
        "BTH",
        "the last packet of an RDMA WRITE over an unreliable connection",
        last!(),
        UC_WRITE
    ),
    opcode!(
        0x29,
        "IB_OPCODE_UC_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        "UcWriteLastWithImm",
        "UC WRITE last+imm",
        "BTH, ImmDt",
        "the last packet of an RDMA WRITE with immediate data over an unreliable connection",
        concat!(last!(), " The immediate data consumes a receive request of the responder."),
        UC_WRITE
    ),
    opcode!(
        0x2a,
        "IB_OPCODE_UC_RDMA_WRITE_ONLY",
        "UcWriteOnly",
        "UC WRITE only",
        "BTH, RETH",
        "an RDMA WRITE in one packet over an unreliable connection",
        only!(),
        UC_WRITE
    ),
    opcode!(
        0x2b,
        "IB_OPCODE_UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        "UcWriteOnlyWithImm",
        "UC WRITE only+imm",
        "BTH, RETH, ImmDt",
        "an RDMA WRITE with immediate data in one packet over an unreliable connection",
        concat!(only!(), " The immediate data consumes a receive request of the responder."),
        UC_WRITE
    ),
    opcode!(
        0x64,
        "IB_OPCODE_UD_SEND_ONLY",
        "UdSendOnly",
        "UD SEND only",
        "BTH, DETH",
        "a SEND of an unreliable datagram",
        "A datagram is always one packet. The DETH has the Q_Key and the number of the sending queue pair.",
        UD_SEND
    ),
    opcode!(
        0x65,
        "IB_OPCODE_UD_SEND_ONLY_WITH_IMMEDIATE",
        "UdSendOnlyWithImm",
        "UD SEND only+imm",
        "BTH, DETH, ImmDt",
        "a SEND of an unreliable datagram with immediate data",
        "A datagram is always one packet. The DETH has the Q_Key and the number of the sending queue pair.",
        UD_SEND
    ),
    opcode!(
        0x81,
        "CNP",
        "Cnp",
        "congestion notification packet",
        "BTH, 16 reserved bytes",
        "a congestion notification packet",
        "The receiver of packets that a switch has marked with ECN (congestion experienced) asks their sender to send more slowly. \
         The BTH has the queue pair number of the sender that causes the congestion.",
        Explanation {
            causes: &[
                "a switch on the path marks packets because its queue is longer than its ECN threshold"
            ],
            checks: &[
                "check which switch marks the packets, and whether several senders share a receiver (incast)",
                "check that the sender reacts, with DCQCN or another congestion control: the rate of CNPs should fall",
            ],
            reference: "InfiniBand vol. 1, annex A17.9",
            ..OPCODE
        }
    ),
];
