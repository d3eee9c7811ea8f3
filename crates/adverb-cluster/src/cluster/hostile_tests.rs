//! Hosts and members that connect to a member in order to delay or exclude others, or to occupy its memory.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use adverb_verbs::{Endpoint, Psn, Qpn};

use super::exchange::{Exchange, Hello, NONCE_LEN, Purpose, Step};
use super::places::place_count;
use super::tests::{Ports, TEST_DEADLINE, await_open, send_and_receive};
use super::*;
use crate::broker::{Event, Offer};

/// The part of an exchange that a hostile host performs.
#[derive(Clone, Copy, Debug)]
enum Attack {
    /// It sends nothing.
    Silent,
    /// It sends a byte of a hello now and then.
    Slow,
    /// It sends a part of a hello, and closes its direction of the connection.
    HalfClosed,
    /// It sends a valid hello, and nothing more.
    HelloOnly,
}

/// Keeps connections to a member open, and replaces those that the member closes.
fn renew_connections(
    addr: SocketAddr,
    hello: &[u8],
    (attack, count): (Attack, usize),
    stop: &AtomicBool,
    opened: &AtomicUsize,
) {
    let mut streams: Vec<TcpStream> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        streams.retain(|mut stream| {
            if matches!(attack, Attack::Slow) && stream.write(&hello[..1]).is_err() {
                return false;
            }
            loop {
                match stream.read(&mut [0; 128]) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        });
        while streams.len() < count && !stop.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(100)) else { break };
            let sent = match attack {
                Attack::Silent => 0,
                Attack::Slow | Attack::HalfClosed => 1,
                Attack::HelloOnly => hello.len(),
            };
            let is_sent = stream.write_all(&hello[..sent]).is_ok();
            if matches!(attack, Attack::HalfClosed) {
                let _ = stream.shutdown(Shutdown::Write);
            }
            if is_sent && stream.set_nonblocking(true).is_ok() {
                opened.fetch_add(1, Ordering::Relaxed);
                streams.push(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Lets a member join while a hostile host attacks another one, and returns the time until they have a session.
fn join_under_attack(attack: Attack, count: usize) -> Duration {
    let ports = Ports::new(2);
    let addr = ports.0[0].local_addr().unwrap();
    let (stop, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let a = ports.builder(0).key(&Key::new([7; 32]).unwrap()).join("a").unwrap();
    let mut broker_a = a.take_broker(0).unwrap();
    // The list of members is no secret.
    let hello =
        Hello { cluster: a.shared.local.cluster, from: 1, to: 0, thread: 0, purpose: Purpose::Session };
    let hello = hello.to_bytes(&[0; NONCE_LEN]);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| renew_connections(addr, &hello, (attack, count), &stop, &opened));
        let started = Instant::now();
        while opened.load(Ordering::Relaxed) < count {
            broker_a.poll(|_, _| ()).unwrap();
            assert!(started.elapsed() < TEST_DEADLINE);
        }
        let b = ports.builder(1).key(&Key::new([7; 32]).unwrap()).join("b").unwrap();
        let mut broker_b = b.take_broker(0).unwrap();
        let started = Instant::now();
        await_open((&mut broker_a, PeerId(1)), (&mut broker_b, PeerId(0)));
        let elapsed = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        attacker.join().unwrap();
        println!("{count} connections, {attack:?}: {elapsed:?}, {opened:?} connections");
        elapsed
    })
}

#[test]
fn renewed_connections_do_not_keep_members_from_connecting() {
    for attack in [Attack::Silent, Attack::Slow, Attack::HalfClosed, Attack::HelloOnly] {
        for count in [40, 300] {
            let elapsed = join_under_attack(attack, count);
            // Silent connections time out after 2 s, so a member that waits for them needs longer.
            assert!(elapsed < Duration::from_secs(20), "{attack:?}, {count} connections: {elapsed:?}");
        }
    }
}

/// Begins an exchange as member 1 of a cluster without a key, up to the offer.
fn begin(a: &Cluster, addr: SocketAddr, epoch: u64) -> (TcpStream, Exchange) {
    let hello =
        Hello { cluster: a.shared.local.cluster, from: 1, to: 0, thread: 0, purpose: Purpose::Session };
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(TEST_DEADLINE)).unwrap();
    let mut exchange = Exchange::dial(Arc::new(ExchangeKey::new(None)), &hello, &[9; NONCE_LEN]);
    write(&mut stream, &mut exchange);
    assert_eq!(read(&mut stream, &mut exchange), Some(Step::Prepare(None)));
    let endpoint = Endpoint::new(IpAddr::from([127, 0, 0, 1]).into(), Qpn::truncate(5), Psn::wrapping(6));
    let slot_size = BrokerConfig::default().slot_size;
    exchange.prepared(&Offer { endpoint, epoch, credits: 16, slot_size });
    write(&mut stream, &mut exchange);
    (stream, exchange)
}

