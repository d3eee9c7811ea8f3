//! A process that is stopped delays only the packets to itself. The other process is another run of this program.

#![cfg(target_os = "linux")]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use adverb_proto::types::{
    Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest, Transport,
};
use adverb_proto::{Cq, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, Transition};
use adverb_soft::link::{AddressShare, Link, RingPeers, UdpConfig, UdpLink};
use adverb_soft::{Nic, NicOptions};
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, Qpn, RnrTimer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use support::open_loopback;

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// The environment variables of the other process: its address, and whether it shares the address with the sender.
const ADDRESS: &str = "ADVERB_TEST_ADDRESS";
const SHARED: &str = "ADVERB_TEST_SHARED";

/// The length of each packet to the process that is stopped: a few hundred fill its ring.
const LENGTH: u32 = 4096;

/// The number of requests to a remote device that must complete while the stopped process accepts none.
const MIN_REMOTE_COUNT: usize = 20;

/// Sets the options of a link that exchanges packets in memory: with links at its address, or at other addresses.
fn configure(config: &mut UdpConfig, shared: bool) {
    if shared {
        config.shared = true;
    } else {
        config.ring_peers = RingPeers::AllLocal;
    }
}

/// Receives packets until it is killed.
#[test]
#[ignore = "run by the other test"]
fn receiver() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let mut config = UdpConfig::new(address.parse().unwrap());
    configure(&mut config, std::env::var(SHARED).unwrap() == "true");
    let mut link = UdpLink::open(&config).unwrap();
    println!("receiver: {}", link.address_share().map_or(0, |share| share.index()));
    std::io::stdout().flush().unwrap();
    let mut is_first = true;
    loop {
        let count = link.receive(256, &mut |_| {}).unwrap();
        if count > 0 && std::mem::take(&mut is_first) {
            println!("receiver: reads");
            std::io::stdout().flush().unwrap();
        } else if count == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Memory that is registered with a NIC. It is never freed, because the NIC may access it until it is dropped.
struct Area {
    words: &'static [AtomicU64],
    key: u32,
}

impl Area {
    fn addr(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }
}

/// A queue pair with its own completion queue.
struct End<'a> {
    nic: &'a Nic,
    cq: Cq,
    qpn: Qpn,
    area: Area,
    outstanding: usize,
}

const DEPTH: usize = 128;

impl<'a> End<'a> {
    fn new(nic: &'a Nic, transport: Transport) -> End<'a> {
        let pd = nic.create_domain().unwrap();
        let cq = nic.create_cq(2 * DEPTH as u32, None).unwrap();
        let qpn = nic.create_qp(QpConfig::new(transport, pd, cq, cq)).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        nic.modify_qp(qpn, &Transition::Init(Init::new(access))).unwrap();
        let words: &[AtomicU64] = Vec::leak((0..LENGTH / 8).map(|_| AtomicU64::new(0)).collect());
        let address = NonNull::from(words).cast::<u8>();
        // SAFETY: the words are never freed, and other code accesses them only as atomics.
        let key =
            unsafe { nic.register(pd, address, LENGTH as usize, address.as_ptr().addr() as u64, access) };
        End { nic, cq, qpn, area: Area { words, key: key.unwrap() }, outstanding: 0 }
    }

    fn connect(&self, remote: IpAddr, remote_qpn: Qpn) {
        let local = self.nic.addresses()[0];
        let port = Path::source_port_between(self.qpn, remote_qpn);
        let psn = Psn::wrapping(1);
        let receiving = ReadyToReceive {
            remote_qpn,
            path: self.nic.path(local, remote, port).unwrap(),
            path_mtu: PathMtu::Mtu4096,
            psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(1).unwrap(),
        };
        // A second, for a machine under load.
        let timeout = Timeout::new(18).unwrap();
        let sending = ReadyToSend { psn, timeout, retry_count: 7, rnr_retry: 7, max_rd_atomic: 4 };
        self.nic.modify_qp(self.qpn, &Transition::ReadyToReceive(receiving)).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToSend(sending)).unwrap();
    }

