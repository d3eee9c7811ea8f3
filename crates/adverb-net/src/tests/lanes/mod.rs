//! Connections whose lanes fail while messages are sent, and sessions that resume.

mod shared;
mod streams;
mod withdrawals;

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb_net_proto::{EndReason, Tag};
use adverb_verbs::internal::{Deadline, wait_either};
use adverb_verbs::{Device, DeviceEvent, RemoteAddress, SendRequest, Status, Traffic};

use crate::Key;
use crate::access::RemoteAccess;
use crate::blocking::{Connection, Connector, Listener};
use crate::bootstrap::Dial;
use crate::driver::{Driver, Established, LanePurpose};
use crate::error::{ConnectError, ConnectionError, RecvError, RemoteErrorKind, SendErrorKind};
use crate::options::{Bootstrap, Options};
use crate::wait::{CallerKind, WaitingCaller};

/// Returns options for connections that do not reconnect: over the software NIC, unless `ADVERB_DEVICE` names another
/// device.
fn options_without_reconnect() -> Options {
    let device = std::env::var("ADVERB_DEVICE").unwrap_or("soft".to_owned());
    // TCP uses the loopback interface, which may not be the device's.
    Options::new()
        .device(&Device::open(&device).unwrap())
        .allow_foreign_gid(true)
        .timeout(Duration::from_secs(60))
}

/// Returns options for connections that reconnect.
fn options() -> Options {
    options_without_reconnect().keepalive(Duration::from_millis(100)).reconnect(Duration::from_secs(20))
}

/// Returns options for connections that reconnect, one for each bootstrap.
fn options_per_bootstrap() -> [Options; 2] {
    [Bootstrap::Tcp, Bootstrap::ConnectionManager].map(|bootstrap| options().bootstrap(bootstrap))
}

/// Returns the device's address, at which its connection manager listens, with port 0.
fn any_port(options: &Options) -> SocketAddr {
    let device = options.device.as_ref().unwrap();
    SocketAddr::new(device.gid_for(1, None).unwrap().gid.ip(), 0)
}

/// Returns a listener, a connection of a connector, and the accepted one.
fn connected(options: [&Options; 2]) -> (Listener, Connection, Connection) {
    let listener = Listener::builder().options(options[1]).bind(any_port(options[1])).unwrap();
    let connector = Connector::new().options(options[0]);
    let (left, right) = scope(|scope| {
        let left = scope.spawn(|| connector.connect(listener.local_addr()).unwrap());
        let right = listener.accept().unwrap();
        (left.join().unwrap(), right)
    });
    (listener, left, right)
}

/// Runs a test with both ends of a connection, while another thread accepts.
fn with_pair<T>(options: [&Options; 2], run: impl FnOnce(&Connection, &Connection) -> T) -> T {
    let (listener, left, right) = connected(options);
    scope(|scope| {
        scope.spawn(|| listener.accept().map(drop));
        let _stop = Stop(&listener);
        run(&left, &right)
    })
}

/// A guard that stops a listener when it is dropped, so that the accepting thread ends even if the test panics.
struct Stop<'a>(&'a Listener);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Connects to a listener for a purpose that no program has.
fn dial(peer: SocketAddr, options: &Options, purpose: LanePurpose) -> Result<Established, ConnectError> {
    let mut dial = Dial::with_purpose(peer, options, purpose, Deadline::new(Duration::from_secs(5)))?;
    loop {
        let now = Instant::now();
        if let Some(established) = dial.poll(now)? {
            return Ok(established);
        }
        wait_either(dial.as_fd(), None, Some(dial.time_left(now))).unwrap();
    }
}

fn bytes(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (number ^ at ^ at >> 8) as u8).collect()
}

fn len(number: usize) -> usize {
    [0, 5, 300, 20_000, 70, 100_000, 1_000][number % 7] + number % 13
}

/// The number of reconnects after which a test ends.
const TARGET_RECONNECTS: u32 = 6;

