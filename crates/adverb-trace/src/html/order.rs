//! The order of a trace's steps in a diagram.

use std::collections::{BTreeMap, HashMap, VecDeque};

use adverb_proto::Time;
use adverb_proto::trace::{RetryCause, TraceEvent};
use adverb_proto::types::{Psn, Qpn};

use super::ends::{Delivery, Ends, deliveries};
use crate::clock::Clocks;
use crate::model::{DeviceId, Direction, PacketId, RequestId, TimedEvent, Trace};

/// A step that the diagram shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The application posted the request.
    Posted(usize),
    /// The device got a doorbell: an index in [`Ordered::doorbells`].
    Doorbell(usize),
    /// A packet was sent, or it arrived without a step of its sender: the sender was not recorded, or the packet is a
    /// duplicate from a device with another clock.
    Packet(usize),
    /// A packet arrived whose sender has the same clock. The index is that of the arrived packet.
    Arrived(usize),
    /// A retransmission began: an index in [`Ordered::retries`].
    Retry(usize),
    /// The request completed.
    Completed(usize),
    /// The application polled the request's completion.
    Polled(usize),
    /// An event of [`Trace::other_events`].
    OtherEvent(usize),
}

/// The requests that one doorbell covered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Doorbell {
    pub(super) device: DeviceId,
    pub(super) qpn: Qpn,
    pub(super) time: Time,
    pub(super) requests: Vec<RequestId>,
}

/// A retransmission, with the requests whose packets are retransmitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Retry {
    pub(super) device: DeviceId,
    pub(super) qpn: Qpn,
    pub(super) time: Time,
    pub(super) psn: Psn,
    pub(super) cause: RetryCause,
    pub(super) requests: Vec<RequestId>,
}

/// The steps of a trace in the order in which the diagram shows them.
pub(super) struct Ordered {
    pub(super) steps: Vec<Step>,
    pub(super) doorbells: Vec<Doorbell>,
    pub(super) retries: Vec<Retry>,
    pub(super) ends: Ends,
    /// The delivery of each packet.
    pub(super) deliveries: Vec<Delivery>,
    pub(super) clocks: Clocks,
    /// The earliest time on each clock, in nanoseconds of the host's monotonic clock.
    pub(super) origins: Vec<u64>,
}

impl Ordered {
    pub(super) fn new(trace: &Trace) -> Ordered {
        let (ends, clocks) = (Ends::new(trace), Clocks::new(trace));
        let (deliveries, is_part_of_packet) = deliveries(trace, &ends, &clocks);
        let (doorbells, retries) = (doorbells(trace), retries(trace));
        let mut ordered =
            Ordered { steps: Vec::new(), doorbells, retries, ends, deliveries, clocks, origins: Vec::new() };
        let mut lists = vec![Vec::new(); ordered.clocks.count()];
        let mut positions = Positions::new(trace);
        for (time, rank, step, device) in ordered.timed_steps(trace, &is_part_of_packet) {
            if let Some(list) = lists.get_mut(ordered.clocks.of(device)) {
                let position = positions.next(device, time, step);
                list.push((trace.host_nanos(device, time), position, rank, step));
            }
        }
        for list in &mut lists {
            list.sort_by_key(|&(nanos, position, rank, _)| (nanos, position, rank));
        }
        ordered.origins = lists.iter().map(|list| list.first().map_or(0, |first| first.0)).collect();
        let lists = lists.into_iter().map(|list| list.into_iter().map(|(.., step)| step).collect()).collect();
        ordered.steps = Merge::new(trace, &ordered.clocks, &ordered.deliveries, lists).run();
        ordered
    }

    /// Returns a time of a device in nanoseconds since the first step on its clock.
    pub(super) fn nanos(&self, trace: &Trace, device: DeviceId, time: Time) -> u64 {
        let origin = self.origins.get(self.clocks.of(device)).copied().unwrap_or_default();
        trace.host_nanos(device, time).saturating_sub(origin)
    }

