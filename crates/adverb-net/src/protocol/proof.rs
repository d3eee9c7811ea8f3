//! How two ends show each other that they have the same key, without telling it.
//!
//! Who asks says a number that is used once; who answers says one too, and proves that it has the key by a keyed hash of both
//! numbers and both queue pairs; who asked proves the same with its hello, and who answered seals its own. Each of the three
//! has a key of its own, derived from the one, so that none can be taken for another; and a number of each side is in all of
//! them, so that none is good for another connection.

use adverb_verbs::Endpoint;

use super::handshake::{Flaw, Greeting, Side, VERSION};
use crate::Key;

/// A number that is used once.
pub(crate) type Nonce = [u8; 32];
/// A keyed hash.
pub(crate) type Digest = [u8; 32];

/// Which of the two sides it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// It asks for the connection.
    Connector,
    /// It was asked.
    Listener,
}

/// Both queue pairs, as the peers describe them to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    pub(crate) connector: Endpoint,
    pub(crate) listener: Endpoint,
}

impl Ends {
    /// Returns the ends as the connection manager describes them: it negotiates the LIDs and the MTU itself, so that they aren't
    /// part of either side's greeting.
    pub(crate) fn by_manager(connector: Endpoint, listener: Endpoint) -> Ends {
        let told = |mut end: Endpoint| {
            (end.lid, end.mtu) = (0, 0);
            end
        };
        Ends { connector: told(connector), listener: told(listener) }
    }
}

/// What a side brings to a meeting.
#[derive(Debug)]
pub(crate) struct Introduction {
    /// The key, and the number that is used with it this once.
    secret: Option<(Key, Nonce)>,
}

impl Introduction {
    /// With a key or without; the nonce must never have been used before.
    pub(crate) fn new(key: Option<&Key>, nonce: Nonce) -> Introduction {
        Introduction { secret: key.map(|key| (key.clone(), nonce)) }
    }

    /// What who asks says.
    pub(crate) fn ask(&self, endpoint: Option<Endpoint>) -> Greeting {
        let nonce = self.secret.as_ref().map(|(_, nonce)| *nonce);
        Greeting::Side(Side { endpoint, nonce, proof: None })
    }

    /// Whether a side that asks can be answered: both have a key, or neither.
    pub(crate) fn admits(&self, asking: &Side) -> Result<(), Flaw> {
        match (&self.secret, asking.nonce) {
            _ if asking.proof.is_some() => Err(Flaw::Malformed),
            (Some(_), None) => Err(Flaw::ConnectorHasNoKey),
            (None, Some(_)) => Err(Flaw::ListenerHasNoKey),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }

    /// What who was asked says, and what seals the hellos.
    pub(crate) fn answer(
        self,
        asking: &Side,
        endpoint: Option<Endpoint>,
        ends: &Ends,
    ) -> Result<(Greeting, Option<Seal>), Flaw> {
        self.admits(asking)?;
        let Some(((key, nonce), asked)) = self.secret.zip(asking.nonce) else {
            return Ok((Greeting::Side(Side { endpoint, ..Side::default() }), None));
        };
        let seal = Seal { transcript: transcript(&asked, &nonce, ends), key, role: Role::Listener };
        let proof = Some(seal.key.digest(Purpose::Answer, &[&seal.transcript]));
        Ok((Greeting::Side(Side { endpoint, nonce: Some(nonce), proof }), Some(seal)))
    }

    /// What who asked makes of the answer: what seals the hellos, if the other has the key too.
    pub(crate) fn answered(self, answer: &Side, ends: &Ends) -> Result<Option<Seal>, Flaw> {
        let ((key, nonce), answered, proof) = match (self.secret, answer.nonce, answer.proof) {
            (None, None, None) => return Ok(None),
            (Some(secret), Some(nonce), Some(proof)) => (secret, nonce, proof),
            (Some(_), None, None) => return Err(Flaw::ListenerHasNoKey),
            (None, ..) => return Err(Flaw::ConnectorHasNoKey),
            (Some(_), ..) => return Err(Flaw::Malformed),
        };
        let seal = Seal { transcript: transcript(&nonce, &answered, ends), key, role: Role::Connector };
        if !seal.key.verifies(&proof, Purpose::Answer, &[&seal.transcript]) {
            return Err(Flaw::KeyWrong);
        }
        Ok(Some(seal))
    }
}

/// What hellos are sealed with.
#[derive(Clone, Debug)]
pub(crate) struct Seal {
    key: Key,
    transcript: Transcript,
    /// Whose it is.
    role: Role,
}

/// How much longer a sealed hello is.
pub(crate) const SEAL_LEN: usize = size_of::<Digest>();

impl Seal {
    /// The seal of this side's hello.
    pub(crate) fn seal(&self, hello: &[u8]) -> Digest {
        self.key.digest(Purpose::Hello(self.role), &[&self.transcript, hello])
    }

    /// The other side's hello, if its seal is good.
    pub(crate) fn open<'a>(&self, sealed: &'a [u8]) -> Result<&'a [u8], Flaw> {
        let (seal, hello) = sealed.split_first_chunk::<SEAL_LEN>().ok_or(Flaw::KeyWrong)?;
        let other = match self.role {
            Role::Connector => Role::Listener,
            Role::Listener => Role::Connector,
        };
        if !self.key.verifies(seal, Purpose::Hello(other), &[&self.transcript, hello]) {
            return Err(Flaw::KeyWrong);
        }
        Ok(hello)
    }
}

/// What a digest is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The listener's proof.
    Answer,
    /// A hello of this side's.
    Hello(Role),
}

/// What both sides know when they know each other: all of it is of one length, so that nothing can be taken for something else.
type Transcript = [u8; 2 + 2 * size_of::<Nonce>() + 2 * END_LEN];
const END_LEN: usize = 28;

fn transcript(connectors: &Nonce, listeners: &Nonce, ends: &Ends) -> Transcript {
    let mut bytes = Vec::with_capacity(size_of::<Transcript>());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(connectors);
    bytes.extend_from_slice(listeners);
    for end in [&ends.connector, &ends.listener] {
        bytes.extend_from_slice(&end.gid.bytes());
        bytes.extend_from_slice(&end.lid.to_le_bytes());
        bytes.extend_from_slice(&end.mtu.to_le_bytes());
        bytes.extend_from_slice(&end.qpn.get().to_le_bytes());
        bytes.extend_from_slice(&end.psn.get().to_le_bytes());
    }
    std::array::from_fn(|at| bytes[at])
}
