//! A process at a shared address that forks. This is the only test of its program, because a forked child inherits the
//! sockets of all threads.

#![cfg(target_os = "linux")]

mod support;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::path::Path;

use adverb_soft::link::{AddressShare, Link, TxPacket, UdpConfig, UdpLink};
use adverb_wire::cm::ServiceId;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, Pid, fork, pause};

use support::{collect, drain, open_loopback};

/// A child that is killed when the test ends.
struct Child(Pid);

impl Drop for Child {
    fn drop(&mut self) {
        kill(self.0, Signal::SIGKILL).unwrap();
        waitpid(self.0, None).unwrap();
    }
}

/// Returns the descriptors of /dev/null, which replaces sockets in a child.
fn null_descriptors() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap());
    let is_null = |path: &Path| fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"));
    let number = |name: OsString| name.to_str().unwrap().parse().unwrap();
    entries.filter(|entry| is_null(&entry.path())).map(|entry| number(entry.file_name())).collect()
}

/// Whether a program that this process starts doesn't inherit the descriptor.
fn closes_on_exec(descriptor: RawFd) -> bool {
    // SAFETY: the descriptor is open.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    FdFlag::from_bits_retain(fcntl(descriptor, FcntlArg::F_GETFD).unwrap()).contains(FdFlag::FD_CLOEXEC)
}

#[test]
fn a_forked_child_keeps_no_share_no_service_and_no_ring() {
    let mut link = open_loopback(|config| config.shared = true);
    let (address, share) = (link.local_addr().ip(), link.address_share());
    assert_eq!(share, AddressShare::new(0));
    let mut config = UdpConfig::new(address);
    config.shared = true;
    let mut sender = UdpLink::open(&config).unwrap();
    let source = sender.source_addr(0xc000);
    let mut bytes = [0; 100];
    bytes[4..8].copy_from_slice(&share.unwrap().qpn(0x1_0000).to_be_bytes());
    let destination = link.local_addr();
    let packet =
        TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes: &bytes };
    // The second packet shows the sender that the receiver has opened its ring.
    for _ in 0..2 {
        assert_eq!(sender.send(&[packet]).unwrap(), 1);
        assert_eq!(collect(&mut link, 1).len(), 1);
    }
    let service = ServiceId::tcp_port(7471);
    link.address_sharing().unwrap().claim_service(service).unwrap();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let opened_before = null_descriptors();
    // SAFETY: the child only calls functions that are permitted in a child of a process with several threads, and the
    // allocator, which glibc permits.
    let child = match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            // The child has no ring, so the packet gets lost.
            let _ = sender.send(&[packet]);
            let mut replaced = null_descriptors();
            replaced.retain(|descriptor| !opened_before.contains(descriptor));
            let inherited = replaced.iter().filter(|descriptor| !closes_on_exec(**descriptor)).count();
            let _ = writer.write_all(&[replaced.len() as u8, inherited as u8]);
            loop {
                pause();
            }
        }
        ForkResult::Parent { child } => Child(child),
    };
    // The child gives up its copies before `fork` returns there.
    let mut counts = [0; 2];
    reader.read_exact(&mut counts).unwrap();
    let received = drain(&mut link);
    assert_eq!(sender.send(&[packet]).unwrap(), 1);
    assert_eq!(collect(&mut link, 1).len(), 1);
    drop((link, sender));
    let mut successor = UdpLink::open(&config).unwrap();
    let (successor_share, claimed) =
        (successor.address_share(), successor.address_sharing().unwrap().claim_service(service));
    drop(child);
    assert_eq!(received, [], "the child wrote into the ring");
    let [replaced, inherited] = counts;
    assert!(replaced > 1 && inherited == 0, "of {replaced} descriptors, a program inherits {inherited}");
    assert_eq!(successor_share, share);
    claimed.unwrap();
}
