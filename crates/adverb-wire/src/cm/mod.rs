//! Connection manager (CM) messages, which connect two queue pairs (vol. 1, chapter 12).
//!
//! Three messages establish a connection: the client sends a [`Req`], the server replies with a [`Rep`], and the client
//! confirms with an [`Rtu`]. Either side sends a [`Rej`] to reject the connection, or an [`Mra`] to extend the other
//! side's timeout. Two messages end a connection: a [`Dreq`] and its reply, a [`Drep`]. Datagrams need no connection,
//! only the queue pair number of a service: a [`SidrReq`] requests the number, and a [`SidrRep`] returns it.
//!
//! Each message is a management datagram ([`Mad`]): 256 bytes, sent as the payload of an unreliable datagram from
//! [`Qpn::GSI`](crate::Qpn::GSI) to [`Qpn::GSI`](crate::Qpn::GSI), with [`GSI_QKEY`].
//!
//! ```
//! use adverb_wire::cm::{Mad, Message, PrivateData, Rtu};
//!
//! let rtu = Rtu { local_comm_id: 0x1234, remote_comm_id: 0x5678, private_data: PrivateData::EMPTY };
//! let mad = Mad { transaction_id: 1, message: Message::Rtu(rtu) };
//! let bytes = mad.emit();
//! assert_eq!(Mad::parse(&bytes), Ok(mad));
//! assert_eq!(mad.message.to_string(), "CM RTU local 0x1234 remote 0x5678");
//! ```
//!
//! LAP and APR, which change the alternate path of an established connection, are not supported.

mod bits;
mod code;
mod dreq;
mod ece;
mod header;
mod ip;
mod layout;
mod mra;
mod mtu;
mod private;
mod rej;
mod rep;
mod req;
mod rtu;
mod service;
mod sidr;
#[cfg(test)]
mod tests;
mod timeout;

use core::fmt;

pub use bits::Bits;
pub use code::{Failover, MessageKind, RejectReason, SidrStatus, TransportService, UnlistedCode};
pub use dreq::{Drep, Dreq};
pub use ece::Ece;
pub use ip::{CmaHeader, CmaHeaderError, IpPair};
pub use mra::Mra;
pub use mtu::{PathMtu, UnknownMtu};
pub use private::{AdditionalInfo, DataTooLong, PrivateData};
pub use rej::Rej;
pub use rep::Rep;
pub use req::{Path, Req};
pub use rtu::Rtu;
pub use service::{PortSpace, ServiceId};
pub use sidr::{SidrRep, SidrReq};
pub use timeout::Timeout;

use header::{BASE_VERSION, CLASS, CLASS_VERSION, HEADER_LEN, Header, METHOD_SEND};
use layout::Block;

/// The length of every management datagram in bytes (vol. 1, 13.4).
pub const MAD_LEN: usize = 256;

/// The Q_Key of the general service interface, queue pair 1.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A CM management datagram (MAD): a message and its transaction ID.
///
/// ```
/// use adverb_wire::cm::{Mad, MadError};
///
/// assert_eq!(Mad::parse(b"short"), Err(MadError::Length(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mad {
    /// The transaction ID. The sender of the first message chooses the ID, and replies carry the same ID (vol. 1,
    /// 13.4.3).
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

impl Mad {
    /// Parses a management datagram: the payload of an unreliable datagram received on queue pair 1.
    ///
    /// Unknown and invalid field values are not errors, because the CM needs the message to reject it. Reserved bits
    /// and the header's status are ignored.
    ///
    /// # Errors
    ///
    /// - Returns [`MadError::Length`] if the payload isn't 256 bytes long.
    /// - Returns [`MadError::BaseVersion`], [`MadError::Class`], [`MadError::ClassVersion`] or [`MadError::Method`] if
    ///   the header isn't that of a CM message.
    /// - Returns [`MadError::Attribute`] if the kind of message is unknown or unsupported.
    pub fn parse(payload: &[u8]) -> Result<Mad, MadError> {
        let mad: &[u8; MAD_LEN] = payload.try_into().map_err(|_| MadError::Length(payload.len()))?;
        let mad = Block(*mad);
        let header = Header::parse(mad.array(0))?;
        let data = Block(mad.array(HEADER_LEN));
        let mut message = match header.attribute_id {
            attribute::REQ => Message::Req(Req::read(&data)),
            attribute::MRA => Message::Mra(Mra::read(&data)),
            attribute::REJ => Message::Rej(Rej::read(&data)),
            attribute::REP => Message::Rep(Rep::read(&data)),
            attribute::RTU => Message::Rtu(Rtu::read(&data)),
            attribute::DREQ => Message::Dreq(Dreq::read(&data)),
            attribute::DREP => Message::Drep(Drep::read(&data)),
            attribute::SIDR_REQ => Message::SidrReq(SidrReq::read(&data)),
            attribute::SIDR_REP => Message::SidrRep(SidrRep::read(&data)),
            other => return Err(MadError::Attribute(other)),
        };
        if let Some(ece) = message.ece_mut() {
            ece.options = header.attribute_modifier;
        }
        Ok(Mad { transaction_id: header.transaction_id, message })
    }

