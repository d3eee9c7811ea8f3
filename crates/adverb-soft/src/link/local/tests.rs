//! Tests of processes at different addresses.

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::message::ring_message;
use super::ring::Writer;
use super::*;
use crate::link::TxPacket;
use crate::link::udp::tests::loopback;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the address of a test.
fn addr(test: u32) -> SocketAddr {
    SocketAddr::new(loopback(test).into(), 4791)
}

/// Returns the endpoint of a process that has its address to itself.
fn open(addr: SocketAddr) -> Endpoint {
    let names = Names::new(addr, verifiable_user().unwrap());
    let listener = names.claim(Name::Device).unwrap();
    let mut endpoint = Endpoint::new(names, None, RingPeers::AllLocal).unwrap();
    endpoint.listen(listener, Name::Device).unwrap();
    endpoint
}

/// Returns the bytes of a packet to a queue pair with a share.
fn bytes_to(share: u8) -> [u8; 60] {
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&AddressShare::new(share).unwrap().qpn(0x1_0000).to_be_bytes());
    bytes
}

fn packet(source: SocketAddr, destination: SocketAddr, bytes: &[u8]) -> TxPacket<'_> {
    TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes }
}

/// Sends a packet. No marker is sent.
fn send(from: &mut Endpoint, packet: &TxPacket<'_>, to: PeerAddr) -> Delivery {
    from.send(to, &[*packet], |_, _| Ok(false))
}

/// Returns the receiver of packets to an address.
fn receiver(addr: SocketAddr, share: u8) -> PeerAddr {
    PeerAddr { addr, share: AddressShare::new(share) }
}

fn receive_until(endpoint: &mut Endpoint, is_done: impl Fn(&Endpoint, usize) -> bool) {
    let (mut count, start) = (0, Instant::now());
    while !is_done(endpoint, count) {
        count += endpoint.receive(256, &mut |_| {});
        assert!(start.elapsed() < TEST_TIMEOUT, "{count} packets were received");
    }
}

/// Sends packets until one is written into a ring.
fn connect(from: &mut Endpoint, to: &mut Endpoint) {
    let (source, destination, bytes) = (from.names().local(), to.names().local(), bytes_to(0));
    let start = Instant::now();
    while send(from, &packet(source, destination, &bytes), receiver(destination, 0)) == Delivery::OverUdp {
        to.receive(256, &mut |_| {});
        assert!(start.elapsed() < TEST_TIMEOUT, "the ring is not opened");
    }
    receive_until(to, |_, count| count == 1);
}

#[test]
fn a_ring_has_one_source_address_which_is_local() {
    let mut to = open(addr(11));
    let names = Names::new(addr(12), verifiable_user().unwrap());
    let offer = |source: &str, to: &mut Endpoint| {
        let Holder::OwnUser(stream) = names.connect(addr(11), Name::Device).unwrap() else { panic!() };
        let (writer, token) = (Writer::create().unwrap(), Token::random().unwrap());
        let files = [writer.file().unwrap().as_raw_fd()];
        let (message, rights) =
            (ring_message(token, source.parse().unwrap()), ControlMessage::ScmRights(&files));
        let (message, flags) = ([IoSlice::new(&message)], MsgFlags::MSG_NOSIGNAL);
        sendmsg::<()>(stream.as_raw_fd(), &message, &[rights], flags, None).unwrap();
        let start = Instant::now();
        loop {
            to.receive(256, &mut |_| panic!("a packet was received"));
            match receive_files(&stream, &mut [0; 16]) {
                Ok((0, _)) => return false,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return false,
                _ if to.has_rings() => return true,
                _ => assert!(start.elapsed() < TEST_TIMEOUT, "no response"),
            }
        }
    };
    for source in ["203.0.113.77:4791", "224.0.0.1:4791", "0.0.0.0:4791", "[::1]:4791"] {
        assert!(!offer(source, &mut to), "{source}");
    }
    assert!(offer("127.0.0.1:4791", &mut to));
    receive_until(&mut to, |to, _| !to.has_rings());
    // A packet with another source ends the ring.
    let mut from = open(addr(12));
    connect(&mut from, &mut to);
    let bytes = bytes_to(0);
    let forged = packet(addr(13), addr(11), &bytes);
    assert_eq!(from.receiver(&forged), None);
    assert_eq!(send(&mut from, &forged, receiver(addr(11), 0)), Delivery::Accepted);
    receive_until(&mut to, |to, count| {
        assert_eq!(count, 0);
        !to.has_rings()
    });
}

#[test]
fn a_ring_ends_when_its_address_is_no_longer_local() {
    let (mut from, mut to) = (open(addr(14)), open(addr(15)));
    connect(&mut from, &mut to);
    let writers = &mut from.rings().writers;
    let now = Instant::now() + Duration::from_secs(10);
    writers.check_addrs(now, |_| true);
    writers.check_addrs(now, |_| panic!("the addresses are checked once in a second"));
    assert!(from.has_writer(receiver(addr(15), 0)));
    from.rings().writers.check_addrs(now + Duration::from_secs(1), |checked| checked != addr(15));
    assert!(!from.has_writer(receiver(addr(15), 0)));
    receive_until(&mut to, |to, _| !to.has_rings());
}

#[test]
fn only_packets_to_queue_pairs_at_local_addresses_have_receivers() {
    let from = open(addr(10));
    let (bytes, mut management) = (bytes_to(3), [0; 60]);
    management[7] = 1;
    let receiver_of = |destination: &str, bytes: &[u8]| {
        let destination = destination.parse().unwrap();
        from.receiver(&packet(addr(10), destination, bytes)).map(|receiver| receiver.addr)
    };
    let other = "192.0.2.7:4792";
    assert_eq!(receiver_of(other, &bytes), Some(other.parse().unwrap()));
    for (destination, bytes) in [
        (other, &management[..]),
        (other, &bytes[..7]),
        ("224.0.0.1:4791", &bytes),
        ("[2001:db8::7]:4791", &bytes),
        (&addr(10).to_string(), &bytes),
    ] {
        assert_eq!(receiver_of(destination, bytes), None, "{destination}");
    }
}

/// Addresses without processes.
struct Nowhere {
    lookup_count: usize,
}

impl Outside for Nowhere {
    fn connect(&mut self) -> io::Result<Option<Found>> {
        self.lookup_count += 1;
        Ok(None)
    }

    fn send_datagram(&mut self, _: u16, _: &[u8]) -> io::Result<bool> {
        panic!("a marker was sent");
    }
}

#[test]
fn many_destinations_cost_few_lookups_and_little_memory() {
    let (mut writers, mut outside) = (Writers::new(addr(9)), Nowhere { lookup_count: 0 });
    let readiness = Epoll::new(EpollCreateFlags::empty()).unwrap();
    let message = Outgoing { packet_count: 1, source_port: 7, pieces: std::iter::empty() };
    let start = Instant::now();
    for _ in 0..3 {
        for host in 0..10_000 {
            let addr = SocketAddr::new(std::net::Ipv4Addr::from_bits(10 << 24 | host).into(), 4791);
            let to = receiver(addr, (host % 100) as u8);
            assert_eq!(writers.write(&readiness, to, &message, &mut outside), Delivery::OverUdp);
            assert!(!writers.is_full(to) && !writers.is_shared(addr));
        }
    }
    let (elapsed, count) = (start.elapsed(), outside.lookup_count);
    assert!(count <= 128 * (elapsed.as_millis() as usize / 100 + 1), "{count} lookups in {elapsed:?}");
    assert_eq!(writers.process_count(), 1024);
}
