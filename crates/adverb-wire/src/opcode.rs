//! Opcodes: the first byte of a packet, which determines its headers.

use core::fmt;

/// Declares the opcodes: generates the enum, its list, its parser and its names from one table.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $variant:ident = $byte:literal, $name:literal;)*) => {
        /// The opcode of a packet: its transport, operation and position in the message.
        ///
        /// The InfiniBand Architecture Specification defines most values in vol. 1, table 38. Annex A19 defines FLUSH
        /// and ATOMIC WRITE, and Annex A17 defines the congestion notification packet (CNP).
        ///
        /// ```
        /// use adverb_wire::Opcode;
        ///
        /// assert_eq!(Opcode::from_byte(0x0a), Some(Opcode::RcWriteOnly));
        /// assert_eq!(Opcode::RcWriteOnly.to_string(), "RC WRITE only");
        /// assert_eq!(Opcode::from_byte(0xff), None);
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Opcode {
            $($(#[$doc])* $variant = $byte,)*
        }

        impl Opcode {
            /// All opcodes that this crate knows, in the order of their values.
            pub const ALL: &[Opcode] = &[$(Opcode::$variant),*];

            /// Returns the opcode with the value `byte`, or `None` if the value is unknown.
            pub const fn from_byte(byte: u8) -> Option<Opcode> {
                match byte {
                    $($byte => Some(Opcode::$variant),)*
                    _ => None,
                }
            }

            /// Returns the name, such as `RC WRITE only`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Opcode::$variant => $name,)*
                }
            }
        }
    };
}

opcodes! {
    /// The first packet of a SEND.
    RcSendFirst = 0x00, "RC SEND first";
    /// A middle packet of a SEND.
    RcSendMiddle = 0x01, "RC SEND middle";
    /// The last packet of a SEND.
    RcSendLast = 0x02, "RC SEND last";
    /// The last packet of a SEND with immediate data.
    RcSendLastWithImm = 0x03, "RC SEND last+imm";
    /// A SEND in one packet.
    RcSendOnly = 0x04, "RC SEND only";
    /// A SEND with immediate data in one packet.
    RcSendOnlyWithImm = 0x05, "RC SEND only+imm";
    /// The first packet of an RDMA WRITE.
    RcWriteFirst = 0x06, "RC WRITE first";
    /// A middle packet of an RDMA WRITE.
    RcWriteMiddle = 0x07, "RC WRITE middle";
    /// The last packet of an RDMA WRITE.
    RcWriteLast = 0x08, "RC WRITE last";
    /// The last packet of an RDMA WRITE with immediate data.
    RcWriteLastWithImm = 0x09, "RC WRITE last+imm";
    /// An RDMA WRITE in one packet.
    RcWriteOnly = 0x0a, "RC WRITE only";
    /// An RDMA WRITE with immediate data in one packet.
    RcWriteOnlyWithImm = 0x0b, "RC WRITE only+imm";
    /// An RDMA READ request.
    RcReadRequest = 0x0c, "RC READ request";
    /// The first packet of an RDMA READ response.
    RcReadResponseFirst = 0x0d, "RC READ response first";
    /// A middle packet of an RDMA READ response.
    RcReadResponseMiddle = 0x0e, "RC READ response middle";
    /// The last packet of an RDMA READ response.
    RcReadResponseLast = 0x0f, "RC READ response last";
    /// An RDMA READ response in one packet; also the empty response to FLUSH and ATOMIC WRITE.
    RcReadResponseOnly = 0x10, "RC READ response only";
    /// An ACK or a NAK, depending on its syndrome.
    RcAcknowledge = 0x11, "RC ACK";
    /// The response to an atomic operation, with the original value.
    RcAtomicAcknowledge = 0x12, "RC ATOMIC ACK";
    /// An atomic compare-and-swap.
    RcCompareSwap = 0x13, "RC CAS";
    /// An atomic fetch-and-add.
    RcFetchAdd = 0x14, "RC FAA";
    /// The last packet of a SEND that invalidates a remote key.
    RcSendLastInvalidate = 0x16, "RC SEND last+inv";
    /// A SEND that invalidates a remote key, in one packet.
    RcSendOnlyInvalidate = 0x17, "RC SEND only+inv";
    /// A request to make earlier writes visible or persistent.
    RcFlush = 0x1c, "RC FLUSH";
    /// An atomic write of eight bytes.
    RcAtomicWrite = 0x1d, "RC ATOMIC WRITE";
    /// The first packet of a SEND over an unreliable connection.
    UcSendFirst = 0x20, "UC SEND first";
    /// A middle packet of a SEND over an unreliable connection.
    UcSendMiddle = 0x21, "UC SEND middle";
    /// The last packet of a SEND over an unreliable connection.
    UcSendLast = 0x22, "UC SEND last";
    /// The last packet of a SEND with immediate data over an unreliable connection.
    UcSendLastWithImm = 0x23, "UC SEND last+imm";
    /// A SEND in one packet over an unreliable connection.
    UcSendOnly = 0x24, "UC SEND only";
    /// A SEND with immediate data in one packet over an unreliable connection.
    UcSendOnlyWithImm = 0x25, "UC SEND only+imm";
    /// The first packet of an RDMA WRITE over an unreliable connection.
    UcWriteFirst = 0x26, "UC WRITE first";
    /// A middle packet of an RDMA WRITE over an unreliable connection.
    UcWriteMiddle = 0x27, "UC WRITE middle";
    /// The last packet of an RDMA WRITE over an unreliable connection.
    UcWriteLast = 0x28, "UC WRITE last";
    /// The last packet of an RDMA WRITE with immediate data over an unreliable connection.
    UcWriteLastWithImm = 0x29, "UC WRITE last+imm";
    /// An RDMA WRITE in one packet over an unreliable connection.
    UcWriteOnly = 0x2a, "UC WRITE only";
    /// An RDMA WRITE with immediate data in one packet over an unreliable connection.
    UcWriteOnlyWithImm = 0x2b, "UC WRITE only+imm";
    /// A SEND of an unreliable datagram.
    UdSendOnly = 0x64, "UD SEND only";
    /// A SEND of an unreliable datagram with immediate data.
    UdSendOnlyWithImm = 0x65, "UD SEND only+imm";
    /// A congestion notification packet (Annex A17.9.3).
    Cnp = 0x81, "CNP";
}

