//! The world of a run: virtual time, nodes, the fabric between them, planned tasks, and the log. The [`Actors`] of a
//! run use the nodes, and react to packets, timeouts and tasks.

use std::net::IpAddr;

use adverb_proto::Time;

use crate::fabric::{Fabric, InFlight};
use crate::schedule::{Log, Schedule};

/// Virtual time, and the state that all kinds of runs have.
#[derive(Debug)]
pub(crate) struct World<N, T> {
    pub(crate) now: Time,
    pub(crate) nodes: Vec<N>,
    pub(crate) fabric: Fabric,
    pub(crate) schedule: Schedule<T>,
    pub(crate) log: Log,
    /// The number of sent packets.
    pub(crate) packet_count: u64,
    /// A hash of all packets and their times.
    pub(crate) digest: u64,
}

/// A node of the fabric.
pub(crate) trait Host {
    fn address(&self) -> IpAddr;
    fn poll_timeout(&self) -> Option<Time>;
    fn handle_timeout(&mut self, now: Time);
}

impl<N: Host, T: Ord> World<N, T> {
    pub(crate) fn new(fabric: Fabric, trace: bool) -> World<N, T> {
        World {
            now: Time::ZERO,
            nodes: Vec::new(),
            fabric,
            schedule: Schedule::new(),
            log: Log::new(trace),
            packet_count: 0,
            digest: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(crate) fn plan(&mut self, at: Time, task: T) {
        self.schedule.plan(at, task);
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        self.log.note(self.now, what);
    }

    /// Records a violation. Only the first is kept.
    pub(crate) fn report_violation(&mut self, what: &str) {
        self.log.report_violation(self.now, what);
    }

    /// Returns the index of the node with this address.
    pub(crate) fn node_at(&self, address: IpAddr) -> Option<usize> {
        self.nodes.iter().position(|node| node.address() == address)
    }

    /// Returns the time of the next packet, timeout or task.
    pub(crate) fn next_event(&self) -> Option<Time> {
        let timeouts = self.nodes.iter().filter_map(Host::poll_timeout);
        timeouts.chain(self.schedule.next()).chain(self.fabric.next()).min()
    }

    /// Counts a packet, and adds its time and these numbers to the digest.
    pub(crate) fn count_packet(&mut self, numbers: &[u64]) {
        self.packet_count += 1;
        for number in [self.now.as_nanos()].iter().chain(numbers) {
            self.digest = (self.digest ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }
}

/// The limit of a run. A run that exceeds it is a violation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Time(Time),
    Steps(u64),
}

/// The users of a world's nodes.
pub(crate) trait Actors {
    type Node: Host;
    type Task: Ord;

    fn world(&mut self) -> &mut World<Self::Node, Self::Task>;

    /// Delivers a packet to its node.
    fn deliver(&mut self, packet: &InFlight);

    /// Reacts after a node has handled a timeout.
    fn after_timeout(&mut self, _node: usize) {}

    /// Reacts after all nodes have handled their timeouts.
    fn after_timeouts(&mut self) {}

    /// Performs a planned task.
    fn perform(&mut self, task: Self::Task);

    fn has_violation(&mut self) -> bool {
        self.world().log.violation.is_some()
    }

    fn report_violation(&mut self, what: String) {
        self.world().report_violation(&what);
    }

    /// Advances the time, and handles all events until then: packets, then timeouts, then tasks.
    fn advance(&mut self, time: Time) {
        let now = self.world().now.max(time);
        self.world().now = now;
        while let Some(packet) = self.world().fabric.receive(now) {
            self.deliver(&packet);
        }
        for index in 0..self.world().nodes.len() {
            let node = &mut self.world().nodes[index];
            if node.poll_timeout().is_some_and(|at| at <= now) {
                node.handle_timeout(now);
                self.after_timeout(index);
            }
        }
        self.after_timeouts();
        while let Some(task) = self.world().schedule.take_due(now) {
            self.perform(task);
        }
    }

    /// Advances the time until no events remain, or until a violation.
    fn run(&mut self, limit: Limit) {
        for step in 0.. {
            if self.has_violation() {
                return;
            }
            let Some(next) = self.world().next_event() else { return };
            let is_exceeded = match limit {
                Limit::Time(end) => next > end,
                Limit::Steps(count) => step >= count,
            };
            if is_exceeded {
                let world = self.world();
                world.now = world.now.max(next);
                return self.report_violation("the run does not end".to_owned());
            }
            self.advance(next);
        }
    }
}
