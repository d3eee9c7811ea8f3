//! Software NICs over UDP sockets, and captures of their packets.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use adverb::verbs::{Device, SoftDevice};

pub(crate) fn open(device: SoftDevice) -> Device {
    device.open().unwrap()
}

/// Returns an address that no other process uses.
pub(crate) fn address(host: u8) -> IpAddr {
    let [a, b, ..] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    Ipv4Addr::new(127, 128 | a & 63, b, host).into()
}

/// Returns the path of a capture.
pub(crate) fn capture_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.pcapng", std::process::id()))
}
