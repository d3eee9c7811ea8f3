//! The connection manager, on the first device that has addresses. Without one the tests are skipped, and print the
//! reason.

// Without a backend no device exists.
#![cfg(any(feature = "ibv", feature = "soft"))]

mod cmatose;
mod datagrams;
mod drop_order;
mod rping;
#[cfg(feature = "soft")]
mod soft;

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::cm::{
    ConnectRequest, Connection, ConnectionEvent, ConnectionParts, Connector, Listener, MAX_ACCEPT_DATA,
    MAX_CONNECT_DATA, MAX_REJECT_DATA, Path, RejectReason,
};
use adverb::verbs::{
    CompletionQueue, ConnectOptions, Device, Error, ProtectionDomain, QpState, QueuePair, RequestId,
    SendRequest, Status, Traffic,
};

/// Held by tests with a listener on every device of the process, and by tests that expect a device to be closed.
static ALL_DEVICES: Mutex<()> = Mutex::new(());

const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the addresses of this machine's RDMA devices that the connection manager can use.
fn addresses() -> Vec<IpAddr> {
    let devices = match Device::list() {
        Ok(devices) => devices,
        Err(error) => {
            println!("skipped: {error}");
            return Vec::new();
        }
    };
    let usable = devices.iter().filter(|device| device.unsupported_reason.is_none());
    // Software devices stay open, or other processes might take their addresses.
    static OPEN: OnceLock<Vec<Device>> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        // A soft-RoCE device may have the port of a software device.
        usable
            .filter_map(|device| Device::open(&device.name).inspect_err(|error| println!("{error}")).ok())
            .collect()
    });
    let addresses: Vec<IpAddr> = open
        .iter()
        .filter(|device| device.attributes().has_connection_manager)
        .flat_map(|device| device.gids().unwrap())
        .filter(|entry| entry.netdev.is_some() && !entry.gid.is_link_local())
        .map(|entry| entry.gid.ip())
        .collect();
    let Some(first) = addresses.first() else {
        println!("skipped: no RDMA device with an IP address");
        return addresses;
    };
    match Listener::bind(SocketAddr::new(*first, 0)) {
        Err(error @ Error::NotInstalled { .. }) => {
            println!("skipped: {error}");
            Vec::new()
        }
        Err(error) => panic!("{error}"),
        Ok(_) => addresses,
    }
}

/// Whether an address is that of a software device, which detects an absent peer only at the deadline.
fn is_soft(address: IpAddr) -> bool {
    Device::open_by_addr(address).unwrap().name().starts_with("soft")
}

fn ipv4() -> Option<IpAddr> {
    let found = addresses().into_iter().find(IpAddr::is_ipv4);
    if found.is_none() {
        println!("skipped: no IPv4 address");
    }
    found
}

/// C programs that use one of the kernel's devices.
struct Programs {
    /// Pairs of the programs' address and this process's address.
    addresses: Vec<(IpAddr, IpAddr)>,
    /// The words in front of each command.
    wrapper: Vec<String>,
    /// Software devices that stay open.
    _open: Vec<Device>,
}

impl Programs {
    /// Finds the programs for the device of this process, if it is one of the kernel's. Otherwise the variable
    /// `ADVERB_C_PROGRAMS` names programs in another network namespace: address pairs (the programs' address, a slash,
    /// and this process's address), and a command that runs a program there.
    fn find() -> Programs {
        let Ok(text) = std::env::var("ADVERB_C_PROGRAMS") else {
            let found = ipv4().filter(|address| !is_soft(*address));
            if found.is_none() {
                println!("skipped: no kernel device");
            }
            let addresses = found.map(|address| (address, address)).into_iter().collect();
            return Programs { addresses, wrapper: Vec::new(), _open: Vec::new() };
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let pairs = words.iter().map_while(|word| {
            let (theirs, ours) = word.split_once('/')?;
            Some((theirs.parse::<IpAddr>().ok()?, ours.parse::<IpAddr>().ok()?))
        });
        let addresses: Vec<(IpAddr, IpAddr)> = pairs.collect();
        let wrapper = words[addresses.len()..].iter().map(|word| (*word).to_owned()).collect();
        let open = addresses.iter().map(|(_, ours)| Device::open(&format!("soft:{ours}")).unwrap()).collect();
        Programs { addresses, wrapper, _open: open }
    }

    /// Starts a program. Returns `None` if it is not installed.
    fn start(&self, program: &str, arguments: &[&str]) -> Option<Child> {
        let words: Vec<&str> = self.wrapper.iter().map(String::as_str).chain([program]).collect();
        let spawned =
            Command::new(words[0]).args(&words[1..]).args(arguments).stdout(Stdio::inherit()).spawn();
        spawned.inspect_err(|error| println!("skipped: {program} can't be started: {error}")).ok()
    }
}

/// Returns a port on which no program listens now, neither here nor (most likely) in the C programs' namespace.
fn free_port(address: IpAddr) -> u16 {
    Listener::bind(SocketAddr::new(address, 0)).unwrap().local_addr().port()
}

/// The completion queue of a queue pair, and its posted receive.
#[derive(Debug)]
struct Side {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: RequestId,
}

impl Side {
    fn new(path: &Path) -> adverb::verbs::Result<(QueuePair, Side)> {
        Side::on(&path.open_device()?, path)
    }

