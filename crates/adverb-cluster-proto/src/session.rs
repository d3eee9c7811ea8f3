//! Peers and their sessions.

use core::fmt;
use std::collections::VecDeque;

use adverb_proto::types::SendOperation;

use crate::credits::{RecvCredits, SendCredits};
use crate::mutation::mutant;
use crate::rail::{Rail, RequestKind};
use crate::{BrokerConfig, EndReason, LocalMemory, Ticket};

/// The state of a peer that outlives its sessions.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) lifecycle: Lifecycle,
    /// The number of the latest session.
    pub(crate) session_number: u16,
    /// The free send slots. Slots of the caller and of requests are not in the list.
    pub(crate) free_send_slots: Vec<u16>,
    /// The state of each receive slot.
    pub(crate) recv_slots: Vec<RecvSlotState>,
    /// Whether the peer is in the broker's list of peers that may have output.
    pub(crate) is_ready: bool,
    /// Whether the peer is in the broker's list of peers to flush.
    pub(crate) is_unflushed: bool,
}

/// The phase of a peer's session.
#[derive(Debug)]
pub(crate) enum Lifecycle {
    /// No session.
    Closed,
    /// The queue pair exists and has receives, but the peer's epoch and credits are unknown.
    Preparing(Box<Session>),
    /// Requests can be posted.
    Open { session: Box<Session>, epoch: u64 },
    /// No more requests can be posted. Those that wait are posted, and then a leave message.
    Leaving {
        session: Box<Session>,
        epoch: u64,
        /// Whether the leave message was posted.
        is_posted: bool,
    },
    /// The session ended, but the NIC may still access its memory until the queue pair is destroyed.
    Closing {
        session: Box<Session>,
        epoch: Option<u64>,
        reason: EndReason,
        /// Whether the driver was asked to destroy the queue pair.
        is_announced: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecvSlotState {
    /// Neither posted nor held.
    Free,
    /// Posted to the queue pair of the current session.
    Posted,
    /// Held by the application.
    Held,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) number: u16,
    pub(crate) send_credits: SendCredits,
    pub(crate) recv_credits: RecvCredits,
    /// The requests that wait to be posted.
    pub(crate) waiting: VecDeque<WaitingRequest>,
    /// The number of waiting requests to post, from the first.
    pub(crate) flushed: usize,
    /// The number of send slots that the caller holds. Each has a place in the request queue.
    pub(crate) reserved: usize,
    /// The receive slots to post.
    pub(crate) reposts: Vec<u16>,
    /// The number of credits that posting them grants.
    pub(crate) repost_grants: u32,
    /// The connections. Messages need one connection to stay in order, so there is one so far.
    pub(crate) rails: [Rail; 1],
    pub(crate) blocked: Blocked,
    pub(crate) probe: Probe,
    /// Whether a completion has arrived since the keepalive timer was set.
    pub(crate) is_active: bool,
    /// Whether a request or a receive has completed, which proves that the peer has the queue pair of its offer.
    pub(crate) is_confirmed: bool,
}

/// A request that waits to be posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) kind: RequestKind,
    pub(crate) operation: SendOperation,
    pub(crate) local: LocalMemory,
    pub(crate) ticket: Option<Ticket>,
}

/// The resources that were exhausted when a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Blocked {
    /// The request queue was full.
    pub(crate) on_queue: bool,
    /// No slot or no credit was available.
    pub(crate) on_message: bool,
}

/// The check of an idle session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Probe {
    Idle,
    Due,
    InFlight,
}

impl Peer {
    pub(crate) fn new() -> Peer {
        Peer {
            lifecycle: Lifecycle::Closed,
            session_number: 0,
            free_send_slots: Vec::new(),
            recv_slots: Vec::new(),
            is_ready: false,
            is_unflushed: false,
        }
    }

    /// Allocates the slots, if this is the peer's first session.
    pub(crate) fn allocate(&mut self, config: &BrokerConfig) {
        if self.recv_slots.is_empty() {
            self.free_send_slots = (0..config.send_slots).rev().collect();
            self.recv_slots = vec![RecvSlotState::Free; usize::from(config.recv_queue_depth())];
        }
    }

