//! The owners of files on which programs rely.

use std::fs;

use nix::unistd::geteuid;

/// Whether the owner of a file can be relied upon: this user, or root.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw() || is_unknown(uid)
}

/// Whether a file's owner has no ID in this user namespace. All such owners have the same overflow ID, so root of a
/// surrounding namespace can't be distinguished from other users there.
fn is_unknown(uid: u32) -> bool {
    let read = |path| fs::read_to_string(path).ok();
    is_overflow(uid, read("/proc/sys/kernel/overflowuid").as_deref(), read("/proc/self/uid_map").as_deref())
}

/// Whether this ID stands for the users without one, given the contents of `overflowuid` and `uid_map`, as far as they are
/// readable.
fn is_overflow(uid: u32, overflow: Option<&str>, map: Option<&str>) -> bool {
    let overflow = overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_OVERFLOW_UID);
    // A namespace has this map only if each namespace around it has it, too.
    let is_complete = map.is_none_or(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    uid == overflow && !is_complete
}

/// The overflow ID, unless the administrator has changed it.
const DEFAULT_OVERFLOW_UID: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_without_an_id_exist_only_in_namespaces() {
        let complete = Some("         0          0 4294967295\n");
        let incomplete = Some("         0       1000          1\n");
        assert!(is_overflow(65_534, Some("65534\n"), incomplete) && is_overflow(65_534, None, incomplete));
        assert!(
            !is_overflow(1000, Some("65534\n"), incomplete) && !is_overflow(65_534, Some("99"), incomplete)
        );
        assert!(!is_overflow(65_534, Some("65534\n"), complete) && !is_overflow(65_534, None, None));
    }
}
