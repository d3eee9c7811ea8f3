//! Connections by address and port between NICs over several kinds of links. Even over faulty links, connections are
//! established, carry messages, and end at both sides.

#![cfg(target_os = "linux")]

mod support;

use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_proto::cm::{
    AddrPair, BindAddr, CallError, Config, ConnectParams, ConnectionId, Event, ListenParams, ListenerId,
    LocalQp, Request, ResolveParams, State, UDP_QKEY,
};
use adverb_proto::types::{
    Access, PathMtu, RecvRequest, Segment, SendFlags, SendOperation, SendRequest, Transport,
};
use adverb_proto::{Cq, IcrcCheck, Init, QpConfig, Time, Transition};
use adverb_soft::link::{FaultConfig, FaultLink, Link, Switch, SwitchConfig, TxPacket};
use adverb_soft::{CmEvent, CmEventChannel, Error, Nic, NicOptions};
use adverb_wire::cm::{GSI_QKEY, RejectReason, ServiceId, SidrStatus, Timeout};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Psn, Qpn, Ud};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use support::{address, open_loopback};

const TEST_TIMEOUT: Duration = Duration::from_secs(30);
const SERVICE: ServiceId = ServiceId::tcp_port(7471);
const UD_SERVICE: ServiceId = ServiceId::udp_port(7471);

/// The configuration of the NICs' connection managers, with another GUID.
const CM_CONFIG: Config = Config::new(0);

/// A queue pair in the init state, with a word of memory and the event channel of its connection.
struct Side<'a> {
    nic: &'a Nic,
    cq: Cq,
    qpn: Qpn,
    word: Vec<AtomicU64>,
    key: u32,
    events: Arc<CmEventChannel>,
}

impl<'a> Side<'a> {
    fn new(nic: &'a Nic) -> Side<'a> {
        let pd = nic.create_domain().unwrap();
        let cq = nic.create_cq(16, None).unwrap();
        let qpn = nic.create_qp(QpConfig::rc(pd, cq, cq)).unwrap();
        let access = Access::LOCAL_WRITE;
        nic.modify_qp(qpn, &Transition::Init(Init::new(access))).unwrap();
        let word = vec![AtomicU64::new(0)];
        let pointer = NonNull::from(word.as_slice()).cast::<u8>();
        // SAFETY: the word is deregistered before it is freed, and accessed only as an atomic.
        let key = unsafe { nic.register(pd, pointer, 8, 0, access) }.unwrap();
        Side { nic, cq, qpn, word, key, events: Arc::new(CmEventChannel::new().unwrap()) }
    }

    fn segments(&self) -> [Segment; 1] {
        [Segment { addr: 0, length: 8, lkey: self.key }]
    }

    fn post_recv(&self) {
        let segments = self.segments();
        self.nic.post_recvs(self.qpn, [RecvRequest { wr_id: 1, tag: 0, segments: &segments }]).unwrap();
    }

    fn send(&self, value: u64) {
        self.word[0].store(value, Ordering::Relaxed);
        let (operation, flags, segments) = (SendOperation::Send, SendFlags::SIGNALED, self.segments());
        let request =
            SendRequest::<()> { wr_id: 2, tag: 0, operation, flags, segments: &segments, destination: None };
        self.nic.post_sends(self.qpn, [(request, None)]).unwrap();
    }

    fn wait_for(&self, wr_id: u64) {
        let start = Instant::now();
        let mut found = None;
        while found.is_none() {
            assert!(start.elapsed() < TEST_TIMEOUT, "no completion arrived");
            self.nic
                .poll(self.cq, 1, |completion| found = Some((completion.wr_id, completion.outcome.is_ok())));
        }
        assert_eq!(found, Some((wr_id, true)));
    }

    /// Returns the attributes of the queue pair, with an acknowledgement timeout of 1 s, which suffices on a busy
    /// machine.
    fn local_qp(&self) -> LocalQp {
        let mut local_qp = LocalQp::new(self.qpn);
        local_qp.ack_timeout = Timeout::new(18).unwrap();
        local_qp
    }

    /// Moves the queue pair to RTS.
    fn make_ready(&self, id: ConnectionId, local_qp: &LocalQp) {
        let ready = self.nic.cm().qp_attributes(id, local_qp).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToReceive(ready.ready_to_receive)).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToSend(ready.ready_to_send)).unwrap();
    }

    fn connect_to(&self, remote: IpAddr, service: ServiceId) -> ConnectionId {
        let addrs = AddrPair { local: self.nic.addresses()[0], remote };
        let mut connect = ConnectParams::new(addrs, service, self.local_qp(), Time::ZERO);
        connect.private_data = b"hello";
        self.nic.cm().connect(connect, TEST_TIMEOUT, &self.events).unwrap()
    }

    fn accept(&self, request: &Request) {
        self.nic.cm().subscribe(request.id, &self.events).unwrap();
        let local_qp = self.local_qp();
        self.make_ready(request.id, &local_qp);
        self.nic.cm().accept(request.id, &local_qp, b"welcome", TEST_TIMEOUT).unwrap();
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        self.nic.deregister(self.key).unwrap();
    }
}