    /// Returns the bytes of the datagram. Reserved bits are zero.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut data = Block([0; DATA_LEN]);
        match &self.message {
            Message::Req(req) => req.write(&mut data),
            Message::Mra(mra) => mra.write(&mut data),
            Message::Rej(rej) => rej.write(&mut data),
            Message::Rep(rep) => rep.write(&mut data),
            Message::Rtu(rtu) => rtu.write(&mut data),
            Message::Dreq(dreq) => dreq.write(&mut data),
            Message::Drep(drep) => drep.write(&mut data),
            Message::SidrReq(request) => request.write(&mut data),
            Message::SidrRep(response) => response.write(&mut data),
        }
        let header = Header {
            transaction_id: self.transaction_id,
            attribute_id: self.message.attribute_id(),
            attribute_modifier: self.message.ece().map_or(0, |ece| ece.options),
        };
        let mut mad = Block([0; MAD_LEN]);
        mad.put_array(0, &header.emit());
        mad.put_array(HEADER_LEN, &data.0);
        mad.0
    }
}

/// A CM message.
///
/// `Display` prints one line with the most important fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// A request for communication.
    Req(Req),
    /// A message receipt acknowledgement, which extends the receiver's timeout for the reply.
    Mra(Mra),
    /// A rejection.
    Rej(Rej),
    /// The reply that accepts a REQ.
    Rep(Rep),
    /// Ready to use: the confirmation of a REP.
    Rtu(Rtu),
    /// A disconnection request.
    Dreq(Dreq),
    /// The reply to a disconnection request.
    Drep(Drep),
    /// A service ID resolution request.
    SidrReq(SidrReq),
    /// The response to a SIDR_REQ.
    SidrRep(SidrRep),
}

impl Message {
    /// Returns the attribute ID, which identifies the kind of message (vol. 1, 12.6).
    pub const fn attribute_id(&self) -> u16 {
        match self {
            Message::Req(_) => attribute::REQ,
            Message::Mra(_) => attribute::MRA,
            Message::Rej(_) => attribute::REJ,
            Message::Rep(_) => attribute::REP,
            Message::Rtu(_) => attribute::RTU,
            Message::Dreq(_) => attribute::DREQ,
            Message::Drep(_) => attribute::DREP,
            Message::SidrReq(_) => attribute::SIDR_REQ,
            Message::SidrRep(_) => attribute::SIDR_REP,
        }
    }

    /// Returns the enhanced connection establishment (ECE) options, or `None` if this kind of message has no field for
    /// them.
    pub const fn ece(&self) -> Option<&Ece> {
        match self {
            Message::Req(req) => Some(&req.ece),
            Message::Rep(rep) => Some(&rep.ece),
            Message::SidrRep(response) => Some(&response.ece),
            _ => None,
        }
    }

    /// Returns the ECE field, whose options are in the MAD header instead of the message.
    const fn ece_mut(&mut self) -> Option<&mut Ece> {
        match self {
            Message::Req(req) => Some(&mut req.ece),
            Message::Rep(rep) => Some(&mut rep.ece),
            Message::SidrRep(response) => Some(&mut response.ece),
            _ => None,
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Message::Req(req) => req.fmt(f),
            Message::Mra(mra) => mra.fmt(f),
            Message::Rej(rej) => rej.fmt(f),
            Message::Rep(rep) => rep.fmt(f),
            Message::Rtu(rtu) => rtu.fmt(f),
            Message::Dreq(dreq) => dreq.fmt(f),
            Message::Drep(drep) => drep.fmt(f),
            Message::SidrReq(request) => request.fmt(f),
            Message::SidrRep(response) => response.fmt(f),
        }
    }
}

/// The error of [`Mad::parse`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MadError {
    /// The payload has this length instead of 256 bytes.
    Length(usize),
    /// The base version of the header isn't 1.
    BaseVersion(u8),
    /// The management class isn't 7 (communication management).
    Class(u8),
    /// The class version isn't 2.
    ClassVersion(u8),
    /// The method isn't 3 (Send), which is the method of all CM messages.
    Method(u8),
    /// The attribute ID is unknown, or is that of an unsupported message: 0x19 (LAP) or 0x1a (APR).
    Attribute(u16),
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MadError::Length(length) => write!(f, "a MAD must have {MAD_LEN} bytes, got {length}"),
            MadError::BaseVersion(version) => {
                write!(f, "MAD base version {version} is not supported, only {BASE_VERSION}")
            }
            MadError::Class(class) => {
                write!(f, "management class {class:#04x} is not communication management ({CLASS:#04x})")
            }
            MadError::ClassVersion(version) => {
                write!(f, "CM class version {version} is not supported, only {CLASS_VERSION}")
            }
            MadError::Method(method) => {
                write!(f, "MAD method {method:#04x} is not Send ({METHOD_SEND:#04x}), the only CM method")
            }
            MadError::Attribute(attribute::LAP) => f.write_str("LAP (load alternate path) is not supported"),
            MadError::Attribute(attribute::APR) => {
                f.write_str("APR (alternate path response) is not supported")
            }
            MadError::Attribute(attribute) => {
                write!(f, "attribute {attribute:#06x} is not a CM message")
            }
        }
    }
}

impl core::error::Error for MadError {}

/// The length of a message: a MAD without its header.
const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// The attribute IDs of the messages.
mod attribute {
    pub(super) const REQ: u16 = 0x10;
    pub(super) const MRA: u16 = 0x11;
    pub(super) const REJ: u16 = 0x12;
    pub(super) const REP: u16 = 0x13;
    pub(super) const RTU: u16 = 0x14;
    pub(super) const DREQ: u16 = 0x15;
    pub(super) const DREP: u16 = 0x16;
    pub(super) const SIDR_REQ: u16 = 0x17;
    pub(super) const SIDR_REP: u16 = 0x18;
    pub(super) const LAP: u16 = 0x19;
    pub(super) const APR: u16 = 0x1a;
}
