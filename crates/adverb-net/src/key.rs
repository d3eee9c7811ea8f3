//! The keys of handshakes, derived from the pre-shared [`Key`] of both sides.

use std::sync::Arc;

use adverb_verbs::Key;
use adverb_verbs::internal::DerivedKey;

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

/// One key per purpose, so that a digest for one purpose is invalid for all others.
#[derive(Clone, Debug)]
pub(crate) struct HandshakeKey(Arc<Derived>);

#[derive(Debug)]
struct Derived {
    answer: DerivedKey,
    connector_hello: DerivedKey,
    listener_hello: DerivedKey,
}

impl HandshakeKey {
    pub(crate) fn new(key: &Key) -> HandshakeKey {
        let derive = |context| DerivedKey::new(context, key.secret());
        HandshakeKey(Arc::new(Derived {
            answer: derive("adverb-net v1 server proof"),
            connector_hello: derive("adverb-net v1 client hello"),
            listener_hello: derive("adverb-net v1 server hello"),
        }))
    }

    /// Returns a keyed hash of the parts.
    pub(crate) fn digest(&self, purpose: Purpose, parts: &[&[u8]]) -> Digest {
        self.derived(purpose).digest(parts)
    }

    /// Whether a digest belongs to these parts. The comparison takes constant time.
    pub(crate) fn verifies(&self, digest: &Digest, purpose: Purpose, parts: &[&[u8]]) -> bool {
        self.derived(purpose).verifies(digest, parts)
    }

    /// Whether the keys of two sides are the same, or both are absent.
    pub(crate) fn is_same(one: Option<&HandshakeKey>, other: Option<&HandshakeKey>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => one.0.answer.is_same(&other.0.answer),
            (None, None) => true,
            _ => false,
        }
    }

    fn derived(&self, purpose: Purpose) -> &DerivedKey {
        match purpose {
            Purpose::Answer => &self.0.answer,
            Purpose::Hello(Role::Connector) => &self.0.connector_hello,
            Purpose::Hello(Role::Listener) => &self.0.listener_hello,
        }
    }
}