/// Waits for the next event.
fn next(events: &CmEventChannel) -> Event {
    let start = Instant::now();
    loop {
        match events.take() {
            Some(CmEvent::Event(event)) => return event,
            Some(other) => panic!("{other:?}"),
            None => assert!(start.elapsed() < TEST_TIMEOUT, "no event arrived"),
        }
        // The progress threads of the NICs do the work.
        _ = poll(
            &mut [PollFd::new(std::os::fd::AsFd::as_fd(events), PollFlags::POLLIN)],
            PollTimeout::from(100_u16),
        );
    }
}

fn listen(
    nic: &Nic,
    service: ServiceId,
    transport: Transport,
    backlog: usize,
) -> (ListenerId, Arc<CmEventChannel>) {
    let events = Arc::new(CmEventChannel::new().unwrap());
    let bind = BindAddr::Address(nic.addresses()[0]);
    let id = nic.cm().listen(ListenParams { service, bind, transport, backlog }, &events).unwrap();
    (id, events)
}

fn next_request(events: &CmEventChannel) -> Box<Request> {
    match next(events) {
        Event::Request(request) => request,
        other => panic!("{other:?}"),
    }
}

/// Connects, sends a message each way, and disconnects. Does so several times, and returns the longest time from
/// connecting to the end of disconnecting.
fn exercise(client: &Nic, server: &Nic) -> Duration {
    let (listener, requests) = listen(server, SERVICE, Transport::Rc, 4);
    let mut longest = Duration::ZERO;
    for round in 0..5 {
        let (one, other) = (Side::new(client), Side::new(server));
        other.post_recv();
        let connecting_at = Instant::now();
        let id = one.connect_to(server.addresses()[0], SERVICE);
        let request = next_request(&requests);
        assert_eq!(request.private_data[..5], *b"hello");
        other.accept(&request);
        let Event::Accepted(acceptance) = next(&one.events) else { panic!("not accepted") };
        assert_eq!(acceptance.private_data[..7], *b"welcome");
        one.post_recv();
        one.make_ready(id, &one.local_qp());
        client.cm().establish(id).unwrap();
        assert_eq!(next(&one.events), Event::Established(id));
        assert_eq!(next(&other.events), Event::Established(request.id));

        one.send(0x1000 + round);
        one.wait_for(2);
        other.wait_for(1);
        assert_eq!(other.word[0].load(Ordering::Relaxed), 0x1000 + round);
        other.send(0x2000 + round);
        other.wait_for(2);
        one.wait_for(1);
        assert_eq!(one.word[0].load(Ordering::Relaxed), 0x2000 + round);

        let (disconnecting, remaining, ids) =
            if round % 2 == 0 { (&one, &other, (id, request.id)) } else { (&other, &one, (request.id, id)) };
        let disconnecting_at = Instant::now();
        disconnecting.nic.cm().disconnect(ids.0, TEST_TIMEOUT).unwrap();
        assert_eq!(next(&remaining.events), Event::Disconnected(ids.1));
        assert_eq!(next(&disconnecting.events), Event::Disconnected(ids.0));
        longest = longest.max(connecting_at.elapsed());
        let state = disconnecting.nic.cm().state(ids.0);
        // On a busy machine, timewait may be over.
        let may_be_over = disconnecting_at.elapsed() >= CM_CONFIG.timewait;
        assert!(state == Some(State::TimeWait) || state.is_none() && may_be_over, "{state:?}");
        assert_eq!(next(&one.events), Event::TimewaitExit { id, qpn: one.qpn });
        assert_eq!(next(&other.events), Event::TimewaitExit { id: request.id, qpn: other.qpn });
        for (side, id) in [(&one, id), (&other, request.id)] {
            side.nic.cm().abort(id, TEST_TIMEOUT);
            assert!(side.nic.destroy_qp(side.qpn));
        }
    }
    server.cm().close_listener(listener).unwrap();
    for nic in [client, server] {
        let resource_counts = nic.cm().resource_counts();
        assert_eq!(
            (resource_counts.connections, resource_counts.listeners, resource_counts.events),
            (0, 0, 0),
            "{resource_counts:?}"
        );
    }
    longest
}

