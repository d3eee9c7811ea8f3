//! Registrations of shared regions that take long, and withdrawals at the same time.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::thread::ThreadId;

use adverb_verbs::SoftDevice;
use adverb_verbs::memory::Pages;

use super::shared::{
    LEN, Peers, address, connect, connect_and_expose, peers, post_read, read, region, sharing,
    without_windows,
};
use super::*;
use crate::driver::with_revocation_failure;
use crate::error::{BindError, ExposeError};
use crate::shared_region::SharedRegion;

/// The time after which a call that does not return counts as blocked.
const BLOCKED: Duration = Duration::from_millis(200);

/// The registrations of a region. Each waits until the test permits it.
struct Registrations {
    /// The thread of each registration.
    begun: Receiver<ThreadId>,
    permissions: Sender<()>,
}

impl Registrations {
    fn hold(region: &SharedRegion) -> Registrations {
        let ((begin, begun), (permissions, permitted)) = (channel(), channel::<()>());
        let permitted = Mutex::new(permitted);
        region.set_before_registering(move || {
            // The test may have ended.
            let _ = begin.send(std::thread::current().id());
            let _ = permitted.lock().unwrap().recv();
            Ok(())
        });
        Registrations { begun, permissions }
    }

    /// Waits until a registration begins.
    fn wait_for_one(&self) {
        self.begun.recv_timeout(Duration::from_secs(20)).expect("the memory is registered");
    }

    fn permit_one(&self) {
        self.permissions.send(()).unwrap();
    }
}

/// Returns options for connections over a device of their own, and a function that returns the number of its regions.
fn options_of_device() -> (Options, impl Fn() -> usize) {
    let device = SoftDevice::loopback().open().unwrap();
    let options = Options::new().device(&device).timeout(Duration::from_secs(60));
    (options, move || device.resource_counts().unwrap().regions)
}

#[test]
fn a_registration_in_progress_blocks_no_other_connection_and_no_withdrawal() {
    let (options, region_count) = options_of_device();
    let region = region();
    let other = connect_and_expose(&options, &region, 1);
    let count = region_count();
    let registrations = Registrations::hold(&region);
    scope(|scope| {
        let builder =
            Listener::builder().options(&options).expose_region("chunks", &region, RemoteAccess::READ);
        let binding = scope.spawn(move || builder.bind("127.0.0.1:0").unwrap());
        registrations.wait_for_one();
        // Another listener accepts, and exposes the region.
        let _more = peers(other.listener, &options, 1);
        assert_eq!(read(&other.clients[0], 8).unwrap(), 8);
        other.servers[0].expose_region("again", &region, RemoteAccess::READ).unwrap();
        region.withdraw();
        assert!(!binding.is_finished());
        registrations.permit_one();
        drop(binding.join().unwrap());
    });
    // The registration of the first listener and that of the second are gone.
    drop(other.servers);
    drop(other.clients);
    assert!(region_count() < count, "{} of {count} regions are registered", region_count());
}

#[test]
fn two_listeners_register_a_region_once_in_their_domain() {
    let (options, region_count) = options_of_device();
    let (options, region) = (options.shared_domain(true), region());
    let count = region_count();
    let registrations = Registrations::hold(&region);
    scope(|scope| {
        let bind = || {
            let builder =
                Listener::builder().options(&options).expose_region("chunks", &region, RemoteAccess::READ);
            builder.bind("127.0.0.1:0").unwrap()
        };
        let first = scope.spawn(bind);
        registrations.wait_for_one();
        let second = scope.spawn(bind);
        sleep(BLOCKED);
        assert!(!second.is_finished());
        registrations.permit_one();
        let _listeners = (first.join().unwrap(), second.join().unwrap());
        assert!(registrations.begun.try_recv().is_err());
        assert_eq!(region_count(), count + 1);
    });
}

