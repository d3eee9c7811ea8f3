//! What tshark doesn't show, or shows wrongly, and so is checked by vectors.
//!
//! All of it is as of tshark 4.0. Whether the first list is true is checked in every run: a bit that no field
//! of tshark's stands for and that isn't in the list is a mismatch, and so is a line of the list that isn't
//! needed.

use std::ops::Range;

/// Bytes that tshark doesn't dissect.
pub(super) struct Undissected {
    /// In which kind of packet.
    pub(super) kind: &'static str,
    /// Which bytes, counted from the base transport header. In the connection manager's messages, 20 bytes of
    /// headers and 24 of the MAD's header come before the message.
    pub(super) bytes: Range<usize>,
    /// What they are, and why tshark doesn't show them.
    pub(super) why: &'static str,
    /// The vectors that have them.
    pub(super) vectors: &'static [&'static str],
}

/// All of them.
pub(super) const UNDISSECTED: &[Undissected] = &[
    Undissected {
        kind: "RC FLUSH",
        bytes: 12..36,
        why: "FETH, RETH and ICRC: to tshark the opcode is unknown and all behind the BTH mere bytes",
        vectors: &["flush-global", "flush-persistent-region", "flush-ones"],
    },
    Undissected {
        kind: "RC ATOMIC WRITE",
        bytes: 12..40,
        why: "RETH, payload and ICRC: to tshark the opcode is unknown and all behind the BTH mere bytes",
        vectors: &["atomic-write", "atomic-write-ones"],
    },
    Undissected {
        kind: "CNP",
        bytes: 12..32,
        why: "reserved bytes and ICRC: to tshark the opcode is unknown and all behind the BTH mere bytes",
        vectors: &["cnp", "cnp-of-a-connectx"],
    },
    Undissected {
        kind: "CM MRA",
        bytes: 44..276,
        why: "the message: tshark has no dissector for it and shows the header and mere bytes",
        vectors: &["mra-distinct", "mra-of-a-req", "mra-ones"],
    },
    Undissected {
        kind: "CM SIDR_REQ",
        bytes: 44..276,
        why: "the message, also rdma_cm's IP header in it: tshark shows the MAD's header and mere bytes",
        vectors: &["sidr-req-distinct", "sidr-req-ones", "sidr-req-ip4", "sidr-req-ip6"],
    },
    Undissected {
        kind: "CM SIDR_REP",
        bytes: 44..276,
        why: "the message: tshark has no dissector for it and shows the header and mere bytes",
        vectors: &["sidr-rep-distinct", "sidr-rep-ones"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 100..112,
        why: "primary local GID but for its last four bytes: over IPv4, tshark takes it for IPv4-mapped",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 116..128,
        why: "primary remote GID but for its last four bytes: likewise",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 132..136,
        why: "flow label and packet rate of the primary path, which tshark shows wrongly: see below",
        vectors: &["req-distinct", "req-ones", "req-ip4"],
    },
    Undissected {
        kind: "CM REQ",
        bytes: 176..180,
        why: "flow label and packet rate of the alternate path, which tshark shows wrongly: see below",
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
        why: "four of six reserved bits beside the rejected message: tshark shows the lowest two",
        vectors: &["rej-distinct", "rej-ones"],
    },
];

/// Fields that tshark shows wrongly. They are compared with what its mistake makes of the values that were
/// put in.
pub(super) const MISREAD: &[(&str, &str)] = &[
    (
        "infiniband.cm.req.prim_flowlabel, infiniband.cm.req.alt_flowlabel",
        "the label is the upper 20 bits of four bytes (vol. 1, table 106; CM_FIELD32_LOC(cm_req_msg, \
         88, 20) in Linux); tshark has the mask 0xfffff000 for that but applies it to three bytes, and so \
         shows the upper 12 bits only",
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

/// What tshark shows under a name that doesn't tell, or in fewer parts than there are. All of it is compared.
pub(super) const OTHER_NAMES: &[(&str, &str)] = &[
    ("infiniband.reserved in the BTH", "FECN and BECN are its upper two bits"),
    ("infiniband.reserved in a CM REQ and REP", "has the vendor ID of enhanced connection establishment"),
    ("infiniband.cm.req.alt_reserved1, the second", "its upper bit says that SAP is supported"),
    ("infiniband.cm.req.remoteqpneecn in a CM DREQ", "the remote queue pair number"),
    ("infiniband.cm.drsp.*", "is a CM DREP"),
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
