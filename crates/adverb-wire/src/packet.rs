//! A packet as it lies in a UDP datagram: headers, payload, padding, ICRC.

use core::fmt;

use crate::header::Header;
use crate::{Opcode, Operation};

/// The length of the ICRC at a packet's end.
pub const ICRC_LEN: usize = 4;

/// The longest packet: what fits a UDP datagram in IPv4, in whole words.
pub const MAX_PACKET_LEN: usize = (65_535 - 20 - 8) / 4 * 4;

/// The UDP port that means RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// A packet whose lengths have been checked: the payload of a UDP datagram to port [`ROCE_PORT`].
///
/// Parsing is done once. After it every header that the opcode brings is there, as a value, in
/// [`operation`](Packet::operation); the payload lies within the packet; and the length is a whole number of
/// words. What it doesn't check is the ICRC: for that see [`Flow`](crate::Flow).
///
/// ```
/// use adverb_wire::{Operation, Packet, Rc, Send};
///
/// let bytes = [
///     0x04, 0x60, 0xff, 0xff, 0x00, 0x00, 0x00, 0x12, 0x80, 0x00, 0x00, 0x07, // SEND only, pad 2, qp 0x12, psn 7
///     b'h', b'i', 0, 0, // payload and padding
///     0xde, 0xad, 0xbe, 0xef, // ICRC
/// ];
/// let packet = Packet::parse(&bytes).unwrap();
/// assert!(matches!(packet.operation(), Operation::Rc(Rc::Send(Send::Only(None)))));
/// assert_eq!(packet.payload(), b"hi");
/// assert!(Packet::parse(&bytes[..16]).is_err()); // two bytes of padding and an ICRC don't fit any more
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    header: Header,
    payload: &'a [u8],
    bytes: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the payload of a UDP datagram.
    ///
    /// Reserved bits and padding are ignored, as the specification asks.
    ///
    /// # Errors
    ///
    /// If the packet is shorter than its headers, its padding and an ICRC; isn't a whole number of words; has
    /// an opcode or header version that isn't known; or has a payload that its opcode doesn't allow.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let (header, opcode, pad_len, body) = Header::parse(bytes)?;
        if !bytes.len().is_multiple_of(4) || bytes.len() > MAX_PACKET_LEN {
            return Err(ParseError::BadLength(bytes.len()));
        }
        let trailer_len = usize::from(pad_len) + ICRC_LEN;
        let Some(payload) = body.len().checked_sub(trailer_len).and_then(|len| body.get(..len)) else {
            let needed = opcode.header_len() + trailer_len;
            return Err(ParseError::Truncated { needed, found: bytes.len() });
        };
        if !opcode.payload_rule().allows(payload.len()) {
            return Err(ParseError::Payload { opcode, payload_len: payload.len() });
        }
        Ok(Packet { header, payload, bytes })
    }

    /// The headers.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What the packet asks or answers.
    pub const fn operation(&self) -> &Operation {
        &self.header.operation
    }

    /// The opcode.
    pub const fn opcode(&self) -> Opcode {
        self.header.opcode()
    }

    /// The payload, without its padding.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// How many bytes of padding follow the payload: 0 to 3.
    pub const fn pad_len(&self) -> usize {
        self.bytes.len() - ICRC_LEN - self.header.len() - self.payload.len()
    }

    /// The ICRC at the packet's end, as a CRC-32 value: its bytes are in little-endian order.
    pub fn icrc(&self) -> u32 {
        self.bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc))
    }

    /// The whole packet.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Why bytes aren't a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// The packet ends before its headers, padding and ICRC do.
    Truncated {
        /// How many bytes these take.
        needed: usize,
        /// How many there are.
        found: usize,
    },
    /// The length isn't a whole number of words, or is more than a UDP datagram holds.
    BadLength(usize),
    /// No such opcode.
    UnknownOpcode(u8),
    /// A version of the base transport header other than 0.
    UnknownVersion(u8),
    /// A payload that the opcode doesn't allow.
    Payload {
        /// The opcode.
        opcode: Opcode,
        /// The payload's length.
        payload_len: usize,
    },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated { needed, found } => {
                write!(f, "truncated: headers, padding and ICRC take {needed} bytes, and there are {found}")
            }
            ParseError::BadLength(len) => {
                write!(f, "length {len} is not that of a packet: whole words, at most {MAX_PACKET_LEN} bytes")
            }
            ParseError::UnknownOpcode(byte) => write!(f, "unknown opcode {byte:#04x}"),
            ParseError::UnknownVersion(version) => write!(f, "unknown transport header version {version}"),
            ParseError::Payload { opcode, payload_len } => {
                write!(f, "{opcode} doesn't carry {payload_len} bytes of payload")
            }
        }
    }
}

impl core::error::Error for ParseError {}

/// Why a packet can't be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// The packet wouldn't fit a UDP datagram.
    TooLong {
        /// The payload's length.
        payload_len: usize,
    },
    /// A payload that the opcode doesn't allow.
    Payload {
        /// The opcode.
        opcode: Opcode,
        /// The payload's length.
        payload_len: usize,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::TooLong { payload_len } => {
                write!(f, "{payload_len} bytes of payload don't fit a UDP datagram: split at the path's MTU")
            }
            EmitError::Payload { opcode, payload_len } => {
                write!(f, "{opcode} doesn't carry {payload_len} bytes of payload")
            }
        }
    }
}

impl core::error::Error for EmitError {}
