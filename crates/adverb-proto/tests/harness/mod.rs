//! Two ends and the fabric between them in virtual time, or one end that receives forged packets.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use adverb_proto::memory::{HeapMemory, Pd, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{
    Access, Completion, Destination, PathMtu, QpState, RecvRequest, RemoteAddress, Segment, SendFlags,
    SendOperation, SendRequest, Status, Transport,
};
use adverb_proto::{
    Congestion, Cq, Device, DropReason, IcrcCheck, Init, Path, PostError, QpConfig, QueueEvent,
    ReadyToReceive, ReadyToSend, RxMeta, Srq, SrqConfig, Time, TraceEvent, Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::{
    Aeth, Credits, Flow, Header, MAX_HEADER_LEN, NakCode, Operation, Packet, Psn, Qpn, ROCE_PORT, Rc,
    RnrTimer, Syndrome, Uc, Ud,
};

/// The address of each end's region.
pub(crate) const ADDR: u64 = 0x7f00_0000_0000;
/// The length of the region.
pub(crate) const SIZE: u64 = 320 << 10;
/// The queue key of datagram queue pairs.
pub(crate) const QKEY: u32 = 0x1234_5678;
/// The default sequence number of the first packet in each direction.
pub(crate) const PSN: u32 = 1000;

pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// The options of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) transport: Transport,
    pub(crate) mtu: PathMtu,
    pub(crate) credits: bool,
    pub(crate) signal_all: bool,
    pub(crate) window: u32,
    pub(crate) read_window: u32,
    pub(crate) coalesce_limit: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    /// The access rights of the peer through the queue pairs.
    pub(crate) access: Access,
    pub(crate) psn: u32,
    pub(crate) cq_capacity: u32,
    /// Whether completions have timestamps.
    pub(crate) timestamps: bool,
    pub(crate) max_wr: u32,
    /// Whether the queue pair uses a shared receive queue.
    pub(crate) shared: bool,
    pub(crate) congestion: Congestion,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            transport: Transport::Rc,
            mtu: PathMtu::Mtu1024,
            credits: false,
            signal_all: false,
            window: 256,
            read_window: 2 << 20,
            coalesce_limit: 0,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
            rnr_timer: 12,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            access: ALL,
            psn: PSN,
            cq_capacity: 4096,
            timestamps: false,
            max_wr: 128,
            shared: false,
            congestion: Congestion::None,
        }
    }
}

/// One end: a device, its memory and a queue pair.
pub(crate) struct End {
    pub(crate) device: Device<Vec<(Time, TraceEvent)>>,
    pub(crate) memory: HeapMemory,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) srq: Option<Srq>,
    pub(crate) qpn: Qpn,
    pub(crate) remote_qpn: Qpn,
    pub(crate) storage: StorageId,
    /// The key of the region, with all rights.
    pub(crate) key: u32,
    pub(crate) address: IpAddr,
    pub(crate) peer: IpAddr,
    pub(crate) now: Time,
    random: u32,
}

impl End {
    pub(crate) fn new(host: u8, peer: u8, options: &Options) -> End {
        let mut end = End {
            device: Device::new(Vec::new()),
            memory: HeapMemory::default(),
            pd: Device::new(()).create_domain(),
            cq: Device::new(()).create_cq(1),
            srq: None,
            qpn: Qpn::GSI,
            remote_qpn: Qpn::GSI,
            storage: StorageId(0),
            key: 0,
            address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
            peer: IpAddr::V4(Ipv4Addr::new(10, 0, 0, peer)),
            now: Time::ZERO,
            random: u32::from(host),
        };
        end.pd = end.device.create_domain();
        end.cq = match options.timestamps {
            true => end.device.create_timed_cq(options.cq_capacity),
            false => end.device.create_cq(options.cq_capacity),
        };
        end.storage = end.memory.add(pattern(1 << 10, host).repeat(SIZE as usize >> 10));
        end.key = end.register(ALL);
        let mut config = QpConfig::new(options.transport, end.pd, end.cq, end.cq);
        if options.shared {
            end.srq = Some(end.device.create_srq(SrqConfig::new(end.pd)).unwrap());
        }
        config.srq = end.srq;
        config.credits = options.credits;
        config.signal_all = options.signal_all;
        config.window = options.window;
        config.read_window = options.read_window;
        config.coalesce_limit = options.coalesce_limit;
        config.max_send_wr = options.max_wr;
        config.max_recv_wr = options.max_wr;
        config.congestion = options.congestion;
        let mut random = end.rng();
        end.qpn = end.device.create_qp(config, &mut random).unwrap();
        end
    }

    /// Returns a random number generator with a new seed.
    pub(crate) fn rng(&mut self) -> impl FnMut() -> u32 + use<> {
        self.random = self.random.wrapping_add(0x1000_0001);
        let mut state = self.random;
        move || {
            state = state.wrapping_mul(0x915f_77f5).wrapping_add(0x1234_5677);
            state ^ state >> 15
        }
    }

