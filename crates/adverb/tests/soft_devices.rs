//! Opening, finding and closing software devices.

#![cfg(feature = "soft")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use adverb::verbs::{
    ConnectOptions, Device, Error, FaultConfig, Gid, PathMtu, PortState, RecvRequest, SendRequest,
    SoftDevice, Switch, Transport,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a loopback address that no other test uses.
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
    // The ACK timeout is about a second, for busy machines.
    exchange_with(one, other, &ConnectOptions::new().ack_timeout(18));
}

/// Sends a message from one device to the other and back, over a connection with these options.
fn exchange_with(one: &Device, other: &Device, options: &ConnectOptions) {
    let ends = [one, other].map(|device| {
        let domain = device.create_protection_domain().unwrap();
        let cq = device.completion_queue(256).create().unwrap();
        let qp = domain.queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
        (domain, cq, qp)
    });
    let [(_, _, qp), (_, _, peer)] = &ends;
    qp.connect_with(&peer.endpoint(), options).unwrap();
    peer.connect_with(&qp.endpoint(), options).unwrap();
    for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        let (domain, cq, qp) = to;
        let recv = qp.post_recv(RecvRequest::new(domain.allocate_buffer(64).unwrap())).unwrap();
        let mut hello = from.0.allocate_buffer(5).unwrap();
        hello.copy_from_slice(b"hello");
        let send = from.2.post_send(SendRequest::send(hello)).unwrap();
        from.1.wait(send, TIMEOUT).unwrap().result().unwrap();
        let received = cq.wait(recv, TIMEOUT).unwrap().into_message().unwrap();
        assert_eq!(&received[..], b"hello");
    }
}

/// The lock of tests that must run alone: a test that opens or lists devices keeps every device of the process open for
/// a short time.
static DEVICES_LOCK: RwLock<()> = RwLock::new(());

fn share_devices() -> RwLockReadGuard<'static, ()> {
    DEVICES_LOCK.read().unwrap_or_else(PoisonError::into_inner)
}

fn own_devices() -> RwLockWriteGuard<'static, ()> {
    DEVICES_LOCK.write().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn the_default_device_has_only_loopback_addresses() {
    let _guard = share_devices();
    let device = Device::open("soft").unwrap();
    assert_eq!(device.name(), "soft");
    let gids = device.gids().unwrap();
    assert!(!gids.is_empty());
    for entry in &gids {
        assert!(entry.gid.udp_addr().ip().is_loopback(), "{entry:?}");
        assert!(entry.netdev.is_some(), "{entry:?}");
    }
    let port = device.port(1).unwrap();
    assert_eq!((port.state, port.active_mtu.bytes()), (PortState::Active, 4096));
    assert!(Device::list().unwrap().iter().any(|info| info.name == "soft"));
}

#[test]
fn opening_an_open_device_returns_the_same_device() {
    let _guard = share_devices();
    let address = address();
    let (one, other) = (open(address), open(address));
    assert_eq!(one.attributes().guid, other.attributes().guid);
    // Objects of the same device can be combined.
    let cq = other.completion_queue(256).create().unwrap();
    let domain = one.create_protection_domain().unwrap();
    domain.queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
    let found = Device::open_by_addr(address.into()).unwrap();
    assert_eq!(found.name(), format!("soft:{address}"));
    found
        .create_protection_domain()
        .unwrap()
        .queue_pair(Transport::Rc)
        .completion_queue(&cq)
        .create()
        .unwrap();
    assert!(Device::list().unwrap().iter().any(|info| info.name == one.name()));
}

#[test]
fn a_device_is_closed_when_its_last_object_is_dropped() {
    let _guard = own_devices();
    let address = address();
    for _ in 0..3 {
        let device = open(address);
        let domain = device.create_protection_domain().unwrap();
        assert!(UdpSocket::bind((address, 4791)).is_err());
        drop(device);
        // The domain keeps the device open.
        assert!(UdpSocket::bind((address, 4791)).is_err());
        drop(domain);
        UdpSocket::bind((address, 4791)).unwrap();
    }
    assert!(Device::list().unwrap().iter().all(|info| info.name != format!("soft:{address}")));
}

