//! The headers before the payload: the base transport header and the extended headers of each opcode.
//!
//! The layouts are defined in vol. 1, 9.2 and 9.3; those of FLUSH and ATOMIC WRITE in Annex A19.

use crate::operation::Operation;
use crate::packet::ParseError;
use crate::{Opcode, Psn, Qpn};

pub(crate) const BTH_LEN: usize = 12;
pub(crate) const DETH_LEN: usize = 8;
pub(crate) const RETH_LEN: usize = 16;
pub(crate) const ATOMIC_ETH_LEN: usize = 28;
pub(crate) const AETH_LEN: usize = 4;
pub(crate) const ATOMIC_ACK_ETH_LEN: usize = 8;
pub(crate) const IMMEDIATE_LEN: usize = 4;
pub(crate) const IETH_LEN: usize = 4;
pub(crate) const FETH_LEN: usize = 4;
pub(crate) const CNP_RESERVED_LEN: usize = 16;

/// The maximum length of all headers of a packet in bytes: 12 + 28, the length of the headers of an atomic request.
pub const MAX_HEADER_LEN: usize = BTH_LEN + ATOMIC_ETH_LEN;

/// The P_Key of the default partition with full membership: the only P_Key on most RoCE networks.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// The transport headers of a packet.
///
/// The opcode follows from the [`operation`](Header::operation), which holds exactly the extended headers of that
/// opcode. A header that the packet lacks therefore can't be read, and a required header can't be left out. The pad
/// count and the header version are computed when the packet is [emitted](crate::Flow::emit).
///
/// ```
/// use adverb_wire::{Header, Operation, Psn, Qpn, Rc, Reth, Write};
///
/// let reth = Reth { va: 0x7f00_0000_1000, rkey: 0x1234, length: 64 };
/// let header = Header {
///     ack_request: true,
///     ..Header::new(Qpn::truncate(0x12), Psn::ZERO, Operation::Rc(Rc::Write(Write::Only(reth, None))))
/// };
/// let text = "RC WRITE only, qp 0x000012, psn 0, ackreq, va 0x7f0000001000 rkey 0x1234 length 64";
/// assert_eq!(header.to_string(), text);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The number of the destination queue pair.
    pub dest_qp: Qpn,
    /// The packet sequence number.
    pub psn: Psn,
    /// Whether the responder generates a solicited event when the message completes.
    pub solicited: bool,
    /// Whether the path migration state is Migrated (the MigReq bit): `true` unless automatic path migration is in
    /// progress. Some senders always set `false`, so receivers should accept both values.
    pub migrated: bool,
    /// The partition key (P_Key).
    pub pkey: u16,
    /// Whether forward congestion notification is set. RoCEv2 marks the IP header instead; this field is for decoding.
    pub fecn: bool,
    /// Whether backward congestion notification is set. Every CNP sets this flag.
    pub becn: bool,
    /// Whether the requester requests an acknowledgement.
    pub ack_request: bool,
    /// The opcode and its extended headers.
    pub operation: Operation,
}

impl Header {
    /// Creates a header with [`DEFAULT_PKEY`], `migrated` set, and all other flags clear.
    pub const fn new(dest_qp: Qpn, psn: Psn, operation: Operation) -> Header {
        Header {
            dest_qp,
            psn,
            solicited: false,
            migrated: true,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            ack_request: false,
            operation,
        }
    }

    /// Creates the header of a congestion notification packet for `dest_qp` (Annex A17.9.3).
    pub const fn cnp(dest_qp: Qpn) -> Header {
        Header { becn: true, ..Header::new(dest_qp, Psn::ZERO, Operation::Cnp) }
    }

    /// Returns the opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.operation.opcode()
    }

    /// Returns the length of the headers in bytes.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        self.opcode().header_len()
    }

    /// Writes the headers of a packet with `payload_len` bytes of payload into `out`, and returns their length.
    ///
    /// Bytes of `out` after the headers are left unchanged. [`Flow::emit`](crate::Flow::emit) also computes the
    /// trailer.
    #[inline]
    pub fn emit(&self, payload_len: usize, out: &mut [u8; MAX_HEADER_LEN]) -> usize {
        let opcode = self.opcode();
        let pad = pad_len(payload_len);
        let (bth, rest) = split_bth_mut(out);
        let [q0, q1, q2] = self.dest_qp.to_be_bytes();
        let [p0, p1, p2] = self.psn.to_be_bytes();
        let [k0, k1] = self.pkey.to_be_bytes();
        *bth = [
            opcode.byte(),
            bit(self.solicited, SOLICITED) | bit(self.migrated, MIGRATED) | pad << PAD_SHIFT,
            k0,
            k1,
            bit(self.fecn, FECN) | bit(self.becn, BECN),
            q0,
            q1,
            q2,
            bit(self.ack_request, ACK_REQUEST),
            p0,
            p1,
            p2,
        ];
        self.operation.emit(rest);
        opcode.header_len()
    }

    /// Parses the headers at the start of `bytes`. Returns them with the opcode, the pad count and the remaining bytes.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Header, Opcode, u8, &[u8]), ParseError> {
        let truncated = |needed_len| ParseError::Truncated { needed_len, found_len: bytes.len() };
        let Some((bth, rest)) = bytes.split_first_chunk::<BTH_LEN>() else {
            return Err(truncated(BTH_LEN));
        };
        let &[opcode, flags, k0, k1, congestion, q0, q1, q2, ack, p0, p1, p2] = bth;
        let opcode = Opcode::from_byte(opcode).ok_or(ParseError::UnknownOpcode(opcode))?;
        if flags & VERSION_MASK != 0 {
            return Err(ParseError::UnknownVersion(flags & VERSION_MASK));
        }
        let Some((operation, rest)) = Operation::parse(opcode, rest) else {
            return Err(truncated(opcode.header_len()));
        };
        let header = Header {
            dest_qp: Qpn::from_be_bytes([q0, q1, q2]),
            psn: Psn::from_be_bytes([p0, p1, p2]),
            solicited: flags & SOLICITED != 0,
            migrated: flags & MIGRATED != 0,
            pkey: u16::from_be_bytes([k0, k1]),
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            ack_request: ack & ACK_REQUEST != 0,
            operation,
        };
        Ok((header, opcode, flags >> PAD_SHIFT & PAD_MASK, rest))
    }
}

/// Returns the number of zero bytes that pad a payload of `payload_len` bytes to a multiple of four.
pub(crate) const fn pad_len(payload_len: usize) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "masked to two bits")]
    let pad = (payload_len.wrapping_neg() & 3) as u8;
    pad
}

const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const PAD_MASK: u8 = 3;
const VERSION_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;

const fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

fn split_bth_mut(out: &mut [u8; MAX_HEADER_LEN]) -> (&mut [u8; BTH_LEN], &mut [u8; ATOMIC_ETH_LEN]) {
    let (bth, rest) = out.split_at_mut(BTH_LEN);
    match (bth.try_into(), rest.try_into()) {
        (Ok(bth), Ok(rest)) => (bth, rest),
        _ => unreachable!("12 + 28 = 40"),
    }
}
