//! The key of a cluster.

use std::fmt;

use zeroize::{Zeroize, Zeroizing};

/// The length of a tag in bytes.
pub(super) const TAG_LEN: usize = blake3::OUT_LEN;

/// A key for the tags of an exchange. It is erased when it is dropped.
pub(super) struct Key(Zeroizing<[u8; 32]>);

impl Key {
    /// Derives the key from the secret of a cluster.
    pub(super) fn new(secret: &[u8; 32]) -> Key {
        Key::derive("adverb-cluster v1 exchange", secret)
    }

    /// Returns the key of clusters that have no secret. The key is public.
    pub(super) fn public() -> Key {
        Key::derive("adverb-cluster v1 public exchange", &[])
    }

    fn derive(context: &str, secret: &[u8]) -> Key {
        // `blake3::derive_key` would leave its hasher's copy of the secret in memory.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_derive_key(context));
        hasher.update(secret);
        let mut derived = hasher.finalize();
        let key = Zeroizing::new(*derived.as_bytes());
        derived.zeroize();
        Key(key)
    }

    /// Returns the tag of a transcript.
    pub(super) fn tag(&self, transcript: &[u8]) -> [u8; TAG_LEN] {
        *self.hash(transcript).as_bytes()
    }

    /// Whether a tag belongs to a transcript. The comparison takes constant time.
    pub(super) fn verifies(&self, tag: &[u8; TAG_LEN], transcript: &[u8]) -> bool {
        // blake3 compares its hashes in constant time.
        self.hash(transcript) == blake3::Hash::from_bytes(*tag)
    }

    fn hash(&self, transcript: &[u8]) -> blake3::Hash {
        // A keyed hasher holds a copy of the key.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_keyed(&self.0));
        hasher.update(transcript);
        hasher.finalize()
    }
}

/// Prints nothing about the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}
