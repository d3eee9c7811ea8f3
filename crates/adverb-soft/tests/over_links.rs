//! NICs over several kinds of links. Transfers are correct even over faulty links.

#![cfg(target_os = "linux")]

mod support;

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_proto::types::{
    Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest, Transport,
};
use adverb_proto::{Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_soft::link::{Capture, FaultConfig, FaultLink, Link, Switch, SwitchConfig};
use adverb_soft::{Nic, NicOptions};
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, Qpn, RnrTimer};

use support::{address, open_loopback};

const LENGTH: usize = 128 << 10;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A NIC with a connected queue pair and registered memory.
struct End {
    nic: Nic,
    cq: adverb_proto::Cq,
    qpn: Qpn,
    words: Vec<AtomicU64>,
    key: u32,
}

impl End {
    fn new(address: IpAddr, link: impl Link + 'static) -> End {
        let nic = Nic::open(NicOptions::new([address], link).mtu(PathMtu::Mtu1024)).unwrap();
        let pd = nic.create_domain().unwrap();
        let cq = nic.create_cq(64, None).unwrap();
        let qpn = nic.create_qp(QpConfig::new(Transport::Rc, pd, cq, cq)).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        nic.modify_qp(qpn, &Transition::Init(Init::new(access))).unwrap();
        let words: Vec<AtomicU64> = (0..LENGTH / 8).map(|_| AtomicU64::new(0)).collect();
        let area = NonNull::from(words.as_slice()).cast::<u8>();
        // SAFETY: the NIC is dropped before the words, and other code accesses them only as atomics.
        let key = unsafe { nic.register(pd, area, LENGTH, area.as_ptr().addr() as u64, access) }.unwrap();
        End { nic, cq, qpn, words, key }
    }

    fn connect(&self, peer: &End, path_mtu: PathMtu) {
        let (local, remote) = (self.nic.addresses()[0], peer.nic.addresses()[0]);
        let port = Path::source_port_between(self.qpn, peer.qpn);
        let receiving = ReadyToReceive {
            remote_qpn: peer.qpn,
            path: self.nic.path(local, remote, port).unwrap(),
            path_mtu,
            psn: Psn::wrapping(0xff_fff0),
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(1).unwrap(),
        };
        let sending = ReadyToSend {
            psn: Psn::wrapping(0xff_fff0),
            // Half a second, for a machine under load.
            timeout: Timeout::new(17).unwrap(),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
        };
        self.nic.modify_qp(self.qpn, &Transition::ReadyToReceive(receiving)).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToSend(sending)).unwrap();
    }

    /// Posts one request for all of the memory, and polls until it completes.
    fn transfer(&self, operation: SendOperation) {
        let length = LENGTH as u32;
        let segments = [Segment { addr: self.addr(), length, lkey: self.key }];
        let flags = SendFlags::SIGNALED;
        let request =
            SendRequest::<()> { wr_id: 1, tag: 0, operation, flags, segments: &segments, destination: None };
        self.nic.post_sends(self.qpn, [(request, None)]).unwrap();
        let start = Instant::now();
        let mut outcome = None;
        while outcome.is_none() {
            assert!(start.elapsed() < TEST_TIMEOUT, "no completion arrived");
            self.nic.poll(self.cq, 1, |completion| outcome = Some(completion.outcome.map(|_| ())));
        }
        assert_eq!(outcome, Some(Ok(())), "{:?}", self.nic.statistics());
    }

    fn addr(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    fn remote(&self) -> RemoteAddress {
        RemoteAddress { addr: self.addr(), rkey: self.key }
    }

    fn fill(&self, seed: u64) {
        for (index, word) in self.words.iter().enumerate() {
            word.store((index as u64 ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        }
    }

    fn values(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// Writes and reads between two NICs.
fn exercise(one: &End, other: &End) {
    one.connect(other, PathMtu::Mtu1024);
    other.connect(one, PathMtu::Mtu1024);
    for seed in 0..3 {
        one.fill(2 * seed);
        one.transfer(SendOperation::Write(other.remote()));
        assert!(one.values() == other.values());
        other.fill(2 * seed + 1);
        one.transfer(SendOperation::Read(other.remote()));
        assert!(one.values() == other.values());
    }
}

/// Writes many words, one request each, which are coalesced while the peer is busy. No caller polls afterwards.
fn write_without_polling(one: &End, other: &End) {
    one.connect(other, PathMtu::Mtu1024);
    other.connect(one, PathMtu::Mtu1024);
    one.fill(1);
    for word in 0..60 {
        let segments = [Segment { addr: one.addr() + 8 * word, length: 8, lkey: one.key }];
        let remote = RemoteAddress { addr: other.addr() + 8 * word, rkey: other.key };
        let (operation, flags) = (SendOperation::Write(remote), SendFlags::SIGNALED);
        let request =
            SendRequest::<()> { wr_id: 1, tag: 0, operation, flags, segments: &segments, destination: None };
        one.nic.post_sends(one.qpn, [(request, None)]).unwrap();
    }
    let start = Instant::now();
    while one.values()[..60] != other.values()[..60] {
        assert!(start.elapsed() < TEST_TIMEOUT, "not all words arrived: {:?}", one.nic.statistics());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a configuration with high rates of most faults.
fn faults(seed: u64) -> FaultConfig {
    FaultConfig {
        loss_ppm: 30_000,
        duplication_ppm: 10_000,
        corruption_ppm: 10_000,
        delay_ppm: 20_000,
        ..FaultConfig::new(seed)
    }
}

#[test]
fn transfers_over_memory_are_correct() {
    let switch = Switch::new(SwitchConfig::default());
    let [one, other] = [1, 2].map(|host| End::new(address(host), switch.attach(address(host)).unwrap()));
    exercise(&one, &other);
    assert_eq!(one.nic.statistics().icrc_errors + other.nic.statistics().icrc_errors, 0);
}

#[test]
fn transfers_over_memory_with_faults_are_correct() {
    let switch = Switch::new(SwitchConfig::default());
    let [one, other] = [1, 2].map(|host| {
        let link = FaultLink::new(switch.attach(address(host)).unwrap(), faults(host.into()));
        End::new(address(host), link)
    });
    exercise(&one, &other);
    // Corrupt packets were detected.
    assert!(one.nic.statistics().icrc_errors + other.nic.statistics().icrc_errors > 0);
}

#[test]
fn transfers_over_sockets_with_a_capture_are_correct() {
    let capture = Capture::new(std::io::sink());
    let [one, other] = [(); 2].map(|()| {
        let link = open_loopback(|_| ());
        End::new(link.local_addr().ip(), capture.watch("soft", link))
    });
    exercise(&one, &other);
    assert_eq!(one.nic.statistics().icrc_errors + other.nic.statistics().icrc_errors, 0);
}

#[test]
fn transfers_over_sockets_with_faults_are_correct() {
    let [one, other] = [7, 8].map(|seed| {
        let link = open_loopback(|_| ());
        End::new(link.local_addr().ip(), FaultLink::new(link, faults(seed)))
    });
    exercise(&one, &other);
    assert!(one.nic.statistics().icrc_errors + other.nic.statistics().icrc_errors > 0);
}

#[test]
fn coalesced_requests_are_sent_without_a_poll() {
    let [one, other] = [(); 2].map(|()| {
        let link = open_loopback(|_| ());
        End::new(link.local_addr().ip(), link)
    });
    write_without_polling(&one, &other);
}