    fn on(device: &Device, path: &Path) -> adverb::verbs::Result<(QueuePair, Side)> {
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(16).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
        let receiving = queue_pair.post_recv(domain.allocate_buffer(64)?)?;
        Ok((queue_pair, Side { domain, completions, receiving }))
    }

    fn send(&self, connection: &Connection, text: &[u8]) {
        let mut buffer = self.domain.allocate_buffer(text.len()).unwrap();
        buffer.copy_from_slice(text);
        let id = connection.queue_pair().post_send(SendRequest::send(buffer)).unwrap();
        self.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
    }

    fn receive(&mut self, connection: &Connection) -> Vec<u8> {
        let message = self.completions.wait(self.receiving, TIMEOUT).unwrap().into_message().unwrap();
        let text = message.to_vec();
        self.receiving = connection.queue_pair().post_recv(self.domain.allocate_buffer(64).unwrap()).unwrap();
        text
    }
}

/// Returns both ends of a connection within this process, the client's first.
fn connected(address: IpAddr) -> ((Connection, Side), (Connection, Side)) {
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap());
    let server = accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    (client.join().unwrap(), server)
}

fn connect(connector: &Connector, peer: SocketAddr) -> adverb::verbs::Result<(Connection, Side)> {
    let mut side = None;
    let connection = connector.connect(peer, |path| {
        let (queue_pair, created) = Side::new(path)?;
        side = Some(created);
        Ok(queue_pair)
    })?;
    Ok((connection, side.unwrap()))
}

fn accept(request: ConnectRequest) -> (Connection, Side) {
    let (queue_pair, side) = Side::new(request.path()).unwrap();
    (request.accept(queue_pair, b"").unwrap(), side)
}

fn starts_with(data: &[u8], text: &[u8]) -> bool {
    data.starts_with(text) && data[text.len()..].iter().all(|byte| *byte == 0)
}

#[test]
fn peers_connect_over_every_address_and_exchange_private_data_and_messages() {
    for address in addresses() {
        let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
        let peer = listener.local_addr();
        assert_eq!(peer.ip(), address);
        assert_ne!(peer.port(), 0);
        let client = thread::spawn(move || {
            let connector = Connector::new().timeout(TIMEOUT).private_data(b"client");
            let (connection, mut side) = connect(&connector, peer).unwrap();
            assert!(starts_with(connection.private_data(), b"server"));
            assert_eq!(connection.path().peer_addr(), peer);
            side.send(&connection, b"ping");
            assert_eq!(side.receive(&connection), b"pong");
            (connection.path().local_addr(), connection.close(TIMEOUT))
        });
        let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
        assert!(starts_with(request.private_data(), b"client"));
        assert_eq!(request.path().local_addr(), peer);
        let (queue_pair, mut side) = Side::new(request.path()).unwrap();
        let connection = request.accept(queue_pair, b"server").unwrap();
        assert!(starts_with(connection.private_data(), b"client"));
        assert_eq!(connection.queue_pair().state().unwrap(), QpState::ReadyToSend);
        assert_eq!(side.receive(&connection), b"ping");
        side.send(&connection, b"pong");
        assert_eq!(connection.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
        let (local, closed) = client.join().unwrap();
        closed.unwrap();
        assert_eq!(connection.path().peer_addr(), local);
        println!("connected: {}", connection.path());
    }
}

#[test]
fn private_data_up_to_the_limit_arrives_and_more_is_rejected() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let error = Connector::new().private_data(&[1; MAX_CONNECT_DATA + 1]).resolve(peer).unwrap_err();
    assert!(matches!(error, Error::LimitExceeded { requested: 57, max: 56, .. }), "{error}");

    let connector = Connector::new().timeout(TIMEOUT).private_data(&[1; MAX_CONNECT_DATA]);
    let client = thread::spawn(move || {
        let (connection, _side) = connect(&connector, peer).unwrap();
        let error = connect(&connector, peer).unwrap_err();
        (connection.private_data().to_vec(), error)
    });
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    assert_eq!(request.private_data(), [1; MAX_CONNECT_DATA]);
    let (queue_pair, _side) = Side::new(request.path()).unwrap();
    let _connection = request.accept(queue_pair, &[2; MAX_ACCEPT_DATA]).unwrap();
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    request.reject(&[3; MAX_REJECT_DATA]).unwrap();
    let (accepted, error) = client.join().unwrap();
    assert_eq!(accepted, [2; MAX_ACCEPT_DATA]);
    let Error::CmRejected { private_data, .. } = error else { panic!("{error}") };
    assert_eq!(*private_data, [3; MAX_REJECT_DATA]);
}