    /// Posts a WRITE of `length` bytes.
    fn write(&mut self, remote: RemoteAddress, length: u32) {
        let segments = [Segment { addr: self.area.addr(), length, lkey: self.area.key }];
        let (operation, flags) = (SendOperation::Write(remote), SendFlags::SIGNALED);
        let request =
            SendRequest::<()> { wr_id: 1, tag: 0, operation, flags, segments: &segments, destination: None };
        self.nic.post_sends(self.qpn, [(request, None)]).unwrap();
        self.outstanding += 1;
    }

    /// Polls, and returns the number of completed requests.
    fn poll(&mut self) -> usize {
        let mut count = 0;
        self.nic.poll(self.cq, DEPTH, |completion| {
            assert!(completion.outcome.is_ok(), "{completion:?}");
            count += 1;
        });
        self.outstanding -= count;
        count
    }
}

#[test]
fn a_stopped_process_does_not_delay_packets_to_a_remote_device() {
    stop_process(true);
}

#[test]
fn a_stopped_process_at_another_address_does_not_delay_packets_to_a_remote_device() {
    stop_process(false);
}

/// Sends packets to a process that is stopped again and again, and requests to a remote device. The process has the same address, or
/// another one.
fn stop_process(shared: bool) {
    let nic_over = |link: UdpLink| Nic::open(NicOptions::new([link.local_addr().ip()], link)).unwrap();
    let nic = nic_over(open_loopback(|config| configure(config, shared)));
    let remote_nic = nic_over(open_loopback(|_| ()));
    let (own_address, remote_address) = (nic.addresses()[0], remote_nic.addresses()[0]);
    let address = if shared { own_address } else { open_loopback(|_| ()).local_addr().ip() };

    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "receiver", "--ignored", "--nocapture", "--test-threads=1"])
        .env(ADDRESS, address.to_string())
        .env(SHARED, shared.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process(child);
    let output = BufReader::new(process.0.stdout.take().unwrap());
    let mut lines = output.lines().filter_map(|line| Some(line.ok()?.split_once("receiver: ")?.1.to_owned()));
    let share = AddressShare::new(lines.next().unwrap().parse().unwrap()).unwrap();

    let mut flood = End::new(&nic, Transport::Uc);
    flood.connect(address, Qpn::truncate(share.qpn(0x1_0000)));
    let (mut local, remote) = (End::new(&nic, Transport::Rc), End::new(&remote_nic, Transport::Rc));
    local.connect(remote_address, remote.qpn);
    remote.connect(own_address, local.qpn);
    let target = RemoteAddress { addr: remote.area.addr(), rkey: remote.area.key };
    flood.write(target, LENGTH);
    assert_eq!(lines.next().unwrap(), "reads");

    // The times of requests to the remote device: without other packets, and while the other process accepts packets or not.
    let (mut alone, mut free, mut full) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    for _ in 0..200 {
        let posted_at = Instant::now();
        local.write(target, 8);
        while local.poll() == 0 {
            assert!(posted_at.elapsed() < TEST_DEADLINE, "the request does not complete");
        }
        alone.push(posted_at.elapsed());
    }
    while full.len() < MIN_REMOTE_COUNT {
        assert!(start.elapsed() < TEST_DEADLINE, "{} requests completed", full.len());
        process.signal(Signal::SIGSTOP);
        // After this time, the packets to the process are lost.
        let stopped_at = Instant::now();
        while stopped_at.elapsed() < Duration::from_millis(100) {
            while flood.outstanding < DEPTH {
                flood.write(target, LENGTH);
            }
            let (posted_at, mut accepted) = (Instant::now(), 0);
            local.write(target, 8);
            while local.poll() == 0 {
                accepted += flood.poll();
                assert!(posted_at.elapsed() < TEST_DEADLINE, "the request does not complete");
            }
            accepted += flood.poll();
            if accepted == 0 { &mut full } else { &mut free }.push(posted_at.elapsed());
        }
        process.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(20));
    }
    for (name, mut times) in [("alone", alone), ("packets accepted", free), ("packets refused", full)] {
        times.sort();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        println!("{name}: {} requests, p50 {:?}, p99 {:?}", times.len(), at(50), at(99));
    }
}