fn open_nic(address: IpAddr, link: impl Link + 'static) -> Nic {
    Nic::open(NicOptions::new([address], link).mtu(PathMtu::Mtu1024)).unwrap()
}

fn faults(seed: u64) -> FaultConfig {
    FaultConfig {
        loss_ppm: 50_000,
        duplication_ppm: 20_000,
        corruption_ppm: 20_000,
        ..FaultConfig::new(seed)
    }
}

fn nics_over_memory() -> [Nic; 2] {
    let switch = Switch::new(SwitchConfig::default());
    [1, 2].map(|host| open_nic(address(host), switch.attach(address(host)).unwrap()))
}

#[test]
fn nics_connect_over_memory() {
    let start = Instant::now();
    loop {
        let [one, other] = nics_over_memory();
        let longest = exercise(&one, &other);
        // No packet was lost, so no message was retransmitted. On a busy machine, a response may take longer than the
        // timeout, but not in each attempt.
        let retransmitted = one.cm().statistics().retransmitted + other.cm().statistics().retransmitted;
        if retransmitted == 0 {
            break;
        }
        assert!(
            longest >= CM_CONFIG.response_timeout.duration() && start.elapsed() < 2 * TEST_TIMEOUT,
            "{retransmitted} messages were retransmitted, and a connection took at most {longest:?}"
        );
    }
}

#[test]
fn nics_connect_over_memory_with_faults() {
    let switch = Switch::new(SwitchConfig::default());
    let [one, other] = [1, 2].map(|host| {
        open_nic(
            address(host),
            FaultLink::new(switch.attach(address(host)).unwrap(), faults(u64::from(host) + 3)),
        )
    });
    exercise(&one, &other);
}

#[test]
fn nics_connect_over_sockets() {
    let [one, other] = [(); 2].map(|()| {
        let link = open_loopback(|_| ());
        open_nic(link.local_addr().ip(), link)
    });
    exercise(&one, &other);
}

#[test]
fn nics_connect_over_sockets_with_faults() {
    let [one, other] = [1, 2].map(|seed| {
        let link = open_loopback(|_| ());
        open_nic(link.local_addr().ip(), FaultLink::new(link, faults(seed)))
    });
    exercise(&one, &other);
}

#[test]
fn a_nic_connects_to_itself() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    exercise(&nic, &nic);
}

#[test]
fn connecting_to_a_service_without_a_listener_is_rejected() {
    let [one, other] = nics_over_memory();
    let side = Side::new(&one);
    let id = side.connect_to(other.addresses()[0], SERVICE);
    let Event::Rejected(rejection) = next(&side.events) else { panic!("not rejected") };
    assert_eq!((rejection.id, rejection.reason), (id, RejectReason::InvalidServiceId));
}

