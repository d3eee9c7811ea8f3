//! Software devices: how they are opened, found and closed.

#![cfg(feature = "soft")]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adverb::Error;
use adverb::verbs::{Device, PortState, RecvRequest, SendRequest, Transport};

const PATIENCE: Duration = Duration::from_secs(10);

/// A loopback address that no other test has.
fn address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let process = std::process::id();
    let number = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    Ipv4Addr::new(127, 200 + (process >> 8 & 15) as u8, process as u8, number)
}

fn open(address: impl Into<IpAddr>) -> Device {
    Device::open(&format!("soft:{}", address.into())).unwrap()
}

/// Sends a message from one device to the other and back.
fn exchange(one: &Device, other: &Device) {
    let ends = [one, other].map(|device| {
        let domain = device.protection_domain().unwrap();
        let cq = device.completion_queue(256).create().unwrap();
        let qp = domain.queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
        (domain, cq, qp)
    });
    let [(_, _, qp), (_, _, peer)] = &ends;
    qp.connect(&peer.endpoint()).unwrap();
    peer.connect(&qp.endpoint()).unwrap();
    for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        let (domain, cq, qp) = to;
        let recv = qp.post_recv(RecvRequest::new(domain.buffer(64).unwrap())).unwrap();
        let mut hello = from.0.buffer(5).unwrap();
        hello.copy_from_slice(b"hello");
        let send = from.2.post_send(SendRequest::send(hello)).unwrap();
        from.1.wait(send, PATIENCE).unwrap().success().unwrap();
        let received = cq.wait(recv, PATIENCE).unwrap().into_message().unwrap();
        assert_eq!(&received[..], b"hello");
    }
}

#[test]
fn the_device_of_every_machine_has_only_loopback_addresses() {
    let device = Device::open("soft").unwrap();
    assert_eq!(device.name(), "soft");
    let gids = device.gids().unwrap();
    assert!(!gids.is_empty());
    for entry in &gids {
        assert!(entry.gid.ip().is_loopback(), "{entry:?}");
        assert!(entry.netdev.is_some(), "{entry:?}");
    }
    let port = device.port(1).unwrap();
    assert_eq!((port.state, port.active_mtu.bytes()), (PortState::Active, 4096));
    assert!(Device::list().unwrap().iter().any(|info| info.name == "soft"));
}

#[test]
fn a_device_that_is_open_is_given_again() {
    let address = address();
    let (one, other) = (open(address), open(address));
    assert_eq!(one.attributes().guid, other.attributes().guid);
    // Of one device, these go together.
    let cq = other.completion_queue(256).create().unwrap();
    let domain = one.protection_domain().unwrap();
    domain.queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
    let found = Device::by_address(address.into()).unwrap();
    assert_eq!(found.name(), format!("soft:{address}"));
    found.protection_domain().unwrap().queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
    assert!(Device::list().unwrap().iter().any(|info| info.name == one.name()));
}

#[test]
fn a_device_that_is_dropped_is_closed_at_once() {
    let address = address();
    for _ in 0..3 {
        let device = open(address);
        let domain = device.protection_domain().unwrap();
        assert!(UdpSocket::bind((address, 4791)).is_err());
        drop(device);
        // Something of it is left.
        assert!(UdpSocket::bind((address, 4791)).is_err());
        drop(domain);
        UdpSocket::bind((address, 4791)).unwrap();
    }
    assert!(Device::list().unwrap().iter().all(|info| info.name != format!("soft:{address}")));
}

#[test]
fn threads_may_open_and_drop_a_device_at_will() {
    let address = address();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    open(address).protection_domain().unwrap();
                }
            });
        }
    });
}

#[test]
fn an_address_that_is_taken_or_of_nobody_is_refused_in_words() {
    let address = address();
    let _taken = UdpSocket::bind((address, 4791)).unwrap();
    let error = Device::open(&format!("soft:{address}")).unwrap_err().to_string();
    assert!(error.contains("another software device has this address"), "{error}");
    let error = Device::open("soft:203.0.113.77").unwrap_err();
    assert!(error.hint().unwrap().contains("ip address"), "{error}");
    for name in ["soft:", "soft:eth0", "soft:192.0.2"] {
        assert!(matches!(Device::open(name), Err(Error::NoDevice { .. })), "{name}");
    }
    let error = Device::by_address("203.0.113.77".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    assert!(error.hint().unwrap().contains("127.0.0.1 as soft:127.0.0.1"), "{error}");
}

#[test]
fn two_devices_talk_over_sockets() {
    exchange(&open(address()), &open(address()));
}
