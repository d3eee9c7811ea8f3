//! Several software devices in one process, connected by the connection manager.

use std::io::ErrorKind;

use adverb::verbs::{FaultConfig, Gid, PathMtu, SoftDevice, Switch};

use super::*;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Returns a loopback address that other processes are unlikely to use.
fn loopback(last: u8) -> IpAddr {
    let process = std::process::id();
    [127, 184 + (process >> 8 & 15) as u8, process as u8, last].into()
}

/// Connects one device to another, and sends messages in both directions.
fn exercise(from: IpAddr, to: IpAddr) -> ((Connection, Side), (Connection, Side)) {
    // Some links lose packets. A request is retransmitted for about two seconds, for busy machines.
    let options = ConnectOptions::new().ack_timeout(16).retry_count(7);
    let listener = Listener::builder().options(options).bind(SocketAddr::new(to, 0)).unwrap();
    let peer = listener.local_addr();
    let connector = Connector::new().timeout(TIMEOUT).options(options).local_addr(SocketAddr::new(from, 0));
    let connector = connector.private_data(b"client");
    let client = thread::spawn(move || connect(&connector, peer).unwrap());
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    assert!(starts_with(request.private_data(), b"client"));
    let (server, mut server_side) = accept(request);
    let (client, mut client_side) = client.join().unwrap();
    assert_eq!((client.path().local_addr().ip(), client.path().peer_addr().ip()), (from, to));
    assert_eq!((server.path().local_addr().ip(), server.path().peer_addr().ip()), (to, from));
    client_side.send(&client, b"there");
    assert_eq!(server_side.receive(&server), b"there");
    server_side.send(&server, b"and back");
    assert_eq!(client_side.receive(&client), b"and back");
    ((client, client_side), (server, server_side))
}

#[test]
fn devices_with_different_mtus_agree_on_the_smaller() {
    let switch = Switch::default();
    let (long, short) = (address("10.1.0.1"), address("10.1.0.2"));
    let _long = SoftDevice::on_switch(&switch, long).mtu(PathMtu::Mtu4096).open().unwrap();
    let _short = SoftDevice::on_switch(&switch, short).mtu(PathMtu::Mtu512).open().unwrap();
    for (from, to) in [(long, short), (short, long)] {
        let ((client, _), (server, _)) = exercise(from, to);
        for connection in [&client, &server] {
            let peer = connection.queue_pair().query().unwrap().peer.unwrap();
            assert_eq!(peer.mtu, PathMtu::Mtu512, "{}", connection.path());
        }
    }
}

#[test]
fn connections_are_established_despite_packet_loss() {
    let switch = Switch::default();
    let open = |last: u8| {
        let faults =
            FaultConfig { loss_ppm: 50_000, duplication_ppm: 20_000, ..FaultConfig::new(last.into()) };
        let address = IpAddr::from([10, 2, 0, last]);
        (address, SoftDevice::on_switch(&switch, address).loopback_via_link().faults(faults).open().unwrap())
    };
    let ((one, _one), (other, _other)) = (open(1), open(2));
    for (from, to) in [(one, other), (other, one), (one, one)].into_iter().cycle().take(12) {
        let ((client, _client_side), (server, _server_side)) = exercise(from, to);
        client.disconnect().unwrap();
        assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
        client.close(TIMEOUT).unwrap();
    }
}

