//! Greetings: the first messages of a handshake.
//!
//! Each side sends the address of its queue pair, over TCP or in the connection manager's messages ([`Greeting`]), and
//! proves that it has the key, if there is one ([`proof`](super::proof)). The hellos follow over the queue pairs, and
//! tell the peer the address of the receive ring ([`Hello`](adverb_net_proto::Hello)).

use std::fmt;
use std::net::IpAddr;

use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use crate::key::Digest;

pub(crate) use adverb_net_proto::VERSION;

/// A random number that is used once.
pub(super) type Nonce = [u8; 32];

const MAGIC: [u8; 8] = *b"adverb\r\n";
/// The length of the fields before a greeting's body.
pub(crate) const PREFIX_LEN: usize = 16;
const ENDPOINT_LEN: usize = 28;
const NONCE_LEN: usize = size_of::<Nonce>();
const PROOF_LEN: usize = size_of::<Digest>();
/// The maximum length of a refusal's message. The prefix and the message fit in a rejection of the connection manager.
pub(crate) const MAX_MESSAGE_LEN: usize = 128;

/// A message before the queue pairs are connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// The description of the sender, which requests or accepts a connection.
    Side(Side),
    /// The reason why the listener refuses the connection.
    Refusal(Refusal),
}

/// The refusal of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// The listener's version of the protocol.
    pub(crate) version: u16,
    pub(crate) code: RefusalCode,
    /// The reason, for people.
    pub(crate) message: String,
}

/// Declares the reasons of a refusal and their codes.
macro_rules! refusal_codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// The reason of a refusal, which the connector's program can recognize.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum RefusalCode {
            $($(#[$doc])* $variant,)*
            /// A code that this version doesn't know.
            Unknown(u8),
        }

        impl RefusalCode {
            fn from_code(code: u8) -> RefusalCode {
                match code {
                    $($code => RefusalCode::$variant,)*
                    code => RefusalCode::Unknown(code),
                }
            }

            fn code(self) -> u8 {
                match self {
                    $(RefusalCode::$variant => $code,)*
                    RefusalCode::Unknown(code) => code,
                }
            }
        }
    };
}

refusal_codes! {
    /// The listener could not establish the connection, and does not tell an unauthenticated peer why.
    Internal = 0,
    /// The listener does not support the version of the connector's greeting.
    Version = 1,
    /// The connector's greeting is none, or violates the protocol.
    Malformed = 2,
    /// The listener has a key, and the connector none.
    ConnectorHasNoKey = 3,
    /// The connector has a key, and the listener none.
    ListenerHasNoKey = 4,
    /// The two sides have different keys.
    KeyWrong = 5,
    /// The listener has no device at the address that the connector dialed.
    AddressNotServed = 6,
    /// The connector's GID is not the address of its end of the TCP connection.
    ForeignGid = 7,
}

impl Refusal {
    /// Creates the refusal of this version.
    pub(crate) fn new(code: RefusalCode, message: impl Into<String>) -> Refusal {
        Refusal { version: VERSION, code, message: message.into() }
    }
}

impl From<&Flaw> for Refusal {
    fn from(flaw: &Flaw) -> Refusal {
        let code = match flaw {
            Flaw::Version(_) => RefusalCode::Version,
            Flaw::NotAdverb | Flaw::Malformed => RefusalCode::Malformed,
            Flaw::ConnectorHasNoKey => RefusalCode::ConnectorHasNoKey,
            Flaw::ListenerHasNoKey => RefusalCode::ListenerHasNoKey,
            Flaw::KeyWrong => RefusalCode::KeyWrong,
            Flaw::AddressNotServed(_) => RefusalCode::AddressNotServed,
            Flaw::ForeignGid(_) => RefusalCode::ForeignGid,
        };
        Refusal::new(code, flaw.to_string())
    }
}

/// The description of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Side {
    /// The queue pair; absent if the connection manager transfers its address.
    pub(crate) endpoint: Option<Endpoint>,
    /// The nonce; present if the side has a key.
    pub(crate) nonce: Option<Nonce>,
    /// The proof of the key; present in the answer to a side with a key.
    pub(crate) proof: Option<Digest>,
}

/// The reason why a greeting is invalid or refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// The bytes are no greeting.
    NotAdverb,
    /// The version is not supported.
    Version(u16),
    /// A field violates the protocol.
    Malformed,
    /// The listener has a key, and the connector none.
    ConnectorHasNoKey,
    /// The connector has a key, and the listener none.
    ListenerHasNoKey,
    /// The proof is not valid for the key.
    KeyWrong,
    /// The listener has no device at the address that the connector dialed.
    AddressNotServed(IpAddr),
    /// The GID isn't the address of the peer of the TCP connection.
    ForeignGid(Gid),
}

/// Prints the flaw for the log of the listener and the error of the connector.
impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Flaw::NotAdverb => write!(f, "the other side does not speak Adverb's protocol"),
            Flaw::Version(version) => {
                write!(f, "protocol version {version} was received, but only version {VERSION} is supported")
            }
            Flaw::Malformed => write!(f, "a malformed greeting was received"),
            Flaw::ConnectorHasNoKey => write!(f, "the listener requires a key, but the connector has none"),
            Flaw::ListenerHasNoKey => write!(f, "the connector requires a key, but the listener has none"),
            Flaw::KeyWrong => write!(f, "the two sides have different keys"),
            Flaw::AddressNotServed(addr) => write!(f, "the listener has no RDMA device at {addr}"),
            Flaw::ForeignGid(gid) => write!(f, "GID {gid} is not an address of the TCP peer"),
        }
    }
}