    /// Returns all steps with their times and devices. The rank of a step orders steps of the same time if the trace
    /// has no events that show their order.
    fn timed_steps(&self, trace: &Trace, is_part_of_packet: &[bool]) -> Vec<(Time, u8, Step, DeviceId)> {
        let mut steps = Vec::with_capacity(trace.requests.len() * 3 + trace.packets.len());
        for (index, packet) in trace.packets.iter().enumerate() {
            steps.push((packet.time, RANK_PACKET, Step::Packet(index), packet.device));
        }
        for (index, request) in trace.requests.iter().enumerate() {
            let times = &request.times;
            let mut push = |time: Option<Time>, rank, step| {
                if let Some(time) = time {
                    steps.push((time, rank, step, request.device));
                }
            };
            push(times.posted, RANK_POST, Step::Posted(index));
            push(times.completed, RANK_COMPLETION, Step::Completed(index));
            push(times.polled, RANK_POLL, Step::Polled(index));
        }
        for (index, doorbell) in self.doorbells.iter().enumerate() {
            steps.push((doorbell.time, RANK_DOORBELL, Step::Doorbell(index), doorbell.device));
        }
        for (index, retry) in self.retries.iter().enumerate() {
            steps.push((retry.time, RANK_RETRY, Step::Retry(index), retry.device));
        }
        for (index, timed) in trace.other_events.iter().enumerate() {
            if let (Some(rank), false) = (other_event_rank(&timed.event), is_part_of_packet[index]) {
                steps.push((timed.time, rank, Step::OtherEvent(index), timed.device));
            }
        }
        steps
    }
}

const RANK_POST: u8 = 2;
const RANK_DOORBELL: u8 = 3;
const RANK_RETRY: u8 = 5;
const RANK_PACKET: u8 = 6;
const RANK_COMPLETION: u8 = 7;
const RANK_POLL: u8 = 9;
const RANK_OTHER_EVENT: u8 = 10;

/// Returns the rank of an event that the diagram shows as a row of its own.
fn other_event_rank(event: &TraceEvent) -> Option<u8> {
    match event {
        // Another event follows when the queue pair becomes ready to send, and the diagram shows that one.
        TraceEvent::Connected { send_psn: None, .. } => None,
        TraceEvent::Connected { .. } => Some(1),
        TraceEvent::StateChanged { .. } => Some(0),
        TraceEvent::TimerExpired { .. } => Some(4),
        TraceEvent::CnpReceived { .. } | TraceEvent::Dropped { .. } => Some(RANK_COMPLETION),
        TraceEvent::SrqLimit { .. }
        | TraceEvent::CqEventDelivered { .. }
        | TraceEvent::QueueEventDelivered { .. } => Some(8),
        // The diagram shows requests, doorbells, packets and retransmissions as other steps.
        _ => None,
    }
}

/// The positions of events in the recordings. They order the steps of one time.
struct Positions(HashMap<(DeviceId, Time, u8), VecDeque<usize>>);

impl Positions {
    fn new(trace: &Trace) -> Positions {
        let mut positions: HashMap<_, VecDeque<usize>> = HashMap::new();
        for (position, TimedEvent { device, time, event }) in trace.events.iter().enumerate() {
            let rank = match event {
                TraceEvent::PostedSend { .. } | TraceEvent::PostedRecv { .. } => RANK_POST,
                TraceEvent::Doorbell { .. } => RANK_DOORBELL,
                TraceEvent::PacketSent { .. } | TraceEvent::PacketReceived { .. } => RANK_PACKET,
                TraceEvent::Retransmit { .. } => RANK_RETRY,
                TraceEvent::Completed { .. } | TraceEvent::CompletedUnsignaled { .. } => RANK_COMPLETION,
                TraceEvent::Polled { .. } => RANK_POLL,
                event if other_event_rank(event).is_some() => RANK_OTHER_EVENT,
                _ => continue,
            };
            positions.entry((*device, *time, rank)).or_default().push_back(position);
        }
        Positions(positions)
    }

    /// Returns the position of the next event of the step's kind at this time, or 0 if there is none.
    fn next(&mut self, device: DeviceId, time: Time, step: Step) -> usize {
        let rank = match step {
            Step::Posted(_) => RANK_POST,
            Step::Doorbell(_) => RANK_DOORBELL,
            Step::Packet(_) | Step::Arrived(_) => RANK_PACKET,
            Step::Retry(_) => RANK_RETRY,
            Step::Completed(_) => RANK_COMPLETION,
            Step::Polled(_) => RANK_POLL,
            Step::OtherEvent(_) => RANK_OTHER_EVENT,
        };
        self.0.get_mut(&(device, time, rank)).and_then(VecDeque::pop_front).unwrap_or_default()
    }
}

