//! Pre-shared keys of Adverb's protocols.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use zeroize::{Zeroize, Zeroizing};

/// A pre-shared key: a secret by which programs prove to each other that they belong together.
///
/// Connections (`adverb::net`), clusters (`adverb::cluster`) and probes (`adverb::probe`) take the same type. Each protocol
/// derives keys of its own from the secret, so what one of them sends is no proof in another one. The secret is erased from
/// memory when the last clone is dropped, and `Debug` prints nothing about it.
///
/// The secret must have at least 128 bits of entropy, such as 32 bytes from `/dev/urandom`. Passwords are not secure: an
/// attacker that records one exchange can test guesses offline.
///
/// ```
/// use adverb::Key;
/// use adverb::net::Options;
///
/// # fn example() -> Result<(), adverb::verbs::KeyError> {
/// let key = Key::from_file("/etc/adverb/key")?; // a file that only the programs on both sides can read
/// let options = Options::new().key(&key);
/// # Ok(())
/// # }
/// let key = Key::random()?;
/// let same = Key::new(key.secret())?;
/// assert!(Key::new("short").is_err());
/// assert_eq!(format!("{key:?}"), "Key");
/// # Ok::<(), adverb::verbs::KeyError>(())
/// ```
#[derive(Clone)]
pub struct Key(Arc<Zeroizing<Vec<u8>>>);

/// An error of making a [`Key`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The secret is too short.
    #[error("the secret of a key has {len} bytes, but must have at least {min}")]
    TooShort {
        /// The length of the secret in bytes.
        len: usize,
        /// The minimum.
        min: usize,
    },
    /// The text is not an even number of hexadecimal digits.
    #[error("the text of a key is not an even number of hexadecimal digits")]
    InvalidHex,
    /// The file with the secret can't be read.
    #[error("reading the key file {} failed", path.display())]
    Read {
        /// The path of the file.
        path: Box<Path>,
        /// The cause.
        source: io::Error,
    },
    /// The file with the secret is too long to be a key file.
    #[error("the key file {} has more than {max} bytes", path.display())]
    FileTooLong {
        /// The path of the file.
        path: Box<Path>,
        /// The maximum length in bytes.
        max: usize,
    },
    /// The system has no random bytes.
    #[error("reading random bytes failed")]
    Random {
        /// The cause.
        source: io::Error,
    },
}

/// The minimum length of a secret in bytes.
const MIN_SECRET_LEN: usize = 16;
/// The maximum length of a file with a secret in bytes.
const MAX_FILE_LEN: usize = 4096;

impl Key {
    /// Creates a key from a secret.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::TooShort`] if the secret has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Key, KeyError> {
        Key::from_secret(Zeroizing::new(secret.as_ref().to_vec()))
    }

    /// Creates a key from the hexadecimal digits of a secret.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::InvalidHex`], and [`KeyError::TooShort`] if there are fewer than 32 digits.
    pub fn from_hex(digits: &str) -> Result<Key, KeyError> {
        let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
        let mut secret = Zeroizing::new(Vec::with_capacity(pairs.len()));
        for [high, low] in pairs {
            let digit = |byte: &u8| char::from(*byte).to_digit(16).ok_or(KeyError::InvalidHex);
            secret.push((digit(high)? << 4 | digit(low)?) as u8);
        }
        if !rest.is_empty() {
            return Err(KeyError::InvalidHex);
        }
        Key::from_secret(secret)
    }

    /// Reads a key from a file. The secret is all bytes of the file, without ASCII whitespace at the end, which editors may
    /// add. Hexadecimal digits in the file are not decoded. The command `head -c 32 /dev/urandom | base64` prints a secret
    /// for a file.
    ///
    /// This function blocks while it reads the file.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Read`] if the file can't be read, [`KeyError::FileTooLong`] if it has more than 4096 bytes, and
    /// [`KeyError::TooShort`] if the secret has fewer than 16 bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Key, KeyError> {
        let path = path.as_ref();
        let failed = |source| KeyError::Read { path: path.into(), source };
        // A list that grows would leave copies of the secret in memory.
        let mut secret = Zeroizing::new(Vec::with_capacity(MAX_FILE_LEN + 1));
        let file = File::open(path).map_err(failed)?;
        file.take(MAX_FILE_LEN as u64 + 1).read_to_end(&mut secret).map_err(failed)?;
        if secret.len() > MAX_FILE_LEN {
            return Err(KeyError::FileTooLong { path: path.into(), max: MAX_FILE_LEN });
        }
        let len = secret.trim_ascii_end().len();
        secret.truncate(len);
        Key::from_secret(secret)
    }

    /// Creates a key from 32 random bytes. [`secret`](Key::secret) returns them, for the other programs.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Random`] if the system has no random bytes.
    pub fn random() -> Result<Key, KeyError> {
        let mut secret = Zeroizing::new(vec![0; 32]);
        let filled = getrandom::fill(&mut secret);
        filled.map_err(|error| KeyError::Random { source: io::Error::other(error) })?;
        Key::from_secret(secret)
    }

    fn from_secret(secret: Zeroizing<Vec<u8>>) -> Result<Key, KeyError> {
        let (len, min) = (secret.len(), MIN_SECRET_LEN);
        if len < min { Err(KeyError::TooShort { len, min }) } else { Ok(Key(Arc::new(secret))) }
    }

    /// Returns the secret, for example to pass it to another program. It must not be printed or logged.
    pub fn secret(&self) -> &[u8] {
        &self.0
    }
}

