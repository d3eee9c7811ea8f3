//! Broken connections and the redialer: many at once, unreachable and silent listeners, and other peers.

#[cfg(feature = "tokio")]
mod many;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use adverb_verbs::{Device, SoftDevice};
use parking_lot::Mutex;

use crate::blocking::{Connection, Connector, Listener};
use crate::session::tests::{options, redial};

/// Held by tests that open hundreds of descriptors, so that they do not exceed the usual limit of 1,024 together.
static DESCRIPTOR_LOCK: Mutex<()> = Mutex::new(());

/// Returns two devices at addresses of their own. The connection manager finds devices by their addresses, so tests of
/// the device `soft`, which run at the same time, must not find these.
fn devices() -> [Device; 2] {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    [77, 78].map(|network| SoftDevice::at_addr(Ipv4Addr::new(127, network, high, low).into()).open().unwrap())
}

/// Returns a connection between two software devices. No call accepts at its listener.
fn connected(alternates: &[SocketAddr]) -> (Listener, Connection, Connection) {
    let devices = devices();
    let listener = Listener::builder().options(&options(&devices[1])).bind("127.0.0.1:0").unwrap();
    let mut connector = Connector::new().options(&options(&devices[0]));
    for alternate in alternates {
        connector = connector.alternate_addr(alternate.to_string());
    }
    let (left, right) = scope(|scope| {
        let left = scope.spawn(|| connector.connect(listener.local_addr()).unwrap());
        let right = listener.accept().unwrap();
        (left.join().unwrap(), right)
    });
    (listener, left, right)
}

/// Breaks both sides' lanes, and then exchanges messages. Returns the time until the exchange was complete.
fn break_and_exchange(left: &Connection, right: &Connection) -> Duration {
    let (start, lane_number) = (Instant::now(), left.driver().lane_number());
    left.driver().fail_lane();
    right.driver().fail_lane();
    scope(|scope| {
        scope.spawn(|| {
            assert_eq!(&right.recv().unwrap().unwrap()[..], b"ping");
            right.send(b"pong").unwrap();
        });
        left.send(b"ping").unwrap();
        assert_eq!(&left.recv().unwrap().unwrap()[..], b"pong");
    });
    assert!(left.driver().lane_number() > lane_number, "the connection has another lane");
    start.elapsed()
}

#[test]
fn a_connection_resumes_while_200_others_dial_an_unreachable_peer() {
    let _lock = DESCRIPTOR_LOCK.lock();
    // The kernel accepts the first dials, which then wait for an answer, and drops the packets of the others.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_listener, left, right) = connected(&[]);
    let _handles = Vec::from_iter((0..200).map(|_| redial(silent.local_addr().unwrap())));
    // One after the other, these dials would take 400 s, and the connection would exceed its time limit.
    println!("resumed after {:?}", break_and_exchange(&left, &right));
}

#[test]
fn a_listener_that_accepts_and_never_answers_does_not_keep_other_paths_from_being_dialed() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    // The alternate address is dialed first.
    let (_listener, left, right) = connected(&[silent.local_addr().unwrap()]);
    println!("resumed after {:?}", break_and_exchange(&left, &right));
    silent.set_nonblocking(true).unwrap();
    assert!(silent.accept().is_ok(), "the silent listener was dialed");
}

#[test]
fn unfinished_handshakes_of_other_peers_do_not_keep_a_peer_from_reconnecting() {
    let _lock = DESCRIPTOR_LOCK.lock();
    let (listener, left, right) = connected(&[]);
    // The other peers are more than a listener handles at a time. Most of them send a part of a greeting.
    let connect_other_peer = |number: usize| {
        let timeout = Duration::from_secs(1);
        let mut stream = TcpStream::connect_timeout(&listener.local_addr(), timeout).ok()?;
        stream.write_all(&b"adverb\r\n"[..number % 9]).ok()?;
        Some(stream)
    };
    let is_over = AtomicBool::new(false);
    scope(|scope| {
        let other_peers = scope.spawn(|| {
            let mut other_peers = Vec::new();
            // Their connections wait in the kernel's queue until the redialer serves the listener.
            while other_peers.len() < 260 && !is_over.load(Ordering::Relaxed) {
                other_peers.extend(connect_other_peer(other_peers.len()));
            }
            other_peers
        });
        println!("resumed after {:?}", break_and_exchange(&left, &right));
        is_over.store(true, Ordering::Relaxed);
        other_peers.join().unwrap();
    });
}

#[test]
fn a_new_connection_is_queued_while_the_redialer_serves_the_listener() {
    let (listener, left, right) = connected(&[]);
    right.driver().fail_lane();
    scope(|scope| {
        let receiving = scope.spawn(|| {
            let message = right.recv().unwrap().unwrap();
            right.send(b"received").unwrap();
            message
        });
        // No call accepts: the redialer drives this handshake, because the other connection is broken.
        let connector = Connector::new().options(&left.driver().options);
        let new = connector.connect(listener.local_addr()).unwrap();
        let accepted = listener.accept().unwrap();
        new.send(b"new").unwrap();
        assert_eq!(&accepted.recv().unwrap().unwrap()[..], b"new");
        left.driver().fail_lane();
        left.send(b"old").unwrap();
        // A waiting call detects that the lane is broken.
        left.recv().unwrap();
        assert_eq!(&receiving.join().unwrap()[..], b"old");
    });
}
