//! Regions that many connections expose, and protection domains that connections share.

use adverb_verbs::Status;
use adverb_verbs::memory::Pages;

use super::*;
use crate::error::{BindError, ConnectionError, ExposeError, RecvError, RemoteError, RemoteErrorKind};
use crate::shared_region::SharedRegion;

pub(super) const LEN: usize = 1 << 20;

/// Returns options for connections that share a domain and do not reconnect.
pub(super) fn sharing() -> Options {
    options_without_reconnect().shared_domain(true)
}

/// Returns the options of a device without windows.
pub(super) fn without_windows(options: Options) -> Options {
    Options { without_windows: true, ..options }
}

/// Returns a region that contains its offsets.
pub(super) fn region() -> SharedRegion {
    let region = SharedRegion::allocate(LEN).unwrap();
    (0..LEN).step_by(8).for_each(|at| region.write(at, &(at as u64).to_le_bytes()).unwrap());
    region
}

/// A listener, and both ends of connections to it.
pub(super) struct Peers {
    pub(super) listener: Listener,
    pub(super) clients: Vec<Connection>,
    pub(super) servers: Vec<Connection>,
}

pub(super) fn peers(listener: Listener, options: &Options, count: usize) -> Peers {
    let connector = Connector::new().options(&Options { domains: None, ..options.clone() });
    let mut peers = Peers { listener, clients: Vec::new(), servers: Vec::new() };
    for _ in 0..count {
        let (client, server) = scope(|scope| {
            let client = scope.spawn(|| connector.connect(peers.listener.local_addr()).unwrap());
            let server = peers.listener.accept().unwrap();
            (client.join().unwrap(), server)
        });
        peers.clients.push(client);
        peers.servers.push(server);
    }
    peers
}

/// Connects clients to a listener with these options.
pub(super) fn connect(options: &Options, count: usize) -> Peers {
    let listener = Listener::builder().options(options).bind(any_port(options)).unwrap();
    peers(listener, options, count)
}

/// Connects clients to a listener that exposes "chunks" to each of them.
pub(super) fn connect_and_expose(options: &Options, region: &SharedRegion, count: usize) -> Peers {
    let builder = Listener::builder().options(options).expose_region("chunks", region, RemoteAccess::READ);
    peers(builder.bind(any_port(options)).unwrap(), options, count)
}

/// Reads the word at an offset of "chunks".
pub(super) fn read(client: &Connection, at: u64) -> Result<u64, RemoteError> {
    let bytes = client.remote_region("chunks")?.read(at..at + 8)?;
    Ok(u64::from_le_bytes(bytes[..].try_into().unwrap()))
}

/// Returns the address of "chunks" for a client.
pub(super) fn address(client: &Connection) -> RemoteAddress {
    let driver = client.driver();
    let region = driver.find_region(&mut driver.lock(), "chunks").unwrap().expect("the region is announced");
    region.remote_addr(0, 8, RemoteAccess::READ).unwrap()
}

/// Posts a READ that the connection does not know, and that the peer's device must reject.
pub(super) fn post_read(client: &Connection, from: RemoteAddress) {
    let driver = client.driver();
    assert!(driver.post(SendRequest::read(driver.pool().allocate(8).unwrap(), from).tag(2)));
}

#[test]
fn a_listener_exposes_a_region_to_each_peer() {
    for options in [sharing(), without_windows(sharing()), options_without_reconnect()] {
        let region = region();
        let peers = connect_and_expose(&options, &region, 3);
        for (number, client) in peers.clients.iter().enumerate() {
            let at = 4096 * number as u64;
            assert_eq!(read(client, at).unwrap(), at);
            let error = client.remote_region("chunks").unwrap().write(0, b"x").unwrap_err();
            assert!(matches!(error.kind, RemoteErrorKind::NotPermitted { .. }), "{error}");
        }
        // The memory is one: all peers see a change.
        region.write(8, &[7; 8]).unwrap();
        for client in &peers.clients {
            assert_eq!(read(client, 8).unwrap(), u64::from_le_bytes([7; 8]));
        }
    }
}