/// The fields before a greeting's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefix {
    version: u16,
    kind: u8,
    /// The parts of a side, or the code of a refusal.
    parts: u8,
    /// The length of the body.
    pub(crate) len: usize,
}

const SIDE: u8 = 1;
const REFUSAL: u8 = 2;
const HAS_ENDPOINT: u8 = 1;
const HAS_NONCE: u8 = 2;
const HAS_PROOF: u8 = 4;

impl Prefix {
    pub(crate) fn parse(bytes: &[u8; PREFIX_LEN]) -> Result<Prefix, Flaw> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err(Flaw::NotAdverb);
        }
        let (version, kind, parts, len) = (number(8), bytes[10], bytes[11], usize::from(number(12)));
        let prefix = Prefix { version, kind, parts, len };
        match kind {
            // A refusal is parsed for every version, so that the connector learns the reason.
            REFUSAL if len <= MAX_MESSAGE_LEN => Ok(prefix),
            _ if version != VERSION => Err(Flaw::Version(version)),
            SIDE if parts & !(HAS_ENDPOINT | HAS_NONCE | HAS_PROOF) == 0
                && len == side_len(parts)
                && number(14) == 0 =>
            {
                Ok(prefix)
            }
            _ => Err(Flaw::Malformed),
        }
    }
}

/// Returns the length of a side's greeting behind the prefix.
fn side_len(parts: u8) -> usize {
    let len = |part: u8, len: usize| if parts & part == 0 { 0 } else { len };
    len(HAS_ENDPOINT, ENDPOINT_LEN) + len(HAS_NONCE, NONCE_LEN) + len(HAS_PROOF, PROOF_LEN)
}

impl Greeting {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let (version, kind, parts) = match self {
            Greeting::Side(side) => {
                let mut parts = 0;
                if let Some(endpoint) = &side.endpoint {
                    parts |= HAS_ENDPOINT;
                    body.extend_from_slice(&endpoint.gid.bytes());
                    body.extend_from_slice(&endpoint.lid.to_le_bytes());
                    body.extend_from_slice(&endpoint.mtu.to_le_bytes());
                    body.extend_from_slice(&endpoint.qpn.get().to_le_bytes());
                    body.extend_from_slice(&endpoint.psn.get().to_le_bytes());
                }
                if let Some(nonce) = &side.nonce {
                    parts |= HAS_NONCE;
                    body.extend_from_slice(nonce);
                }
                if let Some(proof) = &side.proof {
                    parts |= HAS_PROOF;
                    body.extend_from_slice(proof);
                }
                (VERSION, SIDE, parts)
            }
            Greeting::Refusal(Refusal { version, code, message }) => {
                let end =
                    (0..=message.len().min(MAX_MESSAGE_LEN)).rev().find(|end| message.is_char_boundary(*end));
                body.extend_from_slice(&message.as_bytes()[..end.unwrap_or(0)]);
                (*version, REFUSAL, code.code())
            }
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&[kind, parts]);
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Parses the greeting at the start of the bytes. In the connection manager's messages, zeros follow it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Greeting, Flaw> {
        let (prefix, rest) = bytes.split_first_chunk().ok_or(Flaw::NotAdverb)?;
        let prefix = Prefix::parse(prefix)?;
        let body = rest.get(..prefix.len).ok_or(Flaw::Malformed)?;
        if prefix.kind == REFUSAL {
            // Logs and terminals show the message, so control characters are replaced.
            let message = String::from_utf8_lossy(body).replace(char::is_control, "\u{fffd}");
            let Prefix { version, parts: code, .. } = prefix;
            return Ok(Greeting::Refusal(Refusal { version, code: RefusalCode::from_code(code), message }));
        }
        let mut side = Side::default();
        let mut rest = body;
        if prefix.parts & HAS_ENDPOINT != 0 {
            let endpoint;
            (endpoint, rest) = rest.split_first_chunk::<ENDPOINT_LEN>().ok_or(Flaw::Malformed)?;
            side.endpoint = Some(parse_endpoint(endpoint)?);
        }
        if prefix.parts & HAS_NONCE != 0 {
            let nonce;
            (nonce, rest) = rest.split_first_chunk().ok_or(Flaw::Malformed)?;
            side.nonce = Some(*nonce);
        }
        if prefix.parts & HAS_PROOF != 0 {
            side.proof = Some(*rest.first_chunk().ok_or(Flaw::Malformed)?);
        }
        Ok(Greeting::Side(side))
    }
}

fn parse_endpoint(bytes: &[u8; ENDPOINT_LEN]) -> Result<Endpoint, Flaw> {
    let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| u32::from(number(at)) | u32::from(number(at + 2)) << 16;
    let gid = Gid::new(std::array::from_fn(|at| bytes[at]));
    let qpn = Qpn::new(word(20)).ok_or(Flaw::Malformed)?;
    let psn = Psn::new(word(24)).ok_or(Flaw::Malformed)?;
    let mut endpoint = Endpoint::new(gid, qpn, psn);
    (endpoint.lid, endpoint.mtu) = (number(16), number(18));
    Ok(endpoint)
}
