//! Two managers, and a network between them that delivers messages as a test demands.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, BindAddr, CallError, Config, ConnectParams, ConnectionId, Event, ListenParams, ListenerId,
    LocalQp, Manager, Request, ResourceCounts, State,
};
use adverb_proto::types::{Qpn, Transport};
use adverb_wire::cm::{Mad, Message, ServiceId};

pub(crate) const CLIENT: usize = 0;
pub(crate) const SERVER: usize = 1;
pub(crate) const PORT: u16 = 7471;

/// The delivery of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Once,
    Lose,
    Twice,
    /// The message is delivered after the next one.
    Hold,
}

type Filter = Box<dyn FnMut(usize, &Mad) -> Delivery>;

pub(crate) struct Pair {
    pub(crate) sides: [Manager; 2],
    pub(crate) now: Time,
    pub(crate) random: u64,
    /// The events of each side that the test has not taken yet.
    pub(crate) events: [VecDeque<Event>; 2],
    /// All messages that the managers sent, with the side that sent them.
    pub(crate) log: Vec<(usize, Mad)>,
    pub(crate) filter: Filter,
    held: VecDeque<(usize, Mad)>,
    /// Whether requests are accepted, and accepted connections are established, automatically.
    pub(crate) automatic: bool,
    next_qpn: u32,
}

pub(crate) fn address(side: usize) -> IpAddr {
    [10, 0, 0, 1 + side as u8].into()
}

/// Returns the addresses from the point of view of a side.
pub(crate) fn addrs(side: usize) -> AddrPair {
    AddrPair { local: address(side), remote: address(1 - side) }
}

