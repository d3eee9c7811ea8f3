//! The device: queue pairs, completion queues and keys, and the dispatch of packets to queue pairs.

mod completion_queues;
mod multicast;
mod shared;
mod status;
mod windows;

use std::collections::{HashMap, VecDeque};

use adverb_wire::{Header, MAX_PACKET_LEN, Operation, Packet, Qpn};

pub use multicast::MulticastError;
pub use status::{QpStatus, ResourceCounts};

use crate::Time;
use crate::cq::{CompletionQueue, Cq, Timestamp};
use crate::event::QueueEvent;
use crate::hash::BuildNumberHasher;
use crate::memory::{DeregisterError, DomainError, Keys, Memory, Pd, RegisterError, Registration, Span};
use crate::mutation::mutant;
use crate::path::{AddressVector, Path, RxMeta};
use crate::qp::{
    Context, CreateQpError, ModifyError, PostError, QpConfig, QueuePair, Received, Rings, Transition,
    TxPacket, TxPayload,
};
use crate::slots::FreeSlots;
use crate::srq::SharedQueue;
use crate::stats::Statistics;
use crate::timer::TimerHeap;
use crate::trace::{DropReason, EventSink, TraceEvent, is_recording, record};
use crate::transmit::{Payload, Transmit};
use crate::types::{Completion, PathMtu, RecvRequest, SendRequest, Transport};
use multicast::Groups;

/// The engine of an RDMA adapter, without links: it executes work requests and handles packets.
///
/// The device has no clock, no socket and no thread; the caller provides them. The `post_*` methods accept work
/// requests, the `handle_*` methods accept packets and the time, and the `poll_*` methods return the results. After
/// each call of `post_*` or `handle_*`, the caller must poll in this order:
///
/// 1. The caller polls [`poll_transmit`](Device::poll_transmit) until it returns `None`, and sends each packet before
///    it polls the next one. One acknowledgement covers all packets handled before, so the caller should handle all
///    received packets before it polls.
/// 2. The caller polls [`poll_completion`](Device::poll_completion), [`poll_cq_event`](Device::poll_cq_event) and
///    [`poll_queue_event`](Device::poll_queue_event). Sending a packet can also complete requests.
/// 3. The caller polls [`poll_timeout`](Device::poll_timeout) for the time of the next
///    [`handle_timeout`](Device::handle_timeout).
///
/// `S` is an [`EventSink`] that observes the device. The sink `()` ignores events at no cost.
///
/// ```
/// use adverb_proto::memory::{HeapMemory, Registration, RemoteInvalidate};
/// use adverb_proto::types::{Access, PathMtu, SendFlags, SendOperation, SendRequest};
/// use adverb_proto::types::{RemoteAddress, Segment};
/// use adverb_proto::{Device, IcrcCheck, Init, Path, QpConfig, ReadyToReceive, ReadyToSend, RxMeta, Time, Transition};
/// use adverb_wire::cm::Timeout;
/// use adverb_wire::{Packet, Psn, RnrTimer};
///
/// // One device with one queue pair, which is connected to itself. `random` stands for a random number generator.
/// let mut random = 0x1234u32;
/// let mut random = || { random = random.wrapping_mul(0x9e37_79b9).wrapping_add(1); random };
/// let mut memory = HeapMemory::default();
/// let mut device = Device::new(());
/// let pd = device.create_domain();
/// let cq = device.create_cq(16);
/// let qpn = device.create_qp(QpConfig::rc(pd, cq, cq), &mut random).unwrap();
///
/// let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
/// let storage = memory.add(b"hello, .....".to_vec());
/// let registration = Registration {
///     addr: 0x1000, length: 12, access, storage, remote_invalidate: RemoteInvalidate::Denied,
/// };
/// let key = device.register(pd, registration, &mut random).unwrap();
///
/// let address = "127.0.0.1".parse().unwrap();
/// let path = Path::new(address, address, 0xc000).unwrap();
/// let psn = Psn::wrapping(random());
/// let ready_to_receive = ReadyToReceive {
///     remote_qpn: qpn, path, path_mtu: PathMtu::Mtu1024, psn, max_dest_rd_atomic: 4,
///     min_rnr_timer: RnrTimer::new(12).unwrap(),
/// };
/// let ready_to_send = ReadyToSend {
///     psn, timeout: Timeout::new(14).unwrap(), retry_count: 6, rnr_retry: 6, max_rd_atomic: 4,
/// };
/// let now = Time::ZERO;
/// device.modify_qp(now, qpn, &Transition::Init(Init::new(access))).unwrap();
/// device.modify_qp(now, qpn, &Transition::ReadyToReceive(ready_to_receive)).unwrap();
/// device.modify_qp(now, qpn, &Transition::ReadyToSend(ready_to_send)).unwrap();
///
/// let request = SendRequest::<()> {
///     wr_id: 7,
///     tag: 0,
///     operation: SendOperation::Write(RemoteAddress { addr: 0x1007, rkey: key }),
///     flags: SendFlags::SIGNALED,
///     segments: &[Segment { addr: 0x1000, length: 5, lkey: key }],
///     destination: None,
/// };
/// device.post_send(now, qpn, &request).unwrap();
///
/// // The fabric returns each packet to the device.
/// let rx_meta = RxMeta {
///     source: (address, 0xc000).into(), destination: (address, 4791).into(), icrc: IcrcCheck::IpId(0),
///     is_ecn_marked: false, route: Default::default(), received_at: None,
/// };
/// let mut bytes = Vec::new();
/// while let Some(transmit) = device.poll_transmit(now) {
///     bytes.clear();
///     transmit.write_to(&memory, 0, &mut bytes).unwrap();
///     device.handle_packet(now, &rx_meta, &Packet::parse(&bytes).unwrap(), &mut memory);
/// }
/// assert_eq!(memory.bytes(storage), b"hello, hello");
/// let completion = device.poll_completion(cq).unwrap();
/// assert_eq!(completion.wr_id, 7);
/// assert!(completion.outcome.is_ok());
/// ```
#[derive(Debug)]
pub struct Device<S = ()> {
    qps: Vec<Option<Box<QueuePair>>>,
    free_qps: Vec<u32>,
    slots_by_qpn: HashMap<u32, u32, BuildNumberHasher>,
    cqs: Vec<Option<CompletionQueue>>,
    free_cqs: FreeSlots,
    /// The number of completion queues with timestamps.
    timed_cq_count: u32,
    srqs: Vec<Option<SharedQueue>>,
    free_srqs: FreeSlots,
    keys: Keys,
    timers: TimerHeap,
    /// The slots of queue pairs that may have packets to send, each once.
    ready: VecDeque<u32>,
    /// The number of packets that the first queue pair in `ready` has sent in a row.
    burst: u32,
    cq_events: VecDeque<Cq>,
    queue_events: VecDeque<QueueEvent>,
    spans: Vec<Span>,
    rings: Rings,
    groups: Groups,
    /// The maximum payload of a packet on the port.
    mtu: PathMtu,
    stats: Statistics,
    sink: S,
}