/// A session resumes over a listener with another protection domain, in which the region is not registered.
#[test]
fn a_session_that_waits_for_a_registration_blocks_no_other_peer() {
    let options = options();
    for is_withdrawn in [false, true] {
        let region = region();
        let (first, second) = (options.clone().shared_domain(true), options.clone().shared_domain(true));
        let builder =
            Listener::builder().options(&first).expose_region("chunks", &region, RemoteAccess::READ);
        let listener = builder.bind(any_port(&options)).unwrap();
        let other = self::region();
        let builder = Listener::builder().options(&second).expose_region("other", &other, RemoteAccess::READ);
        let next = builder.bind(any_port(&options)).unwrap();
        let connector = Connector::new().options(&options).alternate_addr(next.local_addr().to_string());
        let connect = |listener: &Listener| {
            scope(|scope| {
                let client = scope.spawn(|| connector.connect(listener.local_addr()).unwrap());
                let server = listener.accept().unwrap();
                (client.join().unwrap(), server)
            })
        };
        let ends = [connect(&listener), connect(&listener)];
        ends.iter().for_each(|(client, _)| assert_eq!(read(client, 8).unwrap(), 8));
        let registrations = Registrations::hold(&region);
        listener.stop();
        scope(|scope| {
            let accepted = scope.spawn(|| next.accept().unwrap());
            let waiting = ends.each_ref().map(|(client, server)| {
                client.driver().fail_lane();
                [client, server].map(|end| scope.spawn(|| end.recv_timeout(Duration::from_secs(20))))
            });
            registrations.wait_for_one();
            // Another peer connects, and the region can be withdrawn.
            let other = Connector::new().options(&options).connect(next.local_addr()).unwrap();
            let accepted = accepted.join().unwrap();
            accepted.send(b"hello").unwrap();
            assert_eq!(&other.recv().unwrap().unwrap()[..], b"hello");
            if is_withdrawn {
                region.withdraw();
            }
            registrations.permit_one();
            let _stop = Stop(&next);
            scope.spawn(|| next.accept().map(drop));
            for ((client, server), waiting) in ends.iter().zip(waiting) {
                while client.driver().has_first_lane() {
                    sleep(Duration::from_millis(1));
                }
                match is_withdrawn {
                    false => assert_eq!(read(client, 16).unwrap(), 16),
                    true => {
                        let driver = client.driver();
                        assert!(driver.find_region(&mut driver.lock(), "chunks").unwrap().is_none());
                    }
                }
                // The session keeps its regions, and gets none of the listener over which it resumes.
                let driver = client.driver();
                assert!(driver.find_region(&mut driver.lock(), "other").unwrap().is_none());
                client.send(b"done").unwrap();
                server.send(b"done").unwrap();
                waiting.into_iter().for_each(|waiting| drop(waiting.join().unwrap().unwrap()));
            }
        });
        assert!(registrations.begun.try_recv().is_err());
    }
}

#[test]
fn a_session_ends_if_a_region_cannot_be_registered_for_another_lane() {
    let (options, region) = (options(), region());
    let [first, second] = [(); 2].map(|()| options.clone().shared_domain(true));
    let builder = Listener::builder().options(&first).expose_region("chunks", &region, RemoteAccess::READ);
    let listener = builder.bind(any_port(&options)).unwrap();
    let next = Listener::builder().options(&second).bind(any_port(&options)).unwrap();
    let connector = Connector::new().options(&options).alternate_addr(next.local_addr().to_string());
    scope(|scope| {
        let client = scope.spawn(|| connector.connect(listener.local_addr()).unwrap());
        let server = listener.accept().unwrap();
        let client = client.join().unwrap();
        region.set_before_registering(|| {
            let source = std::io::ErrorKind::OutOfMemory.into();
            Err(adverb_verbs::Error::Allocation { len: LEN, source })
        });
        listener.stop();
        scope.spawn(|| next.accept().map(drop));
        let _stop = Stop(&next);
        client.driver().fail_lane();
        let waiting = scope.spawn(move || client.recv().map(drop));
        let error = server.recv().unwrap_err();
        assert!(matches!(error, RecvError::ConnectionLost(ConnectionError::Device { .. })), "{error:?}");
        drop(server);
        assert!(waiting.join().unwrap().is_err());
    });
}