#[test]
fn a_rejection_reaches_the_peer_with_its_reason_and_data() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap_err());
    listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects").reject(b"not you").unwrap();
    let error = client.join().unwrap();
    println!("{error}");
    assert!(error.hint().is_some());
    let Error::CmRejected { peer: by, reason, private_data, .. } = error else { panic!("{error}") };
    assert_eq!((by, reason), (peer, RejectReason::ConsumerReject));
    assert!(starts_with(&private_data, b"not you"));

    // A request that is dropped is rejected too.
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap_err());
    drop(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    let error = client.join().unwrap();
    assert!(matches!(error, Error::CmRejected { reason: RejectReason::ConsumerReject, .. }), "{error}");
}

/// Returns the error of an attempt with this timeout, and the time that the attempt took. An attempt that takes much
/// longer, like one with the default timeout, is repeated: on a busy machine, only some of them take longer.
#[track_caller]
fn fail_at_deadline(timeout: Duration, attempt: impl Fn() -> Error) -> (Error, Duration) {
    let limit = timeout + Duration::from_secs(2);
    for _ in 0..5 {
        let start = Instant::now();
        let error = attempt();
        let elapsed = start.elapsed();
        println!("after {elapsed:?}: {error}");
        if elapsed < limit {
            return (error, elapsed);
        }
    }
    panic!("each attempt took longer than {limit:?}");
}

#[test]
fn connecting_to_a_port_without_a_listener_is_rejected_soon() {
    let Some(address) = ipv4() else { return };
    let peer = SocketAddr::new(address, 1);
    let start = Instant::now();
    let error = connect(&Connector::new().timeout(TIMEOUT), peer).unwrap_err();
    println!("after {:?}: {error}", start.elapsed());
    assert!(matches!(error, Error::CmRejected { reason: RejectReason::InvalidServiceId, .. }), "{error}");
    assert!(error.hint().unwrap().contains("no program on the host listens on it"), "{error}");
    assert!(start.elapsed() < TIMEOUT / 2);
}

#[test]
fn connecting_to_an_absent_address_fails_at_the_deadline() {
    let Some(IpAddr::V4(address)) = ipv4() else { return };
    let [a, b, c, _] = address.octets();
    let peer = SocketAddr::from((Ipv4Addr::new(a, b, c, 99), 7471));
    let timeout = Duration::from_millis(700);
    let connector = Connector::new().timeout(timeout);
    let (error, _) = fail_at_deadline(timeout, || {
        if is_soft(address.into()) {
            connect(&connector, peer).unwrap_err()
        } else {
            connector.resolve(peer).unwrap_err()
        }
    });
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn connecting_to_a_host_without_rdma_fails_at_the_deadline() {
    let Some(IpAddr::V4(address)) = ipv4() else { return };
    let [a, b, c, d] = address.octets();
    let peer = SocketAddr::from((Ipv4Addr::new(a, b, c, if d == 2 { 1 } else { 2 }), 7471));
    let timeout = Duration::from_millis(1500);
    let connector = Connector::new().timeout(timeout);
    let (error, _) = fail_at_deadline(timeout, || connect(&connector, peer).unwrap_err());
    // That host may or may not exist, but no program listens there.
    assert!(matches!(error, Error::Unreachable { .. } | Error::CmRejected { .. }), "{error}");
}

#[test]
fn connecting_fails_at_the_deadline_if_the_listener_doesnt_accept() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let timeout = Duration::from_millis(700);
    let connector = Connector::new().timeout(timeout);
    let (error, elapsed) =
        fail_at_deadline(timeout, || connect(&connector, listener.local_addr()).unwrap_err());
    let Error::Unreachable { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::TimedOut);
    assert!(elapsed >= timeout, "{elapsed:?}");

    // The request is still queued, but it can't be accepted anymore.
    if let Some(request) = listener.accept_timeout(Duration::from_millis(500)).unwrap() {
        let (queue_pair, _side) = Side::new(request.path()).unwrap();
        let error = request.accept(queue_pair, b"too late").unwrap_err();
        println!("{error}");
    }
}