#[test]
fn closing_a_listener_rejects_pending_requests() {
    let [one, other] = nics_over_memory();
    let (listener, requests) = listen(&other, SERVICE, Transport::Rc, 4);
    let side = Side::new(&one);
    side.connect_to(other.addresses()[0], SERVICE);
    let start = Instant::now();
    while other.cm().resource_counts().half_open == 0 {
        assert!(start.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
    other.cm().close_listener(listener).unwrap();
    assert!(matches!(next(&side.events), Event::Rejected(_)));
    assert_eq!(requests.take(), None);
    assert_eq!(other.cm().close_listener(listener), Err(Error::Cm(CallError::Unknown)));
}

#[test]
fn aborting_a_connection_disconnects_the_peer_and_delivers_no_events() {
    let [one, other] = nics_over_memory();
    let (_, requests) = listen(&other, SERVICE, Transport::Rc, 4);
    let (client, server) = (Side::new(&one), Side::new(&other));
    let id = client.connect_to(other.addresses()[0], SERVICE);
    let request = next_request(&requests);
    server.accept(&request);
    assert!(matches!(next(&client.events), Event::Accepted(_)));
    client.make_ready(id, &client.local_qp());
    one.cm().establish(id).unwrap();
    assert_eq!(next(&client.events), Event::Established(id));
    assert_eq!(next(&server.events), Event::Established(request.id));
    one.cm().abort(id, TEST_TIMEOUT);
    assert_eq!(next(&server.events), Event::Disconnected(request.id));
    assert_eq!(client.events.take(), None);
    // A request that its peer has abandoned can't be subscribed to.
    let late = Side::new(&one);
    let id = late.connect_to(other.addresses()[0], SERVICE);
    let request = next_request(&requests);
    one.cm().abort(id, TEST_TIMEOUT);
    let start = Instant::now();
    while other.cm().state(request.id) == Some(State::ReqReceived) {
        assert!(start.elapsed() < TEST_TIMEOUT);
        std::thread::yield_now();
    }
    assert!(matches!(
        other.cm().subscribe(request.id, &server.events),
        Err(Error::Cm(CallError::WrongState(_)))
    ));
}

#[test]
fn a_query_resolves_a_service_to_a_ud_queue_pair() {
    let [one, other] = nics_over_memory();
    let (_, queries) = listen(&other, UD_SERVICE, Transport::Ud, 4);
    let addrs = AddrPair { local: one.addresses()[0], remote: other.addresses()[0] };
    let events = Arc::new(CmEventChannel::new().unwrap());
    let resolve = ResolveParams {
        addrs,
        service: UD_SERVICE,
        source_port: 9,
        private_data: b"where?",
        deadline: Time::ZERO,
    };
    let id = one.cm().resolve_service(resolve, TEST_TIMEOUT, &events).unwrap();
    let Event::Query(query) = next(&queries) else { panic!("no query") };
    assert_eq!(query.private_data[..6], *b"where?");
    other.cm().accept_query(query.id, Qpn::truncate(0x77), UDP_QKEY, b"here").unwrap();
    let Event::Resolved(resolution) = next(&events) else { panic!("no response") };
    assert_eq!((resolution.id, resolution.qpn, resolution.qkey), (id, Qpn::truncate(0x77), UDP_QKEY));
    assert_eq!(resolution.private_data[..4], *b"here");
    one.cm().cancel_query(id);

    // A query that is canceled without a response is rejected.
    let id = one.cm().resolve_service(resolve, TEST_TIMEOUT, &events).unwrap();
    let Event::Query(query) = next(&queries) else { panic!("no query") };
    other.cm().cancel_query(query.id);
    let rejected = next(&events);
    assert!(
        matches!(
            rejected,
            Event::QueryRejected { id: rejected_id, status: SidrStatus::Rejected, .. } if rejected_id == id
        ),
        "{rejected:?}"
    );
}

#[test]
fn invalid_connection_manager_messages_are_dropped() {
    let icrc = IcrcCheck::IpId(0);
    let switch = Switch::new(SwitchConfig { icrc, ..SwitchConfig::default() });
    let nic = open_nic(address(2), switch.attach(address(2)).unwrap());
    let (_, requests) = listen(&nic, SERVICE, Transport::Rc, 4);
    let mut sender = switch.attach(address(1)).unwrap();
    let flow = Flow::new((address(1), 0xc000).into(), (address(2), 4791).into()).unwrap();
    let before = nic.statistics();
    let mut send_ud = |qkey, source_qp, payload: &[u8], is_corrupt: bool| {
        let operation = Operation::Ud(Ud { qkey, source_qp, immediate: None });
        let header = Header::new(Qpn::GSI, Psn::ZERO, operation);
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(&header, 0, &[payload], &mut head).unwrap();
        let mut bytes = [&head[..emitted.header_len], payload, &emitted.trailer].concat();
        if is_corrupt {
            bytes[30] ^= 1;
        }
        let packet = TxPacket {
            source: (address(1), 0xc000).into(),
            destination: (address(2), 4791).into(),
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            bytes: &bytes,
        };
        assert_eq!(sender.send(&[packet]).unwrap(), 1);
    };
    send_ud(GSI_QKEY, Qpn::GSI, &[0xff; 256], false); // not a message
    send_ud(GSI_QKEY, Qpn::GSI, &[0; 256], true); // corrupt
    send_ud(0x1111, Qpn::GSI, &[0; 256], false); // a wrong queue key
    send_ud(GSI_QKEY, Qpn::GSI, &[0; 100], false); // too short
    send_ud(GSI_QKEY, Qpn::truncate(7), &[0xff; 256], false); // not from queue pair 1
    for _ in 0..1000 {
        send_ud(GSI_QKEY, Qpn::GSI, &[0xff; 256], false);
    }
    let start = Instant::now();
    while nic.cm().statistics().malformed < 200 {
        assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", nic.cm().statistics());
        std::thread::yield_now();
    }
    let statistics = nic.statistics();
    assert_eq!(statistics.icrc_errors - before.icrc_errors, 1);
    assert_eq!(statistics.qkey_violations - before.qkey_violations, 1);
    assert_eq!(nic.cm().statistics().received, 0);
    assert_eq!(nic.cm().statistics().sent, 0);
    assert_eq!(requests.take(), None);
    // The NIC still works.
    let side = Side::new(&nic);
    side.connect_to(nic.addresses()[0], SERVICE);
    next_request(&requests);
}