#[test]
fn concurrent_withdrawals_return_when_no_peer_has_access() {
    for options in [sharing(), without_windows(sharing())] {
        let region = region();
        let peers = connect_and_expose(&options, &region, 1);
        assert_eq!(read(&peers.clients[0], 8).unwrap(), 8);
        let from = address(&peers.clients[0]);
        scope(|scope| {
            // The first withdrawal waits for the connection's lock.
            let core = peers.servers[0].driver().lock();
            let first = scope.spawn(|| region.withdraw());
            while !region.is_withdrawn() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| region.withdraw());
            sleep(BLOCKED);
            assert!(!first.is_finished() && !second.is_finished());
            drop(core);
            second.join().unwrap();
            post_read(&peers.clients[0], from);
            assert!(peers.clients[0].recv().is_err());
        });
    }
}

#[test]
fn a_connection_that_exposes_a_region_again_and_again_is_known_once() {
    let region = region();
    let peers = connect(&sharing(), 2);
    for _ in 0..100 {
        for (client, server) in peers.clients.iter().zip(&peers.servers) {
            server.expose_region("chunks", &region, RemoteAccess::READ).unwrap();
            client.remote_region("chunks").unwrap();
            assert!(server.withdraw("chunks"));
        }
    }
    assert_eq!(region.peer_count(), 2);
    // Connections that have ended are forgotten when others are added.
    drop(peers);
    for _ in 0..10 {
        connect(&sharing(), 1).servers[0].expose_region("chunks", &region, RemoteAccess::READ).unwrap();
    }
    assert!(region.peer_count() < 8, "{} connections are known", region.peer_count());
}

#[tokio::test]
async fn other_tasks_run_while_a_region_is_registered() {
    let (region, options) = (region(), sharing());
    let listener = crate::Listener::builder().options(&options).bind(any_port(&options)).await.unwrap();
    let connector = crate::Connector::new().options(&options);
    let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let registrations = Registrations::hold(&region);
    let permit = async {
        while registrations.begun.try_recv().is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        registrations.permit_one();
    };
    let expose = server.expose_region("chunks", &region, RemoteAccess::READ);
    let (exposed, ()) = tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(expose, permit) })
        .await
        .expect("the runtime is not blocked");
    exposed.unwrap();
    let chunks = client.remote_region("chunks").await.unwrap();
    assert_eq!(chunks.read(8..16).await.unwrap()[..], 8_u64.to_le_bytes());
}

/// While the region is registered in one domain, the session resumes over a listener with another domain.
#[tokio::test]
async fn no_thread_of_a_runtime_registers_a_region_after_a_reconnect() {
    let (options, region) = (options(), region());
    let [first, second] = [(); 2].map(|()| options.clone().shared_domain(true));
    let listener = crate::Listener::builder().options(&first).bind(any_port(&options)).await.unwrap();
    let next = crate::Listener::builder().options(&second).bind(any_port(&options)).await.unwrap();
    let connector = crate::Connector::new().options(&options).alternate_addr(next.local_addr().to_string());
    let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let registrations = Registrations::hold(&region);
    let is_of_runtime = |thread| thread == std::thread::current().id();
    let reconnect = async {
        while registrations.begun.try_recv().map(is_of_runtime) != Ok(false) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        listener.stop();
        client.driver().fail_lane();
        while server.driver().has_first_lane() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // One for each domain.
        registrations.permit_one();
        registrations.permit_one();
        std::future::pending::<()>().await;
    };
    let expose = server.expose_region("chunks", &region, RemoteAccess::READ);
    tokio::time::timeout(Duration::from_secs(20), async {
        tokio::select! {
            exposed = expose => exposed.unwrap(),
            received = client.recv() => panic!("{received:?}"),
            accepted = next.accept() => panic!("{accepted:?}"),
            () = reconnect => {}
        }
    })
    .await
    .expect("the runtime is not blocked");
    let chunks = client.remote_region("chunks").await.unwrap();
    assert_eq!(chunks.read(8..16).await.unwrap()[..], 8_u64.to_le_bytes());
    assert_eq!(registrations.begun.try_recv().map(is_of_runtime), Ok(false));
}

/// Connects a client that receives nothing, until its listener has no credits. Returns the number of the device's regions.
fn connect_without_credits(is_sharing: bool) -> (Peers, impl Fn() -> usize) {
    let (options, region_count) = options_of_device();
    let options = options.recv_ring_size(512).max_outstanding_writes(4).timeout(Duration::from_secs(1));
    let peers = connect(&options.shared_domain(is_sharing), 1);
    while peers.servers[0].try_send(b"a message").is_ok() {}
    (peers, region_count)
}