/// Calls `break_lanes` until a connection has reconnected often enough. Returns whether it has, within a minute.
fn fail_repeatedly(driver: &Driver, mut break_lanes: impl FnMut(u32)) -> bool {
    let (start, mut round, mut count, mut factor) = (Instant::now(), 0, 0, 1);
    while count < TARGET_RECONNECTS && start.elapsed() < Duration::from_secs(60) {
        break_lanes(round);
        round += 1;
        sleep(Duration::from_millis(20 + u64::from(round % 7 * 10)) * factor);
        // On a busy machine, a lane takes longer to be established. If each lane fails before, the connection ends.
        factor = if driver.is_reconnecting() { (factor * 2).min(64) } else { 1 };
        count = driver.lane_number();
    }
    println!("reconnected {count} times, after {round} failures of lanes");
    count >= TARGET_RECONNECTS
}

/// Sends messages in both directions until `fail_repeatedly` returns.
fn exchange(left: &Connection, right: &Connection, fail_repeatedly: impl FnOnce() -> bool) {
    let (is_over, done) = (&AtomicBool::new(false), &AtomicUsize::new(0));
    scope(|scope| {
        for (from, to) in [(left, right), (right, left)] {
            let sending = scope.spawn(move || {
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let bytes = bytes(number, len(number));
                    if number % 3 == 0 {
                        from.send_with_imm(&bytes, number as u32).unwrap();
                    } else {
                        from.send(&bytes).unwrap();
                    }
                    number += 1;
                }
                from.shutdown().unwrap();
                number
            });
            scope.spawn(move || {
                let mut number = 0;
                while let Some(message) = to.recv().unwrap() {
                    let expected = bytes(number, len(number));
                    assert!(message[..] == expected, "message {number} of {}", message.len());
                    assert_eq!(message.immediate(), (number % 3 == 0).then_some(number as u32));
                    number += 1;
                }
                assert_eq!(number, sending.join().unwrap());
                // An idle side doesn't drive its connection, and the peer may still wait for it.
                done.fetch_add(1, Ordering::Relaxed);
                while done.load(Ordering::Relaxed) < 2 {
                    assert!(to.recv().unwrap().is_none());
                    sleep(Duration::from_millis(1));
                }
            });
        }
        let has_reconnected = fail_repeatedly();
        is_over.store(true, Ordering::Relaxed);
        assert!(has_reconnected);
    });
}

#[test]
fn messages_are_neither_lost_nor_duplicated_when_lanes_fail() {
    let tiny = options().recv_ring_size(512).max_outstanding_writes(4);
    for options in options_per_bootstrap().iter().chain([&tiny]) {
        with_pair([options, options], |left, right| {
            exchange(left, right, || {
                fail_repeatedly(left.driver(), |round| {
                    // The connector detects its failed lane at once, and the listener when the connector dials again.
                    left.driver().fail_lane();
                    if round % 2 == 1 {
                        right.driver().fail_lane();
                    }
                })
            });
        });
    }
}

#[test]
fn a_session_resumes_without_a_call_to_accept() {
    for options in options_per_bootstrap() {
        let (listener, left, right) = connected([&options, &options]);
        let connector = Connector::new().options(&options.clone().connect_timeout(Duration::from_secs(20)));
        scope(|scope| {
            let _stop = Stop(&listener);
            let mut other_peer = None;
            exchange(&left, &right, || {
                fail_repeatedly(left.driver(), |_| {
                    // Both sides detect their failed lanes at once.
                    left.driver().fail_lane();
                    right.driver().fail_lane();
                    // Another peer connects meanwhile. The redialer drives its handshake, and `accept` returns it
                    // below.
                    let connect = || connector.connect(listener.local_addr()).unwrap();
                    other_peer.get_or_insert_with(|| scope.spawn(connect));
                })
            });
            let (accepted, other_peer) = (listener.accept().unwrap(), other_peer.unwrap().join().unwrap());
            other_peer.send(b"from another peer").unwrap();
            assert_eq!(&accepted.recv().unwrap().unwrap()[..], b"from another peer");
        });
    }
}