#[test]
fn each_peer_has_rights_of_its_own() {
    for options in [sharing(), without_windows(sharing())] {
        let region = region();
        let peers = connect(&options, 2);
        peers.servers[0].expose_region("chunks", &region, RemoteAccess::READ).unwrap();
        let access = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
        peers.servers[1].expose_region("chunks", &region, access).unwrap();
        let writer = peers.clients[1].remote_region("chunks").unwrap();
        writer.write(0, &5_u64.to_le_bytes()).unwrap();
        assert_eq!(writer.fetch_add(0, 2).unwrap(), 5);
        assert_eq!(read(&peers.clients[0], 0).unwrap(), 7);
        assert!(peers.clients[0].remote_region("chunks").unwrap().fetch_add(0, 1).is_err());
        assert_eq!(region.word(0).unwrap().load(Ordering::Relaxed), 7);
    }
}

#[test]
fn a_key_of_another_peer_is_rejected() {
    let region = region();
    let peers = connect_and_expose(&sharing(), &region, 2);
    let [first, second] = &peers.clients[..] else { unreachable!() };
    assert_eq!(read(first, 8).unwrap(), 8);
    let _ = second.remote_region("chunks").unwrap();
    // The peer's device rejects the key, although both connections belong to the same domain.
    post_read(second, address(first));
    assert!(second.recv().is_err());
    assert_eq!(read(first, 16).unwrap(), 16);
    // The key of the ring of another peer is rejected, too.
    let (third, _server) = connect_again(&peers);
    let ring = first.driver().peer_ring();
    let driver = third.driver();
    assert!(driver.post(SendRequest::write(driver.pool().allocate(8).unwrap(), ring).tag(2)));
    assert!(third.recv().is_err());
    assert_eq!(read(first, 24).unwrap(), 24);
}

/// Connects another client. Returns both ends.
fn connect_again(peers: &Peers) -> (Connection, Connection) {
    let options = Options { domains: None, ..sharing() };
    let connector = Connector::new().options(&options);
    let (client, server) = scope(|scope| {
        let client = scope.spawn(|| connector.connect(peers.listener.local_addr()).unwrap());
        let server = peers.listener.accept().unwrap();
        (client.join().unwrap(), server)
    });
    assert_eq!(read(&client, 0).unwrap(), 0);
    (client, server)
}

#[test]
fn a_withdrawal_ends_the_access_of_one_peer() {
    let region = region();
    let peers = connect_and_expose(&sharing(), &region, 3);
    let before = peers.clients[0].remote_region("chunks").unwrap();
    assert_eq!(read(&peers.clients[0], 8).unwrap(), 8);
    assert!(!peers.servers[0].withdraw("other"));
    assert!(peers.servers[0].withdraw("chunks"));
    assert!(!peers.servers[0].withdraw("chunks"));
    // The announcement precedes the message.
    peers.servers[0].send(b"withdrawn").unwrap();
    assert_eq!(&peers.clients[0].recv().unwrap().unwrap()[..], b"withdrawn");
    let error = before.read(0..8).unwrap_err();
    assert!(matches!(&error.kind, RemoteErrorKind::Withdrawn { name, .. } if &**name == "chunks"), "{error}");
    for client in &peers.clients[1..] {
        assert_eq!(read(client, 16).unwrap(), 16);
    }
    // The connection still works, and the region can be exposed again.
    peers.servers[0].expose_region("chunks", &region, RemoteAccess::READ | RemoteAccess::WRITE).unwrap();
    peers.clients[0].remote_region("chunks").unwrap().write(8, &[1; 8]).unwrap();
    assert!(before.read(0..8).is_err());
    assert_eq!(read(&peers.clients[1], 8).unwrap(), u64::from_le_bytes([1; 8]));
}

