//! The key of the exchanges of a cluster.

use adverb_verbs::Key;
use adverb_verbs::internal::DerivedKey;

/// The length of a tag in bytes.
pub(super) const TAG_LEN: usize = 32;

/// A key for the tags of an exchange.
#[derive(Debug)]
pub(super) struct ExchangeKey(DerivedKey);

impl ExchangeKey {
    /// Derives the key of a cluster. Without a key, the result is public.
    pub(super) fn new(key: Option<&Key>) -> ExchangeKey {
        ExchangeKey(match key {
            Some(key) => DerivedKey::new("adverb-cluster v1 exchange", key.secret()),
            None => DerivedKey::new("adverb-cluster v1 public exchange", &[]),
        })
    }

    pub(super) fn tag(&self, transcript: &[u8]) -> [u8; TAG_LEN] {
        self.0.digest(&[transcript])
    }

    /// Whether a tag belongs to a transcript. The comparison takes constant time.
    pub(super) fn verifies(&self, tag: &[u8; TAG_LEN], transcript: &[u8]) -> bool {
        self.0.verifies(tag, &[transcript])
    }
}