/// Reads a message, and returns the next step, or `None` if the member refuses.
fn read(stream: &mut TcpStream, exchange: &mut Exchange) -> Option<Step> {
    let mut bytes = vec![0; exchange.missing_len()];
    stream.read_exact(&mut bytes).ok()?;
    exchange.handle_bytes(&bytes).ok()
}

fn write(stream: &mut TcpStream, exchange: &mut Exchange) {
    stream.write_all(&std::mem::take(exchange.output())).unwrap();
}

/// Performs an exchange as member 1 without a queue pair, while the member polls with `poll`. Returns whether the member
/// accepted the offer.
fn forge(a: &Cluster, addr: SocketAddr, epoch: u64, mut poll: impl FnMut()) -> bool {
    std::thread::scope(|scope| {
        let exchange = scope.spawn(|| {
            let (mut stream, mut exchange) = begin(a, addr, epoch);
            let is_accepted = matches!(read(&mut stream, &mut exchange), Some(Step::Connect(_)));
            if is_accepted {
                exchange.connected();
                write(&mut stream, &mut exchange);
                // The member closes the connection when it has the last message.
                let _ = stream.read(&mut [0]);
            }
            is_accepted
        });
        while !exchange.is_finished() {
            poll();
        }
        exchange.join().unwrap()
    })
}

#[test]
fn a_forged_epoch_does_not_exclude_a_member() {
    let ports = Ports::new(2);
    let addr = ports.0[0].local_addr().unwrap();
    // The forged session ends no earlier than the test.
    let options = ConnectOptions::new().ack_timeout(24);
    let a = ports.builder(0).connect_options(options).join("a").unwrap();
    let mut broker_a = a.take_broker(0).unwrap();
    assert!(forge(&a, addr, u64::MAX, || drop(broker_a.poll(|_, _| ()))));
    let started = Instant::now();
    while broker_a.peer_epoch(PeerId(1)) != Some(u64::MAX) {
        broker_a.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    let b = ports.join(1, 1);
    let mut broker_b = b.take_broker(0).unwrap();
    let started = Instant::now();
    while broker_a.peer_epoch(PeerId(1)) != Some(b.epoch()) {
        broker_a.poll(|_, _| ()).unwrap();
        broker_b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "the member gets no session");
    }
    await_open((&mut broker_a, PeerId(1)), (&mut broker_b, PeerId(0)));
    send_and_receive(&mut broker_b, &mut broker_a, PeerId(0), b"from b");
}

#[test]
fn a_thread_that_does_not_poll_collects_no_commands() {
    let ports = Ports::new(2);
    let addr = ports.0[0].local_addr().unwrap();
    let a = ports.join(0, 1);
    let mut broker_a = a.take_broker(0).unwrap();
    let max = place_count(2);
    let mailbox = Arc::clone(&a.shared.threads[0].mailbox);
    for _ in 0..4 * max {
        // The connection is closed while the broker has not prepared the session.
        drop(begin(&a, addr, 1));
        assert!(mailbox.command_count() <= max, "{} commands", mailbox.command_count());
    }
    // Without the connections, no command is left, though the broker still executes none.
    let started = Instant::now();
    while mailbox.command_count() > 0 {
        assert!(started.elapsed() < TEST_DEADLINE, "{} commands", mailbox.command_count());
        std::thread::sleep(Duration::from_millis(1));
    }
    broker_a.poll(|_, _| ()).unwrap();
}

#[test]
fn a_member_that_reconnects_cannot_fill_the_event_queue() {
    let ports = Ports::new(3);
    let addr = ports.0[0].local_addr().unwrap();
    let a = ports.join(0, 1);
    let mut broker_a = a.take_broker(0).unwrap();
    let mut accepted_count = 0;
    for epoch in 0..40 {
        // The application waits for another member.
        let is_accepted = forge(&a, addr, epoch, || {
            broker_a.poll_peer(PeerId(2), |_, _| ()).unwrap();
        });
        accepted_count += usize::from(is_accepted);
        assert!(broker_a.queued_event_count() <= 10, "{} events", broker_a.queued_event_count());
    }
    assert!((1..40).contains(&accepted_count), "{accepted_count} sessions");
    // The member can return when the events are delivered.
    let mut opened_count = 0;
    let opened = |event: Event<'_>| usize::from(matches!(event, Event::SessionOpened { .. }));
    broker_a.poll(|_, event| opened_count += opened(event)).unwrap();
    assert!(opened_count > 0);
    let b = ports.join(1, 1);
    let mut broker_b = b.take_broker(0).unwrap();
    await_open((&mut broker_a, PeerId(1)), (&mut broker_b, PeerId(0)));
}