#[test]
fn a_peer_that_ignores_a_withdrawal_has_no_access() {
    let region = region();
    let peers = connect_and_expose(&sharing(), &region, 2);
    let [first, second] = &peers.clients[..] else { unreachable!() };
    assert_eq!((read(first, 8).unwrap(), read(second, 8).unwrap()), (8, 8));
    let from = address(first);
    // The client makes no call that would receive the announcement.
    assert!(peers.servers[0].withdraw("chunks"));
    post_read(first, from);
    let error = first.recv().unwrap_err();
    let RecvError::ConnectionLost(error) = error else { panic!("{error}") };
    let is_refused = matches!(error, ConnectionError::RequestFailed { status: Status::RemoteAccess, .. });
    assert!(is_refused, "{error}");
    assert!(peers.servers[0].recv().is_err());
    assert_eq!(read(second, 16).unwrap(), 16);
}

/// Posts a READ of 8 bytes of "chunks" without receiving the peer's announcements, and waits for it.
fn read_without_announcements(client: &Connection) -> RemoteErrorKind {
    let driver = client.driver();
    let region = driver.find_region(&mut driver.lock(), "chunks").unwrap().expect("the region is announced");
    let mut operation = [driver.prepare_read(&region, &(0..8)).unwrap()];
    driver.post_operations(&mut operation).unwrap();
    let timeout = driver.options.timeout;
    driver.wait(timeout, |driver, core| driver.poll_operation(core, &mut operation[0])).unwrap_err()
}

#[test]
fn a_withdrawal_ends_a_connection_with_an_operation_in_flight() {
    let peers = connect_and_expose(&sharing(), &region(), 1);
    assert_eq!(read(&peers.clients[0], 8).unwrap(), 8);
    assert!(peers.servers[0].withdraw("chunks"));
    let error = read_without_announcements(&peers.clients[0]);
    assert!(is_refused(&error), "{error:?}");
    assert!(error.is_retryable() && error.hint().unwrap().starts_with("connect again"), "{:?}", error.hint());
}

/// Whether the peer's device has refused an operation, which ended the connection.
fn is_refused(error: &RemoteErrorKind) -> bool {
    let RemoteErrorKind::ConnectionLost(reason) = error else { return false };
    matches!(reason, ConnectionError::RequestFailed { status: Status::RemoteAccess, .. })
}

#[test]
fn every_operation_of_an_ended_connection_returns_the_reason_of_the_end() {
    let peers = connect_and_expose(&sharing(), &region(), 1);
    let (client, server) = (&peers.clients[0], &peers.servers[0]);
    let pages = Pages::new(4096).unwrap();
    server.expose_addresses(1 << 20, pages, RemoteAccess::READ).unwrap();
    let (chunks, space) = (client.remote_region("chunks").unwrap(), client.address_space().unwrap());
    assert!(server.withdraw("chunks"));
    let error = read_without_announcements(client);
    assert!(is_refused(&error), "{error:?}");
    // The connection may still be draining, and the announcement of the withdrawal arrives meanwhile.
    for _ in 0..2 {
        let errors = [
            chunks.read(0..8).unwrap_err(), // withdrawn
            chunks.read_many([0..8, 8..16]).unwrap_err(),
            chunks.read(0..u64::MAX).unwrap_err(), // out of bounds
            chunks.read_into(u64::MAX, client.pool().allocate(8).unwrap()).unwrap_err(),
            chunks.write(0, b"x").unwrap_err(),  // not permitted
            chunks.fetch_add(4, 1).unwrap_err(), // not aligned
            chunks.compare_swap(0, 1, 2).unwrap_err(),
            space.read(0..8).unwrap_err(), // not exposed
        ];
        for (index, error) in errors.iter().enumerate() {
            assert!(is_refused(&error.kind), "{index}: {error:?}");
        }
        assert!(client.recv().is_err());
    }
}