#[test]
fn threads_may_open_and_drop_a_device_concurrently() {
    let _guard = share_devices();
    let address = address();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    open(address).create_protection_domain().unwrap();
                }
            });
        }
    });
}

#[test]
fn opening_a_used_or_unknown_address_fails_with_a_hint() {
    let _guard = share_devices();
    let address = Gid::from(SocketAddr::new(address().into(), 4800));
    let _taken = UdpSocket::bind(address.udp_addr()).unwrap();
    let error = Device::open(&format!("soft:{address}")).unwrap_err();
    let cause = error.io_error().unwrap().to_string();
    assert!(cause.contains("another software device has this address"), "{cause}");
    let error = Device::open("soft:203.0.113.77").unwrap_err();
    assert!(error.hint().unwrap().contains("ip address"), "{error}");
    for name in ["soft:", "soft:eth0", "soft:192.0.2"] {
        assert!(matches!(Device::open(name), Err(Error::NoDevice { .. })), "{name}");
    }
    let error = Device::open_by_addr("203.0.113.77".parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error}");
    assert!(error.hint().unwrap().contains("127.0.0.1 as soft:127.0.0.1"), "{error}");
}

#[test]
fn two_devices_exchange_messages_over_sockets() {
    let _guard = share_devices();
    exchange(&open(address()), &open(address()));
}

#[test]
fn devices_without_an_address_are_separate() {
    let _guard = share_devices();
    let (one, other) = (SoftDevice::new().open().unwrap(), SoftDevice::new().open().unwrap());
    assert_ne!(one.name(), other.name());
    exchange(&one, &other);
}

#[test]
fn a_device_exchanges_messages_with_itself_over_ipv6() {
    let _guard = share_devices();
    let Ok(device) = SoftDevice::at_addr("::1".parse().unwrap()).loopback_via_link().open() else {
        return println!("skipped: this machine has no IPv6");
    };
    exchange(&device, &device);
    let sent = device.counters(1).unwrap().get("sent_pkts").unwrap();
    assert!(sent >= 2, "{sent}");
}

#[test]
fn devices_on_a_switch_need_no_network() {
    let _guard = share_devices();
    let switch = Switch::default();
    let [one, other] = ["10.0.0.1", "fd00::1"].map(|family| {
        let addresses: [IpAddr; 2] = match family {
            "10.0.0.1" => ["10.0.0.1", "10.0.0.2"],
            _ => ["fd00::1", "fd00::2"],
        }
        .map(|address| address.parse().unwrap());
        let devices = addresses.map(|address| SoftDevice::on_switch(&switch, address).open().unwrap());
        exchange(&devices[0], &devices[1]);
        devices
    });
    assert_eq!(one[0].name(), "soft:10.0.0.1");
    assert_eq!(other[0].gids().unwrap()[0].netdev, None);
    assert_eq!(other[1].port(1).unwrap().state, PortState::Active);
    let error = SoftDevice::on_switch(&switch, "10.0.0.1".parse().unwrap()).open().unwrap_err();
    assert!(error.io_error().unwrap().to_string().contains("already"), "{error:?}");
}

#[test]
fn a_loopback_device_exchanges_messages_with_itself() {
    let _guard = share_devices();
    let device = SoftDevice::loopback().open().unwrap();
    exchange(&device, &device);
}

