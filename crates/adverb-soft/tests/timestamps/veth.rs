//! A veth pair between two network namespaces: the timestamps of the NICs, compared with those of the kernel's packet
//! sockets. The test needs root and `ip`.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use adverb_proto::types::Transport;
use adverb_soft::NicOptions;
use adverb_soft::link::{UdpConfig, UdpLink};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::sockopt::{RcvBufForce, ReceiveTimestampns};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvmsg,
    setsockopt, socket,
};
use nix::sys::time::TimeSpec;

use crate::node::Node;

/// The number of packets.
const COUNT: u32 = 1000;

/// The maximum error of a receive timestamp, early or late.
const MAX_ERROR: Duration = Duration::from_micros(2);

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

fn run_ip(line: &str) {
    let output = Command::new("ip").args(line.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A NIC in a network namespace, and a socket that receives all packets of the namespace.
struct Host {
    node: Node,
    packet_socket: OwnedFd,
}

/// Opens the host at `address`, which an interface of the namespace must have.
fn open_host(address: Ipv4Addr) -> Host {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let packet_socket =
        socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll).unwrap();
    setsockopt(&packet_socket, RcvBufForce, &(32 << 20)).unwrap();
    setsockopt(&packet_socket, ReceiveTimestampns, &true).unwrap();
    let link = UdpLink::open(&UdpConfig::new(address.into())).unwrap();
    Host { node: Node::new(Transport::Ud, NicOptions::new([IpAddr::from(address)], link)), packet_socket }
}

impl Host {
    /// Returns the kernel's times (since 1970) of the datagrams that the packet socket received, by the number that
    /// they contain.
    fn captured_times(&self) -> HashMap<u32, Duration> {
        let mut times = HashMap::new();
        let (mut bytes, mut control) = ([0; 2048], nix::cmsg_space!(TimeSpec));
        loop {
            let mut pieces = [IoSliceMut::new(&mut bytes)];
            let fd = self.packet_socket.as_raw_fd();
            let flags = MsgFlags::empty();
            let message = match recvmsg::<SockaddrStorage>(fd, &mut pieces, Some(&mut control), flags) {
                Err(Errno::EAGAIN) => return times,
                message => message.unwrap(),
            };
            let time = message.cmsgs().unwrap().find_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                _ => None,
            });
            let length = message.bytes;
            // IPv4 without options, UDP to port 4791, and a SEND of a datagram (opcode 0x64) with a number after 20
            // bytes of headers.
            let number = |bytes: &[u8]| {
                let is_ours = bytes.first() == Some(&0x45) && bytes[22..24] == 4791_u16.to_be_bytes();
                (is_ours && bytes[28] == 0x64).then(|| bytes[48..52].try_into().unwrap())
            };
            if let (Some(number), Some(time)) =
                (bytes.get(..length).filter(|b| b.len() >= 56).and_then(number), time)
            {
                times.insert(u32::from_ne_bytes(number), time);
            }
        }
    }
}

/// Returns one moment on the monotonic clock and on the system clock (since 1970), with an error below 1 µs.
fn clocks() -> (Instant, Duration) {
    loop {
        let before = Instant::now();
        let system = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let width = before.elapsed();
        if width < Duration::from_micros(1) {
            return (before + width / 2, system);
        }
    }
}

/// Returns the nanoseconds from one time to another, which are negative if the other is earlier.
fn nanos(from: Instant, to: Instant) -> i64 {
    to.saturating_duration_since(from).as_nanos() as i64
        - from.saturating_duration_since(to).as_nanos() as i64
}

fn print_summary(name: &str, mut values: Vec<i64>) -> (i64, i64, i64) {
    values.sort_unstable();
    let quantile = |permille: usize| values[(values.len() - 1) * permille / 1000];
    println!(
        "{name}: median {} ns, 99 % {} ns, {} to {} ns",
        quantile(500),
        quantile(990),
        quantile(0),
        quantile(1000)
    );
    (quantile(0), quantile(500), quantile(1000))
}