pub(crate) fn service() -> ServiceId {
    ServiceId::tcp_port(PORT)
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn config(side: usize) -> Config {
    Config::new([0x1111_2222_3333_4444, 0x5555_6666_7777_8888][side])
}

impl Pair {
    /// Creates two managers, of which the server listens.
    pub(crate) fn new() -> Pair {
        let mut pair = Pair::without_listener();
        pair.listen(service());
        pair
    }

    /// Creates two managers without a listener.
    pub(crate) fn without_listener() -> Pair {
        Pair::with(config(CLIENT), config(SERVER))
    }

    pub(crate) fn with(client: Config, server: Config) -> Pair {
        Pair {
            sides: [Manager::new(client), Manager::new(server)],
            now: Time::ZERO + seconds(1),
            random: 7,
            events: Default::default(),
            log: Vec::new(),
            filter: Box::new(|_, _| Delivery::Once),
            held: VecDeque::new(),
            automatic: false,
            next_qpn: 0x10,
        }
    }

    /// Creates two managers that accept and establish connections automatically.
    pub(crate) fn automatic() -> Pair {
        Pair { automatic: true, ..Pair::new() }
    }

    pub(crate) fn listen(&mut self, service: ServiceId) -> ListenerId {
        let listen = ListenParams { service, bind: BindAddr::Any, transport: Transport::Rc, backlog: 4 };
        self.sides[SERVER].listen(listen).unwrap()
    }

    /// Returns an unused queue pair number.
    pub(crate) fn qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::truncate(self.next_qpn)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.now + seconds(5)
    }

    pub(crate) fn request(&mut self) -> ConnectParams<'static> {
        let local_qp = LocalQp::new(self.qpn());
        ConnectParams::new(addrs(CLIENT), service(), local_qp, self.deadline())
    }

    pub(crate) fn request_with(
        &mut self,
        change: impl FnOnce(&mut ConnectParams<'static>),
    ) -> ConnectParams<'static> {
        let mut connect = self.request();
        change(&mut connect);
        connect
    }

    pub(crate) fn connect(&mut self) -> ConnectionId {
        let connect = self.request();
        self.connect_with(CLIENT, &connect).unwrap()
    }

    pub(crate) fn connect_with(
        &mut self,
        side: usize,
        connect: &ConnectParams<'_>,
    ) -> Result<ConnectionId, CallError> {
        let random = &mut self.random;
        self.sides[side].connect(self.now, connect, &mut || random_u32(random))
    }

    /// Delivers a message to a side, as if its peer had sent it.
    pub(crate) fn inject(&mut self, to: usize, mad: &Mad) {
        self.inject_bytes(to, addrs(to), &mad.emit());
    }

    pub(crate) fn inject_bytes(&mut self, to: usize, addrs: AddrPair, bytes: &[u8]) {
        let random = &mut self.random;
        self.sides[to].handle(self.now, addrs, bytes, &mut || random_u32(random));
    }

    /// Delivers a message with a transaction ID that no connection has.
    pub(crate) fn inject_message(&mut self, to: usize, message: Message) {
        self.inject(to, &Mad { transaction_id: 99, message });
    }

    /// Delivers messages until there are none. The time does not advance.
    pub(crate) fn run(&mut self) {
        loop {
            let mut is_idle = true;
            for from in [CLIENT, SERVER] {
                while let Some(datagram) = self.sides[from].poll_transmit() {
                    is_idle = false;
                    assert_eq!(datagram.addrs, addrs(from), "messages are sent only to the peer");
                    let mad = datagram.mad;
                    self.log.push((from, mad));
                    match (self.filter)(from, &mad) {
                        Delivery::Lose => {}
                        Delivery::Once => self.deliver(from, &mad),
                        Delivery::Twice => {
                            self.deliver(from, &mad);
                            self.deliver(from, &mad);
                        }
                        Delivery::Hold => self.held.push_back((from, mad)),
                    }
                }
                while let Some(event) = self.sides[from].poll_event() {
                    is_idle = false;
                    self.handle_event(from, event);
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn deliver(&mut self, from: usize, mad: &Mad) {
        self.inject(1 - from, mad);
        if let Some((from, held)) = self.held.pop_front() {
            self.inject(1 - from, &held);
        }
    }

    /// Delivers the messages that were held back.
    pub(crate) fn release(&mut self) {
        while let Some((from, mad)) = self.held.pop_front() {
            self.inject(1 - from, &mad);
        }
        self.run();
    }

    fn handle_event(&mut self, side: usize, event: Event) {
        if self.automatic {
            match &event {
                Event::Request(request) => {
                    let local_qp = LocalQp::new(self.qpn());
                    self.sides[side]
                        .accept(self.now, request.id, &local_qp, b"yes", self.deadline())
                        .unwrap();
                }
                Event::Accepted(acceptance) => self.sides[side].establish(self.now, acceptance.id).unwrap(),
                _ => {}
            }
        }
        self.events[side].push_back(event);
    }

    /// Advances the time, and handles all timers that are due.
    pub(crate) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.run();
        loop {
            let next = self.sides.iter().filter_map(Manager::poll_timeout).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            for side in &mut self.sides {
                side.handle_timeout(self.now);
            }
            self.run();
        }
        self.now = end;
    }

    pub(crate) fn event(&mut self, side: usize) -> Option<Event> {
        self.events[side].pop_front()
    }

    /// Takes all events of a side, and returns the names of those that are outcomes or the end of timewait.
    pub(crate) fn outcomes(&mut self, side: usize) -> Vec<&'static str> {
        let outcome = |event: &Event| match event {
            Event::Established(_) => Some("established"),
            Event::Rejected(_) => Some("rejected"),
            Event::Unreachable(_) => Some("unreachable"),
            Event::Disconnected(_) => Some("disconnected"),
            Event::TimewaitExit { .. } => Some("timewait over"),
            _ => None,
        };
        self.events[side].drain(..).filter_map(|event| outcome(&event)).collect()
    }

    pub(crate) fn expect_request(&mut self) -> Request {
        match self.event(SERVER) {
            Some(Event::Request(request)) => *request,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the reason why the client's connection was rejected.
    pub(crate) fn expect_rejected(&mut self) -> u16 {
        match self.event(CLIENT) {
            Some(Event::Rejected(rejection)) => rejection.reason.code(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns an established connection, with its IDs at both sides.
    pub(crate) fn connected() -> (Pair, [ConnectionId; 2]) {
        let mut pair = Pair::automatic();
        let client = pair.connect();
        pair.run();
        let server = pair.expect_request().id;
        for (side, id) in [(CLIENT, client), (SERVER, server)] {
            assert_eq!(pair.sides[side].state(id), Some(State::Established));
        }
        pair.events.iter_mut().for_each(VecDeque::clear);
        (pair, [client, server])
    }

    /// Returns the names of the sent messages, with `>` for the client and `<` for the server.
    pub(crate) fn sent(&self) -> String {
        let word = |(from, mad): &(usize, Mad)| format!("{}{}", [">", "<"][*from], name(&mad.message));
        self.log.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    /// Returns the last message of a kind that a side sent.
    pub(crate) fn last(&self, from: usize, kind: &str) -> Mad {
        let found = self.log.iter().rev().find(|(side, mad)| *side == from && name(&mad.message) == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {}", self.sent())).1
    }

    /// Drops the first `count` messages of a kind.
    pub(crate) fn drop_first(&mut self, kind: &'static str, count: usize) {
        self.set_delivery(kind, count, Delivery::Lose);
    }

    pub(crate) fn set_delivery(&mut self, kind: &'static str, count: usize, delivery: Delivery) {
        let mut left = count;
        self.filter = Box::new(move |_, mad| {
            if name(&mad.message) == kind && left > 0 {
                left -= 1;
                delivery
            } else {
                Delivery::Once
            }
        });
    }

    /// Checks that no connection, query, index entry or timer is left.
    pub(crate) fn assert_no_state_left(&self) {
        for (side, manager) in self.sides.iter().enumerate() {
            let ResourceCounts { connections, half_open, index_entries, queries, timers, .. } =
                manager.resource_counts();
            assert_eq!(
                [connections, half_open, index_entries, queries, timers],
                [0; 5],
                "side {side}: {:?}",
                manager.resource_counts()
            );
        }
    }
}

pub(crate) fn name(message: &Message) -> &'static str {
    match message {
        Message::Req(_) => "REQ",
        Message::Mra(_) => "MRA",
        Message::Rej(_) => "REJ",
        Message::Rep(_) => "REP",
        Message::Rtu(_) => "RTU",
        Message::Dreq(_) => "DREQ",
        Message::Drep(_) => "DREP",
        Message::SidrReq(_) => "SIDR_REQ",
        Message::SidrRep(_) => "SIDR_REP",
    }
}

/// Returns a number that is random enough for IDs.
pub(crate) fn random_u32(state: &mut u64) -> u32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 32) as u32
}

/// Returns the communication ID of a connection.
pub(crate) fn comm_id(id: ConnectionId) -> u32 {
    u32::from_str_radix(id.to_string().trim_start_matches("0x"), 16).unwrap()
}
