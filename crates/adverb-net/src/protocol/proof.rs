//! Proofs of a pre-shared key.
//!
//! Each side sends a nonce in its greeting. The listener's greeting also contains a proof that it has the key: a keyed
//! hash of both nonces and both queue pairs. Both sides seal their hellos with keyed hashes of the same values. Each of
//! the three hashes uses its own key, derived from the pre-shared one, so a hash for one purpose is invalid for the
//! others. Both nonces are part of each hash, so a hash is invalid for every other connection.

use adverb_verbs::Endpoint;

use super::handshake::{Flaw, Greeting, Nonce, Side, VERSION};
use crate::key::{Digest, HandshakeKey, Purpose, Role};

/// Both queue pairs, as the greetings describe them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    pub(crate) connector: Endpoint,
    pub(crate) listener: Endpoint,
}

impl Ends {
    /// Returns the ends of a handshake by the connection manager. It negotiates the LIDs and the MTU itself, so those
    /// fields are zero.
    pub(crate) fn by_manager(connector: Endpoint, listener: Endpoint) -> Ends {
        let described = |mut end: Endpoint| {
            (end.lid, end.mtu) = (0, 0);
            end
        };
        Ends { connector: described(connector), listener: described(listener) }
    }
}

/// The key and the nonce of a side in one handshake.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// Present if the side has a key.
    secret: Option<(HandshakeKey, Nonce)>,
}

impl Credentials {
    /// Creates the credentials of a side with or without a key. The nonce must never have been used before.
    pub(crate) fn new(key: Option<&HandshakeKey>, nonce: Nonce) -> Credentials {
        Credentials { secret: key.map(|key| (key.clone(), nonce)) }
    }

    /// Returns the connector's greeting.
    pub(crate) fn connector_greeting(&self, endpoint: Option<Endpoint>) -> Greeting {
        let nonce = self.secret.as_ref().map(|(_, nonce)| *nonce);
        Greeting::Side(Side { endpoint, nonce, proof: None })
    }

    /// Checks that the connector and this side both have a key, or neither has.
    pub(crate) fn check_key_presence(&self, connector_side: &Side) -> Result<(), Flaw> {
        match (&self.secret, connector_side.nonce) {
            _ if connector_side.proof.is_some() => Err(Flaw::Malformed),
            (Some(_), None) => Err(Flaw::ConnectorHasNoKey),
            (None, Some(_)) => Err(Flaw::ListenerHasNoKey),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        }
    }

    /// Returns the listener's answer, and the seal of the hellos.
    pub(crate) fn listener_greeting(
        self,
        connector_side: &Side,
        endpoint: Option<Endpoint>,
        ends: &Ends,
    ) -> Result<(Greeting, Option<Seal>), Flaw> {
        self.check_key_presence(connector_side)?;
        let Some(((key, nonce), connector_nonce)) = self.secret.zip(connector_side.nonce) else {
            return Ok((Greeting::Side(Side { endpoint, ..Side::default() }), None));
        };
        let seal = Seal { transcript: transcript(&connector_nonce, &nonce, ends), key, role: Role::Listener };
        let proof = Some(seal.key.digest(Purpose::Answer, &[&seal.transcript]));
        Ok((Greeting::Side(Side { endpoint, nonce: Some(nonce), proof }), Some(seal)))
    }

    /// Checks the listener's answer, and returns the seal of the hellos if both sides have the key.
    pub(crate) fn verify_answer(self, answer: &Side, ends: &Ends) -> Result<Option<Seal>, Flaw> {
        let ((key, nonce), listener_nonce, proof) = match (self.secret, answer.nonce, answer.proof) {
            (None, None, None) => return Ok(None),
            (Some(secret), Some(nonce), Some(proof)) => (secret, nonce, proof),
            (Some(_), None, None) => return Err(Flaw::ListenerHasNoKey),
            (None, ..) => return Err(Flaw::ConnectorHasNoKey),
            (Some(_), ..) => return Err(Flaw::Malformed),
        };
        let seal = Seal { transcript: transcript(&nonce, &listener_nonce, ends), key, role: Role::Connector };
        if !seal.key.verifies(&proof, Purpose::Answer, &[&seal.transcript]) {
            return Err(Flaw::KeyWrong);
        }
        Ok(Some(seal))
    }
}

/// The means to seal hellos.
#[derive(Clone, Debug)]
pub(crate) struct Seal {
    key: HandshakeKey,
    transcript: Transcript,
    /// The role of this side.
    role: Role,
}

/// The length of a seal, which precedes the hello.
pub(crate) const SEAL_LEN: usize = size_of::<Digest>();

impl Seal {
    /// Returns the seal of this side's hello.
    pub(crate) fn seal(&self, hello: &[u8]) -> Digest {
        self.key.digest(Purpose::Hello(self.role), &[&self.transcript, hello])
    }

    /// Returns the peer's hello, if its seal is valid.
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

/// The values that a proof covers. All have a fixed length, so no two lists of values have the same bytes.
type Transcript = [u8; 2 + 2 * size_of::<Nonce>() + 2 * END_LEN];
const END_LEN: usize = 28;

fn transcript(connector_nonce: &Nonce, listener_nonce: &Nonce, ends: &Ends) -> Transcript {
    let mut bytes = Vec::with_capacity(size_of::<Transcript>());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(connector_nonce);
    bytes.extend_from_slice(listener_nonce);
    for end in [&ends.connector, &ends.listener] {
        bytes.extend_from_slice(&end.gid.bytes());
        bytes.extend_from_slice(&end.lid.to_le_bytes());
        bytes.extend_from_slice(&end.mtu.to_le_bytes());
        bytes.extend_from_slice(&end.qpn.get().to_le_bytes());
        bytes.extend_from_slice(&end.psn.get().to_le_bytes());
    }
    std::array::from_fn(|at| bytes[at])
}
