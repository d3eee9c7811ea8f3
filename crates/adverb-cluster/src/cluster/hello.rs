//! The messages of the bootstrap exchange over TCP. Their lengths are fixed.
//!
//! The dialing member sends a [`Hello`]. The listening member answers with one byte, and, if it is [`ACCEPTED`], with an
//! [`Offer`]. Then the dialing member sends [`READY`], and both open the session.

use crate::broker::Offer;

/// The answer that an offer follows.
pub(super) const ACCEPTED: u8 = 1;
/// The answer to a member with another configuration.
pub(super) const REJECTED: u8 = 2;
/// The answer to a member that should try again later.
pub(super) const BUSY: u8 = 3;
/// The dialing member's last byte: its queue pair is connected.
pub(super) const READY: u8 = 4;

/// The first bytes: the protocol and its version.
const MAGIC: [u8; 8] = *b"advclu\0\x01";

/// The first message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    /// A hash of the members' names and the number of threads, which must be equal at all members.
    pub(super) cluster: u64,
    /// The number of the dialing member.
    pub(super) from: u16,
    /// The number of the listening member.
    pub(super) to: u16,
    /// The thread whose session is to be established.
    pub(super) thread: u16,
    pub(super) offer: [u8; Offer::LEN],
}

impl Hello {
    pub(super) const LEN: usize = 22 + Offer::LEN;

    pub(super) fn to_bytes(self) -> [u8; Hello::LEN] {
        let mut bytes = [0; Hello::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.cluster.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.from.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.to.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.thread.to_be_bytes());
        bytes[22..].copy_from_slice(&self.offer);
        bytes
    }

    /// Parses a hello of any stranger. Returns `None` if the protocol is another one.
    pub(super) fn from_bytes(bytes: &[u8; Hello::LEN]) -> Option<Hello> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let (cluster, rest) = rest.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (thread, rest) = rest.split_first_chunk()?;
        Some(Hello {
            cluster: u64::from_be_bytes(*cluster),
            from: u16::from_be_bytes(*from),
            to: u16::from_be_bytes(*to),
            thread: u16::from_be_bytes(*thread),
            offer: rest.try_into().ok()?,
        })
    }
}

/// Returns the hash (FNV-1a) of the properties that must be equal at all members. It detects mistakes, not attacks.
pub(super) fn fingerprint(names: &[String], threads: u16) -> u64 {
    let separated = names.iter().flat_map(|name| name.bytes().chain([0]));
    separated.chain(threads.to_be_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_round_trip() {
        let hello =
            Hello { cluster: 0x0102_0304_0506_0708, from: 3, to: 2, thread: 1, offer: [7; Offer::LEN] };
        let mut bytes = hello.to_bytes();
        assert_eq!(Hello::from_bytes(&bytes), Some(hello));
        bytes[7] = 2;
        assert_eq!(Hello::from_bytes(&bytes), None);
    }

    #[test]
    fn members_and_threads_change_the_fingerprint() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let original = fingerprint(&names(&["a", "bc"]), 2);
        assert_ne!(original, fingerprint(&names(&["ab", "c"]), 2));
        assert_ne!(original, fingerprint(&names(&["bc", "a"]), 2));
        assert_ne!(original, fingerprint(&names(&["a", "bc"]), 3));
    }
}
