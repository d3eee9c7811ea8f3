//! Two recorded devices and a network between them that loses, duplicates and reorders packets, in virtual time.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Pd, Registration, RemoteInvalidate, StorageId};
use adverb_proto::trace::{ClockOrigin, Recorder, RecorderOptions, Recording, TraceEvent};
use adverb_proto::types::{
    Access, Completion, PathMtu, RecvRequest, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest,
    Transport,
};
use adverb_proto::{
    Cq, Device, IcrcCheck, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, RxMeta, Time, Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::random::SplitMix64;
use adverb_wire::{Header, Packet, Psn, Qpn, RnrTimer};

/// The first address of each side's region.
pub(crate) const ADDR: u64 = 0x7f00_0000_0000;
/// The length of each side's region.
pub(crate) const SIZE: u64 = 256 << 10;
/// The path MTU of all connections.
pub(crate) const MTU: PathMtu = PathMtu::Mtu1024;
/// The queue key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1234_5678;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// A device with one queue pair.
pub(crate) struct Side {
    pub(crate) device: Device<Recorder>,
    pub(crate) memory: HeapMemory,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qpn: Qpn,
    pub(crate) key: u32,
    pub(crate) storage: StorageId,
    pub(crate) address: IpAddr,
    pub(crate) random: SplitMix64,
}

/// The sequence numbers of the first packets that a side sends and receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstPsns {
    pub(crate) send: u32,
    pub(crate) recv: u32,
}

impl Side {
    pub(crate) fn new(host: u8, transport: Transport) -> Side {
        let mut device = Device::new(Recorder::default());
        let options = RecorderOptions { capacity: 1 << 20, ..RecorderOptions::default() };
        device.sink_mut().start(&options).unwrap();
        let mut random = SplitMix64(host.into());
        let (pd, cq) = (device.create_domain(), device.create_cq(4096));
        let mut memory = HeapMemory::default();
        let storage = memory.add(vec![host; SIZE as usize]);
        let registration = Registration {
            addr: ADDR,
            length: SIZE,
            access: ALL,
            storage,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let key = device.register(pd, registration, || random.next_u64() as u32).unwrap();
        let qpn =
            device.create_qp(QpConfig::new(transport, pd, cq, cq), || random.next_u64() as u32).unwrap();
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
        Side { device, memory, pd, cq, qpn, key, storage, address, random }
    }

    /// Registers the region once more, with a key that the peer may invalidate.
    pub(crate) fn register_invalidatable(&mut self) -> u32 {
        let registration = Registration {
            addr: ADDR,
            length: SIZE,
            access: ALL,
            storage: self.storage,
            remote_invalidate: RemoteInvalidate::Allowed,
        };
        let random = &mut self.random;
        self.device.register(self.pd, registration, || random.next_u64() as u32).unwrap()
    }

    /// Connects the queue pair.
    pub(crate) fn connect(&mut self, now: Time, peer: (Qpn, IpAddr), psns: FirstPsns) {
        let (remote_qpn, remote) = peer;
        let port = Path::source_port_between(self.qpn, remote_qpn);
        let receiving = ReadyToReceive {
            remote_qpn,
            path: Path::new(self.address, remote, port).unwrap(),
            path_mtu: MTU,
            psn: Psn::wrapping(psns.recv),
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(6).unwrap(),
        };
        self.modify(now, Transition::Init(Init::new(ALL)));
        self.modify(now, Transition::ReadyToReceive(receiving));
        self.start_sending(now, psns.send);
    }

    /// Makes a datagram queue pair ready to send.
    pub(crate) fn start_datagrams(&mut self, now: Time, psn: u32) {
        self.modify(now, Transition::Init(Init::datagrams(QKEY)));
        self.modify(now, Transition::ReadyToReceiveUd);
        self.start_sending(now, psn);
    }

    fn start_sending(&mut self, now: Time, psn: u32) {
        let sending = ReadyToSend {
            psn: Psn::wrapping(psn),
            timeout: Timeout::new(8).unwrap(),
            retry_count: 7,
            rnr_retry: 7,
            max_rd_atomic: 4,
        };
        self.modify(now, Transition::ReadyToSend(sending));
    }

    pub(crate) fn modify(&mut self, now: Time, transition: Transition) {
        self.device.modify_qp(now, self.qpn, &transition).unwrap();
    }

    pub(crate) fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment { addr: ADDR + offset, length, lkey: self.key }
    }

    pub(crate) fn remote_address(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: ADDR + offset, rkey: self.key }
    }

    /// Posts a send request on a connection.
    pub(crate) fn send(
        &mut self,
        now: Time,
        (wr_id, tag): (u64, u64),
        operation: SendOperation,
        flags: SendFlags,
        segments: &[Segment],
    ) {
        let request = SendRequest::<()> { wr_id, tag, operation, flags, segments, destination: None };
        self.device.post_send(now, self.qpn, &request).unwrap();
    }

    pub(crate) fn recv(&mut self, now: Time, wr_id: u64, tag: u64, length: u32) {
        let segments = [self.segment(0, length)];
        let request = RecvRequest { wr_id, tag, segments: &segments };
        self.device.post_recv(now, self.qpn, &request).unwrap();
    }

    /// Polls a completion, as an application does.
    pub(crate) fn poll(&mut self, now: Time) -> Option<Completion> {
        let completion = self.device.poll_completion(self.cq)?;
        let (cq, Completion { qpn, wr_id, .. }) = (self.cq, completion);
        self.device.record(now, || TraceEvent::Polled { cq, qpn, wr_id });
        Some(completion)
    }

    /// Returns the recording so far.
    pub(crate) fn recording(&self, name: &str, clock: ClockOrigin) -> Recording {
        self.device.sink().snapshot(name, clock).unwrap()
    }
}

