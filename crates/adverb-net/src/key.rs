//! Pre-shared keys of connections.

use std::fmt;
use std::sync::Arc;

use adverb_verbs::{Error, Result};
use zeroize::{Zeroize, Zeroizing};

/// A keyed hash.
pub(crate) type Digest = [u8; 32];

/// The role of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The side that dials.
    Connector,
    /// The side that accepts.
    Listener,
}

/// The purpose of a digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The listener's proof.
    Answer,
    /// The seal of the hello of the side with this role.
    Hello(Role),
}

/// A pre-shared key that both sides of a connection must have: see [`Options::key`](crate::Options::key).
///
/// A key is derived from a secret that must have at least 128 bits of entropy, such as 32 bytes from
/// `/dev/urandom`. Passwords are not secure: an attacker that records one handshake can test guesses offline.
///
/// ```
/// use adverb::net::{Key, Options};
///
/// let secret = [0x5a; 32]; // from a file that only the programs on both sides can read
/// let options = Options::new().key(&Key::new(secret)?);
/// assert!(Key::new("short").is_err());
/// # Ok::<(), adverb::Error>(())
/// ```
#[derive(Clone)]
pub struct Key(Arc<Derived>);

/// One key per purpose, so that a digest for one purpose is invalid for all others. Zeroed on drop.
struct Derived {
    answer: Zeroizing<Digest>,
    connector_hello: Zeroizing<Digest>,
    listener_hello: Zeroizing<Digest>,
}

impl Key {
    /// Derives a key from a secret.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidRequest`] if the secret has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Key> {
        let secret = secret.as_ref();
        if secret.len() < MIN_SECRET_LEN {
            let reason = "a key's secret must have at least 16 bytes, chosen at random";
            return Err(Error::InvalidRequest { reason: reason.into() });
        }
        let derive = |context: &str| {
            // `blake3::derive_key` would leave its hasher's copy of the secret in memory.
            let mut hasher = Zeroizing::new(blake3::Hasher::new_derive_key(context));
            hasher.update(secret);
            let mut derived = hasher.finalize();
            let key = Zeroizing::new(*derived.as_bytes());
            derived.zeroize();
            key
        };
        Ok(Key(Arc::new(Derived {
            answer: derive("adverb-net v1 server proof"),
            connector_hello: derive("adverb-net v1 client hello"),
            listener_hello: derive("adverb-net v1 server hello"),
        })))
    }

    /// Returns a keyed hash of the parts.
    pub(crate) fn digest(&self, purpose: Purpose, parts: &[&[u8]]) -> Digest {
        *self.hash(purpose, parts).as_bytes()
    }

    /// Whether a digest belongs to these parts. The comparison takes constant time.
    pub(crate) fn verifies(&self, digest: &Digest, purpose: Purpose, parts: &[&[u8]]) -> bool {
        // blake3 compares its hashes in constant time.
        self.hash(purpose, parts) == blake3::Hash::from_bytes(*digest)
    }

    /// Whether the keys of two sides are the same, or both are absent.
    pub(crate) fn is_same(one: Option<&Key>, other: Option<&Key>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => {
                blake3::Hash::from_bytes(*one.0.answer) == blake3::Hash::from_bytes(*other.0.answer)
            }
            (None, None) => true,
            _ => false,
        }
    }

    fn hash(&self, purpose: Purpose, parts: &[&[u8]]) -> blake3::Hash {
        let key = match purpose {
            Purpose::Answer => &self.0.answer,
            Purpose::Hello(Role::Connector) => &self.0.connector_hello,
            Purpose::Hello(Role::Listener) => &self.0.listener_hello,
        };
        // A keyed hasher holds a copy of the key.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_keyed(key));
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// The minimum length of a secret in bytes.
const MIN_SECRET_LEN: usize = 16;

/// Prints nothing about the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}