#[test]
fn memory_that_is_not_announced_in_time_is_not_exposed() {
    for is_sharing in [false, true] {
        let (peers, region_count) = connect_without_credits(is_sharing);
        let (client, server) = (&peers.clients[0], &peers.servers[0]);
        // The first call may allocate memory of the pool.
        let mut count = 0;
        for _ in 0..2 {
            count = region_count();
            let error = server.expose("memory", 4096, RemoteAccess::READ).unwrap_err();
            assert!(error.is_timeout(), "{error}");
        }
        let pages = Pages::new(4096).unwrap();
        let error = server.expose_addresses(0x1000_0000, pages, RemoteAccess::READ).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        if is_sharing {
            let region = region();
            let error = server.expose_region("chunks", &region, RemoteAccess::READ).unwrap_err();
            assert!(error.is_timeout(), "{error}");
            region.withdraw();
        }
        assert_eq!(region_count(), count);
        // The connection is usable, and the peer finds no memory.
        scope(|scope| {
            let sending = scope.spawn(|| server.send_timeout(b"done", Duration::from_secs(20)).unwrap());
            while &client.recv_timeout(Duration::from_secs(20)).unwrap().unwrap()[..] != b"done" {}
            sending.join().unwrap();
        });
        for name in ["memory", "chunks"] {
            assert!(client.remote_region(name).unwrap_err().is_timeout());
        }
        assert!(client.address_space().unwrap_err().is_timeout());
        server.expose("memory", 4096, RemoteAccess::READ).unwrap();
        assert_eq!(client.remote_region("memory").unwrap().len(), 4096);
    }
}

#[tokio::test]
async fn memory_is_not_exposed_if_the_future_is_dropped() {
    let (options, region_count) = options_of_device();
    let options = options.recv_ring_size(512).max_outstanding_writes(4);
    let listener = crate::Listener::builder().options(&options).bind("127.0.0.1:0").await.unwrap();
    let connector = crate::Connector::new().options(&options);
    let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (_client, server) = (client.unwrap(), server.unwrap());
    while server.try_send(b"a message").is_ok() {}
    let access = RemoteAccess::READ;
    let limit = Duration::from_millis(50);
    // The first call may allocate memory of the pool.
    let mut count = 0;
    for _ in 0..2 {
        count = region_count();
        assert!(tokio::time::timeout(limit, server.expose("memory", 4096, access)).await.is_err());
    }
    let pages = Pages::new(4096).unwrap();
    assert!(tokio::time::timeout(limit, server.expose_addresses(0x1000_0000, pages, access)).await.is_err());
    assert_eq!(region_count(), count);
}

/// If the device does not free a window, the end of the queue pair ends the access.
#[test]
fn a_window_that_is_not_freed_fails_the_lane() {
    for is_withdrawn_from_all in [false, true] {
        let region = region();
        let peers = connect_and_expose(&sharing(), &region, 2);
        let [first, second] = &peers.clients[..] else { unreachable!() };
        assert_eq!((read(first, 8).unwrap(), read(second, 8).unwrap()), (8, 8));
        with_revocation_failure(|| match is_withdrawn_from_all {
            false => assert!(peers.servers[0].withdraw("chunks")),
            true => region.withdraw(),
        });
        let ended = peers.servers.iter().filter(|server| {
            matches!(
                server.recv_timeout(BLOCKED),
                Err(RecvError::ConnectionLost(ConnectionError::MemoryWithdrawn { .. }))
            )
        });
        assert_eq!(ended.count(), 1);
        if !is_withdrawn_from_all {
            assert!(first.recv().is_err());
            assert_eq!(read(second, 16).unwrap(), 16);
        }
    }
}

