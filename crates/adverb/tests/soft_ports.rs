//! Software devices at one address: in one process each has its own UDP port, and two processes share port 4791.

#![cfg(feature = "soft")]

use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adverb::verbs::{
    CompletionQueue, ConnectOptions, Device, Endpoint, Gid, ProtectionDomain, Psn, Qpn, QueuePair, RequestId,
    SendRequest, SoftDevice, Switch, Transport, UdDestination,
};

const TIMEOUT: Duration = Duration::from_secs(10);
const QKEY: u32 = 0x77;
const TRANSPORTS: [Transport; 3] = [Transport::Rc, Transport::Uc, Transport::Ud];

/// Returns a loopback address that no other test uses.
fn address() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    let number = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    Ipv4Addr::new(127, 216 + (process >> 8 & 15) as u8, process as u8, number).into()
}

fn gid(device: &Device) -> Gid {
    device.gids().unwrap()[0].gid
}

/// Queue pairs of each transport on one device, for connections to another.
struct Side {
    domain: ProtectionDomain,
    cq: CompletionQueue,
    queue_pairs: [QueuePair; 3],
}

impl Side {
    fn new(device: &Device) -> Side {
        let domain = device.create_protection_domain().unwrap();
        let cq = device.completion_queue(1024).create().unwrap();
        let queue_pairs = TRANSPORTS.map(|transport| {
            let queue_pair = domain.queue_pair(transport).qkey(QKEY).completion_queue(&cq).create().unwrap();
            if transport == Transport::Ud {
                queue_pair.move_to_rts().unwrap();
            }
            queue_pair
        });
        Side { domain, cq, queue_pairs }
    }

    fn endpoints(&self) -> [Endpoint; 3] {
        [0, 1, 2].map(|index| self.queue_pairs[index].endpoint())
    }

    /// Connects the queue pairs, and posts a receive on each, and a second one for datagrams.
    fn connect(&self, peers: &[Endpoint; 3]) -> [RequestId; 4] {
        // The ACK timeout is about a second, for busy machines.
        let options = ConnectOptions::new().ack_timeout(18);
        for (queue_pair, peer) in self.queue_pairs.iter().zip(peers).take(2) {
            queue_pair.connect_with(peer, &options).unwrap();
        }
        [0, 1, 2, 2].map(|index| {
            self.queue_pairs[index].post_recv(self.domain.allocate_buffer(4136).unwrap()).unwrap()
        })
    }

    fn post(&self, queue_pair: &QueuePair, text: &str, to: Option<&UdDestination>) {
        let mut buffer = self.domain.allocate_buffer(text.len()).unwrap();
        buffer.copy_from_slice(text.as_bytes());
        let mut request = SendRequest::send(buffer);
        if let Some(destination) = to {
            request = request.destination(destination);
        }
        let sending = queue_pair.post_send(request).unwrap();
        self.cq.wait(sending, TIMEOUT).unwrap().result().unwrap();
    }

    /// Sends a message on each queue pair, before or after receiving one on each. The reply to the datagram
    /// is sent to the source in its IP header.
    fn exchange_messages(&self, receiving: [RequestId; 4], peers: &[Endpoint; 3], is_first: bool) {
        let [reliable, unreliable, datagram, other] = receiving;
        let (datagram, reply) = if is_first { (other, datagram) } else { (datagram, other) };
        let [.., ud] = &self.queue_pairs;
        let send = || {
            for (queue_pair, peer) in self.queue_pairs.iter().zip(peers) {
                let is_ud = queue_pair.transport() == Transport::Ud;
                let destination = is_ud.then(|| queue_pair.create_ud_destination(peer, QKEY).unwrap());
                self.post(queue_pair, "hello", destination.as_ref());
            }
            let reply = self.cq.wait(reply, TIMEOUT).unwrap().into_datagram().unwrap();
            assert_eq!(&reply.message[..], b"reply");
        };
        if is_first {
            send();
        }
        for receive in [reliable, unreliable] {
            let message = self.cq.wait(receive, TIMEOUT).unwrap().into_message().unwrap();
            assert_eq!(&message[..], b"hello");
        }
        let datagram = self.cq.wait(datagram, TIMEOUT).unwrap().into_datagram().unwrap();
        assert_eq!(&datagram.message[..], b"hello");
        let header = datagram.ip_header.unwrap();
        assert_eq!(Gid::from(header.source()), peers[2].gid);
        assert_eq!(Gid::from(header.destination()), ud.endpoint().gid);
        self.post(ud, "reply", Some(&datagram.create_reply_destination(ud, QKEY).unwrap()));
        if !is_first {
            send();
        }
    }
}

