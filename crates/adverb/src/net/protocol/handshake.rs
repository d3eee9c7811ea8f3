//! How two ends come to know each other.
//!
//! First each tells the other its queue pair's endpoint, over TCP ([`Greeting`]); then, over the queue pairs, where its ring
//! is ([`Hello`]).

use super::{FEWEST_WRITES, LONGEST_RING, MOST_WRITES, SHORTEST_RING, UNIT, Violation};
use crate::memory::RemoteMemory;
use crate::verbs::{Endpoint, Gid, Psn, Qpn};

/// The version that is spoken here.
pub(in crate::net) const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"adverb\r\n";
/// The length of what comes before a greeting's body.
pub(in crate::net) const PREFIX_LEN: usize = 16;
const ENDPOINT_LEN: usize = 28;
const LONGEST_REASON: usize = 256;

/// What is said over TCP.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::net) enum Greeting {
    /// The queue pair that wants to be connected, or the one that it is connected to.
    Endpoint(Endpoint),
    /// Why there is no connection.
    Refusal(String),
}

/// What is wrong with a greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::net) enum Flaw {
    /// It isn't one at all.
    NotAdverb,
    /// It is of a version that isn't spoken here.
    Version(u16),
    /// It keeps no rule.
    Malformed,
}

/// What comes before a greeting's body.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct Prefix {
    kind: u8,
    /// How long the body is.
    pub(in crate::net) len: usize,
}

const ENDPOINT: u8 = 1;
const REFUSAL: u8 = 2;

impl Prefix {
    pub(in crate::net) fn parse(bytes: &[u8; PREFIX_LEN]) -> Result<Prefix, Flaw> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err(Flaw::NotAdverb);
        }
        // A refusal is understood whatever the version, or nobody would know why.
        let (version, kind, len) = (number(8), bytes[10], usize::from(number(12)));
        match kind {
            REFUSAL if len <= LONGEST_REASON => Ok(Prefix { kind, len }),
            _ if version != VERSION => Err(Flaw::Version(version)),
            ENDPOINT if len == ENDPOINT_LEN => Ok(Prefix { kind, len }),
            _ => Err(Flaw::Malformed),
        }
    }
}

impl Greeting {
    pub(in crate::net) fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Greeting::Endpoint(endpoint) => {
                body.extend_from_slice(&endpoint.gid.bytes());
                body.extend_from_slice(&endpoint.lid.to_le_bytes());
                body.extend_from_slice(&endpoint.mtu.to_le_bytes());
                body.extend_from_slice(&endpoint.qpn.get().to_le_bytes());
                body.extend_from_slice(&endpoint.psn.get().to_le_bytes());
                ENDPOINT
            }
            Greeting::Refusal(reason) => {
                let end =
                    (0..=reason.len().min(LONGEST_REASON)).rev().find(|end| reason.is_char_boundary(*end));
                body.extend_from_slice(&reason.as_bytes()[..end.unwrap_or(0)]);
                REFUSAL
            }
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind, 0]);
        bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&body);
        bytes
    }

    pub(in crate::net) fn parse(prefix: Prefix, body: &[u8]) -> Result<Greeting, Flaw> {
        if prefix.kind == REFUSAL {
            return Ok(Greeting::Refusal(String::from_utf8_lossy(body).into_owned()));
        }
        let (gid, rest) = body.split_first_chunk::<16>().ok_or(Flaw::Malformed)?;
        let [l0, l1, m0, m1, q0, q1, q2, q3, p0, p1, p2, p3] = *rest else { return Err(Flaw::Malformed) };
        Ok(Greeting::Endpoint(Endpoint {
            gid: Gid::new(*gid),
            lid: u16::from_le_bytes([l0, l1]),
            mtu: u16::from_le_bytes([m0, m1]),
            qpn: Qpn::new(u32::from_le_bytes([q0, q1, q2, q3])).ok_or(Flaw::Malformed)?,
            psn: Psn::new(u32::from_le_bytes([p0, p1, p2, p3])).ok_or(Flaw::Malformed)?,
        }))
    }
}

/// What each side sends first over its queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) struct Hello {
    /// Where the other may write.
    pub(in crate::net) ring: RemoteMemory,
    /// How many writes may be on their way or unread.
    pub(in crate::net) writes: u32,
}

/// How long it is.
pub(in crate::net) const HELLO_LEN: usize = 32;

impl Hello {
    pub(in crate::net) fn emit(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.writes as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.ring.len as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ring.addr.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.ring.rkey.to_le_bytes());
        bytes
    }

    pub(in crate::net) fn parse(bytes: &[u8]) -> Result<Hello, Violation> {
        let bytes: &[u8; HELLO_LEN] =
            bytes.try_into().map_err(|_| Violation("the first message has a wrong length"))?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC || bytes[8..10] != VERSION.to_le_bytes() || word(28) != 0 {
            return Err(Violation("the first message isn't of this version"));
        }
        let (writes, len) = (word(8) >> 16, word(12));
        if !(FEWEST_WRITES..=MOST_WRITES).contains(&writes)
            || !(SHORTEST_RING..=LONGEST_RING).contains(&len)
            || !len.is_multiple_of(UNIT)
        {
            return Err(Violation("a ring that is too short or too long"));
        }
        let addr = u64::from(word(16)) | u64::from(word(20)) << 32;
        Ok(Hello { ring: RemoteMemory { addr, rkey: word(24), len: len.into() }, writes })
    }
}