fn doorbells(trace: &Trace) -> Vec<Doorbell> {
    let mut covered: BTreeMap<(usize, u32, Time), Vec<RequestId>> = BTreeMap::new();
    for (index, request) in trace.requests.iter().enumerate() {
        if let (Some(time), Some(qpn)) = (request.times.doorbell, request.qpn) {
            covered.entry((request.device.0, qpn.get(), time)).or_default().push(RequestId(index));
        }
    }
    let doorbell = |((device, qpn, time), requests)| Doorbell {
        device: DeviceId(device),
        qpn: Qpn::truncate(qpn),
        time,
        requests,
    };
    covered.into_iter().map(doorbell).collect()
}

fn retries(trace: &Trace) -> Vec<Retry> {
    let mut requests: HashMap<(DeviceId, Time, u32), Vec<RequestId>> = HashMap::new();
    for (index, request) in trace.requests.iter().enumerate() {
        for retransmission in &request.retransmissions {
            let key = (request.device, retransmission.time, retransmission.psn.get());
            requests.entry(key).or_default().push(RequestId(index));
        }
    }
    let retry = |&TimedEvent { device, time, event }: &TimedEvent| {
        let TraceEvent::Retransmit { qpn, psn, cause } = event else { return None };
        let requests = requests.get(&(device, time, psn.get())).cloned().unwrap_or_default();
        Some(Retry { device, qpn, time, psn, cause, requests })
    };
    trace.other_events.iter().filter_map(retry).collect()
}

/// The merge of the steps of several clocks into one order: each clock's own order is kept, and a packet is sent before
/// it arrives. A packet between two clocks is one step, after earlier steps of both clocks. Where packets crossed or
/// overtook each other in the network, no such order exists, and the packet's step is in the order of one clock only.
struct Merge<'a> {
    trace: &'a Trace,
    clocks: &'a Clocks,
    deliveries: &'a [Delivery],
    lists: Vec<Vec<Step>>,
    /// The position of each packet's step in the list of its clock.
    positions: Vec<usize>,
    /// The number of steps of each clock that are merged or in progress.
    next: Vec<usize>,
    /// Whether the packet's step is part of the order already.
    is_merged: Vec<bool>,
    /// Whether the clock's steps are being merged now.
    is_active: Vec<bool>,
    steps: Vec<Step>,
}

impl<'a> Merge<'a> {
    fn new(
        trace: &'a Trace,
        clocks: &'a Clocks,
        deliveries: &'a [Delivery],
        lists: Vec<Vec<Step>>,
    ) -> Merge<'a> {
        let mut positions = vec![0; trace.packets.len()];
        for list in &lists {
            for (position, step) in list.iter().enumerate() {
                if let Step::Packet(index) = step {
                    positions[*index] = position;
                }
            }
        }
        Merge {
            trace,
            clocks,
            deliveries,
            positions,
            next: vec![0; lists.len()],
            is_merged: vec![false; trace.packets.len()],
            is_active: vec![false; lists.len()],
            steps: Vec::with_capacity(lists.iter().map(Vec::len).sum()),
            lists,
        }
    }

    fn run(mut self) -> Vec<Step> {
        for clock in 0..self.lists.len() {
            self.advance(clock, self.lists[clock].len());
        }
        self.steps
    }

    /// Merges the steps of a clock before the position `end`.
    fn advance(&mut self, clock: usize, end: usize) {
        self.is_active[clock] = true;
        while self.next[clock] < end {
            let step = self.lists[clock][self.next[clock]];
            self.next[clock] += 1;
            match step {
                Step::Packet(index) => self.merge_packet(index, clock),
                step => self.steps.push(step),
            }
        }
        self.is_active[clock] = false;
    }

    fn merge_packet(&mut self, index: usize, clock: usize) {
        if self.is_merged[index] {
            return;
        }
        self.is_merged[index] = true;
        let packet = &self.trace.packets[index];
        let peer = packet.peer_packet.filter(|PacketId(peer)| *peer < self.trace.packets.len());
        let Some(PacketId(peer)) = peer else {
            self.steps.push(Step::Packet(index));
            return;
        };
        let peer_clock = self.clocks.of(self.trace.packets[peer].device);
        let is_sent = packet.direction == Direction::Out;
        if peer_clock == clock {
            self.steps.push(if is_sent { Step::Packet(index) } else { Step::Arrived(index) });
            return;
        }
        if self.deliveries[index] == Delivery::Duplicate {
            self.steps.push(Step::Packet(index));
            return;
        }
        self.is_merged[peer] = true;
        if !self.is_active[peer_clock] {
            self.advance(peer_clock, self.positions[peer]);
        }
        self.steps.push(Step::Packet(if is_sent { index } else { peer }));
    }
}
