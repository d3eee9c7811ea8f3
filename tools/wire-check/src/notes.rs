//! The bytes that tshark doesn't dissect or dissects wrongly, which vectors check instead.
//!
//! The notes describe tshark 4.0. Every run checks the first list: a bit that no field of tshark's covers and that
//! isn't in the list is a mismatch, and so is an entry of the list that isn't needed.

use std::ops::Range;

/// Bytes that tshark doesn't dissect.
pub(super) struct Undissected {
    /// The kind of packet.
    pub(super) kind: &'static str,
    /// The bytes, counted from the base transport header. In the connection manager's messages, 20 bytes of headers and
    /// 24 bytes of MAD header precede the message.
    pub(super) bytes: Range<usize>,
    /// The meaning of the bytes, and the reason why tshark doesn't show them.
    pub(super) why: &'static str,
    /// The vectors that contain such bytes.
    pub(super) vectors: &'static [&'static str],
}

/// All bytes that tshark doesn't dissect.
pub(super) const UNDISSECTED: &[Undissected] = &[
    Undissected {
        kind: "RC FLUSH",
        bytes: 12..36,
        why: "FETH, RETH and ICRC: tshark doesn't know the opcode, and shows raw bytes after the BTH",
        vectors: &["flush-global", "flush-persistent-region", "flush-ones"],
    },
    Undissected {
        kind: "RC ATOMIC WRITE",
        bytes: 12..40,
        why: "RETH, payload and ICRC: tshark doesn't know the opcode, and shows raw bytes after the BTH",
        vectors: &["atomic-write", "atomic-write-ones"],
    },
    Undissected {
        kind: "CNP",
        bytes: 12..32,
        why: "reserved bytes and ICRC: tshark doesn't know the opcode, and shows raw bytes after the BTH",
        vectors: &["cnp", "cnp-of-a-connectx"],
    },
    Undissected {
        kind: "CM MRA",
        bytes: 44..276,
        why: "the message: tshark has no dissector for it, and shows the MAD header and raw bytes",
        vectors: &["mra-distinct", "mra-of-a-req", "mra-ones"],
    },
    Undissected {
        kind: "CM SIDR_REQ",
        bytes: 44..276,
        why: "the message, including rdma_cm's IP header: tshark shows the MAD header and raw bytes",
        vectors: &["sidr-req-distinct", "sidr-req-ones", "sidr-req-ip4", "sidr-req-ip6"],
    },
    Undissected {
        kind: "CM SIDR_REP",
        bytes: 44..276,
        why: "the message: tshark has no dissector for it, and shows the MAD header and raw bytes",
        vectors: &["sidr-rep-distinct", "sidr-rep-ones"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 100..112,
        why: "primary local GID except its last four bytes: over IPv4, tshark assumes that it is IPv4-mapped",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 116..128,
        why: "primary remote GID except its last four bytes: over IPv4, tshark assumes that it is IPv4-mapped",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 132..136,
        why: "flow label and packet rate of the primary path, which tshark dissects wrongly: see below",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 176..180,
        why: "flow label and packet rate of the alternate path, which tshark dissects wrongly: see below",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 188..200,
        why: "the twelve zeros before an IPv4 source address in rdma_cm's IP header, which tshark skips",
        vectors: &["req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 204..216,
        why: "the twelve zeros before an IPv4 destination address in rdma_cm's IP header, which tshark skips",
        vectors: &["req-ip4"],
    },
    Undissected {
        kind: "CM REJ",
        bytes: 52..53,
        why: "four of six reserved bits after the rejected message's kind: tshark shows the lowest two",
        vectors: &["rej-distinct", "rej-ones"],
    },
];

/// Fields that tshark dissects wrongly. They are compared with the wrong value that tshark shows for the original
/// value.
pub(super) const MISREAD: &[(&str, &str)] = &[
    (
        "infiniband.cm.req.prim_flowlabel, infiniband.cm.req.alt_flowlabel",
        "the label is the upper 20 bits of four bytes (vol. 1, table 106; CM_FIELD32_LOC(cm_req_msg, \
         88, 20) in Linux); tshark applies its mask 0xfffff000 to three bytes, and so \
         shows only the upper 12 bits",
    ),
    (
        "infiniband.cm.req.prim_pktrate, infiniband.cm.req.alt_pktrate",
        "the rate is the low 6 bits of the fourth byte (CM_FIELD_BLOC(cm_req_msg, 91, 2, 6)); tshark shows \
         those of the first byte, which belong to the flow label",
    ),
    (
        "infiniband.cm.req.prim_reserved0, infiniband.cm.req.alt_reserved0",
        "six reserved bits between label and rate; tshark shows two bits of the flow label",
    ),
];

/// Fields that tshark shows under a misleading name, or as fewer fields than there are. All of them are compared.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[
    ("infiniband.reserved in the BTH", "FECN and BECN are its upper two bits"),
    ("infiniband.reserved in a CM REQ and REP", "the vendor ID of enhanced connection establishment"),
    ("infiniband.cm.req.alt_reserved1, the second", "its upper bit is the SAP flag"),
    ("infiniband.cm.req.remoteqpneecn in a CM DREQ", "the remote queue pair number"),
    ("infiniband.cm.drsp.*", "the fields of a CM DREP"),
    ("data.data", "payload and padding together"),
];

#[cfg(test)]
mod tests {
    use super::super::vectors::Vectors;
    use super::*;

    #[test]
    fn every_note_names_vectors_that_exist() {
        let vectors = Vectors::load().unwrap();
        for note in UNDISSECTED {
            assert!(!note.vectors.is_empty());
            assert!(note.vectors.iter().all(|name| vectors.has(name)), "{}: {:?}", note.kind, note.vectors);
        }
    }
}