    /// Registers the end's bytes again, with these access rights.
    pub(crate) fn register(&mut self, access: Access) -> u32 {
        self.register_with(self.pd, access, RemoteInvalidate::Denied)
    }

    pub(crate) fn register_with(
        &mut self,
        pd: Pd,
        access: Access,
        remote_invalidate: RemoteInvalidate,
    ) -> u32 {
        let registration =
            Registration { addr: ADDR, length: SIZE, access, storage: self.storage, remote_invalidate };
        let random = self.rng();
        self.device.register(pd, registration, random).unwrap()
    }

    pub(crate) fn path(&self) -> Path {
        Path::new(self.address, self.peer, 0xc123).unwrap()
    }

    pub(crate) fn move_to_init(&mut self, options: &Options) {
        let init = match options.transport {
            Transport::Ud => Init::datagrams(QKEY),
            Transport::Rc | Transport::Uc => Init::new(options.access),
        };
        let init = Transition::Init(init);
        self.device.modify_qp(self.now, self.qpn, &init).unwrap();
    }

    pub(crate) fn ready_to_receive(&self, remote_qpn: Qpn, options: &Options) -> Transition {
        if options.transport == Transport::Ud {
            return Transition::ReadyToReceiveUd;
        }
        Transition::ReadyToReceive(ReadyToReceive {
            remote_qpn,
            path: self.path(),
            path_mtu: options.mtu,
            psn: Psn::wrapping(options.psn),
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: RnrTimer::new(options.rnr_timer).unwrap(),
        })
    }

    pub(crate) fn ready_to_send(options: &Options) -> Transition {
        Transition::ReadyToSend(ReadyToSend {
            psn: Psn::wrapping(options.psn),
            timeout: Timeout::new(options.timeout).unwrap(),
            retry_count: options.retry_count,
            rnr_retry: options.rnr_retry,
            max_rd_atomic: options.max_rd_atomic,
        })
    }

    pub(crate) fn connect(&mut self, remote_qpn: Qpn, options: &Options) {
        self.remote_qpn = remote_qpn;
        self.move_to_init(options);
        let ready_to_receive = self.ready_to_receive(remote_qpn, options);
        self.device.modify_qp(self.now, self.qpn, &ready_to_receive).unwrap();
        self.device.modify_qp(self.now, self.qpn, &End::ready_to_send(options)).unwrap();
    }

    pub(crate) fn modify(&mut self, transition: Transition) {
        self.device.modify_qp(self.now, self.qpn, &transition).unwrap();
    }

    pub(crate) fn state(&self) -> QpState {
        self.device.query_qp(self.qpn).unwrap().state
    }

    /// Returns the reasons of dropped packets, in order.
    pub(crate) fn drops(&self) -> Vec<DropReason> {
        let dropped = |(_, event): &(Time, TraceEvent)| match event {
            TraceEvent::Dropped { reason, .. } => Some(*reason),
            _ => None,
        };
        self.device.sink().iter().filter_map(dropped).collect()
    }