#[test]
fn a_disconnect_reaches_the_peer_and_flushes_its_receives() {
    let Some(address) = ipv4() else { return };
    let ((client, _client_side), (server, side)) = connected(address);
    assert_eq!(server.try_event().unwrap(), None);
    assert_eq!(server.wait_event(Duration::from_millis(50)).unwrap(), None);
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    assert!(!client.is_connected() && server.is_connected());
    assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
    assert!(!server.is_connected());
    let completion = side.completions.wait(side.receiving, TIMEOUT).unwrap();
    assert_eq!(completion.outcome().as_ref().unwrap_err().status, Status::Flushed);
    assert_eq!(server.queue_pair().state().unwrap(), QpState::Error);
    client.close(TIMEOUT).unwrap();
    server.close(TIMEOUT).unwrap();
}

#[test]
fn dropping_a_connection_disconnects_it() {
    let Some(address) = ipv4() else { return };
    let ((client, _client_side), (server, _side)) = connected(address);
    drop(client);
    assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
}

#[test]
fn both_sides_connect_on_one_thread_without_blocking() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let mut resolving = Connector::new().timeout(TIMEOUT).begin_resolve(listener.local_addr()).unwrap();
    let route = poll_until_ready(|| resolving.poll().unwrap());
    assert!(matches!(resolving.poll(), Err(Error::InvalidRequest { .. })));
    drop(resolving);
    let (queue_pair, client_side) = Side::new(route.path()).unwrap();
    let mut connecting = route.begin_connect(queue_pair).unwrap();
    assert!(connecting.poll().unwrap().is_none());
    assert!(connecting.deadline() > Instant::now());
    wait_readable(&listener);
    let request = listener.try_accept().unwrap().expect("the client connects");
    let (queue_pair, mut server_side) = Side::new(request.path()).unwrap();
    let mut accepting = request.begin_accept(queue_pair, b"").unwrap();
    wait_readable(&connecting);
    let client = connecting.poll().unwrap().expect("the connection is established");
    wait_readable(&accepting);
    let server = accepting.poll().unwrap().expect("the connection is established");
    assert!(matches!(accepting.poll(), Err(Error::InvalidRequest { .. })));
    drop((connecting, accepting));
    client_side.send(&client, b"hello");
    assert_eq!(server_side.receive(&server), b"hello");
    drop(client);
    wait_readable(&server);
    assert_eq!(server.try_event().unwrap(), Some(ConnectionEvent::Disconnected));
}

