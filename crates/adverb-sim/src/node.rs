//! A device as a node of the fabric.

use std::net::{IpAddr, SocketAddr};

use adverb_proto::memory::{HeapMemory, Memory, Pd, Registration};
use adverb_proto::{Cq, Device, EventSink, IcrcCheck, RxMeta, Time, TraceEvent};
use adverb_wire::{Header, ROCE_PORT};

use crate::Random;
use crate::fabric::InFlight;
use crate::world::Host;

/// A device, its memory and resources, and the state `A` of its actor.
#[derive(Debug)]
pub(crate) struct Node<A, S = (), M = HeapMemory> {
    pub(crate) device: Device<S>,
    pub(crate) memory: M,
    pub(crate) address: IpAddr,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    /// The registered memory keys.
    pub(crate) keys: Vec<u32>,
    pub(crate) actor: A,
    /// Whether a task is planned that sends the device's packets and checks its completions.
    pub(crate) pump_planned: bool,
    ip_id: u16,
}

impl<A, S: EventSink, M> Node<A, S, M> {
    pub(crate) fn new(
        address: IpAddr,
        sink: S,
        memory: M,
        cq_capacity: u32,
        actor: impl FnOnce(&mut Device<S>, Pd) -> A,
    ) -> Node<A, S, M> {
        let mut device = Device::new(sink);
        let pd = device.create_domain();
        let cq = device.create_cq(cq_capacity);
        let actor = actor(&mut device, pd);
        Node { device, memory, address, pd, cq, keys: Vec::new(), actor, pump_planned: false, ip_id: 0 }
    }

    /// Registers memory.
    pub(crate) fn register(&mut self, random: &mut Random, pd: Pd, registration: Registration) -> u32 {
        let key = self.device.register(pd, registration, || random.u32()).expect("a valid registration");
        self.keys.push(key);
        key
    }

    /// Returns the device's next packet, with its payload from `memory`.
    pub(crate) fn poll_packet_from(
        &mut self,
        now: Time,
        memory: &impl Memory,
    ) -> Result<Option<Outgoing>, UnregisteredPayload> {
        poll_packet(&mut self.device, &mut self.ip_id, now, memory)
    }
}

impl<A, S: EventSink, M: Memory> Node<A, S, M> {
    /// Returns the device's next packet.
    pub(crate) fn poll_packet(&mut self, now: Time) -> Result<Option<Outgoing>, UnregisteredPayload> {
        poll_packet(&mut self.device, &mut self.ip_id, now, &self.memory)
    }
}

impl<A, S: EventSink, M> Host for Node<A, S, M> {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.device.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Time) {
        self.device.handle_timeout(now);
    }
}

/// A packet that a device sends.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) header: Header,
    pub(crate) remote: IpAddr,
    pub(crate) bytes: Vec<u8>,
    source_port: u16,
    ip_id: u16,
    ecn_capable: bool,
}

/// The error of a packet whose payload isn't in registered memory.
#[derive(Debug)]
pub(crate) struct UnregisteredPayload;

/// The violation that a run reports for an [`UnregisteredPayload`].
pub(crate) const UNREGISTERED_PAYLOAD: &str = "the payload of a packet is not in registered memory";

fn poll_packet<S: EventSink>(
    device: &mut Device<S>,
    last_ip_id: &mut u16,
    now: Time,
    memory: &impl Memory,
) -> Result<Option<Outgoing>, UnregisteredPayload> {
    *last_ip_id = last_ip_id.wrapping_add(1);
    let ip_id = *last_ip_id;
    let Some(transmit) = device.poll_transmit(now) else { return Ok(None) };
    let header = transmit.header;
    let mut bytes = Vec::with_capacity(header.len() + transmit.payload.len() + 8);
    transmit.write_to(memory, ip_id, &mut bytes).map_err(|_| UnregisteredPayload)?;
    let (remote, source_port) = (transmit.path.remote(), transmit.path.source_port());
    Ok(Some(Outgoing { header, remote, bytes, source_port, ip_id, ecn_capable: transmit.ecn_capable }))
}

impl Outgoing {
    /// Returns the ICRC, the last four bytes.
    pub(crate) fn icrc(&self) -> u32 {
        self.bytes.last_chunk::<4>().map_or(0, |icrc| u32::from_le_bytes(*icrc))
    }

    /// Returns the packet as the fabric carries it from one node to another.
    pub(crate) fn into_flight(self, from: usize, to: usize) -> InFlight {
        let Outgoing { source_port, ip_id, bytes, ecn_capable, .. } = self;
        InFlight { from, to, source_port, ip_id, bytes, ecn_capable, is_ecn_marked: false }
    }
}

impl InFlight {
    /// Returns the description of the packet for the receiving device.
    pub(crate) fn rx_meta(&self, source: IpAddr, destination: IpAddr) -> RxMeta {
        RxMeta {
            source: SocketAddr::new(source, self.source_port),
            destination: SocketAddr::new(destination, ROCE_PORT),
            icrc: IcrcCheck::IpId(self.ip_id),
            is_ecn_marked: self.is_ecn_marked,
            route: Default::default(),
            received_at: None,
        }
    }
}

/// An event sink that records a device's events, if enabled.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    is_enabled: bool,
    events: Vec<(Time, TraceEvent)>,
}

impl Trace {
    pub(crate) fn new(is_enabled: bool) -> Trace {
        Trace { is_enabled, events: Vec::new() }
    }

    /// Returns the recorded events as lines of a log.
    pub(crate) fn take_lines(&mut self, node: usize) -> impl Iterator<Item = String> {
        let events = std::mem::take(&mut self.events);
        events.into_iter().map(move |(time, event)| format!("{time} dev {node} {event}"))
    }
}

impl EventSink for Trace {
    fn event(&mut self, now: Time, event: TraceEvent) {
        if self.is_enabled {
            self.events.push((now, event));
        }
    }
}