/// Prints nothing about the secret.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

impl KeyError {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            KeyError::TooShort { .. } => Some("`head -c 32 /dev/urandom | base64` prints a secret"),
            KeyError::FileTooLong { .. } => Some("check the path: the file contains nothing but the secret"),
            KeyError::InvalidHex | KeyError::Read { .. } | KeyError::Random { .. } => None,
        }
    }

    /// Whether making the key again later can succeed, without a change of the program or the configuration. `false`
    /// for all errors.
    pub const fn is_retryable(&self) -> bool {
        false
    }
}

const _: () = assert!(size_of::<KeyError>() <= 64);

/// A key for one purpose of one protocol, derived from a secret. It is erased when it is dropped.
#[derive(Clone)]
pub struct DerivedKey(Zeroizing<[u8; 32]>);

impl DerivedKey {
    /// Derives the key of a purpose. Keys of different contexts have nothing in common.
    pub fn new(context: &str, secret: &[u8]) -> DerivedKey {
        // `blake3::derive_key` would leave its hasher's copy of the secret in memory.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_derive_key(context));
        hasher.update(secret);
        let mut derived = hasher.finalize();
        let key = Zeroizing::new(*derived.as_bytes());
        derived.zeroize();
        DerivedKey(key)
    }

    /// Returns a keyed hash of the parts, as if they were one.
    pub fn digest(&self, parts: &[&[u8]]) -> [u8; 32] {
        *self.hash(parts).as_bytes()
    }

    /// Whether a digest belongs to these parts. The comparison takes constant time.
    pub fn verifies(&self, digest: &[u8; 32], parts: &[&[u8]]) -> bool {
        // blake3 compares its hashes in constant time.
        self.hash(parts) == blake3::Hash::from_bytes(*digest)
    }

    /// Whether two keys are the same. The comparison takes constant time.
    pub fn is_same(&self, other: &DerivedKey) -> bool {
        blake3::Hash::from_bytes(*self.0) == blake3::Hash::from_bytes(*other.0)
    }

    fn hash(&self, parts: &[&[u8]]) -> blake3::Hash {
        // A keyed hasher holds a copy of the key.
        let mut hasher = Zeroizing::new(blake3::Hasher::new_keyed(&self.0));
        for part in parts {
            hasher.update(part);
        }
        hasher.finalize()
    }
}

/// Prints nothing about the key.
impl fmt::Debug for DerivedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DerivedKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_digits_of_a_secret_make_the_same_key() {
        let bytes: Vec<u8> = (0..16).map(|byte| byte * 17).collect();
        let key = Key::from_hex("00112233445566778899AABBccddeeff").unwrap();
        assert_eq!(key.secret(), bytes);
        assert_eq!(Key::new(&bytes).unwrap().secret(), bytes);
        for invalid in ["0011223344556677889900112233445", "0011223344556677889900112233445x", "+1"] {
            assert!(matches!(Key::from_hex(invalid), Err(KeyError::InvalidHex)), "{invalid}");
        }
        assert!(matches!(Key::from_hex("00"), Err(KeyError::TooShort { len: 1, min: 16 })));
    }

    #[test]
    fn a_file_has_the_secret_and_a_line_break() {
        let path = std::env::temp_dir().join(format!("adverb-key-{}", std::process::id()));
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Key::from_file(&path)
        };
        assert_eq!(read(b"0123456789abcdef\r\n").unwrap().secret(), b"0123456789abcdef");
        assert!(matches!(read(b"0123456789abcde\n"), Err(KeyError::TooShort { len: 15, .. })));
        assert!(read(&[7; 4096]).is_ok());
        assert!(matches!(read(&[7; 4097]), Err(KeyError::FileTooLong { max: 4096, .. })));
        std::fs::remove_file(&path).unwrap();
        let absent = Key::from_file(&path).unwrap_err();
        assert!(matches!(&absent, KeyError::Read { source, .. } if source.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn random_keys_differ_and_print_nothing() {
        let (one, other) = (Key::random().unwrap(), Key::random().unwrap());
        assert!(one.secret().len() == 32 && one.secret() != other.secret());
        assert_eq!(format!("{one:?}"), "Key");
    }

    #[test]
    fn keys_of_different_contexts_or_secrets_accept_no_digest_of_each_other() {
        let keys =
            [("a", 1), ("a", 2), ("b", 1)].map(|(context, byte)| DerivedKey::new(context, &[byte; 16]));
        for (index, key) in keys.iter().enumerate() {
            let digest = key.digest(&[b"one", b"two"]);
            for (other_index, other) in keys.iter().enumerate() {
                assert_eq!(other.verifies(&digest, &[b"onetwo"]), index == other_index);
                assert_eq!(other.is_same(key), index == other_index);
            }
            assert!(!key.verifies(&digest, &[b"one"]));
        }
    }
}
