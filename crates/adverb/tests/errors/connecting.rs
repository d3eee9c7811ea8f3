//! Connections that can't be established.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::Duration;

use adverb::net::blocking::{Connector, Listener};
use adverb::net::{ConnectError, HandshakeStage, Key, KeyMismatch, Options, RefusalReason};
use adverb::verbs::{Endpoint, Gid, Psn, Qpn};

use crate::greeting::greeting;
use crate::process::{self, Namespace};
use crate::{SHORT_TIMEOUT, TIMEOUT, options, show};

pub(crate) fn show_all() {
    let ConnectError::Refused { peer, .. } = error_of_unused_port() else { panic!("not refused") };
    assert_eq!(peer.ip(), IpAddr::from([127, 0, 0, 1]));
    show("1: no server at the address", error_of_unused_port());

    let error = connect("no-such-host.invalid:7471", &options());
    let ConnectError::Resolve { ref host, .. } = error else { panic!("{error:?}") };
    assert_eq!(&**host, "no-such-host.invalid:7471");
    assert!(error.is_retryable());
    show("2: the host name is unknown", error);
    let error = connect("127.0.0.1", &options());
    assert!(matches!(error, ConnectError::Resolve { .. }) && !error.is_retryable(), "{error:?}");
    show("2: the address has no port", error);

    show("3: TCP works, and RoCE packets do not arrive", lose_packets());
    show_keys();

    let refusal = [b"adverb\r\n\x03\x00\x02\x01", &[9, 0, 0, 0][..], b"version 3"].concat();
    let error = connect_to_stranger(&refusal, &options());
    assert!(matches!(error, ConnectError::Version { version: 3, .. }), "{error:?}");
    show("5: another protocol version", error);
    let error = connect_to_stranger(b"HTTP/1.1 400 Bad Request\r\n", &options());
    assert!(matches!(error, ConnectError::NotAdverb { .. }), "{error:?}");
    show("5: another protocol", error);

    let error = connect_to_stranger(b"adverb", &options());
    assert!(matches!(error, ConnectError::Aborted { stage: HandshakeStage::Greeting, .. }), "{error:?}");
    assert!(error.is_retryable());
    show("6: the server stops during the handshake", error);

    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = connect(silent.local_addr().unwrap(), &options().connect_timeout(SHORT_TIMEOUT));
    let ConnectError::TimedOut { timeout: SHORT_TIMEOUT, stage: HandshakeStage::Greeting, .. } = error else {
        panic!("{error:?}")
    };
    assert!(error.is_timeout() && error.is_retryable());
    show("7: timeout", error);

    match Namespace::create() {
        Ok(namespace) => {
            namespace.run("all-down");
            namespace.ip("link set lo up");
            // One end of the pair has the address, and the other provides the carrier.
            namespace.ip("link add errors0 type veth peer name errors1");
            namespace.ip(&format!("addr add {ROUTABLE}/24 dev errors0"));
            namespace.ip("link set errors0 up");
            namespace.ip("link set errors1 up");
            namespace.run("unserved");
        }
        Err(error) => println!("3, 8, 14: skipped: cannot create a network namespace: {error}\n"),
    }
    process::run("no-descriptors");
    let error = connect("127.0.0.1:1", &options().max_outstanding_writes(3));
    let ConnectError::InvalidOption { option: "max_outstanding_writes", value: 3, min: 4, .. } = error else {
        panic!("{error:?}")
    };
    show("An option outside its range", error);
}

fn connect(address: impl std::net::ToSocketAddrs + std::fmt::Debug, options: &Options) -> ConnectError {
    Connector::new().options(options).connect(address).unwrap_err()
}

fn error_of_unused_port() -> ConnectError {
    // The port is free again after the statement.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    connect(unused, &options())
}

/// Connects to a program that answers the greeting with these bytes, and then closes the connection.
fn connect_to_stranger(answer: &[u8], options: &Options) -> ConnectError {
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = stranger.local_addr().unwrap();
    scope(|scope| {
        scope.spawn(|| {
            let mut stream = stranger.accept().unwrap().0;
            stream.read_exact(&mut [0; 44]).unwrap();
            stream.write_all(answer).unwrap();
        });
        connect(address, options)
    })
}