#[test]
fn timestamps_are_those_of_the_kernel() {
    // Each thread has a network namespace of its own, which exists as long as its sockets.
    let (id_sender, id_receiver) = mpsc::channel();
    let (start_sender, start_receiver) = mpsc::channel();
    let other = thread::spawn(move || {
        let unshared = unshare(CloneFlags::CLONE_NEWNET);
        let id = std::fs::read_link("/proc/thread-self").unwrap();
        let id: u32 = id.file_name().unwrap().to_str().unwrap().parse().unwrap();
        id_sender.send(unshared.map(|()| id)).unwrap();
        start_receiver.recv().ok().map(|()| open_host(THERE))
    });
    let id = match (unshare(CloneFlags::CLONE_NEWNET), id_receiver.recv().unwrap()) {
        (Ok(()), Ok(id)) => id,
        (here, there) => {
            println!("skipped: no network namespaces: {here:?}, {there:?}");
            return;
        }
    };
    run_ip(&format!("link add here type veth peer name there netns {id}"));
    run_ip(&format!("addr add {HERE}/24 dev here"));
    run_ip("link set here up");
    run_ip("link set lo up");
    let namespace = format!("/proc/{id}/ns/net");
    for line in ["link set there up", "link set lo up", &format!("addr add {THERE}/24 dev there")] {
        let output = Command::new("nsenter")
            .arg(format!("--net={namespace}"))
            .arg("ip")
            .args(line.split(' '))
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    start_sender.send(()).unwrap();
    let there = other.join().unwrap().unwrap();
    let here = open_host(HERE);
    here.node.connect(&there.node);
    there.node.connect(&here.node);
    // The interfaces start to send after a short time, and the address is resolved with the first packet.
    thread::sleep(Duration::from_millis(300));
    let exchange = |number: u32| {
        there.node.post_recv();
        here.node.post_send(&there.node, &number.to_ne_bytes());
        (here.node.completion(), there.node.completion())
    };
    // At first, the kernel stamps packets when they are read.
    let start = Instant::now();
    loop {
        exchange(u32::MAX);
        let (_, exchanged) = clocks();
        thread::sleep(Duration::from_millis(1));
        let is_stamped =
            |host: &Host| host.captured_times().get(&u32::MAX).is_some_and(|time| *time <= exchanged);
        // Both sockets are read, so that they don't keep these packets.
        let are_stamped = [&here, &there].map(is_stamped);
        if are_stamped == [true; 2] {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the kernel does not stamp packets");
    }
    let (monotonic, system) = clocks();
    let mut stamps = Vec::new();
    for number in 0..COUNT {
        stamps.push(exchange(number));
        if number % 10 == 0 {
            thread::sleep(Duration::from_micros(200));
        }
    }
    let (end, end_system) = clocks();
    let drift = nanos(end, monotonic + (end_system - system)).unsigned_abs();
    assert!(u128::from(drift) < MAX_ERROR.as_nanos(), "the system clock was set during the test");
    let (outgoing, incoming) = (here.captured_times(), there.captured_times());
    let instant = |time: Duration| monotonic + (time - system);
    let (mut sends, mut receives, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for (number, (sent, received)) in stamps.into_iter().enumerate() {
        let number = number as u32;
        sends.push(nanos(sent, instant(outgoing[&number])));
        receives.push(nanos(instant(incoming[&number]), received));
        latencies.push(nanos(sent, received));
    }
    println!("{} packets", receives.len());
    let (min, _, max) = print_summary("receive timestamp after the kernel's", receives);
    let error = MAX_ERROR.as_nanos() as i64;
    assert!(min >= -error && max <= error, "the receive timestamps are wrong");
    let (min, median, _) =
        print_summary("send timestamp before the kernel passes the packet to the device", sends);
    assert!(min >= -error, "a packet was stamped after it was sent");
    // Debug builds and busy machines take longer, but not that much longer.
    assert!(median < 1_000_000, "the send timestamps are far too early");
    let (min, ..) = print_summary("receive timestamp after the send timestamp", latencies);
    assert!(min >= -error, "a packet was received before it was sent");
}