    /// Returns the session, unless it is closed.
    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        match &mut self.lifecycle {
            Lifecycle::Closed => None,
            Lifecycle::Preparing(session)
            | Lifecycle::Open { session, .. }
            | Lifecycle::Leaving { session, .. }
            | Lifecycle::Closing { session, .. } => Some(session),
        }
    }

    /// Returns the session and the peer's epoch, if the session is open.
    pub(crate) fn open(&mut self) -> Option<(&mut Session, u64)> {
        match &mut self.lifecycle {
            Lifecycle::Open { session, epoch } => Some((session, *epoch)),
            _ => None,
        }
    }

    /// Whether a leave message waits to be posted.
    pub(crate) fn must_leave(&self) -> bool {
        matches!(self.lifecycle, Lifecycle::Leaving { is_posted: false, .. })
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.lifecycle {
            Lifecycle::Closed => Phase::Closed,
            Lifecycle::Preparing(_) => Phase::Preparing,
            Lifecycle::Open { .. } => Phase::Open,
            Lifecycle::Leaving { .. } => Phase::Leaving,
            Lifecycle::Closing { .. } => Phase::Closing,
        }
    }

    /// Returns the heap bytes of the peer's state.
    pub(crate) fn heap_bytes(&self) -> usize {
        let slots = self.free_send_slots.capacity() * size_of::<u16>() + self.recv_slots.capacity();
        let session = match &self.lifecycle {
            Lifecycle::Closed => 0,
            Lifecycle::Preparing(session)
            | Lifecycle::Open { session, .. }
            | Lifecycle::Leaving { session, .. }
            | Lifecycle::Closing { session, .. } => session.heap_bytes(),
        };
        slots + session
    }
}

/// The phase of a session with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// No session exists.
    Closed,
    /// The queue pair has receives, and the session is not established.
    Preparing,
    /// Requests can be posted.
    Open,
    /// This broker leaves: the session ends when its requests have completed.
    Leaving,
    /// The session ended, and its queue pair is not yet destroyed.
    Closing,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Closed => "closed",
            Phase::Preparing => "being prepared",
            Phase::Open => "open",
            Phase::Leaving => "being left",
            Phase::Closing => "closing",
        })
    }
}

impl Session {
    /// Creates a session. `slots` are the receive slots to post, of which `grant` count as credits.
    pub(crate) fn new(config: &BrokerConfig, number: u16, slots: Vec<u16>, grant: u32) -> Session {
        Session {
            number,
            send_credits: SendCredits::default(),
            recv_credits: RecvCredits::new(grant, u32::from(config.recv_slots)),
            waiting: VecDeque::with_capacity(usize::from(config.queue_depth)),
            flushed: 0,
            reserved: 0,
            reposts: slots,
            repost_grants: 0,
            rails: [Rail::new(config.send_queue_depth)],
            blocked: Blocked::default(),
            probe: Probe::Idle,
            is_active: true,
            is_confirmed: false,
        }
    }

    /// Returns the number of requests that fit the request queue.
    pub(crate) fn queue_room(&self, config: &BrokerConfig) -> usize {
        usize::from(config.queue_depth).saturating_sub(self.waiting.len() + self.reserved)
    }

    /// Adds a request. Returns whether the requests must be posted without a flush.
    pub(crate) fn push(&mut self, request: WaitingRequest, batch: usize) -> bool {
        self.waiting.push_back(request);
        let is_full = self.waiting.len() >= batch && !mutant!(BatchNeverPosted);
        if is_full || mutant!(DoorbellPerRequest) {
            self.flushed = self.waiting.len();
        }
        is_full || mutant!(DoorbellPerRequest)
    }

    /// Marks all waiting requests to be posted.
    pub(crate) fn flush(&mut self) {
        self.flushed = self.waiting.len();
        if mutant!(FlushSkipsLast) {
            self.flushed = self.flushed.saturating_sub(1);
        }
    }

    /// Whether the session has output for an empty send queue.
    pub(crate) fn has_output(&self) -> bool {
        !self.reposts.is_empty() || self.flushed > 0 || self.probe == Probe::Due || self.recv_credits.is_due()
    }

    /// Clears the record of a refused request, and returns `true`, if the request may succeed now.
    pub(crate) fn unblock(&mut self, config: &BrokerConfig, has_free_slot: bool) -> bool {
        let has_room = self.queue_room(config) > 0;
        let can_send = has_room && has_free_slot && self.send_credits.available() > 0;
        let unblocked = self.blocked.on_queue && has_room || self.blocked.on_message && can_send;
        if unblocked {
            self.blocked = Blocked { on_queue: false, on_message: self.blocked.on_message && !can_send };
        }
        unblocked && !mutant!(NeverUnblocked)
    }

    fn heap_bytes(&self) -> usize {
        let rails = self.rails.iter().map(|rail| rail.in_flight.capacity());
        size_of::<Session>()
            + self.waiting.capacity() * size_of::<WaitingRequest>()
            + self.reposts.capacity() * size_of::<u16>()
            + rails.sum::<usize>() * size_of::<crate::rail::InFlight>()
    }
}