    /// Returns a segment of the region.
    pub(crate) fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment { addr: ADDR + offset, length, lkey: self.key }
    }

    /// Returns an address in the region for a peer's requests.
    pub(crate) fn remote_addr(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: ADDR + offset, rkey: self.key }
    }

    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        &self.memory.bytes(self.storage)[offset..offset + length]
    }

    pub(crate) fn fill(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.bytes_mut(self.storage)[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    pub(crate) fn try_post(
        &mut self,
        wr_id: u64,
        operation: SendOperation,
        flags: SendFlags,
        segments: &[Segment],
    ) -> Result<(), PostError> {
        let request =
            SendRequest { wr_id, tag: 0, operation, flags, segments, destination: self.destination() };
        self.device.post_send(self.now, self.qpn, &request)
    }

    /// Returns the destination of a datagram, or `None` for a connection.
    pub(crate) fn destination(&self) -> Option<Destination<Path>> {
        let is_datagram = self.device.query_qp(self.qpn).is_some_and(|qp| qp.transport == Transport::Ud);
        is_datagram.then(|| Destination { handle: self.path(), qpn: self.remote_qpn, qkey: QKEY })
    }

    /// Posts a signaled request with one segment of the region.
    pub(crate) fn post(&mut self, wr_id: u64, operation: SendOperation, offset: u64, length: u32) {
        let segment = self.segment(offset, length);
        let segments = if length == 0 { &[][..] } else { &[segment][..] };
        self.try_post(wr_id, operation, SendFlags::SIGNALED, segments).unwrap();
    }

    pub(crate) fn post_fenced(&mut self, wr_id: u64, operation: SendOperation, offset: u64, length: u32) {
        let segment = self.segment(offset, length);
        self.try_post(wr_id, operation, SendFlags::SIGNALED | SendFlags::FENCE, &[segment]).unwrap();
    }

    pub(crate) fn post_recv(&mut self, wr_id: u64, offset: u64, length: u32) {
        let segments = [self.segment(offset, length)];
        let request = RecvRequest { wr_id, tag: 0, segments: &segments };
        self.device.post_recv(self.now, self.qpn, &request).unwrap();
    }

    /// Posts a receive request to the shared queue.
    pub(crate) fn post_shared(&mut self, wr_id: u64, offset: u64, length: u32) {
        let segments = [self.segment(offset, length)];
        let request = RecvRequest { wr_id, tag: 0, segments: &segments };
        self.device.post_srq_recv(self.now, self.srq.unwrap(), &request).unwrap();
    }

    /// Returns the number of requests in the shared queue.
    pub(crate) fn shared_queue_len(&self) -> usize {
        self.device.query_srq(self.srq.unwrap()).unwrap().request_count
    }

    /// Returns all packets to send now.
    pub(crate) fn transmits(&mut self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some(transmit) = self.device.poll_transmit(self.now) {
            let mut bytes = Vec::new();
            transmit.write_to(&self.memory, 0, &mut bytes).unwrap();
            packets.push(bytes);
        }
        packets
    }

    /// Returns the headers of all packets to send now.
    pub(crate) fn headers(&mut self) -> Vec<Header> {
        self.transmits().iter().map(|bytes| *Packet::parse(bytes).unwrap().header()).collect()
    }

    /// Returns all packets to send now, as operations and sequence numbers relative to [`PSN`].
    pub(crate) fn sent(&mut self) -> Vec<(Rc, u32)> {
        let headers = self.headers();
        headers
            .iter()
            .map(|header| (rc(header), Psn::wrapping(header.psn.get().wrapping_sub(PSN)).get()))
            .collect()
    }

    pub(crate) fn rx_meta(&self) -> RxMeta {
        RxMeta {
            source: SocketAddr::new(self.peer, 0xc123),
            destination: SocketAddr::new(self.address, ROCE_PORT),
            icrc: IcrcCheck::IpId(0),
            is_ecn_marked: false,
            route: Default::default(),
            received_at: None,
        }
    }

    pub(crate) fn deliver(&mut self, bytes: &[u8]) {
        let rx_meta = self.rx_meta();
        self.deliver_as(&rx_meta, bytes);
    }

    pub(crate) fn deliver_as(&mut self, rx_meta: &RxMeta, bytes: &[u8]) {
        let packet = Packet::parse(bytes).unwrap();
        self.device.handle_packet(self.now, rx_meta, &packet, &mut self.memory);
    }

    /// Builds a packet from the peer.
    pub(crate) fn forge(&self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let flow =
            Flow::new(SocketAddr::new(self.peer, 0xc123), SocketAddr::new(self.address, ROCE_PORT)).unwrap();
        let mut head = [0; MAX_HEADER_LEN];
        let emitted = flow.emit(header, 0, &[payload], &mut head).unwrap();
        [&head[..emitted.header_len], payload, &emitted.trailer].concat()
    }

    /// Delivers a forged packet that requests an acknowledgement, with a sequence number relative to [`PSN`].
    pub(crate) fn receive(&mut self, psn: u32, rc: Rc, payload: &[u8]) {
        let mut header = Header::new(self.qpn, Psn::wrapping(PSN) + psn, Operation::Rc(rc));
        header.ack_request = true;
        let bytes = self.forge(&header, payload);
        self.deliver(&bytes);
    }

    /// Delivers a forged packet of an unreliable connection, with a sequence number relative to [`PSN`].
    pub(crate) fn receive_uc(&mut self, psn: u32, uc: Uc, payload: &[u8]) {
        let header = Header::new(self.qpn, Psn::wrapping(PSN) + psn, Operation::Uc(uc));
        let bytes = self.forge(&header, payload);
        self.deliver(&bytes);
    }

    /// Delivers a forged datagram.
    pub(crate) fn receive_datagram(&mut self, datagram: Ud, payload: &[u8]) {
        let header = Header::new(self.qpn, Psn::ZERO, Operation::Ud(datagram));
        let bytes = self.forge(&header, payload);
        self.deliver(&bytes);
    }

    /// Delivers a forged packet like [`receive`](End::receive), and returns the packets sent in response.
    pub(crate) fn exchange(&mut self, psn: u32, rc: Rc, payload: &[u8]) -> Vec<(Rc, u32)> {
        self.receive(psn, rc, payload);
        self.sent()
    }

    /// Delivers a forged acknowledgement with message sequence number 0.
    pub(crate) fn receive_ack(&mut self, psn: u32) {
        self.receive(psn, ack(0), &[]);
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.device.poll_completion(self.cq)).collect()
    }

    /// Polls all completions, as ids and statuses.
    pub(crate) fn statuses(&mut self) -> Vec<(u64, Status)> {
        let completions = self.completions();
        completions.iter().map(|completion| (completion.wr_id, status(completion))).collect()
    }

    pub(crate) fn cq_events(&mut self) -> Vec<Cq> {
        std::iter::from_fn(|| self.device.poll_cq_event()).collect()
    }

    pub(crate) fn queue_events(&mut self) -> Vec<QueueEvent> {
        std::iter::from_fn(|| self.device.poll_queue_event()).collect()
    }

    /// Advances the time to the next timer that has an effect. Returns the time that passed, or `None` if there is no
    /// such timer.
    pub(crate) fn wait(&mut self) -> Option<Duration> {
        let start = self.now;
        let expired_count = |end: &End| {
            end.device.sink().iter().filter(|(_, e)| matches!(e, TraceEvent::TimerExpired { .. })).count()
        };
        let count_before = expired_count(self);
        while expired_count(self) == count_before {
            self.now = self.device.poll_timeout()?.max(self.now);
            self.device.handle_timeout(self.now);
        }
        Some(self.now - start)
    }
}

