//! A packet as the payload of a UDP datagram: headers, payload, padding, ICRC.

use core::fmt;

use crate::header::Header;
use crate::{Opcode, Operation};

/// The length in bytes of the ICRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

/// The maximum packet length in bytes: the payload of a maximum-size UDP datagram in IPv4, rounded down to a multiple
/// of four.
pub const MAX_PACKET_LEN: usize = (65_535 - 20 - 8) / 4 * 4;

/// The UDP port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// A parsed packet with checked lengths: the payload of a UDP datagram to port [`ROCE_PORT`].
///
/// Parsing happens once and guarantees that every header of the opcode is available in
/// [`operation`](Packet::operation), that the payload lies within the packet, and that the length is a multiple of
/// four bytes. Parsing doesn't check the ICRC; see [`Flow`](crate::Flow).
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
/// assert!(Packet::parse(&bytes[..16]).is_err()); // too short for two bytes of padding and an ICRC
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
    /// Reserved bits and padding are ignored, as the specification requires.
    ///
    /// # Errors
    ///
    /// - Returns [`ParseError::Truncated`] if the packet is shorter than its headers, padding and ICRC.
    /// - Returns [`ParseError::BadLength`] if the length is not a multiple of four, or exceeds [`MAX_PACKET_LEN`].
    /// - Returns [`ParseError::UnknownOpcode`] or [`ParseError::UnknownVersion`] if the opcode or the version of the
    ///   base transport header is unknown.
    /// - Returns [`ParseError::InvalidPayloadLength`] if the opcode doesn't allow a payload of this length.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let (header, opcode, pad_len, body) = Header::parse(bytes)?;
        if !bytes.len().is_multiple_of(4) || bytes.len() > MAX_PACKET_LEN {
            return Err(ParseError::BadLength(bytes.len()));
        }
        let trailer_len = usize::from(pad_len) + ICRC_LEN;
        let Some(payload) = body.len().checked_sub(trailer_len).and_then(|len| body.get(..len)) else {
            let needed_len = opcode.header_len() + trailer_len;
            return Err(ParseError::Truncated { needed_len, found_len: bytes.len() });
        };
        if !opcode.payload_rule().allows(payload.len()) {
            return Err(ParseError::InvalidPayloadLength { opcode, payload_len: payload.len() });
        }
        Ok(Packet { header, payload, bytes })
    }

    /// Returns the headers.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the operation: the opcode and its extended headers.
    pub const fn operation(&self) -> &Operation {
        &self.header.operation
    }

    /// Returns the opcode.
    pub const fn opcode(&self) -> Opcode {
        self.header.opcode()
    }

    /// Returns the payload, without its padding.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Returns the number of padding bytes after the payload: 0 to 3.
    pub const fn pad_len(&self) -> usize {
        self.bytes.len() - ICRC_LEN - self.header.len() - self.payload.len()
    }

    /// Returns the ICRC at the end of the packet as a CRC-32 value. On the wire, the ICRC is in little-endian byte
    /// order.
    pub fn icrc(&self) -> u32 {
        self.bytes.last_chunk().map_or(0, |icrc| u32::from_le_bytes(*icrc))
    }

    /// Returns the bytes of the whole packet.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The error of [`Packet::parse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// The packet is shorter than its headers, padding and ICRC.
    Truncated {
        /// The length of the headers, padding and ICRC in bytes, or of the headers alone if they are incomplete.
        needed_len: usize,
        /// The length of the packet in bytes.
        found_len: usize,
    },
    /// The length is not a multiple of four bytes, or exceeds [`MAX_PACKET_LEN`].
    BadLength(usize),
    /// The opcode is unknown.
    UnknownOpcode(u8),
    /// The version of the base transport header is not 0.
    UnknownVersion(u8),
    /// The opcode doesn't allow a payload of this length.
    InvalidPayloadLength {
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload in bytes.
        payload_len: usize,
    },
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated { needed_len, found_len } => {
                write!(
                    f,
                    "truncated packet: headers, padding and ICRC need {needed_len} bytes, got {found_len}"
                )
            }
            ParseError::BadLength(len) => {
                write!(f, "bad packet length {len}: must be a multiple of 4, at most {MAX_PACKET_LEN} bytes")
            }
            ParseError::UnknownOpcode(byte) => write!(f, "unknown opcode {byte:#04x}"),
            ParseError::UnknownVersion(version) => write!(f, "unknown transport header version {version}"),
            ParseError::InvalidPayloadLength { opcode, payload_len } => {
                write!(f, "{opcode} does not allow a payload of {payload_len} bytes")
            }
        }
    }
}

impl core::error::Error for ParseError {}

/// The error of [`Flow::emit`](crate::Flow::emit) and [`Flow::begin_emit`](crate::Flow::begin_emit).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EmitError {
    /// The packet exceeds [`MAX_PACKET_LEN`].
    TooLong {
        /// The length of the payload in bytes.
        payload_len: usize,
    },
    /// The opcode doesn't allow a payload of this length.
    InvalidPayloadLength {
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload in bytes.
        payload_len: usize,
    },
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::TooLong { payload_len } => {
                write!(f, "{payload_len} bytes of payload exceed a UDP datagram: split at the path MTU")
            }
            EmitError::InvalidPayloadLength { opcode, payload_len } => {
                write!(f, "{opcode} does not allow a payload of {payload_len} bytes")
            }
        }
    }
}

impl core::error::Error for EmitError {}