impl Opcode {
    /// Returns the value on the wire.
    #[inline]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Returns the length of this opcode's headers in bytes, including the base transport header.
    ///
    /// ```
    /// use adverb_wire::Opcode;
    ///
    /// assert_eq!(Opcode::RcSendOnly.header_len(), 12);
    /// assert_eq!(Opcode::RcWriteOnlyWithImm.header_len(), 12 + 16 + 4);
    /// ```
    #[inline]
    pub const fn header_len(self) -> usize {
        use crate::header::{
            AETH_LEN, ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, BTH_LEN, CNP_RESERVED_LEN, DETH_LEN, FETH_LEN,
            IETH_LEN, IMMEDIATE_LEN, RETH_LEN,
        };
        BTH_LEN
            + match self {
                Opcode::RcSendFirst
                | Opcode::RcSendMiddle
                | Opcode::RcSendLast
                | Opcode::RcSendOnly
                | Opcode::RcWriteMiddle
                | Opcode::RcWriteLast
                | Opcode::RcReadResponseMiddle
                | Opcode::UcSendFirst
                | Opcode::UcSendMiddle
                | Opcode::UcSendLast
                | Opcode::UcSendOnly
                | Opcode::UcWriteMiddle
                | Opcode::UcWriteLast => 0,
                Opcode::RcSendLastWithImm
                | Opcode::RcSendOnlyWithImm
                | Opcode::RcWriteLastWithImm
                | Opcode::UcSendLastWithImm
                | Opcode::UcSendOnlyWithImm
                | Opcode::UcWriteLastWithImm => IMMEDIATE_LEN,
                Opcode::RcSendLastInvalidate | Opcode::RcSendOnlyInvalidate => IETH_LEN,
                Opcode::RcWriteFirst
                | Opcode::RcWriteOnly
                | Opcode::RcReadRequest
                | Opcode::RcAtomicWrite
                | Opcode::UcWriteFirst
                | Opcode::UcWriteOnly => RETH_LEN,
                Opcode::RcWriteOnlyWithImm | Opcode::UcWriteOnlyWithImm => RETH_LEN + IMMEDIATE_LEN,
                Opcode::RcReadResponseFirst
                | Opcode::RcReadResponseLast
                | Opcode::RcReadResponseOnly
                | Opcode::RcAcknowledge => AETH_LEN,
                Opcode::RcAtomicAcknowledge => AETH_LEN + ATOMIC_ACK_ETH_LEN,
                Opcode::RcCompareSwap | Opcode::RcFetchAdd => ATOMIC_ETH_LEN,
                Opcode::RcFlush => FETH_LEN + RETH_LEN,
                Opcode::UdSendOnly => DETH_LEN,
                Opcode::UdSendOnlyWithImm => DETH_LEN + IMMEDIATE_LEN,
                Opcode::Cnp => CNP_RESERVED_LEN,
            }
    }

    /// Returns the rule for the payload length of packets with this opcode.
    #[inline]
    pub const fn payload_rule(self) -> PayloadRule {
        match self {
            Opcode::RcReadRequest
            | Opcode::RcAcknowledge
            | Opcode::RcAtomicAcknowledge
            | Opcode::RcCompareSwap
            | Opcode::RcFetchAdd
            | Opcode::RcFlush
            | Opcode::Cnp => PayloadRule::Empty,
            Opcode::RcAtomicWrite => PayloadRule::EightBytes,
            _ => PayloadRule::Any,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The payload lengths that an opcode allows. The transport checks the lengths of FIRST, MIDDLE, LAST and ONLY packets,
/// because they depend on the path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PayloadRule {
    /// No payload.
    Empty,
    /// A payload of exactly eight bytes, as in an ATOMIC WRITE.
    EightBytes,
    /// A payload of any length.
    Any,
}

impl PayloadRule {
    /// Whether a payload of `len` bytes is allowed.
    #[inline]
    pub const fn allows(self, len: usize) -> bool {
        match self {
            PayloadRule::Empty => len == 0,
            PayloadRule::EightBytes => len == 8,
            PayloadRule::Any => true,
        }
    }
}
