//! The user of this process.

use std::fs;
use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Uid, geteuid};

/// Returns the user of this process, or `None` if the process can't distinguish this user's processes from those of other
/// users.
///
/// In a user namespace, the kernel reports all users without an ID there with the same ID, the overflow ID (by default
/// 65534). A process whose own ID is the overflow ID would take the processes of these users for its own.
pub(in crate::link) fn verifiable() -> Option<Uid> {
    let uid = geteuid();
    let read = |path| fs::read_to_string(path).ok();
    let overflow = read("/proc/sys/kernel/overflowuid");
    let map = read("/proc/self/uid_map");
    is_unambiguous(uid.as_raw(), overflow.as_deref(), map.as_deref()).then_some(uid)
}

/// Whether the process at the other end of a connection belongs to a user.
pub(super) fn is_peer(socket: &impl AsFd, uid: Uid) -> bool {
    getsockopt(socket, PeerCredentials).is_ok_and(|peer| peer.uid() == uid.as_raw())
}

/// Whether no other user has this ID, given the contents of `overflowuid` and `uid_map`, as far as they are readable.
fn is_unambiguous(uid: u32, overflow: Option<&str>, map: Option<&str>) -> bool {
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_OVERFLOW_UID);
    // A namespace has this map only if each namespace around it has it, too.
    let is_complete = map.is_some_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    uid != overflow || is_complete
}

/// The overflow ID, unless the administrator has changed it.
const DEFAULT_OVERFLOW_UID: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_overflow_id_of_an_incomplete_map_is_ambiguous() {
        let complete = Some("         0          0 4294967295\n");
        let incomplete = [
            Some("     65534       1000          1\n"),
            Some("0 100000 65536\n"),
            Some("0 0 4294967294\n"),
            Some("0 1 4294967295\n"),
            Some("0 0 65534\n65534 65534 4294901761\n"),
            Some(""),
            None,
        ];
        let overflow = Some("65534\n");
        for map in incomplete {
            assert!(!is_unambiguous(65_534, overflow, map), "{map:?}");
            assert!(is_unambiguous(65_533, overflow, map) && is_unambiguous(0, overflow, map), "{map:?}");
            // The default applies if the ID can't be read.
            for unreadable in [None, Some(""), Some("x")] {
                assert!(!is_unambiguous(65_534, unreadable, map), "{map:?}");
            }
            assert!(!is_unambiguous(99, Some("99"), map), "{map:?}");
            assert!(is_unambiguous(65_534, Some("99"), map), "{map:?}");
        }
        assert!(is_unambiguous(65_534, overflow, complete) && is_unambiguous(65_534, None, complete));
    }
}