#[test]
fn a_name_is_used_once() {
    let (first, second) = (region(), region());
    let peers = connect_and_expose(&sharing(), &first, 1);
    let (client, server) = (&peers.clients[0], &peers.servers[0]);
    for _ in 0..2 {
        let error = server.expose_region("chunks", &second, RemoteAccess::READ).unwrap_err();
        assert!(matches!(error, ExposeError::NameInUse { .. }), "{error}");
        let error = server.expose("chunks", 8, RemoteAccess::READ).unwrap_err();
        assert!(matches!(error, ExposeError::NameInUse { .. }), "{error}");
        assert_eq!(read(client, 8).unwrap(), 8);
        assert!(server.withdraw("chunks"));
        second.write(8, &9_u64.to_le_bytes()).unwrap();
        server.expose_region("chunks", &second, RemoteAccess::READ).unwrap();
        server.send(b"replaced").unwrap();
        client.recv().unwrap().unwrap();
        assert_eq!(read(client, 8).unwrap(), 9);
        second.write(8, &8_u64.to_le_bytes()).unwrap();
    }
    let builder = Listener::builder().options(&sharing()).expose_region("same", &first, RemoteAccess::READ);
    let bound = builder.expose_region("same", &second, RemoteAccess::WRITE).bind("127.0.0.1:0");
    let Err(BindError::DuplicateRegionName { name }) = bound else { panic!("both have the name") };
    assert_eq!(&*name, "same");
}

/// A connection asserts that no more windows are being bound than its send queue has room for.
#[test]
fn many_threads_expose_regions_at_once() {
    const THREADS: usize = 20;
    let region = region();
    let peers = connect(&sharing(), 1);
    let (client, server) = (&peers.clients[0], &peers.servers[0]);
    for round in 0..5 {
        let barrier = Barrier::new(THREADS);
        scope(|scope| {
            for number in 0..THREADS {
                let (region, barrier) = (&region, &barrier);
                scope.spawn(move || {
                    let name = format!("{round} {number}");
                    barrier.wait();
                    server.expose_region(&name, region, RemoteAccess::READ).unwrap();
                    assert_eq!(client.remote_region(&name).unwrap().read(8..9).unwrap()[..], [8]);
                });
            }
        });
    }
}

/// No call uses the listener's end of the connection after `accept`.
#[test]
fn all_regions_of_a_listener_are_announced_without_further_calls() {
    let region = region();
    let mut builder = Listener::builder().options(&sharing());
    for number in 0..200 {
        builder = builder.expose_region(format!("region {number}"), &region, RemoteAccess::READ);
    }
    let listener = builder.bind(any_port(&sharing())).unwrap();
    let options = Options { domains: None, ..sharing() }.recv_ring_size(4096).max_outstanding_writes(8);
    let read_all = |client: Connection| {
        for number in 0..200 {
            let region = client.remote_region(&format!("region {number}")).unwrap();
            assert_eq!(region.read(8..9).unwrap()[..], [8]);
        }
    };
    scope(|scope| {
        let client = scope.spawn(|| {
            read_all(Connector::new().options(&options).connect(listener.local_addr()).unwrap());
        });
        let _server = listener.accept().unwrap();
        client.join().unwrap();
    });
}

/// A peer that receives no announcements delays neither other peers nor its own connection for long.
#[test]
fn a_silent_peer_is_accepted_before_all_regions_are_announced() {
    let region = region();
    let options = sharing().connect_timeout(Duration::from_secs(10));
    let mut builder = Listener::builder().options(&options);
    for number in 0..100 {
        builder = builder.expose_region(format!("region {number}"), &region, RemoteAccess::READ);
    }
    let listener = builder.bind(any_port(&options)).unwrap();
    let small = Options { domains: None, ..options.clone() }.recv_ring_size(512).max_outstanding_writes(4);
    scope(|scope| {
        let accepting = scope.spawn(|| (listener.accept().unwrap(), listener.accept().unwrap()));
        let silent = Connector::new().options(&small).connect(listener.local_addr()).unwrap();
        let other = scope.spawn(|| {
            let options = Options { domains: None, ..options.clone() };
            let other = Connector::new().options(&options).connect(listener.local_addr()).unwrap();
            other.remote_region("region 99").unwrap();
            other
        });
        let (first, _second) = accepting.join().unwrap();
        // The silent peer is accepted last.
        first.send(b"hello").unwrap();
        assert_eq!(&other.join().unwrap().recv().unwrap().unwrap()[..], b"hello");
        drop(silent);
    });
}