/// Two ends.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    /// The number of packets that were sent, including those that did not arrive.
    pub(crate) packets: usize,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(&Options::default())
    }

    pub(crate) fn with(options: &Options) -> Pair {
        let mut a = End::new(1, 2, options);
        let mut b = End::new(2, 1, options);
        a.connect(b.qpn, options);
        b.connect(a.qpn, options);
        Pair { a, b, packets: 0 }
    }

    /// Transfers packets until there are none. `keep` selects the packets that arrive; its first argument is whether
    /// the packet is from `a`.
    pub(crate) fn run_where(&mut self, mut keep: impl FnMut(bool, &Packet<'_>) -> bool) {
        loop {
            let from_a = self.a.transmits();
            let from_b = self.b.transmits();
            if from_a.is_empty() && from_b.is_empty() {
                break;
            }
            self.packets += from_a.len() + from_b.len();
            for (is_from_a, packets) in [(true, from_a), (false, from_b)] {
                for bytes in packets {
                    if keep(is_from_a, &Packet::parse(&bytes).unwrap()) {
                        if is_from_a {
                            self.b.deliver(&bytes);
                        } else {
                            self.a.deliver(&bytes);
                        }
                    }
                }
            }
        }
    }

    /// Transfers all packets until there are none.
    pub(crate) fn run(&mut self) {
        self.run_where(|_, _| true);
    }

    /// Transfers packets, and advances the time when there are none, until no timer is set.
    pub(crate) fn run_until_idle_where(&mut self, mut keep: impl FnMut(bool, &Packet<'_>) -> bool) {
        loop {
            self.run_where(&mut keep);
            let next =
                [self.a.device.poll_timeout(), self.b.device.poll_timeout()].into_iter().flatten().min();
            let Some(next) = next else { break };
            let now = next.max(self.a.now);
            (self.a.now, self.b.now) = (now, now);
            self.a.device.handle_timeout(now);
            self.b.device.handle_timeout(now);
        }
    }
}

/// Returns an end without a peer, whose queue pair is connected: the test forges the packets of the peer.
pub(crate) fn solo() -> End {
    solo_with(&Options::default())
}

pub(crate) fn solo_with(options: &Options) -> End {
    let mut end = End::new(1, 2, options);
    end.connect(Qpn::truncate(0x77), options);
    end
}

pub(crate) fn rc(header: &Header) -> Rc {
    match header.operation {
        Operation::Rc(rc) => rc,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn status(completion: &Completion) -> Status {
    completion.outcome.map_or_else(|failure| failure.status, |_| Status::Success)
}

/// Returns an acknowledgement without a credit limit.
pub(crate) fn ack(msn: u32) -> Rc {
    Rc::Acknowledge(aeth(msn))
}

pub(crate) fn aeth(msn: u32) -> Aeth {
    Aeth { syndrome: Syndrome::Ack(Credits::UNLIMITED), msn }
}

pub(crate) fn nak(code: NakCode, msn: u32) -> Rc {
    Rc::Acknowledge(Aeth { syndrome: Syndrome::Nak(code), msn })
}

pub(crate) fn rnr_nak(code: u8, msn: u32) -> Rc {
    Rc::Acknowledge(Aeth { syndrome: Syndrome::RnrNak(RnrTimer::new(code).unwrap()), msn })
}

/// Returns bytes that differ by position.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|index| (index as u8).wrapping_mul(7) ^ (index >> 8) as u8 ^ seed).collect()
}

/// A pseudorandom number generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