/// Borrows the state that queue pairs share, without the queue pairs themselves.
macro_rules! context {
    ($device:ident, $now:expr) => {
        context!($device, $now, &mut $device.sink)
    };
    ($device:ident, $now:expr, $sink:expr) => {
        Context {
            now: $now,
            completed_at: Timestamp::from($now),
            mtu: $device.mtu,
            keys: &mut $device.keys,
            cqs: &mut $device.cqs,
            srqs: &mut $device.srqs,
            stats: &mut $device.stats,
            cq_events: &mut $device.cq_events,
            queue_events: &mut $device.queue_events,
            spans: &mut $device.spans,
            sink: $sink,
        }
    };
}

/// Evaluates an expression with a context whose sink is the device's sink while that sink records, and `()` otherwise.
/// The code of queue pairs is compiled for both, so a device that isn't recorded checks this once per call instead of
/// once per event.
macro_rules! with_context {
    ($device:ident, $now:expr, |$context:ident| $body:expr) => {
        if is_recording(&$device.sink) {
            let $context = &mut context!($device, $now);
            $body
        } else {
            let $context = &mut context!($device, $now, &mut ());
            $body
        }
    };
}

impl<S: EventSink> Device<S> {
    /// Creates a device that passes its trace events to `sink`.
    pub fn new(sink: S) -> Device<S> {
        Device {
            qps: Vec::new(),
            free_qps: Vec::new(),
            slots_by_qpn: HashMap::default(),
            cqs: Vec::new(),
            free_cqs: FreeSlots::default(),
            timed_cq_count: 0,
            srqs: Vec::new(),
            free_srqs: FreeSlots::default(),
            keys: Keys::default(),
            timers: TimerHeap::default(),
            ready: VecDeque::new(),
            burst: 0,
            cq_events: VecDeque::new(),
            queue_events: VecDeque::new(),
            spans: Vec::new(),
            rings: Rings::default(),
            groups: Groups::default(),
            mtu: PathMtu::Mtu4096,
            stats: Statistics::default(),
            sink,
        }
    }

