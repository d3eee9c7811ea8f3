//! How two ends come to know each other.
//!
//! First each tells the other how its queue pair is reached, over TCP or with the connection manager's messages
//! ([`Greeting`]), and shows that it has the key if there is one ([`proof`](super::proof)); then, over the queue pairs, where
//! its ring is ([`Hello`]).

use std::net::IpAddr;

use adverb_verbs::{Endpoint, Gid, Psn, Qpn};

use super::proof::{Digest, Nonce};

pub(crate) use adverb_net_proto::{SessionId, VERSION};

const MAGIC: [u8; 8] = *b"adverb\r\n";
/// The length of what comes before a greeting's body.
pub(crate) const PREFIX_LEN: usize = 16;
const ENDPOINT_LEN: usize = 28;
const NONCE_LEN: usize = size_of::<Nonce>();
const PROOF_LEN: usize = size_of::<Digest>();
/// The longest reason: it fits a rejection of the connection manager's, behind the prefix.
pub(crate) const LONGEST_REASON: usize = 128;

/// What is said before the queue pairs speak.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// Who wants to be connected, or is.
    Side(Side),
    /// Why there is no connection.
    Refusal(String),
}

/// What a side says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Side {
    /// Its queue pair: where the connection manager doesn't tell of it.
    pub(crate) endpoint: Option<Endpoint>,
    /// If it has a key.
    pub(crate) nonce: Option<Nonce>,
    /// If it answers who has one.
    pub(crate) proof: Option<Digest>,
}

/// What is wrong with a greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Flaw {
    /// It isn't one at all.
    NotAdverb,
    /// It is of a version that isn't spoken here.
    Version(u16),
    /// It keeps no rule.
    Malformed,
    /// The listener has a key, and the connector none.
    ConnectorHasNoKey,
    /// The connector has a key, and the listener none.
    ListenerHasNoKey,
    /// Its proof isn't one.
    KeyWrong,
    /// The listener has no device at the address that the connector dialed.
    AddressNotServed(IpAddr),
    /// Its GID isn't an address of the peer of the TCP connection.
    ForeignGid(Gid),
}

/// What comes before a greeting's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Prefix {
    kind: u8,
    parts: u8,
    /// How long the body is.
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
        let prefix = Prefix { kind, parts, len };
        match kind {
            // A refusal is understood whatever the version, or nobody would know why.
            REFUSAL if len <= LONGEST_REASON => Ok(prefix),
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

/// How long a side's greeting is behind the prefix.
fn side_len(parts: u8) -> usize {
    let len = |part: u8, len: usize| if parts & part == 0 { 0 } else { len };
    len(HAS_ENDPOINT, ENDPOINT_LEN) + len(HAS_NONCE, NONCE_LEN) + len(HAS_PROOF, PROOF_LEN)
}

impl Greeting {
    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let (kind, parts) = match self {
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
                (SIDE, parts)
            }
            Greeting::Refusal(reason) => {
                let end =
                    (0..=reason.len().min(LONGEST_REASON)).rev().find(|end| reason.is_char_boundary(*end));
                body.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
                (REFUSAL, 0)
            }
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind, parts]);
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&body);
        bytes
    }

    /// The greeting that these bytes begin with: what the connection manager carries has zeros behind it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Greeting, Flaw> {
        let (prefix, rest) = bytes.split_first_chunk().ok_or(Flaw::NotAdverb)?;
        let prefix = Prefix::parse(prefix)?;
        let body = rest.get(..prefix.len).ok_or(Flaw::Malformed)?;
        if prefix.kind == REFUSAL {
            // Logs and terminals are shown this: it is words, and nothing else.
            let words = String::from_utf8_lossy(body);
            return Ok(Greeting::Refusal(words.replace(char::is_control, "\u{fffd}")));
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