fn exchange(one: &Device, other: &Device) {
    let (here, there) = (Side::new(one), Side::new(other));
    let (ours, theirs) = (here.endpoints(), there.endpoints());
    let (receiving, theirs_receiving) = (here.connect(&theirs), there.connect(&ours));
    std::thread::scope(|scope| {
        scope.spawn(|| there.exchange_messages(theirs_receiving, &ours, false));
        here.exchange_messages(receiving, &theirs, true);
    });
}

#[test]
fn devices_at_one_address_have_separate_ports() {
    let address = address();
    let open = || SoftDevice::at_addr(address).open().unwrap();
    let devices = [open(), open(), open()];
    for (device, port) in devices.iter().zip(4791..) {
        let gid = gid(device);
        assert_eq!(gid.udp_addr(), SocketAddr::new(address, port));
        assert_eq!(device.name(), format!("soft:{}", gid.ip()));
        assert_eq!(device.gids().unwrap()[0].netdev.as_deref(), Some("lo"));
        assert!(UdpSocket::bind((address, port)).is_err());
    }
    let [default, one, other] = &devices;
    for (from, to) in [(default, one), (one, default), (one, other), (one, one)] {
        exchange(from, to);
    }
    // The address finds the device at the default port; GIDs find the others.
    assert_eq!(Device::open(&format!("soft:{address}")).unwrap().name(), default.name());
    assert_eq!(Device::open(other.name()).unwrap().attributes().guid, other.attributes().guid);
    assert_eq!(Device::open_by_addr(gid(one).ip()).unwrap().name(), one.name());
}

#[test]
fn a_device_uses_the_next_free_port_and_is_found_again() {
    let address = address();
    let taken = UdpSocket::bind((address, 4791)).unwrap();
    let _also_taken = UdpSocket::bind((address, 4792)).unwrap();
    let device = Device::open(&format!("soft:{address}")).unwrap();
    assert_eq!(gid(&device).udp_addr(), SocketAddr::new(address, 4793));
    // The address finds the GID, although the GID also contains the port.
    let found = Device::open_by_addr(address).unwrap();
    assert_eq!(found.gid_for(1, Some(address)).unwrap().gid, gid(&device));
    drop((taken, found));
    let reopened = Device::open(&format!("soft:{address}")).unwrap();
    assert_eq!(reopened.name(), device.name());
    drop((device, reopened));
    let default = Device::open(&format!("soft:{address}")).unwrap();
    assert_eq!(gid(&default).udp_addr(), SocketAddr::new(address, 4791));
}

#[test]
fn a_device_with_an_explicit_port_uses_no_other() {
    let address = address();
    let named = Gid::from(SocketAddr::new(address, 4800));
    let device = Device::open(&format!("soft:[{}]", named.ip())).unwrap();
    assert_eq!(gid(&device), named);
    let error = SoftDevice::at_addr(named.ip()).open().unwrap_err();
    assert_eq!(error.io_error().map(io::Error::kind), Some(io::ErrorKind::AddrInUse));
    // This address contains a port, but isn't one of this machine.
    let error = Device::open("soft:100::1:0:0:1").unwrap_err();
    assert_eq!(error.io_error().map(io::Error::kind), Some(io::ErrorKind::AddrNotAvailable));
    let error = SoftDevice::on_switch(&Switch::default(), named.ip()).open().unwrap_err();
    assert!(error.io_error().unwrap().to_string().contains("encodes a UDP port"), "{error}");
}

#[test]
fn devices_at_the_ipv6_loopback_address_exchange_messages() {
    if UdpSocket::bind("[::1]:0").is_err() {
        return println!("skipped: this machine has no IPv6");
    }
    let open = || SoftDevice::at_addr(Ipv6Addr::LOCALHOST.into()).open().unwrap();
    let (one, other) = (open(), open());
    assert_ne!(gid(&one), gid(&other));
    // The default port may be used by another program when the first device opens, and be free for the second.
    assert!(gid(&one).has_udp_port() || gid(&other).has_udp_port());
    assert!([&one, &other].iter().all(|device| gid(device).udp_addr().ip() == Ipv6Addr::LOCALHOST));
    exchange(&one, &other);
    exchange(&other, &one);
}

#[test]
fn multicast_groups_are_reached_from_and_at_every_port() {
    let group = IpAddr::V4(Ipv4Addr::new(239, 255, 79, std::process::id() as u8));
    let address = address();
    let devices = [(); 2].map(|()| SoftDevice::at_addr(address).open().unwrap());
    let [one, other] = [0, 1].map(|index| Side::new(&devices[index]));
    for (from, to) in [(&one, &other), (&other, &one), (&other, &other)] {
        let ([.., sender], [.., member]) = (&from.queue_pairs, &to.queue_pairs);
        member.join_multicast(group).unwrap();
        let receive = member.post_recv(to.domain.allocate_buffer(4136).unwrap()).unwrap();
        from.post(sender, "hello", Some(&sender.create_multicast_destination(group, QKEY).unwrap()));
        let datagram = to.cq.wait(receive, TIMEOUT).unwrap().into_datagram().unwrap();
        let header = datagram.ip_header.unwrap();
        assert_eq!(Gid::from(header.source()), sender.endpoint().gid);
        assert_eq!(header.destination(), group);
        member.leave_multicast(group).unwrap();
    }
}