/// Waits until a descriptor is readable, like an event loop.
fn wait_readable(source: &impl AsFd) {
    let mut poll = libc::pollfd { fd: source.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the array has one entry, which may be written.
    assert_eq!(unsafe { libc::poll(&mut poll, 1, 20_000) }, 1);
}

fn poll_until_ready<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_queue_pair_of_another_device_handle_can_be_connected() {
    let Some(address) = ipv4() else { return };
    let device = Device::open_by_addr(address).unwrap();
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let options = ConnectOptions::new().traffic(Traffic::new().traffic_class(0x60)).ack_timeout(15);
    let client = thread::spawn(move || {
        let mut side = None;
        let connector =
            Connector::new().timeout(TIMEOUT).options(options).local_addr(SocketAddr::new(address, 0));
        let connection = connector.connect(peer, |path| {
            assert_eq!(path.device_name(), device.name());
            let (queue_pair, created) = Side::on(&device, path)?;
            side = Some(created);
            Ok(queue_pair)
        });
        (connection.unwrap(), side.unwrap())
    });
    let (server, mut server_side) =
        accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    let (client, client_side) = client.join().unwrap();
    for (side, connection) in [("the client", &client), ("the server", &server)] {
        let peer = connection.queue_pair().query().unwrap().peer.unwrap();
        assert_eq!(
            (peer.traffic_class, peer.ack_timeout),
            (0x60, if side == "the client" { 15 } else { 14 }),
            "{side}"
        );
    }
    client_side.send(&client, b"through another handle");
    assert_eq!(server_side.receive(&server), b"through another handle");
}

#[test]
fn a_wildcard_listener_gets_the_device_from_the_request() {
    let _guard = ALL_DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let peer = SocketAddr::new(address, listener.local_addr().port());
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap());
    let (server, mut side) = accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    assert_eq!(server.path().local_addr().ip(), address);
    let (client, client_side) = client.join().unwrap();
    client_side.send(&client, b"found you");
    assert_eq!(side.receive(&server), b"found you");
}

#[test]
fn several_threads_accept_many_clients_from_one_listener() {
    const CLIENTS: usize = 24;
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..CLIENTS / 3 {
                    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
                    let name = request.private_data()[0];
                    let (queue_pair, side) = Side::new(request.path()).unwrap();
                    let connection = request.accept(queue_pair, &[name]).unwrap();
                    side.send(&connection, &[name]);
                    assert_eq!(connection.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
                }
            });
        }
        for client in 0..4 {
            scope.spawn(move || {
                for round in 0..CLIENTS / 4 {
                    let name = u8::try_from(client * CLIENTS + round).unwrap();
                    let connector = Connector::new().timeout(TIMEOUT).private_data(&[name]);
                    let (connection, mut side) = connect(&connector, peer).unwrap();
                    assert!(starts_with(connection.private_data(), &[name]));
                    assert_eq!(side.receive(&connection), [name]);
                    connection.close(TIMEOUT).unwrap();
                }
            });
        }
    });
}

#[test]
fn connections_share_a_local_port_if_all_set_reuse_addr() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let shared = Connector::new().timeout(TIMEOUT).reuse_addr(true).local_addr(SocketAddr::new(address, 0));
    let first = shared.resolve(peer).unwrap();
    let local = first.path().local_addr();
    let second = shared.clone().local_addr(local).resolve(peer).unwrap();
    assert_eq!(second.path().local_addr(), local);
    let error = shared.clone().local_addr(local).reuse_addr(false).resolve(peer).unwrap_err();
    println!("{error}");
    assert!(error.hint().unwrap().contains("use another local port"), "{error}");
}

#[test]
fn errors_for_unusable_addresses_have_hints() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let taken = Listener::bind(listener.local_addr()).unwrap_err();
    println!("{taken}");
    assert!(taken.hint().unwrap().contains("use another port: this one is taken"), "{taken}");
    let foreign = Listener::bind("192.0.2.1:7471".parse().unwrap()).unwrap_err();
    println!("{foreign}");
    assert!(foreign.hint().is_some(), "{foreign}");
    let loopback = Connector::new().resolve("127.0.0.1:7471".parse().unwrap());
    match loopback {
        Ok(route) => assert!(route.path().device_name().starts_with("soft"), "{}", route.path()),
        // The kernel's soft-RoCE may have taken the port.
        Err(error) => {
            println!("{error}");
            assert!(error.hint().is_some(), "{error}");
        }
    }
    let unroutable = Connector::new().resolve("[2001:db8::1]:7471".parse().unwrap()).unwrap_err();
    println!("{unroutable}");
    assert!(matches!(unroutable, Error::Unreachable { .. }), "{unroutable}");
    assert!(unroutable.hint().is_some(), "{unroutable}");
}

#[test]
fn a_queue_pair_in_the_error_state_is_rejected() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let route = Connector::new().timeout(TIMEOUT).resolve(listener.local_addr()).unwrap();
    let (queue_pair, _side) = Side::new(route.path()).unwrap();
    queue_pair.move_to_error().unwrap();
    let error = route.connect(queue_pair).unwrap_err();
    assert!(matches!(error, Error::WrongState { state: QpState::Error, .. }), "{error}");
}
