//! The status of a device and its queue pairs.

use core::fmt;

use adverb_wire::{Psn, Qpn};

use super::Device;
use crate::cq::CompletionQueue;
use crate::event::QueueEvent;
use crate::trace::EventSink;
use crate::types::{QpState, Transport};

/// The numbers of objects that a device holds, for finding leaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResourceCounts {
    /// Queue pairs.
    pub queue_pairs: usize,
    /// Entries of the index from queue pair numbers to queue pairs.
    pub index_entries: usize,
    /// Queue pairs that may have packets to send.
    pub ready_queue_pairs: usize,
    /// Timers.
    pub timers: usize,
    /// Memory regions.
    pub regions: usize,
    /// Objects that belong to protection domains: regions, windows, queue pairs and shared receive queues.
    pub domain_users: u32,
    /// Completions not polled yet.
    pub completions: usize,
    /// Completion events and queue events not polled yet.
    pub events: usize,
    /// Responses to READs, atomics, FLUSHes and ATOMIC WRITEs that are queued, or kept for duplicate requests. A queue
    /// pair holds at most four responses for each such request that its peer may have outstanding.
    pub responses: usize,
    /// Memory windows.
    pub windows: usize,
    /// Shared receive queues.
    pub shared_receive_queues: usize,
    /// Multicast groups with attached queue pairs.
    pub multicast_groups: usize,
}

/// The status of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpStatus {
    /// The transport service.
    pub transport: Transport,
    /// The state.
    pub state: QpState,
    /// The number of the peer's queue pair.
    pub remote_qpn: Qpn,
    /// The PSN of the next new request packet.
    pub next_psn: Psn,
    /// The PSN of the next request packet expected from the peer.
    pub expected_psn: Psn,
    /// The number of outstanding send requests.
    pub send_queue_len: usize,
    /// The number of outstanding receive requests. If the queue pair uses a shared receive queue, this number
    /// counts only the request that the queue pair has taken from it for the current or next message.
    pub recv_queue_len: usize,
    /// The event that moved the queue pair to the error state. `None` if the queue pair is in another state, or if
    /// [`Transition::Error`](crate::Transition::Error) moved it.
    pub error_event: Option<QueueEvent>,
}

impl<S: EventSink> Device<S> {
    /// Returns the status of a queue pair, or `None` if it does not exist.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpStatus> {
        let qp = self.qps[self.slot(qpn)? as usize].as_ref()?;
        let (remote_qpn, next_psn, expected_psn) = qp.peer_and_psns();
        Some(QpStatus {
            transport: qp.config.transport,
            state: qp.state(),
            remote_qpn,
            next_psn,
            expected_psn,
            send_queue_len: qp.send_queue_len(),
            recv_queue_len: qp.recv_queue_len(),
            error_event: qp.error_event(),
        })
    }

    /// Returns the numbers of objects that the device holds. The method iterates over all queue pairs.
    pub fn resource_counts(&self) -> ResourceCounts {
        ResourceCounts {
            queue_pairs: self.qps.iter().flatten().count(),
            index_entries: self.slots_by_qpn.len(),
            ready_queue_pairs: self.ready.iter().filter(|slot| self.qps[**slot as usize].is_some()).count(),
            timers: self.timers.len(),
            regions: self.keys.len(),
            domain_users: self.keys.domain_users(),
            completions: self.cqs.iter().flatten().map(CompletionQueue::len).sum(),
            events: self.cq_events.len() + self.queue_events.len(),
            responses: self.qps.iter().flatten().map(|qp| qp.response_count()).sum(),
            windows: self.keys.window_count(),
            shared_receive_queues: self.srqs.iter().flatten().count(),
            multicast_groups: self.groups.len(),
        }
    }
}

impl fmt::Display for ResourceCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} queue pairs, {} index entries, {} ready queue pairs, {} timers, {} regions, {} domain users, \
             {} completions, {} events, {} responses, {} windows, {} shared receive queues, {} multicast groups",
            self.queue_pairs,
            self.index_entries,
            self.ready_queue_pairs,
            self.timers,
            self.regions,
            self.domain_users,
            self.completions,
            self.events,
            self.responses,
            self.windows,
            self.shared_receive_queues,
            self.multicast_groups,
        )
    }
}