/// Formats endpoints as a line of text: address, QPN and PSN of each.
fn to_line(endpoints: &[Endpoint; 3]) -> String {
    let one = |end: &Endpoint| format!("{} {} {}", end.gid.ip(), end.qpn.get(), end.psn.get());
    endpoints.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn from_line(line: &str) -> [Endpoint; 3] {
    let words: Vec<&str> = line.split_whitespace().collect();
    let one = |index: usize| {
        let [ip, qpn, psn] = &words[3 * index..][..3] else { panic!("{line}") };
        let (qpn, psn) = (Qpn::truncate(qpn.parse().unwrap()), Psn::wrapping(psn.parse().unwrap()));
        Endpoint::new(Gid::from(ip.parse::<IpAddr>().unwrap()), qpn, psn)
    };
    [0, 1, 2].map(one)
}

/// The prefix of lines for the other process.
const LINE_PREFIX: &str = "for the other process: ";

/// The environment variable with the address, for the other process.
const ADDRESS_VARIABLE: &str = "ADVERB_TEST_OTHER_PROCESS";

#[test]
fn devices_at_one_address_in_two_processes_exchange_messages() {
    let address = address();
    let device = Device::open(&format!("soft:{address}")).unwrap();
    assert!(!gid(&device).has_udp_port());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--ignored", "--nocapture"])
        .env(ADDRESS_VARIABLE, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut lines = from.lines().map_while(Result::ok);
    let mut next_line = || {
        lines
            .find_map(|line| Some(line.split_once(LINE_PREFIX)?.1.to_owned()))
            .expect("the other process prints a line")
    };
    let side = Side::new(&device);
    let peers = from_line(&next_line());
    assert_eq!(peers[0].gid, gid(&device), "processes share the address and the port");
    let receiving = side.connect(&peers);
    writeln!(to, "{}", to_line(&side.endpoints())).unwrap();
    assert_eq!(next_line(), "ready");
    side.exchange_messages(receiving, &peers, true);
    assert_eq!(next_line(), "done");
    drop(to);
    assert!(child.wait().unwrap().success());
}

/// Not a test: the other process of the test above.
#[test]
#[ignore = "run by devices_at_one_address_in_two_processes_exchange_messages"]
fn child_process() {
    let Ok(address) = std::env::var(ADDRESS_VARIABLE) else { return };
    let device = Device::open(&format!("soft:{address}")).unwrap();
    let side = Side::new(&device);
    println!("{LINE_PREFIX}{}", to_line(&side.endpoints()));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let peers = from_line(&line);
    let receiving = side.connect(&peers);
    println!("{LINE_PREFIX}ready");
    side.exchange_messages(receiving, &peers, false);
    println!("{LINE_PREFIX}done");
    // Waits until the peer has closed its end, because the last message may have to be retransmitted.
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The environment variable with the address of the process that the test below starts.
const EXCLUSIVE_ADDRESS: &str = "ADVERB_TEST_EXCLUSIVE_ADDRESS";

/// Whether a process lets others share its address: it then has names in the kernel.
fn is_shared(address: IpAddr) -> bool {
    std::fs::read_to_string("/proc/net/unix").unwrap().contains(&format!("@adverb/{address}:4791/"))
}

#[test]
fn an_exclusive_device_shares_its_address_with_no_process() {
    let device = SoftDevice::at_addr(address()).open().unwrap();
    assert!(is_shared(gid(&device).udp_addr().ip()));
    let exclusive = SoftDevice::at_addr(address()).exclusive().open().unwrap();
    assert_eq!(gid(&exclusive).udp_addr().port(), 4791);
    assert!(!is_shared(gid(&exclusive).udp_addr().ip()));
    for (value, expected) in [("1", "false"), ("0", "true")] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "exclusive_process", "--ignored", "--nocapture"])
            .env(EXCLUSIVE_ADDRESS, address().to_string())
            .env("ADVERB_EXCLUSIVE", value)
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        assert!(output.contains(&format!("by name {expected}, by address {expected}")), "{output}");
    }
}

#[test]
#[ignore = "run by an_exclusive_device_shares_its_address_with_no_process"]
fn exclusive_process() {
    let Ok(address) = std::env::var(EXCLUSIVE_ADDRESS) else { return };
    let address = address.parse().unwrap();
    let device = Device::open(&format!("soft:{address}")).unwrap();
    let by_name = is_shared(address);
    drop(device);
    let _device = SoftDevice::at_addr(address).open().unwrap();
    println!("by name {by_name}, by address {}", is_shared(address));
}
