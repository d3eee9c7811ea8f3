//! A link in a process that can't open more file descriptors. The limit applies to the whole process, so this is the
//! only test of its file.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;

use adverb_soft::link::SourcePorts;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use support::open_loopback;

#[test]
fn a_permanent_port_is_used_if_no_descriptor_is_free() {
    let mut link = open_loopback(|_| ());
    let address = link.local_addr().ip();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(200), hard).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let fallback = link.source_port(address, 0xd123);
    assert_eq!(link.open_source_port(address, 0xd123), fallback);
    assert_eq!(link.statistics().source_port_fallbacks, 1);
    drop(files);
    assert_eq!(link.open_source_port(address, 0xd123), 0xd123);
    assert_eq!(link.statistics().source_port_fallbacks, 1);
}