/// The faults of the network, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplication: u64,
    pub(crate) reordering: u64,
}

impl Faults {
    pub(crate) const NONE: Faults = Faults { loss: 0, duplication: 0, reordering: 0 };
}

/// A packet that was sent and has not arrived.
#[derive(Clone, Debug)]
struct InFlight {
    to: usize,
    /// The number of the packet among those that the sender sent.
    number: usize,
    bytes: Vec<u8>,
    arrival: RxMeta,
}

/// A packet that was sent or received, as the network recorded it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The side that sent or received the packet.
    pub(crate) side: usize,
    /// The number of the packet among those that its sender sent.
    pub(crate) number: usize,
    pub(crate) header: Header,
    pub(crate) payload_len: usize,
    pub(crate) is_received: bool,
}

/// Two sides and the network between them.
pub(crate) struct World {
    pub(crate) sides: [Side; 2],
    pub(crate) now: Time,
    pub(crate) random: SplitMix64,
    pub(crate) faults: Faults,
    /// All packets that were sent and received, in order.
    pub(crate) seen: Vec<Seen>,
    in_flight: BTreeMap<(Time, u64), InFlight>,
    serial: u64,
    sent: [usize; 2],
}

impl World {
    pub(crate) fn new(sides: [Side; 2], faults: Faults, seed: u64) -> World {
        World {
            sides,
            now: Time::from_nanos(1000),
            random: SplitMix64(seed),
            faults,
            seen: Vec::new(),
            in_flight: BTreeMap::new(),
            serial: 0,
            sent: [0; 2],
        }
    }

    /// Creates two sides with connected queue pairs. `psn` is the first sequence number of side 0.
    pub(crate) fn connected(transport: Transport, faults: Faults, seed: u64, psn: u32) -> World {
        let sides = [Side::new(1, transport), Side::new(2, transport)];
        let mut world = World::new(sides, faults, seed);
        let peers = [1, 0].map(|side: usize| (world.sides[side].qpn, world.sides[side].address));
        let psns = [FirstPsns { send: psn, recv: 7000 }, FirstPsns { send: 7000, recv: psn }];
        let now = world.now;
        for (side, (peer, psns)) in world.sides.iter_mut().zip(peers.into_iter().zip(psns)) {
            side.connect(now, peer, psns);
        }
        world
    }

    /// Advances the clock.
    pub(crate) fn advance_clock(&mut self, nanos: u64) {
        self.now = self.now + Duration::from_nanos(nanos);
    }

    /// Puts the packets of both sides on the network.
    pub(crate) fn transmit(&mut self) {
        for from in 0..2 {
            loop {
                self.advance_clock(50);
                let side = &mut self.sides[from];
                let Some(transmit) = side.device.poll_transmit(self.now) else { break };
                let mut bytes = Vec::new();
                transmit.write_to(&side.memory, 0, &mut bytes).unwrap();
                let arrival = RxMeta {
                    source: transmit.path.source(),
                    destination: transmit.path.destination(),
                    icrc: IcrcCheck::IpId(0),
                    is_ecn_marked: false,
                    route: adverb_proto::Route::default(),
                    received_at: None,
                };
                let number = self.sent[from];
                self.sent[from] += 1;
                let (header, payload_len) = (transmit.header, Packet::parse(&bytes).unwrap().payload().len());
                self.seen.push(Seen { side: from, number, header, payload_len, is_received: false });
                let copies = match self.random.below(100) {
                    roll if roll < self.faults.loss => 0,
                    roll if roll < self.faults.loss + self.faults.duplication => 2,
                    _ => 1,
                };
                for _ in 0..copies {
                    let extra_delay = if self.random.below(100) < self.faults.reordering { 8000 } else { 0 };
                    let delay = 5000 + extra_delay;
                    let in_flight = InFlight { to: 1 - from, number, bytes: bytes.clone(), arrival };
                    self.serial += 1;
                    self.in_flight.insert((self.now + Duration::from_nanos(delay), self.serial), in_flight);
                }
            }
        }
    }

    /// Advances the clock to the next arrival or timeout, and handles it. Returns `false` if there is none.
    pub(crate) fn handle_next_event(&mut self) -> bool {
        let timeout = self.sides.iter().filter_map(|side| side.device.poll_timeout()).min();
        let delivery = self.in_flight.first_key_value().map(|((time, _), _)| *time);
        let Some(next) = timeout.into_iter().chain(delivery).min() else { return false };
        self.now = self.now.max(next);
        for side in &mut self.sides {
            side.device.handle_timeout(self.now);
        }
        while let Some(entry) = self.in_flight.first_entry()
            && entry.key().0 <= self.now
        {
            let InFlight { to, number, bytes, arrival } = entry.remove();
            let packet = Packet::parse(&bytes).unwrap();
            let (header, payload_len) = (*packet.header(), packet.payload().len());
            self.seen.push(Seen { side: to, number, header, payload_len, is_received: true });
            let side = &mut self.sides[to];
            side.device.handle_packet(self.now, &arrival, &packet, &mut side.memory);
        }
        true
    }

    /// Runs until nothing is left to do.
    pub(crate) fn run(&mut self) {
        loop {
            self.transmit();
            if !self.handle_next_event() {
                break;
            }
        }
    }

    /// Returns the recordings of both sides. If `host_id` is not 0, the sides have one clock.
    pub(crate) fn recordings(&self, host_id: u128) -> [Recording; 2] {
        let clock = ClockOrigin { host_id, monotonic_nanos: 0, unix_nanos: 0 };
        [self.sides[0].recording("soft0", clock), self.sides[1].recording("soft1", clock)]
    }
}