#[test]
fn a_withdrawal_interrupts_an_operation_in_flight_if_the_connection_reconnects() {
    let (region, options) = (region(), options().shared_domain(true));
    let peers = connect_and_expose(&options, &region, 1);
    let (client, server) = (&peers.clients[0], &peers.servers[0]);
    assert_eq!(read(client, 8).unwrap(), 8);
    region.withdraw();
    let error = read_without_announcements(client);
    assert!(matches!(error, RemoteErrorKind::Interrupted { .. }), "{error:?}");
    scope(|scope| {
        scope.spawn(|| peers.listener.accept().map(drop));
        let _stop = Stop(&peers.listener);
        let waiting = scope.spawn(|| server.recv_timeout(Duration::from_secs(20)));
        while client.driver().is_reconnecting() {
            let _ = client.recv_timeout(Duration::from_millis(10));
        }
        let error = client.remote_region_timeout("chunks", Duration::from_millis(50)).unwrap_err();
        let RemoteErrorKind::RegionTimedOut { name, is_reconnecting: false, .. } = &error.kind else {
            panic!("{error:?}")
        };
        assert_eq!(name.as_deref(), Some("chunks"));
        client.send(b"done").unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn without_windows_a_withdrawal_fails_the_lane() {
    for options in [without_windows(sharing()), options_without_reconnect()] {
        let peers = connect(&options, 2);
        let [first, second] = &peers.clients[..] else { unreachable!() };
        for server in &peers.servers {
            server.expose("chunks", LEN, RemoteAccess::READ).unwrap();
        }
        assert_eq!((read(first, 8).unwrap(), read(second, 8).unwrap()), (0, 0));
        assert!(peers.servers[0].withdraw("chunks"));
        let error = peers.servers[0].recv().unwrap_err();
        let RecvError::ConnectionLost(error) = error else { panic!("{error}") };
        assert!(matches!(error, ConnectionError::MemoryWithdrawn { .. }), "{error}");
        assert!(first.recv().is_err());
        assert_eq!(read(second, 16).unwrap(), 0);
    }
}

#[test]
fn a_withdrawn_region_is_not_exposed_over_another_lane() {
    for options in [options().shared_domain(true), without_windows(options().shared_domain(true)), options()]
    {
        with_pair([&options, &options], |left, right| {
            right.expose("kept", 4096, RemoteAccess::READ).unwrap();
            right.expose("chunks", 4096, RemoteAccess::READ).unwrap();
            assert_eq!(read(left, 8).unwrap(), 0);
            assert!(right.withdraw("chunks"));
            left.driver().fail_lane();
            scope(|scope| {
                // A call must drive the other side until the regions are announced.
                let waiting = scope.spawn(|| right.recv_timeout(Duration::from_secs(20)));
                while left.driver().has_first_lane() {
                    let _ = left.recv_timeout(Duration::from_millis(10));
                }
                assert_eq!(left.remote_region("kept").unwrap().read(0..1).unwrap()[..], [0]);
                let driver = left.driver();
                assert!(driver.find_region(&mut driver.lock(), "chunks").unwrap().is_none());
                left.send(b"done").unwrap();
                waiting.join().unwrap().unwrap();
            });
        });
    }
}

#[test]
fn a_shared_region_is_exposed_again_over_another_lane() {
    for options in [options(), without_windows(options())] {
        let region = region();
        let builder =
            Listener::builder().options(&options).expose_region("chunks", &region, RemoteAccess::READ);
        let peers = peers(builder.bind(any_port(&options)).unwrap(), &options, 2);
        let (client, server) = (&peers.clients[0], &peers.servers[0]);
        assert_eq!(read(client, 8).unwrap(), 8);
        scope(|scope| {
            scope.spawn(|| peers.listener.accept().map(drop));
            let _stop = Stop(&peers.listener);
            let waiting = scope.spawn(|| server.recv_timeout(Duration::from_secs(20)));
            client.driver().fail_lane();
            while client.driver().has_first_lane() {
                let _ = client.recv_timeout(Duration::from_millis(10));
            }
            assert_eq!(read(client, 16).unwrap(), 16);
            client.send(b"done").unwrap();
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(read(&peers.clients[1], 24).unwrap(), 24);
    }
}

#[test]
fn a_withdrawal_from_all_peers_ends_all_access() {
    for options in [sharing(), without_windows(sharing())] {
        let region = region();
        let peers = connect_and_expose(&options, &region, 2);
        let remotes: Vec<_> =
            peers.clients.iter().map(|client| client.remote_region("chunks").unwrap()).collect();
        let from = address(&peers.clients[1]);
        region.withdraw();
        assert!(region.is_withdrawn());
        peers.servers[0].send(b"withdrawn").unwrap();
        peers.clients[0].recv().unwrap().unwrap();
        let error = remotes[0].read(0..8).unwrap_err();
        assert!(matches!(error.kind, RemoteErrorKind::Withdrawn { .. }), "{error}");
        // The key is invalid, too.
        post_read(&peers.clients[1], from);
        assert!(peers.clients[1].recv().is_err());
        let error = peers.servers[0].expose_region("again", &region, RemoteAccess::READ).unwrap_err();
        assert!(matches!(error, ExposeError::Withdrawn), "{error}");
        // Later peers get a connection without the region, and this process can still use the memory.
        let Peers { clients, .. } = self::peers(peers.listener, &options, 1);
        let driver = clients[0].driver();
        assert!(driver.find_region(&mut driver.lock(), "chunks").unwrap().is_none());
        region.write(0, b"mine").unwrap();
    }
}

#[test]
fn a_region_is_registered_once_for_all_peers() {
    let device = adverb_verbs::SoftDevice::loopback().open().unwrap();
    let counts = || device.resource_counts().unwrap();
    let options = Options::new().device(&device).timeout(Duration::from_secs(60));
    let peers = connect_and_expose(&options, &region(), 10);
    let read_all = || peers.clients.iter().for_each(|client| assert_eq!(read(client, 8).unwrap(), 8));
    read_all();
    // Each peer has a window for this side's ring, and one for the region.
    let (regions, windows) = (counts().regions, counts().windows);
    assert_eq!(windows, 20);
    let second = region();
    for server in &peers.servers {
        server.withdraw("chunks");
        server.expose_region("chunks", &second, RemoteAccess::READ).unwrap();
    }
    read_all();
    assert_eq!((counts().regions, counts().windows), (regions + 1, windows));
    second.withdraw();
    assert_eq!((counts().regions, counts().windows), (regions, 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_expose_and_withdraw_shared_regions() {
    let (region, options) = (region(), sharing());
    let builder =
        crate::Listener::builder().options(&options).expose_region("chunks", &region, RemoteAccess::READ);
    let listener = builder.bind(any_port(&options)).await.unwrap();
    let connector = crate::Connector::new().options(&options);
    let (client, server) = tokio::join!(connector.connect(listener.local_addr()), listener.accept());
    let (client, server) = (client.unwrap(), server.unwrap());
    let chunks = client.remote_region("chunks").await.unwrap();
    assert_eq!(chunks.read(8..16).await.unwrap()[..], 8_u64.to_le_bytes());
    server.expose_region("table", &region, RemoteAccess::WRITE).await.unwrap();
    client.remote_region("table").await.unwrap().write(8, &[1; 8]).await.unwrap();
    assert!(server.withdraw("chunks"));
    server.send(b"withdrawn").await.unwrap();
    client.recv().await.unwrap().unwrap();
    assert!(chunks.read(8..16).await.is_err());
    client.remote_region("table").await.unwrap().write(8, &[2; 8]).await.unwrap();
    assert_eq!(region.word(8).unwrap().load(Ordering::Relaxed), u64::from_ne_bytes([2; 8]));
}

#[test]
fn a_connection_with_a_domain_of_its_own_exposes_no_shared_region() {
    let options = options_without_reconnect();
    let peers = connect(&options, 1);
    let error = peers.servers[0].expose_region("chunks", &region(), RemoteAccess::READ).unwrap_err();
    assert!(matches!(error, ExposeError::UnsharedDomain { .. }), "{error}");
    let name = "x".repeat(65);
    let builder = Listener::builder().options(&options).expose_region(name, &region(), RemoteAccess::READ);
    assert!(matches!(
        builder.bind(any_port(&options)).map(drop),
        Err(BindError::RegionName { len: 65, max: 64 })
    ));
}

#[test]
fn more_regions_are_exposed_than_windows_are_bound_at_once() {
    let region = region();
    let mut builder = Listener::builder().options(&options_without_reconnect());
    for number in 0..100 {
        builder = builder.expose_region(format!("region {number}"), &region, RemoteAccess::READ);
    }
    let peers = peers(builder.bind(any_port(&sharing())).unwrap(), &sharing(), 1);
    scope(|scope| {
        scope.spawn(|| peers.servers[0].recv().unwrap());
        for number in 0..100 {
            let remote = peers.clients[0].remote_region(&format!("region {number}")).unwrap();
            assert_eq!(remote.read(8..16).unwrap()[..], 8_u64.to_le_bytes());
        }
        peers.clients[0].send(b"done").unwrap();
    });
}

#[test]
fn memory_of_the_caller_is_shared() {
    let region = SharedRegion::new(Pages::prefer_huge(LEN).unwrap());
    region.write(LEN - 8, &9_u64.to_le_bytes()).unwrap();
    let peers = connect_and_expose(&sharing(), &region, 1);
    assert_eq!(read(&peers.clients[0], LEN as u64 - 8).unwrap(), 9);
    assert!(region.write(LEN - 7, &[0; 8]).is_err());
}

/// A window may be larger than 4 GiB, although a segment of a request may not.
#[test]
fn a_region_of_more_than_4_gib_is_exposed() {
    if std::env::var("ADVERB_DEVICE").is_ok() {
        return println!("SKIPPED: hardware would pin 5 GiB");
    }
    // The pages that are not used take no memory.
    let Ok(region) = SharedRegion::allocate(5 << 30) else {
        return println!("SKIPPED: the system does not allocate 5 GiB");
    };
    region.write((5 << 30) - 8, &3_u64.to_le_bytes()).unwrap();
    let peers = connect_and_expose(&sharing(), &region, 1);
    assert_eq!(peers.clients[0].remote_region("chunks").unwrap().len(), 5 << 30);
    assert_eq!(read(&peers.clients[0], (5 << 30) - 8).unwrap(), 3);
}

#[test]
fn messages_are_neither_lost_nor_duplicated_when_lanes_of_a_shared_domain_fail() {
    for options in [options().shared_domain(true), without_windows(options().shared_domain(true))] {
        with_pair([&options, &options], |left, right| {
            exchange(left, right, || {
                fail_repeatedly(left.driver(), |round| {
                    left.driver().fail_lane();
                    if round % 2 == 1 {
                        right.driver().fail_lane();
                    }
                })
            });
        });
    }
}

/// Withdrawals, exposures, and failures of lanes happen at any time.
#[test]
fn regions_are_exposed_and_withdrawn_while_lanes_fail() {
    let options = options().shared_domain(true);
    with_pair([&options, &options], |left, right| {
        let (region, is_over) = (region(), AtomicBool::new(false));
        scope(|scope| {
            let exposing = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    right.expose_region("chunks", &region, RemoteAccess::READ).unwrap();
                    sleep(Duration::from_millis(3));
                    assert!(right.withdraw("chunks"));
                }
            });
            let reading = scope.spawn(|| {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    // A read may meet a withdrawal, or a failure of the lane.
                    if let Ok(word) = read(left, 8) {
                        assert_eq!(word, 8);
                        count += 1;
                    }
                }
                count
            });
            let has_reconnected = fail_repeatedly(left.driver(), |_| _ = left.driver().fail_lane());
            is_over.store(true, Ordering::Relaxed);
            exposing.join().unwrap();
            // The reader may wait for a region.
            right.expose_region("chunks", &region, RemoteAccess::READ).unwrap();
            assert!(has_reconnected && reading.join().unwrap() > 0);
        });
    });
}
