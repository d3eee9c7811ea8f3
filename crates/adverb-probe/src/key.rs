//! Keys and tags of probes and acknowledgements.

use std::fmt;
use std::sync::{Arc, LazyLock};

use adverb_verbs::{Error, Result};
use zeroize::{Zeroize, Zeroizing};

/// Length of a tag in bytes.
pub(crate) const TAG_LEN: usize = 16;

/// Minimum length of a secret in bytes.
const MIN_SECRET_LEN: usize = 16;

/// A key that probers and responders share. A responder with a key answers only probes with a valid tag, and a prober
/// with a key accepts only acknowledgements with a valid tag.
///
/// A key is derived from a secret that must have at least 128 bits of entropy, such as 32 bytes from `/dev/urandom`.
///
/// ```
/// use adverb_probe::Key;
///
/// let key = Key::new([0x5a; 32])?; // from a file that only the probers and responders can read
/// assert!(Key::new("short").is_err());
/// # Ok::<(), adverb_verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Key(Arc<Zeroizing<[u8; 32]>>);

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
        Ok(Key::derive("adverb-probe v2 tag", secret))
    }

    /// Returns the key of probers and responders that have none. The key is public.
    pub(crate) fn public() -> &'static Key {
        static PUBLIC: LazyLock<Key> = LazyLock::new(|| Key::derive("adverb-probe v2 public tag", &[]));
        &PUBLIC
    }

    fn derive(context: &str, secret: &[u8]) -> Key {
        // `blake3::derive_key` would leave its hasher's copy of the secret in memory.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_derive_key(context));
        hasher.update(secret);
        let mut derived = hasher.finalize();
        let key = Zeroizing::new(*derived.as_bytes());
        derived.zeroize();
        Key(Arc::new(key))
    }

    /// Returns the tag of a message, which consists of these parts.
    pub(crate) fn tag(&self, parts: [&[u8]; 4]) -> [u8; TAG_LEN] {
        // A keyed hasher holds a copy of the key.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_keyed(&self.0));
        for part in parts {
            hasher.update(part);
        }
        let mut tag = [0; TAG_LEN];
        tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_LEN]);
        tag
    }
}

/// Prints nothing about the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}
