//! Datagrams from unknown hosts to a NIC over real sockets. The NIC drops invalid ones and keeps working.

#![cfg(target_os = "linux")]

mod support;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use adverb_proto::types::Gid;
use adverb_proto::{Init, QpConfig, ReadyToSend, Transition};
use adverb_soft::link::{Bundle, Link, UdpConfig, UdpLink};
use adverb_soft::{Nic, NicOptions};
use adverb_wire::cm::{Dreq, GSI_QKEY, Mad, Message};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Psn, Qpn, Ud};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};

use support::open_loopback;

const TEST_DEADLINE: Duration = Duration::from_secs(10);

/// Returns a bundle of an IPv4 and an IPv6 link of this machine, and their GIDs.
fn open_both() -> (Bundle, Vec<IpAddr>) {
    let v4 = open_loopback(|_| ());
    let mut config = UdpConfig::new("::1".parse().unwrap());
    let v6 = loop {
        match UdpLink::open(&config) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => config.port += 1,
            link => break link.unwrap(),
        }
    };
    let addresses = vec![v4.gid().ip(), v6.gid().ip()];
    let mut bundle = Bundle::new().unwrap();
    bundle.add(v4.local_addr().ip(), v4).unwrap();
    bundle.add(v6.local_addr().ip(), v6).unwrap();
    (bundle, addresses)
}

/// Opens a NIC with a UD queue pair that is attached to all groups.
fn open_member(link: impl Link + 'static, addresses: &[IpAddr], groups: &[IpAddr]) -> Nic {
    let nic = Nic::open(NicOptions::new(addresses.iter().copied(), link)).unwrap();
    let pd = nic.create_domain().unwrap();
    let cq = nic.create_cq(16, None).unwrap();
    let qpn = nic.create_qp(QpConfig::ud(pd, cq, cq)).unwrap();
    let sending = Transition::ReadyToSend(ReadyToSend::unreliable(Psn::ZERO));
    for transition in [Transition::Init(Init::datagrams(0x1234)), Transition::ReadyToReceiveUd, sending] {
        nic.modify_qp(qpn, &transition).unwrap();
    }
    for group in groups {
        nic.attach_multicast(qpn, Gid::from(*group)).unwrap();
    }
    nic
}

/// Returns a message that every connection manager responds to: a DREQ of an unknown connection.
fn dreq(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let dreq = Dreq {
        local_comm_id: 6,
        remote_comm_id: 5,
        remote_qpn: Qpn::truncate(0x77),
        private_data: Default::default(),
    };
    let mad = Mad { transaction_id: 1, message: Message::Dreq(dreq) }.emit();
    let ud = Ud { qkey: GSI_QKEY, source_qp: Qpn::GSI, immediate: None };
    let header = Header::new(Qpn::GSI, Psn::ZERO, Operation::Ud(ud));
    let mut head = [0; MAX_HEADER_LEN];
    let flow = Flow::new(source, destination).unwrap();
    let emitted = flow.emit(&header, 0, &[&mad], &mut head).unwrap();
    [&head[..emitted.header_len], &mad, &emitted.trailer].concat()
}

/// Waits until a condition holds, and panics with `message` if it never does.
fn wait_for(message: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_DEADLINE, "{message}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_connection_manager_message_to_a_multicast_group_is_dropped() {
    let (link, addresses) = open_both();
    // All processes of the machine get the packets to a group, so this one has groups of its own.
    let number = std::process::id() as u16;
    let [high, low] = number.to_be_bytes();
    let groups = [IpAddr::from([239, 254, high, low]), IpAddr::from([0xff02, 0, 0, 0, 0, 0, 7, number])];
    let nic = open_member(link, &addresses, &groups);

    let v4 = UdpSocket::bind("127.0.0.1:0").unwrap();
    let loopback = libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()) };
    setsockopt(&v4, MulticastInterface, &loopback).unwrap();
    let v6 = UdpSocket::bind("[::1]:0").unwrap();
    let interface = nix::net::if_::if_nametoindex("lo").unwrap();
    setsockopt(&v6, MulticastInterface6, &interface.cast_signed()).unwrap();
    let mut sent = 0;
    for (socket, group) in [(&v4, groups[0]), (&v6, groups[1])] {
        let destination = SocketAddr::new(group, 4791);
        let packet = dreq(socket.local_addr().unwrap(), destination);
        match socket.send_to(&packet, destination) {
            Err(error) if error.kind() == io::ErrorKind::NetworkUnreachable && group.is_ipv6() => {
                println!("skipped: the loopback interface has no route to {group}");
                continue;
            }
            result => assert_eq!(result.unwrap(), packet.len()),
        }
        sent += 1;
        wait_for("the packet is not dropped, and the NIC does not fail", || {
            nic.has_failed() || nic.statistics().wrong_address_packets == sent
        });
        assert!(!nic.has_failed(), "one datagram to {group} made the NIC fail");
    }
    assert_eq!(nic.next_event(), None);
    nic.create_domain().expect("new objects can be created");

    // The NIC responds to the same message to its own address.
    let destination = Gid::from(addresses[0]).udp_addr();
    let peer = UdpSocket::bind((open_loopback(|_| ()).local_addr().ip(), 4792)).unwrap();
    peer.set_read_timeout(Some(TEST_DEADLINE)).unwrap();
    peer.send_to(&dreq(peer.local_addr().unwrap(), destination), destination).unwrap();
    let mut response = [0; 512];
    let (length, from) = peer.recv_from(&mut response).expect("a DREP");
    assert_eq!((length > 256, from.ip()), (true, destination.ip()));
}

macro_rules! options {
    ($($name:ident: $level:ident $option:ident $type:ty;)*) => {$(
        #[derive(Clone, Copy)]
        struct $name;
        nix::setsockopt_impl!($name, libc::$level, libc::$option, $type, sockopt::SetStruct<'_, $type>);
    )*};
}

options! {
    MulticastInterface: IPPROTO_IP IP_MULTICAST_IF libc::in_addr;
    MulticastInterface6: IPPROTO_IPV6 IPV6_MULTICAST_IF i32;
}
