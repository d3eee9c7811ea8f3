//! The requests and replies, which are the same over RPC and over TCP.
//!
//! A request with a key has the length of the key (2 bytes), the key, and, for PUT, the value. A reply begins with a
//! [`Status`]; after `Ok`, the reply to GET has the value, and that to DESCRIBE has a [`Description`].

use adverb::cluster::RemotePtr;

use crate::item::MAX_KEY_LEN;

/// The method that returns the location of the index.
pub const DESCRIBE: u16 = 1;
/// The method that returns the value of a key.
pub const GET: u16 = 2;
/// The method that stores the value of a key.
pub const PUT: u16 = 3;
/// The method that deletes a key.
pub const DELETE: u16 = 4;

/// The first byte of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// The request was executed.
    Ok = 0,
    /// The cache has no item with the key.
    Missing = 1,
    /// The server's memory is full.
    Full = 2,
    /// The request is invalid, or the item is too long.
    Invalid = 3,
}

impl Status {
    /// Returns the status that a byte stands for.
    pub fn from_byte(byte: u8) -> Option<Status> {
        [Status::Ok, Status::Missing, Status::Full, Status::Invalid]
            .into_iter()
            .find(|status| *status as u8 == byte)
    }
}

/// Writes a request with a key to `bytes`, whose contents are replaced. `value` is that of a PUT, or empty.
pub fn encode_request(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    debug_assert!(key.len() <= MAX_KEY_LEN);
    bytes.clear();
    bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
}

/// Returns the key and the value of a request, or `None` if it is invalid.
pub fn parse_request(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))
}

/// Returns the status of a reply, and the data after it.
pub fn parse_reply(bytes: &[u8]) -> Option<(Status, &[u8])> {
    let (status, data) = bytes.split_first()?;
    Some((Status::from_byte(*status)?, data))
}

/// The size and the location of a server's index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// The number of buckets of each shard.
    pub buckets: u32,
    /// The locations of the shards' buckets.
    pub shards: Vec<RemotePtr>,
}

impl Description {
    /// Appends the description to a reply.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.buckets.to_le_bytes());
        for shard in &self.shards {
            bytes.extend_from_slice(&shard.to_bytes());
        }
    }

    /// Returns the description in a reply, or `None` if it is invalid.
    pub fn parse(bytes: &[u8]) -> Option<Description> {
        let (buckets, rest) = bytes.split_first_chunk()?;
        let buckets = u32::from_le_bytes(*buckets);
        let (shards, []) = rest.as_chunks::<{ RemotePtr::ENCODED_LEN }>() else { return None };
        let shards: Vec<RemotePtr> =
            shards.iter().map(|shard| RemotePtr::from_bytes(shard)).collect::<Result<_, _>>().ok()?;
        let is_valid = |shard: &RemotePtr| shard.len == u64::from(buckets) * crate::index::BUCKET_LEN as u64;
        (buckets > 0 && !shards.is_empty() && shards.iter().all(is_valid))
            .then_some(Description { buckets, shards })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_parsed() {
        let mut bytes = Vec::new();
        encode_request(&mut bytes, b"key", b"value");
        assert_eq!(parse_request(&bytes), Some((&b"key"[..], &b"value"[..])));
        assert_eq!(parse_request(&bytes[..4]), None);
        assert_eq!(parse_request(&[]), None);
    }

    #[test]
    fn replies_are_parsed() {
        assert_eq!(parse_reply(&[1, 7]), Some((Status::Missing, &[7][..])));
        assert_eq!(parse_reply(&[9]), None);
        assert_eq!(parse_reply(&[]), None);
    }

    #[test]
    fn invalid_descriptions_are_refused() {
        let shard = RemotePtr { member: 1, segment: 2, epoch: 3, offset: 0, len: 128 };
        let description = Description { buckets: 2, shards: vec![shard; 3] };
        let mut bytes = Vec::new();
        description.encode(&mut bytes);
        assert_eq!(Description::parse(&bytes), Some(description));
        assert_eq!(Description::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Description::parse(&bytes[..4]), None, "no shards");
        bytes[0] = 3;
        assert_eq!(Description::parse(&bytes), None, "the length is not that of the buckets");
    }
}
