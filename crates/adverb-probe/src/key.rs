//! The key of the tags of probes and acknowledgements.

use std::sync::{Arc, LazyLock};

use adverb_verbs::Key;
use adverb_verbs::internal::DerivedKey;

/// Length of a tag in bytes.
pub(crate) const TAG_LEN: usize = 16;

/// A key for the tags of probes and acknowledgements, derived from the [`Key`] that probers and responders share.
///
/// A responder with a key answers only probes with a valid tag, and a prober with a key accepts only acknowledgements with
/// a valid tag.
#[derive(Clone, Debug)]
pub struct TagKey(Arc<DerivedKey>);

impl TagKey {
    /// Derives the key for tags.
    pub fn new(key: &Key) -> TagKey {
        TagKey(Arc::new(DerivedKey::new("adverb-probe v2 tag", key.secret())))
    }

    /// Returns the key of probers and responders that have none. The key is public.
    pub(crate) fn public() -> &'static TagKey {
        static PUBLIC: LazyLock<TagKey> =
            LazyLock::new(|| TagKey(Arc::new(DerivedKey::new("adverb-probe v2 public tag", &[]))));
        &PUBLIC
    }

    /// Returns the tag of a message, which consists of these parts.
    pub(crate) fn tag(&self, parts: [&[u8]; 4]) -> [u8; TAG_LEN] {
        let mut tag = [0; TAG_LEN];
        tag.copy_from_slice(&self.0.digest(&parts)[..TAG_LEN]);
        tag
    }
}