#[test]
fn messages_arrive_despite_injected_faults() {
    let _guard = share_devices();
    let faults = FaultConfig {
        loss_ppm: 100_000,
        duplication_ppm: 50_000,
        corruption_ppm: 50_000,
        ..FaultConfig::new(3)
    };
    let device = SoftDevice::at_addr(address().into()).faults(faults).loopback_via_link().open().unwrap();
    // A lost packet delays a message by about 0.13 s.
    let options = ConnectOptions::new().ack_timeout(15).retry_count(7);
    for _ in 0..10 {
        exchange_with(&device, &device, &options);
    }
    let lost = device.counters(1).unwrap();
    assert!(lost.get("local_ack_timeout_err").unwrap() > 0, "{lost:?}");
}

#[test]
fn packets_are_captured() {
    let _guard = share_devices();
    let file = std::env::temp_dir().join(format!("adverb-capture-{}.pcapng", std::process::id()));
    let device = SoftDevice::at_addr(address().into())
        .mtu(PathMtu::Mtu1024)
        .capture(&file)
        .loopback_via_link()
        .open()
        .unwrap();
    assert_eq!(device.port(1).unwrap().active_mtu, PathMtu::Mtu1024);
    exchange(&device, &device);
    drop(device);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(bytes.windows(5).filter(|window| window == b"hello").count() >= 4, "{} bytes", bytes.len());
}

/// Sends datagrams from one device to a multicast group that the other has joined.
fn send_to_group(from: &Device, to: &Device, group: IpAddr) {
    const QKEY: u32 = 0x77;
    let queue_pair = |device: &Device| {
        let cq = device.completion_queue(256).create().unwrap();
        let domain = device.create_protection_domain().unwrap();
        let qp = domain.queue_pair(Transport::Ud).qkey(QKEY).completion_queue(&cq).create().unwrap();
        qp.move_to_rts().unwrap();
        qp
    };
    let (sender, member) = (queue_pair(from), queue_pair(to));
    member.join_multicast(group).unwrap();
    let receiving = member.post_recv(member.protection_domain().allocate_buffer(4136).unwrap()).unwrap();
    let destination = sender.create_multicast_destination(group, QKEY).unwrap();
    let mut hello = sender.protection_domain().allocate_buffer(5).unwrap();
    hello.copy_from_slice(b"hello");
    let sending = sender.post_send(SendRequest::send(hello).destination(&destination)).unwrap();
    sender.send_completion_queue().wait(sending, TIMEOUT).unwrap().result().unwrap();
    let datagram = member.recv_completion_queue().wait(receiving, TIMEOUT).unwrap().into_datagram().unwrap();
    assert_eq!(&datagram.message[..], b"hello");
    let ip = datagram.ip_header.unwrap();
    assert_eq!(ip.destination(), group);
    assert_eq!(ip.source(), sender.endpoint().gid.ip());
    // The datagram arrives once. After leaving the group no other arrives.
    let receiving = member.post_recv(member.protection_domain().allocate_buffer(4136).unwrap()).unwrap();
    member.leave_multicast(group).unwrap();
    let hello = sender.protection_domain().allocate_buffer(5).unwrap();
    sender.post_send(SendRequest::send(hello).destination(&destination)).unwrap();
    assert!(member.recv_completion_queue().wait(receiving, Duration::from_millis(100)).is_err());
}

#[test]
fn a_multicast_datagram_reaches_members_on_other_devices() {
    let _guard = share_devices();
    let group = IpAddr::V4(Ipv4Addr::new(239, 255, 78, std::process::id() as u8));
    let (one, other) = (open(address()), open(address()));
    send_to_group(&one, &other, group);
    // Members on the same device get one copy, whether its packets use the network or not.
    send_to_group(&one, &one, group);
    let via_link = SoftDevice::at_addr(address().into()).loopback_via_link().open().unwrap();
    send_to_group(&via_link, &via_link, group);
    send_to_group(&via_link, &one, group);
    let switch = Switch::default();
    let [one, other] = ["10.1.0.1", "10.1.0.2"]
        .map(|address| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap());
    send_to_group(&one, &other, group);
    send_to_group(&other, &other, group);
}
