//! The bootstrap of connections: over TCP and through the connection manager, blocking and async, with a key and
//! without.

#![cfg(feature = "soft")]

use std::net::{IpAddr, SocketAddr};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{
    AcceptError, Bootstrap, ConnectError, HandshakeStage, Key, KeyMismatch, Options, SendErrorKind,
};
use adverb::verbs::{Device, FaultConfig, SoftDevice, Switch};

#[test]
fn errors_name_the_object_of_the_failed_operation() {
    let assert_says = |error: adverb::Error, parts: &[&str]| {
        let text = format!("{:?}", adverb::Report::from(error));
        for part in parts {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
    };
    let options = Options::new().connect_timeout(Duration::from_millis(300));
    let connector = Connector::new().options(&options);

    let unknown = connector.connect("no-such-host.invalid:7471").unwrap_err();
    assert_says(unknown.into(), &["resolving no-such-host.invalid:7471 failed", "hint: check the name"]);
    let unknown = connector.connect(("no-such-host.invalid", 7471)).unwrap_err();
    assert_says(unknown.into(), &["no-such-host.invalid", "hint: check the name"]);
    let without_port = connector.connect("127.0.0.1").unwrap_err();
    assert_says(without_port.into(), &["resolving 127.0.0.1 failed", "hint: use a host and a port"]);

    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let in_use = Listener::bind(address).unwrap_err();
    assert_says(in_use.into(), &[&format!("listening at {address} failed"), "hint: use another port"]);

    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_addr = silent.local_addr().unwrap();
    let error = connector.connect(silent_addr).unwrap_err();
    let attempt = format!("{silent_addr} did not send a greeting within 300ms");
    assert_says(error.into(), &[&attempt, "Adverb listener"]);

    drop(silent);
    let refused = connector.connect(silent_addr).unwrap_err();
    assert_says(refused.into(), &[&silent_addr.to_string(), "hint: start the listener"]);

    let (connection, peer) = scope(|scope| {
        let server = scope.spawn(|| listener.accept().unwrap());
        (Connector::new().connect(address).unwrap(), server.join().unwrap())
    });
    let late = connection.recv_timeout(Duration::from_millis(1)).unwrap_err();
    assert_says(late.into(), &[&format!("no message from {address} arrived within 1ms")]);
    drop(peer);
}

/// Opens two software devices on a switch in memory, with addresses in `network`.
fn devices(network: [u8; 3], faults: Option<FaultConfig>) -> [(IpAddr, Device); 2] {
    let switch = Switch::default();
    [1, 2].map(|last| {
        let [a, b, c] = network;
        let address = IpAddr::from([a, b, c, last]);
        let mut device = SoftDevice::on_switch(&switch, address);
        if let Some(faults) = faults {
            device = device.faults(faults);
        }
        (address, device.open().unwrap())
    })
}

/// Returns the options of both sides, and the listener's address.
fn sides(
    bootstrap: Bootstrap,
    network: [u8; 3],
    faults: Option<FaultConfig>,
) -> (Options, Options, SocketAddr) {
    let [(_, client), (address, server)] = devices(network, faults);
    let options = |device| {
        let options = Options::new().device(device).bootstrap(bootstrap).timeout(Duration::from_secs(30));
        options.connect_timeout(Duration::from_secs(60))
    };
    // The switch in memory carries no TCP.
    let address = if bootstrap == Bootstrap::ConnectionManager { address } else { [127, 0, 0, 1].into() };
    (options(&client), options(&server), SocketAddr::new(address, 0))
}

fn connect(client: &Options, listener: &Listener) -> (Connection, Connection) {
    let address = listener.local_addr();
    scope(|scope| {
        let client = scope.spawn(|| Connector::new().options(client).connect(address).unwrap());
        let server = listener.accept().unwrap();
        (client.join().unwrap(), server)
    })
}

/// Exchanges a short and a long message in both directions, and closes.
fn exchange_and_close((client, server): (Connection, Connection)) {
    let long = vec![7; 100_000];
    scope(|scope| {
        for (one, other) in [(&client, &server), (&server, &client)] {
            scope.spawn(|| {
                one.send(b"hello").unwrap();
                one.send(&long).unwrap();
                assert_eq!(&other.recv().unwrap().unwrap()[..], b"hello");
                assert_eq!(&other.recv().unwrap().unwrap()[..], &long);
            });
        }
    });
    client.close().unwrap();
    assert!(server.recv().unwrap().is_none());
}

#[test]
fn connections_are_established_with_every_bootstrap() {
    let key = Key::new([7; 32]).unwrap();
    for (number, bootstrap) in
        [Bootstrap::Auto, Bootstrap::Tcp, Bootstrap::ConnectionManager].into_iter().enumerate()
    {
        let (client, server, address) = sides(bootstrap, [10, 20, number as u8], None);
        for (client, server) in [(client.clone(), server.clone()), (client.key(&key), server.key(&key))] {
            let listener = Listener::builder().options(&server).bind(address).unwrap();
            assert_ne!(listener.local_addr().port(), 0);
            for _ in 0..3 {
                exchange_and_close(connect(&client, &listener));
            }
        }
    }
}

#[test]
fn connections_are_established_despite_packet_loss() {
    let faults = FaultConfig { loss_ppm: 50_000, duplication_ppm: 20_000, ..FaultConfig::new(3) };
    let (client, server, address) = sides(Bootstrap::ConnectionManager, [10, 21, 0], Some(faults));
    let key = Key::new([7; 32]).unwrap();
    let listener = Listener::builder().options(&server.key(&key)).bind(address).unwrap();
    for _ in 0..5 {
        exchange_and_close(connect(&client.clone().key(&key), &listener));
    }
}

#[test]
fn a_listener_serves_both_bootstraps_at_one_port() {
    let device = Device::open("soft").unwrap();
    let address = device.gids().unwrap()[0].gid.ip();
    let options = Options::new().device(&device).timeout(Duration::from_secs(30));
    let listener = Listener::builder().options(&options).bind((address, 0)).unwrap();
    for bootstrap in [Bootstrap::ConnectionManager, Bootstrap::Tcp, Bootstrap::Auto] {
        exchange_and_close(connect(&options.clone().bootstrap(bootstrap), &listener));
    }
}

#[test]
fn a_listener_with_one_bootstrap_is_unreachable_with_the_other() {
    let device = Device::open("soft").unwrap();
    let address = device.gids().unwrap()[0].gid.ip();
    let options = Options::new().device(&device).connect_timeout(Duration::from_secs(30));
    let (cm_only, tcp_only) =
        (options.clone().bootstrap(Bootstrap::ConnectionManager), options.bootstrap(Bootstrap::Tcp));
    let start = Instant::now();
    let listener = Listener::builder().options(&tcp_only).bind((address, 0)).unwrap();
    let error = Connector::new().options(&cm_only).connect(listener.local_addr()).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let listener = Listener::builder().options(&cm_only).bind((address, 0)).unwrap();
    let error = Connector::new().options(&tcp_only).connect(listener.local_addr()).unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn connecting_fails_at_the_connect_timeout() {
    let (client, server, address) = sides(Bootstrap::ConnectionManager, [10, 22, 0], None);
    let client = client.connect_timeout(Duration::from_millis(300));
    let start = Instant::now();
    let error = Connector::new().options(&client).connect("10.22.0.9:7471").unwrap_err();
    let limit = Duration::from_millis(300);
    let is_timeout = |error: &ConnectError| match error {
        ConnectError::TimedOut { timeout, stage: HandshakeStage::ConnectionManager, .. } => *timeout == limit,
        _ => false,
    };
    assert!(is_timeout(&error), "{error:?}");
    // A listener without an accepting caller doesn't respond.
    let listener = Listener::builder().options(&server).bind(address).unwrap();
    let error = Connector::new().options(&client).connect(listener.local_addr()).unwrap_err();
    assert!(is_timeout(&error), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_stopped_listener_can_be_restarted() {
    for (number, bootstrap) in [Bootstrap::Auto, Bootstrap::ConnectionManager].into_iter().enumerate() {
        let (client, server, address) = sides(bootstrap, [10, 23, number as u8], None);
        let listener = Listener::builder().options(&server).bind(address).unwrap();
        let address = listener.local_addr();
        let (left, right) = connect(&client, &listener);
        for _ in 0..3 {
            scope(|scope| {
                let waiting = [(); 2].map(|()| scope.spawn(|| listener.accept().unwrap_err()));
                sleep(Duration::from_millis(50));
                listener.stop();
                for waiting in waiting {
                    let error = waiting.join().unwrap();
                    assert!(matches!(error, AcceptError::Stopped { .. }), "{error:?}");
                }
            });
            assert!(!listener.is_listening());
            listener.stop();
            listener.accept().unwrap_err();
            Connector::new().options(&client).connect(address).unwrap_err();
            listener.start().unwrap();
            listener.start().unwrap();
            assert!(listener.is_listening() && listener.local_addr() == address);
            exchange_and_close(connect(&client, &listener));
        }
        drop(listener);
        Connector::new().options(&client).connect(address).unwrap_err();
        // Established connections need no listener.
        exchange_and_close((left, right));
    }
}

#[test]
fn a_port_has_one_listener() {
    let (_, server, address) = sides(Bootstrap::ConnectionManager, [10, 24, 0], None);
    let listener = Listener::builder().options(&server).bind(address).unwrap();
    Listener::builder().options(&server).bind(listener.local_addr()).unwrap_err();
}

/// Connects to a listener with other options, and returns the client's error.
fn rejection(client: &Options, server: &Options, address: SocketAddr) -> ConnectError {
    let listener = Listener::builder().options(server).bind(address).unwrap();
    scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap_err());
        let start = Instant::now();
        let error = Connector::new().options(client).connect(listener.local_addr()).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        listener.stop();
        accepting.join().unwrap();
        error
    })
}

#[test]
fn a_peer_with_another_key_or_none_is_rejected_with_a_reason() {
    let (key, other) = (Key::new([7; 32]).unwrap(), Key::new([8; 32]).unwrap());
    for (number, bootstrap) in [Bootstrap::Tcp, Bootstrap::ConnectionManager].into_iter().enumerate() {
        let (client, server, address) = sides(bootstrap, [10, 25, number as u8], None);
        let with_key = |options: &Options, key: Option<&Key>| {
            key.map_or(options.clone(), |key| options.clone().key(key))
        };
        for (client_key, server_key, expected) in [
            (None, Some(&key), KeyMismatch::LocalKeyMissing),
            (Some(&key), None, KeyMismatch::PeerKeyMissing),
            (Some(&other), Some(&key), KeyMismatch::KeysDiffer),
        ] {
            let error = rejection(&with_key(&client, client_key), &with_key(&server, server_key), address);
            let ConnectError::Authentication { mismatch, .. } = error else { panic!("{error:?}") };
            assert_eq!(mismatch, expected, "{bootstrap:?}");
        }
    }
}

#[test]
fn messages_above_the_peers_limit_are_rejected_locally() {
    let (client, server, address) = sides(Bootstrap::Auto, [10, 26, 0], None);
    let listener = Listener::builder().options(&server.max_message_size(100_000)).bind(address).unwrap();
    let (client, server) = connect(&client, &listener);
    for len in [100_001, 1 << 20] {
        let error = client.send(vec![0; len]).unwrap_err();
        assert!(matches!(error.kind, SendErrorKind::TooLong { max: 100_000, .. }), "{error:?}");
    }
    client.send(vec![0; 100_000]).unwrap();
    assert_eq!(server.recv().unwrap().unwrap().len(), 100_000);
    server.send(vec![0; 200_000]).unwrap();
    assert_eq!(client.recv().unwrap().unwrap().len(), 200_000);
}

#[cfg(feature = "tokio")]
mod tasks {
    use adverb::net::{Connector, Listener};

    use super::*;

    #[tokio::test]
    async fn every_bootstrap_connects_and_a_stopped_listener_can_be_restarted() {
        let key = Key::new([7; 32]).unwrap();
        for (number, bootstrap) in
            [Bootstrap::Auto, Bootstrap::Tcp, Bootstrap::ConnectionManager].into_iter().enumerate()
        {
            let (client, server, address) = sides(bootstrap, [10, 30, number as u8], None);
            let (connector, server) = (Connector::new().options(&client.key(&key)), server.key(&key));
            let listener = Listener::builder().options(&server).bind(address).await.unwrap();
            let address = listener.local_addr();
            for _ in 0..3 {
                let (left, right) = tokio::join!(connector.connect(address), listener.accept());
                let (left, right) = (left.unwrap(), right.unwrap());
                let (waiting, ()) = tokio::join!(listener.accept(), async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    listener.stop();
                });
                let error = waiting.unwrap_err();
                assert!(matches!(error, AcceptError::Stopped { .. }), "{error:?}");
                connector.connect(address).await.unwrap_err();
                listener.start().unwrap();
                left.send(b"hello").await.unwrap();
                assert_eq!(&right.recv().await.unwrap().unwrap()[..], b"hello");
                left.close().await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn a_peer_with_another_key_is_rejected() {
        for (number, bootstrap) in [Bootstrap::Tcp, Bootstrap::ConnectionManager].into_iter().enumerate() {
            let (client, server, address) = sides(bootstrap, [10, 31, number as u8], None);
            let client = Connector::new().options(&client.key(&Key::new([1; 32]).unwrap()));
            let server = server.key(&Key::new([2; 32]).unwrap());
            let listener = Listener::builder().options(&server).bind(address).await.unwrap();
            let address = listener.local_addr();
            let error = tokio::select! {
                error = client.connect(address) => error.unwrap_err(),
                _ = listener.accept() => panic!("the connection must fail"),
            };
            let ConnectError::Authentication { mismatch: KeyMismatch::KeysDiffer, .. } = error else {
                panic!("{error:?}")
            };
        }
    }
}

#[test]
fn a_source_with_too_many_connections_gets_no_further_one() {
    let options = Options::new().max_connections_per_source(2).timeout(Duration::from_secs(30));
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    let connect = || Connector::new().options(&options).connect(listener.local_addr());
    scope(|scope| {
        let mut accepted = Vec::new();
        let mut connections = Vec::new();
        for _ in 0..2 {
            let server = scope.spawn(|| listener.accept().unwrap());
            connections.push(connect().unwrap());
            accepted.push(server.join().unwrap());
        }
        // This call drives the handshake of the refused connection, and returns the next one.
        let server = scope.spawn(|| listener.accept().unwrap());
        let refused = connect().map_err(adverb::Error::from);
        assert!(refused.and_then(|connection| Ok(connection.recv()?)).is_err());
        assert!(!server.is_finished());
        accepted.pop();
        let connection = connect().unwrap();
        connection.send(b"hello").unwrap();
        assert_eq!(server.join().unwrap().recv().unwrap().as_deref(), Some(&b"hello"[..]));
    });
}
