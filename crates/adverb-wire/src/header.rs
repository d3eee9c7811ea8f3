//! What stands before the payload: the base transport header and what each opcode adds to it.
//!
//! Layouts are those of vol. 1, chapter 9 (9.2 and 9.3); FLUSH and ATOMIC WRITE are from Annex A19.

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

/// The longest chain of headers: an atomic's 12 + 28 bytes.
pub const MAX_HEADER_LEN: usize = BTH_LEN + ATOMIC_ETH_LEN;

/// The partition key of the default partition, full membership: the only one on most RoCE networks.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// All that stands before a packet's payload.
///
/// The opcode is not a field of its own but follows from the [`operation`](Header::operation), which holds
/// just the headers that this opcode brings: a header that isn't there can't be asked for, and none can be
/// forgotten. Pad count and header version are computed when a packet is [emitted](crate::Flow::emit).
///
/// ```
/// use adverb_wire::{Header, Operation, Psn, Qpn, Rc, Reth, Write};
///
/// let reth = Reth { va: 0x7f00_0000_1000, rkey: 0x1234, length: 64 };
/// let header = Header {
///     ack_request: true,
///     ..Header::new(Qpn::truncate(0x12), Psn::ZERO, Operation::Rc(Rc::Write(Write::Only(reth, None))))
/// };
/// assert_eq!(header.to_string(), "RC WRITE only, qp 0x000012, psn 0, ackreq, va 0x7f0000001000 rkey 0x1234 length 64");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The queue pair that the packet is for.
    pub dest_qp: Qpn,
    /// The packet's sequence number.
    pub psn: Psn,
    /// The receiver should raise an event when the message completes.
    pub solicited: bool,
    /// Path migration state; 1 unless automatic path migration is under way. Some senders always set 0:
    /// accept both.
    pub migrated: bool,
    /// The partition key.
    pub pkey: u16,
    /// Forward congestion notification. RoCEv2 marks the IP header instead; kept for decoding.
    pub fecn: bool,
    /// Backward congestion notification: 1 in a CNP.
    pub becn: bool,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// What the packet asks or answers.
    pub operation: Operation,
}

impl Header {
    /// A header with the usual rest: default partition, migrated, no flags.
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

    /// A congestion notification for `dest_qp` (Annex A17.9.3).
    pub const fn cnp(dest_qp: Qpn) -> Header {
        Header { becn: true, ..Header::new(dest_qp, Psn::ZERO, Operation::Cnp) }
    }

    /// The opcode.
    #[inline]
    pub const fn opcode(&self) -> Opcode {
        self.operation.opcode()
    }

    /// How many bytes the headers take.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        self.opcode().header_len()
    }

    /// Writes the headers of a packet with `payload_len` bytes of payload, and says how many bytes they took.
    ///
    /// The target is as long as the longest chain, so this can't fail; bytes behind the headers are left as
    /// they are. [`Flow::emit`](crate::Flow::emit) does this and computes the trailer too.
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

    /// Parses the headers at the start of `bytes`; also gives the opcode, the pad count and what is left.
    #[inline]
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Header, Opcode, u8, &[u8]), ParseError> {
        let truncated = |needed| ParseError::Truncated { needed, found: bytes.len() };
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

/// How many bytes of zeros follow a payload of `payload_len` bytes, so that a packet is whole words.
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