#[test]
fn a_listener_whose_lane_fails_resumes_when_the_peer_redials() {
    let options = options();
    with_pair([&options, &options], |left, right| {
        assert!(right.driver().fail_lane());
        // The keepalive of the connector detects the failure.
        scope(|scope| {
            scope.spawn(|| right.send(b"after all").unwrap());
            assert_eq!(&left.recv().unwrap().unwrap()[..], b"after all");
        });
    });
}

#[test]
fn a_session_resumes_over_a_lane_with_a_shorter_ring() {
    const LEN: usize = 5_000;
    let (wide, narrow) = (options(), options().recv_ring_size(512).max_outstanding_writes(4));
    let listeners =
        [&wide, &narrow].map(|options| Listener::builder().options(options).bind(any_port(options)).unwrap());
    let [first, second] = &listeners;
    let connector = Connector::new().options(&wide).alternate_addr(second.local_addr().to_string());
    let (left, right) = scope(|scope| {
        let left = scope.spawn(|| connector.connect(first.local_addr()).unwrap());
        let right = first.accept().unwrap();
        (left.join().unwrap(), right)
    });
    scope(|scope| {
        let _stop = Stop(second);
        first.stop();
        scope.spawn(|| second.accept().map(drop));
        assert!(left.driver().fail_lane() && right.driver().fail_lane());
        // Some messages are posted to the failed lane, some wait for the next one, and some are sent over it.
        scope.spawn(|| (0..20).for_each(|number| left.send(bytes(number, LEN)).unwrap()));
        for number in 0..20 {
            assert!(right.recv().unwrap().unwrap()[..] == bytes(number, LEN), "message {number}");
        }
        assert_eq!(left.driver().lane_number(), 1);
    });
}