    /// Sets the MTU of the port, which limits the path MTU of connections and the length of datagrams. The default is
    /// 4096 bytes. Queue pairs that are already ready to receive keep their path MTU.
    pub fn set_port_mtu(&mut self, mtu: PathMtu) {
        self.mtu = mtu;
    }

    /// Creates a protection domain.
    pub fn create_domain(&mut self) -> Pd {
        self.keys.create_domain()
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    ///
    /// Returns an error if the domain does not exist, or if objects still belong to it.
    pub fn destroy_domain(&mut self, pd: Pd) -> Result<(), DomainError> {
        self.keys.destroy_domain(pd)
    }

    /// Registers memory and returns its key, which is both the local and the remote key.
    ///
    /// A peer that guesses the key can access the memory with the rights that the region grants, so `random` must be
    /// unpredictable. Outside simulations, `random` must be a cryptographically secure generator.
    ///
    /// # Errors
    ///
    /// Returns an error if the range is empty or exceeds the address space, the combination of access rights is
    /// invalid, the protection domain does not exist, or the maximum number of regions is reached.
    pub fn register(
        &mut self,
        pd: Pd,
        registration: Registration,
        random: impl FnMut() -> u32,
    ) -> Result<u32, RegisterError> {
        self.keys.register(pd, registration, random)
    }

    /// Deregisters a memory region and returns its attributes. Outstanding requests that still need the region fail.
    ///
    /// # Errors
    ///
    /// Returns an error if no region has this key, or if memory windows are bound to the region.
    pub fn deregister(&mut self, key: u32) -> Result<Registration, DeregisterError> {
        self.keys.deregister(key)
    }

    /// Creates a queue pair and returns its number, which is random so that attackers can't guess it.
    ///
    /// # Errors
    ///
    /// Returns an error if the protection domain, a completion queue or the shared receive queue does not exist, or if
    /// too many queue pair numbers are in use.
    pub fn create_qp(
        &mut self,
        config: QpConfig,
        mut random: impl FnMut() -> u32,
    ) -> Result<Qpn, CreateQpError> {
        // Half of the numbers stay free, so that a random free number is found after a few attempts.
        if self.slots_by_qpn.len() >= MAX_QPS {
            return Err(CreateQpError::TooMany);
        }
        let qpn = loop {
            let qpn = Qpn::truncate(random());
            // Numbers 0 and 1 are for management, and the last number is for multicast (vol. 1, 3.9.3 and 10.5.2).
            let special = qpn.get() <= 1 || qpn == Qpn::MULTICAST;
            if !special && !self.slots_by_qpn.contains_key(&qpn.get()) {
                break qpn;
            }
        };
        self.create_numbered(qpn, config)
    }

    /// Creates queue pair 1, the general service interface (GSI) that connection managers use (vol. 1, 13.5.1). Its
    /// transport must be UD. Connection managers expect the queue key [`GSI_QKEY`](adverb_wire::cm::GSI_QKEY).
    ///
    /// # Errors
    ///
    /// Returns an error if the protection domain, a completion queue or the shared receive queue does not exist, and
    /// [`CreateQpError::InvalidGsi`] if queue pair 1 exists or the transport is not UD.
    pub fn create_gsi(&mut self, config: QpConfig) -> Result<Qpn, CreateQpError> {
        if self.slot(Qpn::GSI).is_some() || config.transport != Transport::Ud {
            return Err(CreateQpError::InvalidGsi);
        }
        self.create_numbered(Qpn::GSI, config)
    }

    fn create_numbered(&mut self, qpn: Qpn, config: QpConfig) -> Result<Qpn, CreateQpError> {
        for cq in [config.send_cq, config.recv_cq] {
            if !matches!(self.cqs.get(cq.0 as usize), Some(Some(_))) {
                return Err(CreateQpError::UnknownCq(cq));
            }
        }
        let mut recv_pd = config.pd;
        if let Some(srq) = config.srq {
            let Some(Some(queue)) = self.srqs.get(srq.0 as usize) else {
                return Err(CreateQpError::UnknownSrq(srq));
            };
            // Receive requests use memory of their queue's domain (vol. 1, 10.2.9).
            recv_pd = queue.config.pd;
        }
        self.keys.add_domain_user(config.pd).map_err(|_| CreateQpError::UnknownDomain)?;
        if let Some(srq) = config.srq
            && let Some(Some(queue)) = self.srqs.get_mut(srq.0 as usize)
        {
            queue.users += 1;
        }
        for cq in [config.send_cq, config.recv_cq] {
            if let Some(Some(cq)) = self.cqs.get_mut(cq.0 as usize) {
                cq.users += 1;
            }
        }
        let qp = Box::new(QueuePair::new(qpn, config, recv_pd));
        let slot = match self.free_qps.pop() {
            Some(slot) => {
                self.qps[slot as usize] = Some(qp);
                slot
            }
            None => {
                self.qps.push(Some(qp));
                self.qps.len() as u32 - 1
            }
        };
        self.slots_by_qpn.insert(qpn.get(), slot);
        Ok(qpn)
    }

    /// Destroys a queue pair in any state. Returns `false` if it does not exist.
    ///
    /// The queue pair's requests are discarded without completions; completions that are already queued stay. A request
    /// that the queue pair has taken from a shared receive queue and not completed returns to the front of that queue.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> bool {
        let Some(slot) = self.slot(qpn) else { return false };
        let Some(mut qp) = self.qps[slot as usize].take() else { return false };
        if !mutant!(DestroyLeaksQpn) {
            self.slots_by_qpn.remove(&qpn.get());
        }
        self.timers.remove(slot);
        self.keys.unbind_all(qpn);
        self.groups.detach_all(slot, &qp.groups);
        if let Some(srq) = qp.config.srq
            && let Some(Some(queue)) = self.srqs.get_mut(srq.0 as usize)
        {
            qp.return_to_srq(queue);
            queue.users -= 1;
        }
        for cq in [qp.config.send_cq, qp.config.recv_cq] {
            if let Some(Some(cq)) = self.cqs.get_mut(cq.0 as usize) {
                cq.users -= 1;
            }
        }
        self.keys.remove_domain_user(qp.config.pd);
        // A queue pair in `ready` keeps its slot until `poll_transmit` reaches it, because removing it from `ready`
        // would require a scan.
        if !qp.queued {
            self.free_qps.push(slot);
        }
        true
    }

