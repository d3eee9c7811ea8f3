//! Addresses of listeners: the devices that wildcard listeners serve, that no peer makes them open another, and the
//! GIDs that peers may use.
//!
//! The tests with routable addresses run in a network namespace of their own, which needs root and `ip`.

#![cfg(feature = "soft")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::thread::scope;
use std::time::Duration;

use adverb::net::blocking::{Connector, Listener};
use adverb::net::{Bootstrap, ConnectError, Key, Options, RefusalReason};
use adverb::verbs::Device;

/// The environment variable that names the case for a child process.
const CASE: &str = "ADVERB_CASE";
const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const ADDR_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2));

fn options() -> Options {
    Options::new().connect_timeout(Duration::from_secs(5)).timeout(Duration::from_secs(30))
}

/// Runs a case of [`runs_a_case`] in a network namespace with the routable addresses. Without namespaces it is skipped.
fn in_namespace(case: &str) {
    let name = format!("adverb-wildcard-{case}-{}", std::process::id());
    let ip = |line: &str| {
        let output =
            Command::new("ip").args(line.split_whitespace()).output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    };
    if let Err(error) = ip(&format!("netns add {name}")) {
        return println!("skipped: cannot create a network namespace: {error}");
    }
    let run = || {
        ip(&format!("-n {name} link set lo up"))?;
        // A veth pair: one end has the addresses, and the other provides the carrier.
        ip(&format!("-n {name} link add wild0 type veth peer name wild1"))?;
        ip(&format!("-n {name} addr add {ADDR}/24 dev wild0"))?;
        ip(&format!("-n {name} addr add {ADDR_V6}/64 dev wild0 nodad"))?;
        ip(&format!("-n {name} link set wild0 up"))?;
        ip(&format!("-n {name} link set wild1 up"))?;
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &name]).arg(std::env::current_exe().unwrap());
        program.args(["--exact", "runs_a_case", "--nocapture"]).env(CASE, case);
        let output = program.output().map_err(|error| error.to_string())?;
        let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        match output.status.success() && text.contains("the case was run") {
            true => Ok(()),
            false => Err(text),
        }
    };
    let outcome: Result<(), String> = run();
    let removed = ip(&format!("netns del {name}"));
    outcome.unwrap();
    removed.unwrap();
}

#[test]
fn runs_a_case() {
    let Ok(case) = std::env::var(CASE) else { return };
    match case.as_str() {
        "stranger" => stranger(),
        "refusal" => refusal(),
        "opened" => opened(),
        "foreign" => foreign(),
        _ => panic!("unknown case {case}"),
    }
    println!("the case was run");
}

/// Whether a socket has the RoCE port of a routable address.
fn is_open(addr: IpAddr) -> bool {
    UdpSocket::bind((addr, 4791)).is_err()
}

/// Returns the greeting of a connector at `addr` that claims to have a key.
fn greeting(addr: IpAddr) -> Vec<u8> {
    let gid = match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    };
    let numbers =
        [&0u16.to_le_bytes()[..], &1024u16.to_le_bytes(), &0x1234u32.to_le_bytes(), &16u32.to_le_bytes()];
    let body = [&gid[..], &numbers.concat(), &[9; 32]].concat();
    [b"adverb\r\n\x02\x00\x01\x03", &[body.len() as u8, 0, 0, 0][..], &body].concat()
}

/// Stops a listener when it is dropped, also after a failed assertion, so that no accepting thread waits forever.
struct Stop<'a>(&'a Listener);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn stranger() {
    let key = Key::new([7; 32]).unwrap();
    for wildcard in ["0.0.0.0:0", "[::]:0"] {
        let listener = Listener::builder().options(&options().key(&key)).bind(wildcard).unwrap();
        let port = listener.local_addr().port();
        scope(|scope| {
            let _stop = Stop(&listener);
            scope.spawn(|| listener.accept().unwrap_err());
            for addr in [ADDR, ADDR_V6] {
                if wildcard.starts_with('0') && addr.is_ipv6() {
                    continue;
                }
                assert!(!is_open(addr), "{wildcard} opened {addr} when it was bound");
                let mut stream = TcpStream::connect((addr, port)).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                stream.write_all(&greeting(addr)).unwrap();
                let mut answer = [0; 16];
                stream.read_exact(&mut answer).unwrap();
                assert!(!is_open(addr), "{wildcard} opened {addr} for an unauthenticated peer");
                assert_eq!(answer[10], 2, "not a rejection: {}", String::from_utf8_lossy(&answer));
            }
        });
    }
}

#[test]
fn a_wildcard_listener_opens_no_device_for_an_unauthenticated_peer() {
    in_namespace("stranger");
}

fn refusal() {
    let listener = Listener::builder().options(&options()).bind("[::]:0").unwrap();
    scope(|scope| {
        let _stop = Stop(&listener);
        scope.spawn(|| listener.accept().map(drop));
        for addr in [ADDR, ADDR_V6] {
            let error = Connector::new().options(&options()).connect((addr, listener.local_addr().port()));
            let Err(ConnectError::Rejected { reason: RefusalReason::AddressNotServed, ref message, .. }) =
                error
            else {
                panic!("{error:?}")
            };
            assert_eq!(**message, format!("the listener has no RDMA device at {addr}"));
            let hint = error.as_ref().unwrap_err().hint().unwrap();
            assert!(hint.contains("bind the listener to that address, or open `soft:"), "{hint}");
        }
    });
}

