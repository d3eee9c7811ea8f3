//! The connection manager's messages: how two queue pairs find each other (vol. 1, chapter 12).
//!
//! A connection is made with three messages and ended with two: the side that connects sends a [`Req`], the
//! other answers with a [`Rep`], and the first confirms with an [`Rtu`]; a [`Dreq`] is answered with a
//! [`Drep`]. Instead of an answer there may be a [`Rej`], and before a slow one an [`Mra`]. Datagrams need no
//! connection, only a queue pair number: a [`SidrReq`] asks for it, and a [`SidrRep`] tells it.
//!
//! Each message is a management datagram ([`Mad`]), 256 bytes that go as the payload of an unreliable
//! datagram from [`Qpn::GSI`](crate::Qpn::GSI) to [`Qpn::GSI`](crate::Qpn::GSI), with [`GSI_QKEY`].
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
//! Not here are LAP and APR, which change the alternate path of a connection that stands.

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

/// The length of a management datagram: always this (vol. 1, 13.4).
pub const MAD_LEN: usize = 256;

/// The Q_Key of the general service interface, queue pair 1, where connection managers talk.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A management datagram of the connection manager: a message and the transaction that it belongs to.
///
/// ```
/// use adverb_wire::cm::{Mad, MadError};
///
/// assert_eq!(Mad::parse(b"short"), Err(MadError::Length(5)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mad {
    /// Chosen by who begins a transaction, and repeated in the answers (vol. 1, 13.4.3).
    pub transaction_id: u64,
    /// What is said.
    pub message: Message,
}

impl Mad {
    /// Reads a management datagram: the payload of an unreliable datagram that came to queue pair 1.
    ///
    /// Fails if it isn't a message of the connection manager that is known here. Values that are unknown or
    /// make no sense don't fail: what can't be accepted has to be rejected, and that needs the message.
    /// Reserved bits are ignored, and so is the header's status.
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

    /// The datagram as it is sent. Reserved bits are zero.
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

/// A message of the connection manager.
///
/// Printed, it is one line with what matters most.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// Somebody wants to connect.
    Req(Req),
    /// The answer will take a while.
    Mra(Mra),
    /// No.
    Rej(Rej),
    /// Yes, to a REQ.
    Rep(Rep),
    /// The REP has come: ready to use.
    Rtu(Rtu),
    /// Somebody wants to disconnect.
    Dreq(Dreq),
    /// Yes, to a DREQ.
    Drep(Drep),
    /// Somebody wants to know a service's queue pair.
    SidrReq(SidrReq),
    /// The answer to that.
    SidrRep(SidrRep),
}

impl Message {
    /// The number of the message (vol. 1, 12.6, the attributes of the communication management class).
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

    /// The vendor's options, in a message that has them.
    pub const fn ece(&self) -> Option<&Ece> {
        match self {
            Message::Req(req) => Some(&req.ece),
            Message::Rep(rep) => Some(&rep.ece),
            Message::SidrRep(response) => Some(&response.ece),
            _ => None,
        }
    }

    /// For the options, which aren't in the message's own bytes but in the header.
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

/// A payload isn't a message of the connection manager that is known here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum MadError {
    /// It isn't 256 bytes long, but this.
    Length(usize),
    /// The version of the header isn't 1.
    BaseVersion(u8),
    /// It is of another management class than the connection manager's, 7.
    Class(u8),
    /// The version of the connection manager's messages isn't 2.
    ClassVersion(u8),
    /// The method isn't Send, 3, the only one of the connection manager.
    Method(u8),
    /// It is another message: 0x19 is a LAP and 0x1a an APR, which aren't supported.
    Attribute(u16),
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MadError::Length(length) => write!(f, "a management datagram has {MAD_LEN} bytes, not {length}"),
            MadError::BaseVersion(version) => {
                write!(f, "version {version} of the management header is not supported, only {BASE_VERSION}")
            }
            MadError::Class(class) => {
                write!(f, "management class {class:#04x} is not the connection manager's, {CLASS:#04x}")
            }
            MadError::ClassVersion(version) => {
                write!(
                    f,
                    "version {version} of the connection manager is not supported, only {CLASS_VERSION}"
                )
            }
            MadError::Method(method) => {
                write!(f, "method {method:#04x} is not the connection manager's Send, {METHOD_SEND:#04x}")
            }
            MadError::Attribute(attribute::LAP) => f.write_str("LAP (load alternate path) is not supported"),
            MadError::Attribute(attribute::APR) => {
                f.write_str("APR (alternate path response) is not supported")
            }
            MadError::Attribute(attribute) => {
                write!(f, "attribute {attribute:#06x} is no message of the connection manager")
            }
        }
    }
}

impl core::error::Error for MadError {}

/// What the header leaves for a message.
const DATA_LEN: usize = MAD_LEN - HEADER_LEN;

/// The numbers of the messages.
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