    /// Moves a queue pair to another state, or changes its attributes.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist, its state does not allow the transition, or a value is out of
    /// range.
    pub fn modify_qp(&mut self, now: Time, qpn: Qpn, transition: &Transition) -> Result<(), ModifyError> {
        let slot = self.slot(qpn).ok_or(ModifyError::UnknownQp)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return Err(ModifyError::UnknownQp) };
        let modified = qp.modify(&mut context!(self, now), transition);
        if qp.deadline().is_none() {
            self.timers.remove(slot);
        }
        self.update_schedule(now, slot);
        modified
    }

    /// Posts a send request. The payload is read when the request's packets are sent or retransmitted.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist, its state does not allow posting, its queue is full, or its
    /// transport or limits do not allow the request. After an error, the request is not executed.
    #[inline]
    pub fn post_send<Handle: AddressVector>(
        &mut self,
        now: Time,
        qpn: Qpn,
        request: &SendRequest<'_, Handle>,
    ) -> Result<(), PostError> {
        self.post(now, qpn, request, None)
    }

    /// Posts a send request with the flag `INLINE`, and copies `bytes` as its payload. The memory of the request's
    /// segments is not read.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`post_send`](Device::post_send), and [`PostError::InvalidInline`] if `bytes` is too
    /// long.
    pub fn post_send_inline<Handle: AddressVector>(
        &mut self,
        now: Time,
        qpn: Qpn,
        request: &SendRequest<'_, Handle>,
        bytes: &[u8],
    ) -> Result<(), PostError> {
        self.post(now, qpn, request, Some(bytes))
    }

    #[inline]
    fn post<Handle: AddressVector>(
        &mut self,
        now: Time,
        qpn: Qpn,
        request: &SendRequest<'_, Handle>,
        inline: Option<&[u8]>,
    ) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::UnknownQp)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return Err(PostError::UnknownQp) };
        qp.acquire_rings(&mut self.rings);
        with_context!(self, now, |cx| qp.post_send(cx, request, inline))?;
        self.update_schedule(now, slot);
        Ok(())
    }

    /// Posts a receive request.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair does not exist or uses a shared receive queue, its state does not allow
    /// posting, its queue is full, the request has too many segments, or a buffer for datagrams is shorter than a GRH.
    pub fn post_recv(&mut self, now: Time, qpn: Qpn, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::UnknownQp)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return Err(PostError::UnknownQp) };
        with_context!(self, now, |cx| qp.post_recv(cx, request))?;
        self.update_schedule(now, slot);
        Ok(())
    }

    /// Handles a received packet. A packet with arbitrary content affects only the queue pairs that it is addressed to.
    /// At worst, it delivers a forged message, completes outstanding requests, moves a queue pair to the error state,
    /// or accesses memory whose key it contains.
    ///
    /// Parsing has checked the length and the opcode. The device checks queue pair, addresses, partition, ICRC and
    /// transport, in this order, and the queue pair checks the other fields.
    pub fn handle_packet(
        &mut self,
        now: Time,
        rx_meta: &RxMeta,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
    ) {
        let received = Received { header: packet.header(), payload: packet.payload() };
        self.handle(now, rx_meta, received, Some(packet), memory);
    }

    /// Handles a packet whose header and payload are separate: a packet from a device in the same process, whose
    /// payload is still in the sender's memory. The packet has no ICRC.
    pub fn handle_split_packet(
        &mut self,
        now: Time,
        rx_meta: &RxMeta,
        header: &Header,
        payload: &[u8],
        memory: &mut impl Memory,
    ) {
        // Parsing checks these lengths for other packets.
        if header.opcode().payload_rule().allows(payload.len()) && payload.len() <= MAX_PACKET_LEN {
            self.handle(now, rx_meta, Received { header, payload }, None, memory);
        }
    }

    fn handle(
        &mut self,
        now: Time,
        rx_meta: &RxMeta,
        received: Received<'_>,
        packet: Option<&Packet<'_>>,
        memory: &mut impl Memory,
    ) {
        let header = received.header;
        let qpn = header.dest_qp;
        // `handle_multicast` drops a packet to a multicast address that names a single queue pair, even a member.
        if qpn == Qpn::MULTICAST || rx_meta.destination.ip().is_multicast() {
            return self.handle_multicast(now, rx_meta, received, packet, memory);
        }
        let Some(slot) = self.slot(qpn) else {
            return self.drop_packet(now, qpn, header, DropReason::UnknownQp);
        };
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return self.drop_packet(now, qpn, header, DropReason::UnknownQp);
        };
        if !qp.can_receive() {
            return self.drop_packet(now, qpn, header, DropReason::WrongState);
        }
        if !qp.is_peer(rx_meta) {
            return self.drop_packet(now, qpn, header, DropReason::WrongAddress);
        }
        if !qp.is_in_partition(header.pkey) {
            return self.drop_packet(now, qpn, header, DropReason::WrongPkey);
        }
        if let Some(packet) = packet
            && !qp.icrc_checker().is_intact(rx_meta, packet)
        {
            return self.drop_packet(now, qpn, header, DropReason::WrongIcrc);
        }
        self.deliver(now, slot, rx_meta, received, memory);
    }

    /// Delivers a packet that passed the other checks of the device to a queue pair of the packet's transport.
    #[inline]
    fn deliver(
        &mut self,
        now: Time,
        slot: u32,
        rx_meta: &RxMeta,
        received: Received<'_>,
        memory: &mut impl Memory,
    ) {
        let header = received.header;
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        match (&header.operation, qp.config.transport) {
            (Operation::Rc(_), Transport::Rc)
            | (Operation::Uc(_), Transport::Uc)
            | (Operation::Ud(_), Transport::Ud) => {}
            (Operation::Cnp, _) => {
                let cx = &mut context!(self, now);
                cx.event(|| qp.received_event(received));
                qp.handle_cnp(cx);
                return self.update_schedule(now, slot);
            }
            _ => {
                let qpn = qp.qpn;
                return self.drop_packet(now, qpn, header, DropReason::WrongTransport);
            }
        }
        self.stats.packets_received += 1;
        self.stats.bytes_received += received.payload.len() as u64;
        with_context!(self, now, |cx| qp.handle_packet(cx, rx_meta, received, memory));
        self.update_schedule(now, slot);
    }

    /// Returns the next packet to send. The caller should poll until this method returns `None`.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit<'_>> {
        let (slot, TxPacket { header, payload, payload_len }) = loop {
            let slot = *self.ready.front()?;
            let Some(qp) = self.qps[slot as usize].as_mut() else {
                // The queue pair was destroyed while it was in `ready`. Its slot is free now.
                self.ready.pop_front();
                self.free_qps.push(slot);
                continue;
            };
            let tx_packet = with_context!(self, now, |cx| qp.poll_transmit(cx));
            if qp.has_lost_completion() {
                qp.fail_if_completion_lost(&mut context!(self, now));
            }
            if let Some(deadline) = qp.deadline() {
                self.timers.set_no_later(slot, deadline);
            }
            if tx_packet.is_none() || !qp.may_transmit() {
                // Any remaining work waits for the peer or for a timer.
                qp.queued = false;
                self.ready.pop_front();
                self.burst = 0;
            } else {
                // Each queue pair sends several packets in turn, which share the CPU cache.
                self.burst += 1;
                if self.burst >= BURST {
                    self.burst = 0;
                    self.ready.rotate_left(1);
                }
            }
            if let Some(tx_packet) = tx_packet {
                break (slot, tx_packet);
            }
        };
        let qp = self.qps[slot as usize].as_ref()?;
        let payload = match payload {
            TxPayload::Spans => Payload::Spans(&self.spans),
            TxPayload::Word(bytes) => Payload::Word(bytes),
            TxPayload::Inline { first, offset, length } => {
                let (head, tail) = qp.inline(first, offset, length);
                Payload::Inline(head, tail)
            }
        };
        self.stats.packets_sent += 1;
        self.stats.bytes_sent += u64::from(payload_len);
        let path: &Path = qp.path()?;
        let ecn_capable = qp.is_ecn_capable() && header.operation != Operation::Cnp;
        let is_timed =
            self.timed_cq_count > 0 && qp.is_completing() && self.has_timestamps(qp.config.send_cq);
        let timed = is_timed.then_some(qp.qpn);
        Some(Transmit { qpn: qp.qpn, header, path, payload, ecn_capable, timed })
    }

    /// Makes a queue pair send no packets until [`resume_qp`](Device::resume_qp) is called, because the receiver of its
    /// packets must read others first. [`poll_transmit`](Device::poll_transmit) may still return one packet of the queue
    /// pair. Other queue pairs are not affected. Timers that are running expire as usual, so a pause should be short.
    pub fn pause_qp(&mut self, qpn: Qpn) {
        let Some(slot) = self.slot(qpn) else { return };
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            qp.paused = true;
        }
    }

    /// Ends the [pause](Device::pause_qp) of a queue pair.
    pub fn resume_qp(&mut self, now: Time, qpn: Qpn) {
        let Some(slot) = self.slot(qpn) else { return };
        if let Some(qp) = self.qps[slot as usize].as_mut() {
            qp.paused = false;
        }
        self.update_schedule(now, slot);
    }

    /// Completes the request whose last packet was sent at `sent_at`. The caller calls this method after it has sent a
    /// packet with [`Transmit::timed`]; without the call, the request completes when the queue pair's next packet is
    /// polled, and has the time of that call.
    pub fn packet_sent(&mut self, sent_at: impl Into<Timestamp>, qpn: Qpn) {
        let sent_at = sent_at.into();
        let now = sent_at.time;
        let Some(slot) = self.slot(qpn) else { return };
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        qp.complete_polled(&mut Context { completed_at: sent_at, ..context!(self, now) });
        self.update_schedule(now, slot);
    }

    /// Whether [`poll_transmit`](Device::poll_transmit) may return a packet.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether at most four queue pairs have packets to send, and all these packets are positive acknowledgements. Any
    /// other packet, such as a NAK or a response to a READ or an atomic, results in `false`. If the result is `true`, a
    /// caller that is about to post a request can delay the acknowledgements and send them together with the request.
    pub fn is_only_acknowledging(&self) -> bool {
        let is_acknowledging =
            |slot: &u32| self.qps[*slot as usize].as_ref().is_none_or(|qp| qp.is_only_acknowledging());
        self.ready.len() <= MAX_ACK_SCAN && self.ready.iter().all(is_acknowledging)
    }

    /// Removes and returns the oldest asynchronous event of a queue pair, completion queue or shared receive queue.
    pub fn poll_queue_event(&mut self) -> Option<QueueEvent> {
        self.queue_events.pop_front()
    }

    /// Returns the time at which to call [`handle_timeout`](Device::handle_timeout) at the latest, or `None` if no
    /// timer is set. The time can be earlier than the expiry of the first timer.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| time)
    }

    /// Handles all timers that have expired at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(slot) = self.timers.pop(now) {
            if let Some(qp) = self.qps[slot as usize].as_mut() {
                // Progress moves a deadline without moving its timer, so the timer may expire early.
                if qp.deadline().is_some_and(|deadline| deadline <= now) {
                    qp.handle_timeout(&mut context!(self, now));
                }
                self.update_schedule(now, slot);
            }
        }
    }

    /// Returns the counters.
    pub const fn statistics(&self) -> &Statistics {
        &self.stats
    }

    /// Passes an event that the caller observed, such as [`TraceEvent::Polled`], to the sink. The device creates all
    /// other events itself.
    #[inline]
    pub fn record(&mut self, now: Time, event: impl FnOnce() -> TraceEvent) {
        record(&mut self.sink, now, event);
    }

    /// Passes a [`TraceEvent::Polled`] to the sink for each of the `max` oldest completions of a completion queue. The
    /// caller polls them next.
    pub fn record_polled(&mut self, now: Time, cq: Cq, max: usize) {
        let Some(Some(queue)) = self.cqs.get(cq.0 as usize) else { return };
        for &Completion { qpn, wr_id, .. } in queue.iter().take(max) {
            record(&mut self.sink, now, || TraceEvent::Polled { cq, qpn, wr_id });
        }
    }

    /// Passes a [`TraceEvent::Connected`] to the sink for each queue pair that is connected, so that a sink that was
    /// switched on later knows the peers.
    pub fn record_connections(&mut self, now: Time) {
        for qp in self.qps.iter().flatten() {
            qp.record_connection(&mut context!(self, now));
        }
    }

    /// Returns the event sink.
    pub const fn sink(&self) -> &S {
        &self.sink
    }

    /// Returns the event sink, mutably.
    pub const fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    #[inline]
    fn slot(&self, qpn: Qpn) -> Option<u32> {
        self.slots_by_qpn.get(&qpn.get()).copied()
    }

    /// Updates the schedule after a step of a queue pair: sets its timer, and adds it to `ready` if it may have packets
    /// to send. Before that, fails the queue pair if it lost a completion, and releases its unused rings.
    #[inline]
    fn update_schedule(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        if qp.has_lost_completion() {
            qp.fail_if_completion_lost(&mut context!(self, now));
        }
        qp.release(&mut self.rings);
        if let Some(deadline) = qp.deadline() {
            self.timers.set_no_later(slot, deadline);
        }
        if !qp.queued && qp.may_transmit() {
            qp.queued = true;
            self.ready.push_back(slot);
        }
    }

    fn drop_packet(&mut self, now: Time, qpn: Qpn, header: &Header, reason: DropReason) {
        self.stats.packets_dropped += 1;
        match reason {
            DropReason::WrongIcrc => self.stats.icrc_errors += 1,
            DropReason::UnknownQp | DropReason::WrongState => self.stats.unknown_qp_packets += 1,
            DropReason::WrongAddress | DropReason::WrongPkey => self.stats.wrong_address_packets += 1,
            _ => {}
        }
        let (psn, opcode) = (header.psn, header.opcode());
        record(&mut self.sink, now, || TraceEvent::Dropped { qpn, psn, opcode, reason });
    }
}

/// The maximum number of ready queue pairs that [`Device::is_only_acknowledging`] checks.
const MAX_ACK_SCAN: usize = 4;

/// The maximum number of packets that a queue pair sends in a row while others are ready.
const BURST: u32 = 16;

/// Half of the queue pair numbers.
const MAX_QPS: usize = 1 << 23;
