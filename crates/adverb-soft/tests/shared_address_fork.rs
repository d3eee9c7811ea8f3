//! A process at a shared address that forks. This is the only test of its program, because a forked child inherits the
//! sockets of all threads.

#![cfg(target_os = "linux")]

mod support;

use std::io::{Read, Write};

use adverb_soft::link::{AddressShare, Link, UdpConfig, UdpLink};
use adverb_wire::cm::ServiceId;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pause};

use support::open_loopback;

#[test]
fn a_forked_child_keeps_no_share_and_no_service() {
    let mut link = open_loopback(|config| config.shared = true);
    let (address, share) = (link.local_addr().ip(), link.address_share());
    assert_eq!(share, AddressShare::new(0));
    let service = ServiceId::tcp_port(7471);
    link.claim_service(service).unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child only calls functions that are permitted in a child of a process with several threads.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let _ = writer.write_all(b"1");
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => child,
    };
    // The child gives up its copies before `fork` returns there.
    reader.read_exact(&mut [0]).unwrap();
    drop(link);
    let mut config = UdpConfig::new(address);
    config.shared = true;
    let mut successor = UdpLink::open(&config).unwrap();
    let (successor_share, claimed) = (successor.address_share(), successor.claim_service(service));
    kill(child, Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    assert_eq!(successor_share, share);
    claimed.unwrap();
}
