//! How a device and its queue pairs stand.

use core::fmt;

use adverb_wire::{Psn, Qpn};

use super::Device;
use crate::cq::CompletionQueue;
use crate::event::EventSink;
use crate::types::{QpState, Transport};

/// What a device holds: for finding leaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResourceCounts {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Numbers by which queue pairs are found.
    pub numbers: usize,
    /// Queue pairs that may have something to send.
    pub ready: usize,
    /// Timers that are set.
    pub timers: usize,
    /// Regions.
    pub regions: usize,
    /// Regions and queue pairs that belong to protection domains.
    pub domain_users: u32,
    /// Completions that nobody has polled.
    pub completions: usize,
    /// Events that nobody has polled, of completions and of queues.
    pub events: usize,
    /// Answers to READs and atomics that wait to be sent, or are kept because they may be asked for again. Whatever
    /// the peer asks for, a queue pair has at most four of them for each READ or atomic that it lets be outstanding.
    pub answers: usize,
    /// Memory windows.
    pub windows: usize,
    /// Shared receive queues.
    pub shared_queues: usize,
    /// Multicast groups that somebody is attached to.
    pub groups: usize,
}

/// How a queue pair stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpStatus {
    /// What it promises about delivery.
    pub transport: Transport,
    /// Its state.
    pub state: QpState,
    /// The peer's number.
    pub remote_qpn: Qpn,
    /// The number of the next new request packet.
    pub next_psn: Psn,
    /// The number of the next packet that is expected of the peer.
    pub expected_psn: Psn,
    /// How many send requests are outstanding.
    pub send_queue: usize,
    /// How many receive requests are outstanding; of a shared queue's, those that messages under way use.
    pub recv_queue: usize,
}

impl<S: EventSink> Device<S> {
    /// How a queue pair stands, or `None` if there is none.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpStatus> {
        let qp = self.qps[self.slot(qpn)? as usize].as_ref()?;
        let (remote_qpn, next_psn, expected_psn) = qp.numbers();
        Some(QpStatus {
            transport: qp.config.transport,
            state: qp.state(),
            remote_qpn,
            next_psn,
            expected_psn,
            send_queue: qp.send_queue_len(),
            recv_queue: qp.recv_queue_len(),
        })
    }

    /// What the device holds. This counts, so it isn't for every packet.
    pub fn resource_counts(&self) -> ResourceCounts {
        ResourceCounts {
            queue_pairs: self.qps.iter().flatten().count(),
            numbers: self.numbers.len(),
            ready: self.ready.iter().filter(|slot| self.qps[**slot as usize].is_some()).count(),
            timers: self.timers.len(),
            regions: self.keys.len(),
            domain_users: self.keys.domain_users(),
            completions: self.cqs.iter().flatten().map(CompletionQueue::len).sum(),
            events: self.cq_events.len() + self.queue_events.len(),
            answers: self.qps.iter().flatten().map(|qp| qp.answers_held()).sum(),
            windows: self.keys.window_count(),
            shared_queues: self.srqs.iter().flatten().count(),
            groups: self.groups.len(),
        }
    }
}

impl fmt::Display for ResourceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} queue pairs, {} numbers, {} ready, {} timers, {} regions, {} domain users, {} completions, \
             {} events, {} answers, {} windows, {} shared queues, {} groups",
            self.queue_pairs,
            self.numbers,
            self.ready,
            self.timers,
            self.regions,
            self.domain_users,
            self.completions,
            self.events,
            self.answers,
            self.windows,
            self.shared_queues,
            self.groups,
        )
    }
}