/// Connects to a listener whose RoCE packets do not arrive: its queue pair does not exist.
fn lose_packets() -> ConnectError {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let is_over = AtomicBool::new(false);
    let error = scope(|scope| {
        scope.spawn(|| {
            // The connector dials again with a smaller MTU.
            let mut streams = Vec::new();
            loop {
                let mut stream = listener.accept().unwrap().0;
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                stream.read_exact(&mut [0; 44]).unwrap();
                let gid = Gid::from(IpAddr::V4(Ipv4Addr::new(127, 99, 99, 99)));
                let mut endpoint = Endpoint::new(gid, Qpn::new(0x1234).unwrap(), Psn::new(1).unwrap());
                endpoint.mtu = 4096;
                stream.write_all(&greeting(Some(endpoint), None, None)).unwrap();
                streams.push(stream);
            }
        });
        let error = connect(address, &options().connect_timeout(Duration::from_secs(1)));
        is_over.store(true, Ordering::Relaxed);
        TcpStream::connect(address).unwrap();
        error
    });
    assert!(matches!(error, ConnectError::RdmaUnreachable { is_software: true, .. }), "{error:?}");
    assert!(error.is_timeout());
    error
}

fn show_keys() {
    let (key, other) = (Key::new([7; 32]).unwrap(), Key::new([8; 32]).unwrap());
    for (situation, ours, theirs, expected) in [
        ("4: only the server has a key", None, Some(&key), KeyMismatch::LocalKeyMissing),
        ("4: only the client has a key", Some(&key), None, KeyMismatch::PeerKeyMissing),
        ("4: the server's key differs", Some(&key), Some(&other), KeyMismatch::KeysDiffer),
    ] {
        let with_key = |key: Option<&Key>| key.map_or(options(), |key| options().key(key));
        let error = connect_to_listener("127.0.0.1:0", &with_key(theirs), None, &with_key(ours));
        let ConnectError::Authentication { mismatch, .. } = error else { panic!("{error:?}") };
        assert_eq!(mismatch, expected);
        assert!(!error.is_retryable());
        show(situation, error);
    }
}

/// Binds a listener, and connects to it, at another address if there is one.
fn connect_to_listener(
    address: &str,
    listener_options: &Options,
    dialed: Option<IpAddr>,
    connector_options: &Options,
) -> ConnectError {
    let listener = Listener::builder().options(listener_options).bind(address).unwrap();
    let ip = dialed.unwrap_or(listener.local_addr().ip());
    scope(|scope| {
        scope.spawn(|| listener.accept().unwrap_err());
        let error = connect((ip, listener.local_addr().port()), connector_options);
        listener.stop();
        error
    })
}

const ROUTABLE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

pub(crate) fn meet_a_network_that_is_down() {
    let error = connect(SocketAddr::new(ROUTABLE, 7471), &options());
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error:?}");
    assert!(error.is_retryable());
    show("3, 8: the host is unreachable, because the interface is down", error);
}

pub(crate) fn dial_an_address_without_a_device() {
    let error = connect_to_listener("0.0.0.0:0", &options(), Some(ROUTABLE), &options());
    let ConnectError::Rejected { reason: RefusalReason::AddressNotServed, .. } = error else {
        panic!("{error:?}")
    };
    show("8: the address is not on any RDMA device of the server", error);
}

pub(crate) fn lack_descriptors() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let connector = Connector::new().options(&options());
    let limit = |count: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: count, rlim_max: 1024 };
        // SAFETY: the structure is valid during the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    limit(3);
    let error = connector.connect(listener.local_addr()).unwrap_err();
    assert!(matches!(error, ConnectError::DescriptorLimit { .. }), "{error:?}");
    assert!(error.is_retryable());
    // Printing needs no descriptor.
    show("11: out of file descriptors", error);
    limit(1024);
    assert!(
        TIMEOUT > SHORT_TIMEOUT
            && scope(|scope| {
                let accepted = scope.spawn(|| listener.accept());
                connector.connect(listener.local_addr()).is_ok() && accepted.join().unwrap().is_ok()
            })
    );
}