#[test]
fn connecting_to_an_address_without_a_device_fails_with_a_hint() {
    in_namespace("refusal");
}

fn opened() {
    // The listener serves devices that the process has opened by name, but not those that it opens later.
    let device = Device::open(&format!("soft:{ADDR}")).unwrap();
    let listener = Listener::builder().options(&options()).bind("[::]:0").unwrap();
    let late = Device::open(&format!("soft:{ADDR_V6}")).unwrap();
    drop(device);
    assert!(is_open(ADDR), "the listener keeps its devices");
    let port = listener.local_addr().port();
    exchange(&listener, (ADDR, port).into());
    scope(|scope| {
        let _stop = Stop(&listener);
        scope.spawn(|| listener.accept().map(drop));
        let error = Connector::new().options(&options()).connect((ADDR_V6, port)).unwrap_err();
        let ConnectError::Rejected { reason: RefusalReason::AddressNotServed, .. } = error else {
            panic!("{error:?}")
        };
    });
    drop(late);
}

#[test]
fn a_wildcard_listener_serves_the_devices_that_were_open_when_it_was_bound() {
    in_namespace("opened");
}

fn foreign() {
    // TCP uses loopback, and RDMA another network.
    let device = Device::open(&format!("soft:{ADDR}")).unwrap();
    let default_options = options().device(&device);
    let lenient = default_options.clone().allow_foreign_gid(true);
    let gid = device.gids().unwrap()[0].gid;
    for (connector, listener) in
        [(&default_options, &default_options), (&lenient, &default_options), (&default_options, &lenient)]
    {
        let listener = Listener::builder().options(listener).bind("127.0.0.1:0").unwrap();
        scope(|scope| {
            let _stop = Stop(&listener);
            scope.spawn(|| listener.accept().map(drop));
            let connected = Connector::new().options(connector).connect(listener.local_addr());
            match connected {
                // The listener has refused the connector's GID.
                Err(ConnectError::Rejected { reason: RefusalReason::ForeignGid, message, .. }) => {
                    assert_eq!(*message, format!("GID {gid} is not an address of the TCP peer"));
                }
                // The connector has refused the listener's.
                Err(ConnectError::ForeignGid { gid: foreign, .. }) => assert_eq!(foreign, gid),
                other => panic!("{other:?}"),
            }
        });
    }
    let listener = Listener::builder().options(&lenient).bind("127.0.0.1:0").unwrap();
    exchange_with(&lenient, &listener, listener.local_addr());
}

#[test]
fn a_gid_of_another_network_is_rejected_unless_both_sides_allow_it() {
    in_namespace("foreign");
}

/// Connects to a listener at an address, and exchanges a message.
fn exchange(listener: &Listener, addr: SocketAddr) {
    exchange_with(&options(), listener, addr);
}

fn exchange_with(options: &Options, listener: &Listener, addr: SocketAddr) {
    scope(|scope| {
        let client = scope.spawn(move || Connector::new().options(options).connect(addr).unwrap());
        let server = listener.accept().unwrap();
        let client = client.join().unwrap();
        client.send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
    });
}

#[test]
fn a_wildcard_listener_serves_every_loopback_address() {
    for (wildcard, addrs) in
        [("0.0.0.0:0", &["127.0.0.1", "127.5.6.7"][..]), ("[::]:0", &["127.0.0.1", "127.5.6.7", "::1"])]
    {
        let listener = Listener::builder().options(&options()).bind(wildcard).unwrap();
        for addr in addrs {
            exchange(&listener, SocketAddr::new(addr.parse().unwrap(), listener.local_addr().port()));
        }
    }
}

#[test]
fn a_wildcard_listener_is_reached_with_the_connection_manager() {
    let device = Device::open("soft").unwrap();
    let addr = device.gids().unwrap()[0].gid.ip();
    let options = options().bootstrap(Bootstrap::ConnectionManager);
    let listener = Listener::builder().options(&options).bind("0.0.0.0:0").unwrap();
    let peer = (addr, listener.local_addr().port());
    scope(|scope| {
        let client = scope.spawn(|| Connector::new().options(&options).connect(peer).unwrap());
        let server = listener.accept().unwrap();
        client.join().unwrap().send(b"hello").unwrap();
        assert_eq!(&server.recv().unwrap().unwrap()[..], b"hello");
    });
}

#[cfg(feature = "tokio")]
mod tasks {
    use adverb::net::{Connector, Listener};

    use super::*;

    #[tokio::test]
    async fn of_a_wildcard_listener_serve_loopback() {
        let listener = Listener::builder().options(&options()).bind("[::]:0").await.unwrap();
        let peer = (IpAddr::from(Ipv4Addr::LOCALHOST), listener.local_addr().port());
        let connector = Connector::new().options(&options());
        let (client, server) = tokio::join!(connector.connect(peer), listener.accept());
        client.unwrap().send(b"hello").await.unwrap();
        assert_eq!(&server.unwrap().recv().await.unwrap().unwrap()[..], b"hello");
    }
}