#[test]
fn a_wildcard_listener_accepts_on_every_open_device() {
    let _guard = ALL_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let switch = Switch::default();
    let addresses = ["10.3.0.1", "10.3.0.2", "fd03::1"].map(address);
    let _open = addresses.map(|address| SoftDevice::on_switch(&switch, address).open().unwrap());
    let v4 = Listener::bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let all = Listener::bind("[::]:0".parse().unwrap()).unwrap();
    for (listener, address) in
        [(&v4, addresses[0]), (&v4, addresses[1]), (&all, addresses[0]), (&all, addresses[2])]
    {
        let peer = SocketAddr::new(address, listener.local_addr().port());
        let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap());
        let (server, mut side) =
            accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
        assert_eq!(server.path().local_addr(), peer);
        let (client, client_side) = client.join().unwrap();
        client_side.send(&client, b"found you");
        assert_eq!(side.receive(&server), b"found you");
    }
    // A listener at the IPv4 wildcard address doesn't accept connections over IPv6.
    let peer = SocketAddr::new(addresses[2], v4.local_addr().port());
    let error = connect(&Connector::new().timeout(TIMEOUT), peer).unwrap_err();
    assert!(matches!(error, Error::CmRejected { reason: RejectReason::InvalidServiceId, .. }), "{error}");
    // The port is in use on one of the devices.
    let error = Listener::bind(SocketAddr::new(addresses[1], v4.local_addr().port())).unwrap_err();
    assert!(error.hint().unwrap().contains("use another port: this one is taken"), "{error}");
}

#[test]
fn a_dropped_device_stays_open_while_it_has_connections() {
    let _guard = ALL_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let switch = Switch::default();
    let (one, other) = (address("10.4.0.1"), address("10.4.0.2"));
    let devices = [one, other].map(|address| SoftDevice::on_switch(&switch, address).open().unwrap());
    let ((client, client_side), (server, mut side)) = exercise(one, other);
    drop(devices);
    client_side.send(&client, b"still here");
    assert_eq!(side.receive(&server), b"still here");
    drop((client, client_side));
    assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
    let error =
        Connector::new().local_addr(SocketAddr::new(one, 0)).resolve(SocketAddr::new(other, 1)).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Unreachable { .. }) && error.hint().is_some(), "{error}");
}

#[test]
fn devices_at_one_address_are_reached_at_the_ports_in_their_gids() {
    let host = loopback(1);
    let devices = [(); 3].map(|()| SoftDevice::at_addr(host).open().unwrap());
    let [default, one, other] = [0, 1, 2].map(|index: usize| devices[index].gids().unwrap()[0].gid);
    for (from, to) in [(default, one), (one, default), (one, other)] {
        let (client, server) = exercise(from.ip(), to.ip());
        drop((client, server));
    }
    // A connection request to this address would not reach one of these devices.
    drop(devices);
    let _taken = match std::net::UdpSocket::bind((host, 4791)) {
        Ok(taken) => taken,
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            return println!(
                "the rest is skipped: the kernel's soft-RoCE uses the port, and its connection manager accepts any address"
            );
        }
        Err(error) => panic!("{error}"),
    };
    let error = Listener::bind(SocketAddr::new(host, 0)).unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.contains("listen at another address")), "{error}");
    // A connector needs no well-known port.
    let server = SoftDevice::at_addr(loopback(2)).open().unwrap();
    let _client = SoftDevice::at_addr(host).open().unwrap();
    let listener = Listener::bind(SocketAddr::new(server.gids().unwrap()[0].gid.ip(), 0)).unwrap();
    let (from, peer) = (SocketAddr::new(host, 0), listener.local_addr());
    let client =
        thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT).local_addr(from), peer).unwrap());
    let (server, _side) = accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    let (client, _client_side) = client.join().unwrap();
    let ours = client.path().local_addr().ip();
    assert_eq!(Gid::from(ours).udp_addr(), SocketAddr::new(host, 4792));
    assert_eq!(server.path().peer_addr().ip(), ours);
}

#[test]
fn datagram_services_are_resolved_at_the_ports_in_gids() {
    let host = loopback(3);
    let devices = [(); 2].map(|()| SoftDevice::at_addr(host).open().unwrap());
    let [default, other] = [0, 1].map(|index: usize| devices[index].gids().unwrap()[0].gid.ip());
    for (from, to) in [(default, other), (other, default)] {
        datagrams::exercise(Connector::new().local_addr(SocketAddr::new(from, 0)), to);
    }
}