#[test]
fn regions_are_exposed_again_and_operations_fail() {
    let options = options();
    with_pair([&options, &options], |left, right| {
        let table = right
            .expose("table", 4096, RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC)
            .unwrap();
        let remote = left.remote_region("table").unwrap();
        remote.fetch_add(0, 3).unwrap();
        assert!(left.driver().fail_lane());
        let error = loop {
            match remote.fetch_add(8, 1) {
                Ok(_) => {}
                Err(error) => break error.kind,
            }
        };
        assert!(
            matches!(error, RemoteErrorKind::Interrupted { .. } | RemoteErrorKind::Stale { .. }),
            "{error:?}"
        );
        scope(|scope| {
            // A call must drive the other side until the region is announced.
            let waiting = scope.spawn(|| right.recv_timeout(Duration::from_secs(20)));
            let remote = left.remote_region("table").unwrap();
            assert_eq!(remote.fetch_add(0, 4).unwrap(), 3);
            left.send(b"done").unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(table.word(0).unwrap().load(Ordering::Relaxed), 7);
    });
}

#[test]
fn the_end_of_a_session_whose_peer_aborts_refers_to_unacknowledged_messages() {
    let (_listener, left, right) = connected([&options(), &options()]);
    left.send(b"unread").unwrap();
    drop(right);
    let error = left.closed();
    let ConnectionError::PeerAborted { unacknowledged, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*unacknowledged, 0..1);
    assert!(error.hint().is_some_and(|hint| hint.contains("take_unacknowledged")), "{error}");
    assert_eq!(left.take_unacknowledged().len(), 1);
}

#[test]
fn a_session_that_cannot_resume_reports_unacknowledged_messages() {
    let options = options().reconnect(Duration::from_secs(3)).timeout(Duration::from_secs(20));
    let (listener, left, right) = connected([&options, &options]);
    left.send(b"one").unwrap();
    assert_eq!(&right.recv().unwrap().unwrap()[..], b"one");
    drop(listener);
    right.driver().fail_lane();
    left.send(b"two").unwrap();
    left.send(&[3; 100_000]).unwrap();
    let start = Instant::now();
    let error = left.recv().unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    let RecvError::ConnectionLost(ConnectionError::ReconnectFailed { unacknowledged, source, .. }) = error
    else {
        panic!("{error:?}")
    };
    assert!(matches!(*source, ConnectError::Refused { .. }), "{source:?}");
    let unknown = left.take_unacknowledged();
    let numbers: Vec<_> = unknown.iter().map(|message| message.index).collect();
    assert!(numbers.ends_with(&[1, 2]), "{numbers:?}");
    assert_eq!(numbers, Vec::from_iter(unacknowledged));
    let last = &unknown[unknown.len() - 2..];
    assert_eq!((&last[0].buffer[..], last[1].buffer.len()), (&b"two"[..], 100_000));
    // No call waits for credits of an ended connection.
    let error = left.feed(b"three").unwrap_err();
    assert!(is_reconnect_failure(&error.kind), "{error:?}");
    let error = crate::blocking::Stream::new(left).write(b"three").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    // The time limit of the other side expires too.
    let error = right.closed();
    let ConnectionError::ReconnectFailed { source, .. } = error else { panic!("{error:?}") };
    assert!(matches!(*source, ConnectError::ReconnectTimedOut { .. }), "{source:?}");
    assert!(right.take_unacknowledged().is_empty());
}

fn is_reconnect_failure(error: &SendErrorKind) -> bool {
    matches!(error, SendErrorKind::ConnectionLost(ConnectionError::ReconnectFailed { .. }))
}

#[test]
fn hardware_reports_the_end_of_the_peer_at_once() {
    let options = Options { reconnect: None, ..options() }.keepalive(None);
    if options.device.as_ref().unwrap().is_software() {
        return println!("skipped: only the connection manager of RDMA hardware reports the end of the peer");
    }
    let (_listener, left, right) = connected([&options, &options]);
    right.send(b"the last").unwrap();
    drop(right);
    // The keepalive is off, so the connection manager must report the end.
    let start = Instant::now();
    assert_eq!(&left.recv().unwrap().unwrap()[..], b"the last");
    let error = left.recv().unwrap_err();
    // The peer reports its end, too, and the first report counts.
    let RecvError::ConnectionLost(
        ConnectionError::PeerLost { has_exited: true, .. } | ConnectionError::PeerAborted { .. },
    ) = error
    else {
        panic!("{error:?}")
    };
    println!("the end was reported after {:?}: {error}", start.elapsed());
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn hardware_reports_the_end_of_the_peer_to_tasks_at_once() {
    use crate as net;
    let options = Options { reconnect: None, ..options() }.keepalive(None);
    if options.device.as_ref().unwrap().is_software() {
        return println!("skipped: only the connection manager of RDMA hardware reports the end of the peer");
    }
    let listener = net::Listener::builder().options(&options).bind(any_port(&options)).await.unwrap();
    let connector = net::Connector::new().options(&options);
    let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (left, right) = (left.unwrap(), right.unwrap());
    let send_and_drop = async {
        // The task is waiting by then. When it is woken, the message and the event have both arrived.
        tokio::time::sleep(Duration::from_millis(100)).await;
        right.send(b"the last").await.unwrap();
        drop(right);
        sleep(Duration::from_millis(500));
    };
    let (message, ()) = tokio::join!(left.recv(), send_and_drop);
    assert_eq!(&message.unwrap().unwrap()[..], b"the last");
    let error = tokio::time::timeout(Duration::from_secs(20), left.recv()).await.unwrap().unwrap_err();
    assert!(matches!(error, RecvError::ConnectionLost(ConnectionError::PeerAborted { .. })), "{error:?}");
}

/// When a process is killed, the kernel may free its memory before its queue pair.
#[test]
fn a_peer_without_the_memory_of_the_connection_is_lost() {
    for (tag, is_lost) in [(Tag::Credits, true), (Tag::Hello, false)] {
        let options = Options { reconnect: None, ..options() };
        with_pair([&options, &options], |left, _right| {
            let driver = left.driver();
            let freed = RemoteAddress { addr: 0x1000, rkey: 0 };
            let request = SendRequest::write(driver.pool().allocate(8).unwrap(), freed);
            assert!(driver.post(request.tag(tag.wr_id())));
            let error = left.closed();
            assert_eq!(
                matches!(error, ConnectionError::PeerLost { has_exited: false, .. }),
                is_lost,
                "{error:?}"
            );
        });
    }
}

/// Only the left side's request completes with a cause. The right side's requests are flushed, but its error must name
/// the cause too.
#[test]
fn a_connection_ended_by_a_rejected_request_of_the_peer_reports_the_cause() {
    let options = Options { reconnect: None, ..options() };
    with_pair([&options, &options], |left, right| {
        let driver = left.driver();
        let remote = RemoteAddress { addr: 0x1000, rkey: 0 };
        let request = SendRequest::write(driver.pool().allocate(8).unwrap(), remote);
        assert!(driver.post(request.tag(2)));
        let error = right.closed();
        let (hint, text) = (error.hint().unwrap(), error.to_string());
        if options.device.as_ref().unwrap().is_software() {
            let event = match error {
                ConnectionError::QueuePairFailed { event: Some(event), .. } => event,
                _ => panic!("{error:?}"),
            };
            assert!(matches!(event, DeviceEvent::QueuePairAccessError(_)), "{event:?}");
            assert!(text.contains("violated access rights"), "{text}");
            assert!(hint.contains("keys and ranges that the peer uses"), "{hint}");
        } else {
            assert!(hint.contains("events"), "{text}: {hint}");
        }
        let error = left.closed();
        let ConnectionError::RequestFailed { status: Status::RemoteAccess, .. } = error else {
            panic!("{error:?}")
        };
    });
}

#[test]
fn a_connection_whose_peer_forgot_the_session_ends() {
    let options = options();
    with_pair([&options, &options], |left, right| {
        right.driver().abort();
        assert!(left.driver().fail_lane());
        let error = left.closed();
        let ConnectionError::ReconnectFailed { source, .. } = error else { panic!("{error:?}") };
        assert!(matches!(*source, ConnectError::SessionUnknown { .. }), "{source:?}");
    });
}

#[test]
fn a_session_does_not_resume_without_its_key() {
    let open = options();
    let keyed = options().key(&Key::new([7; 32]).unwrap());
    let other = Listener::builder().options(&open).bind(any_port(&open)).unwrap();
    with_pair([&keyed, &keyed], |left, right| {
        // A peer that observes the packets knows the session's ID.
        let purpose = LanePurpose::Forge(right.driver().session().unwrap());
        scope(|scope| {
            scope.spawn(|| other.accept().map(drop));
            let error = dial(other.local_addr(), &open, purpose).map(drop).unwrap_err();
            other.stop();
            assert!(matches!(error, ConnectError::SessionUnknown { .. }), "{error:?}");
        });
        // The lane of the connection has not failed.
        assert_eq!(right.driver().lane_number(), 0);
        left.send(b"still here").unwrap();
        assert_eq!(&right.recv().unwrap().unwrap()[..], b"still here");
    });
}

#[test]
fn a_wait_ends_if_the_lane_fails_right_before_it() {
    let options = options_without_reconnect();
    let (_listener, left, _right) = connected([&options, &options]);
    let (start, mut checks) = (Instant::now(), 0);
    let ended = left.driver().wait(Duration::from_secs(60), |_, core| {
        checks += 1;
        if checks == 2 {
            // This is the last check before the wait.
            core.fail_lane();
        }
        Ok::<_, ConnectionError>(core.end_reason())
    });
    assert_eq!(ended.unwrap(), EndReason::LaneFailed);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn an_armed_connection_is_not_polled_before_an_event() {
    with_pair([&options(), &options()], |left, right| {
        let driver = left.driver();
        let mut caller = WaitingCaller::new(&**driver, CallerKind::Handshake);
        let step = |caller: &mut WaitingCaller<&Driver>| {
            let received = caller.advance(&mut driver.locked(), |locked| {
                driver.check(&mut locked.core, &mut Driver::try_recv)
            });
            received.ok().map(|message| message.unwrap().unwrap().to_vec())
        };
        assert_eq!(step(&mut caller), None);
        right.send(b"hello").unwrap();
        let (mut message, lane) = (None, driver.lane());
        while message.is_none() {
            let events = lane.event_fd().unwrap();
            assert!(wait_either(events, None, Some(Duration::from_secs(60))).unwrap());
            assert!(driver.is_armed());
            assert_eq!(step(&mut caller), None, "it needn't be polled before the event is taken");
            assert!(lane.take_events().unwrap());
            caller.event_taken(&mut driver.locked());
            message = step(&mut caller);
        }
        assert_eq!(message.unwrap(), b"hello");
    });
}

#[test]
fn another_peer_cannot_take_over_a_session_id() {
    let options = options();
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    with_pair([&options, &options], |left, right| {
        // A peer that has observed the ID begins a session with it.
        let purpose = LanePurpose::Connect(right.driver().session());
        scope(|scope| {
            let accepting = scope.spawn(|| listener.accept().unwrap());
            let connected = dial(listener.local_addr(), &options, purpose);
            let (_other_peer, _accepted) = (connected.unwrap(), accepting.join().unwrap());
            assert!(left.driver().fail_lane());
            scope.spawn(|| right.send(right.recv().unwrap().unwrap()).unwrap());
            left.send(b"still ours").unwrap();
            assert_eq!(&left.recv().unwrap().unwrap()[..], b"still ours");
        });
    });
}

#[test]
fn a_session_needs_reconnecting_on_both_sides() {
    let with = options();
    let without = Options { reconnect: None, ..with.clone() };
    for (client, server) in [(&with, &without), (&without, &with)] {
        with_pair([client, server], |left, right| {
            left.send(b"hello").unwrap();
            assert_eq!(&right.recv().unwrap().unwrap()[..], b"hello");
            left.driver().fail_lane();
            assert!(matches!(left.closed(), ConnectionError::QueuePairFailed { .. }));
        });
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn sessions_of_tasks_resume() {
    use crate as net;
    use tokio::io::AsyncWriteExt;
    let options = options();
    let listener = net::Listener::builder().options(&options).bind(any_port(&options)).await.unwrap();
    let connector = net::Connector::new().options(&options);
    let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (left, right) = (left.unwrap(), right.unwrap());
    const COUNT: usize = 300;
    let echo = async {
        for _ in 0..COUNT {
            right.send(right.recv().await.unwrap().unwrap()).await.unwrap();
        }
    };
    let send_and_check = async {
        for number in 0..COUNT {
            if number % 30 == 10 {
                left.driver().fail_lane();
            }
            left.send(&bytes(number, len(number))).await.unwrap();
            if number % 30 == 25 {
                left.driver().fail_lane();
            }
            let answer = left.recv().await.unwrap().unwrap();
            assert!(answer[..] == bytes(number, len(number)), "message {number} of {}", answer.len());
        }
    };
    tokio::select! {
        _ = async { tokio::join!(echo, send_and_check) } => {}
        _ = listener.accept() => panic!("no other peer connects"),
    }
    // The end of a session wakes tasks too.
    drop(listener);
    drop(right);
    let error = tokio::time::timeout(Duration::from_secs(40), left.recv()).await.unwrap().unwrap_err();
    let RecvError::ConnectionLost(ConnectionError::PeerAborted { .. }) = error else { panic!("{error:?}") };
    let mut left = net::Stream::new(left);
    let written = tokio::time::timeout(Duration::from_secs(20), left.write(b"more")).await.unwrap();
    assert_eq!(written.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn other_tasks_run_while_another_thread_has_a_connections_lock() {
    use crate as net;
    use std::sync::mpsc::channel;
    let options = options();
    let listener = net::Listener::builder().options(&options).bind(any_port(&options)).await.unwrap();
    let connector = net::Connector::new().options(&options);
    let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (left, right) = (left.unwrap(), right.unwrap());
    // Locks the connection. Only a task that runs meanwhile releases it.
    let lock = || {
        let ((locked, is_locked), (release, is_released)) = (channel(), channel::<()>());
        let driver = Arc::clone(left.driver());
        let holder = std::thread::spawn(move || {
            let core = driver.lock();
            locked.send(()).unwrap();
            let released = is_released.recv_timeout(Duration::from_secs(10));
            drop(core);
            released.expect("another task runs");
        });
        is_locked.recv().unwrap();
        (holder, release)
    };
    let pause = || tokio::time::sleep(Duration::from_millis(20));
    for is_waiting in [false, true] {
        let locked = (!is_waiting).then(lock);
        let send = async {
            pause().await;
            let (holder, release) = locked.unwrap_or_else(lock);
            right.send(b"message").await.unwrap();
            pause().await;
            release.send(()).unwrap();
            holder.join().unwrap();
        };
        let (message, ()) = tokio::join!(left.recv(), send);
        assert_eq!(&message.unwrap().unwrap()[..], b"message");
    }
}

#[test]
fn packets_have_the_traffic_options_of_their_sender() {
    for options in options_per_bootstrap() {
        let marked = options.clone().traffic(Traffic::new().dscp(26).hop_limit(9));
        let (_listener, left, right) = connected([&marked, &options]);
        let peer = left.driver().peer_attributes();
        assert_eq!(peer.traffic_class, 26 << 2);
        // Linux uses the hop limit of its route instead.
        let is_software = left.driver().pool().protection_domain().device().is_software();
        assert!(peer.hop_limit == 9 || !is_software, "{}", peer.hop_limit);
        left.send(b"marked").unwrap();
        assert_eq!(&right.recv().unwrap().unwrap()[..], b"marked");
    }
}

/// The time limit of calls that are to expire.
const SHORT_TIMEOUT: Duration = Duration::from_millis(50);

fn assert_reconnecting(message: impl std::fmt::Display, hint: Option<std::borrow::Cow<'_, str>>) {
    let message = message.to_string();
    assert!(message.ends_with("; the connection has failed and is being re-established"), "{message}");
    assert!(hint.as_ref().is_some_and(|hint| hint.contains("`Options::timeout`")), "{hint:?}");
}

#[test]
fn a_time_limit_that_expires_while_reconnecting_says_so() {
    let options = options();
    let (_listener, left, _right) = connected([&options, &options]);
    let error = left.recv_timeout(Duration::from_millis(1)).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { is_reconnecting: false, .. }), "{error:?}");
    assert_eq!(error.hint(), None);
    // The listener's side makes no calls, so it does not detect the failure, and accepts no other lane.
    assert!(left.driver().fail_lane());
    let error = left.recv_timeout(SHORT_TIMEOUT).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { is_reconnecting: true, .. }), "{error:?}");
    assert_reconnecting(&error, error.hint());
    let error = left.recv_timeout(Duration::ZERO).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { is_reconnecting: true, .. }), "{error:?}");
    let error = left.remote_region_timeout("chunks", SHORT_TIMEOUT).unwrap_err();
    assert!(matches!(error.kind, RemoteErrorKind::RegionTimedOut { is_reconnecting: true, .. }), "{error:?}");
    assert_reconnecting(&error, error.hint());
    let error = loop {
        if let Err(error) = left.send_timeout(&[0; 10_000], SHORT_TIMEOUT) {
            break error;
        }
    };
    assert!(matches!(error.kind, SendErrorKind::TimedOut { is_reconnecting: true, .. }), "{error:?}");
    assert_reconnecting(&error, error.hint());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_limit_of_a_task_that_expires_while_reconnecting_says_so() {
    let options = options();
    let listener = crate::Listener::builder().options(&options).bind(any_port(&options)).await.unwrap();
    let connector = crate::Connector::new().options(&options);
    let (left, right) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (left, _right) = (left.unwrap(), right.unwrap());
    let error = left.recv_timeout(Duration::from_millis(1)).await.unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { is_reconnecting: false, .. }), "{error:?}");
    assert!(left.driver().fail_lane());
    for timeout in [SHORT_TIMEOUT, Duration::ZERO] {
        let error = left.recv_timeout(timeout).await.unwrap_err();
        assert!(matches!(error, RecvError::TimedOut { is_reconnecting: true, .. }), "{error:?}");
    }
}
