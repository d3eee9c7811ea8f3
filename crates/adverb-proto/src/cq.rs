//! Completion queues.

use std::collections::VecDeque;

use crate::Time;
use crate::types::{ArmFor, Completion, Qpn, TimestampSource};

/// The handle of a completion queue of a [`Device`](crate::Device).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cq(pub(crate) u32);

impl Cq {
    /// Returns the handle with this number, for recordings of rdma-core's devices, which are not
    /// [`Device`](crate::Device)s.
    pub const fn from_number(number: u32) -> Cq {
        Cq(number)
    }
}

/// The time at which a request completed or a packet was received, and the component that observed it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Timestamp {
    /// The time.
    pub time: Time,
    /// The component that observed the time.
    pub source: TimestampSource,
}

/// Returns the timestamp for a time that the process observed.
impl From<Time> for Timestamp {
    fn from(time: Time) -> Timestamp {
        Timestamp { time, source: TimestampSource::Process }
    }
}

/// A completion queue. It grows as it fills, up to its capacity.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    entries: VecDeque<Completion>,
    /// The times of the entries, if the queue has timestamps.
    times: Option<VecDeque<Timestamp>>,
    capacity: u32,
    armed: Option<ArmFor>,
    /// The number of uses by queue pairs. A queue pair whose send and receive queues both complete here counts twice.
    pub(crate) users: u32,
    overflowed: bool,
}

/// The result of adding a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// The completion was added.
    Added,
    /// The completion was added, and the queue was armed for it.
    Event,
    /// The queue was full: the completion is the first one lost.
    Overflow,
    /// The completion is lost, because the queue overflowed before.
    Lost,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: u32) -> CompletionQueue {
        CompletionQueue {
            entries: VecDeque::new(),
            times: None,
            capacity,
            armed: None,
            users: 0,
            overflowed: false,
        }
    }

    pub(crate) fn with_timestamps(capacity: u32) -> CompletionQueue {
        CompletionQueue { times: Some(VecDeque::new()), ..CompletionQueue::new(capacity) }
    }

    #[inline]
    pub(crate) const fn has_timestamps(&self) -> bool {
        self.times.is_some()
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion, solicited: bool, time: Timestamp) -> Pushed {
        if self.overflowed {
            return Pushed::Lost;
        }
        if self.entries.len() >= self.capacity as usize {
            self.overflowed = true;
            return Pushed::Overflow;
        }
        self.entries.push_back(completion);
        if let Some(times) = &mut self.times {
            times.push_back(time);
        }
        match self.armed {
            None => Pushed::Added,
            Some(ArmFor::Solicited) if !solicited && completion.outcome.is_ok() => Pushed::Added,
            Some(_) => {
                self.armed = None;
                Pushed::Event
            }
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        if let Some(times) = &mut self.times {
            times.pop_front();
        }
        self.entries.pop_front()
    }

    #[inline]
    pub(crate) fn pop_timed(&mut self) -> Option<(Completion, Option<Timestamp>)> {
        let completion = self.entries.pop_front()?;
        Some((completion, self.times.as_mut().and_then(VecDeque::pop_front)))
    }

    /// Changes the capacity, unless the queue holds more completions. Returns whether the capacity was changed.
    pub(crate) fn resize(&mut self, capacity: u32) -> bool {
        let fits = self.entries.len() <= capacity as usize;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// Removes the completions of a queue pair.
    pub(crate) fn discard(&mut self, qpn: Qpn) {
        if let Some(times) = &mut self.times {
            let mut entries = self.entries.iter();
            times.retain(|_| entries.next().is_some_and(|completion| completion.qpn != qpn));
        }
        self.entries.retain(|completion| completion.qpn != qpn);
    }

    /// Requests one completion event. Completions that are queued already don't cause it.
    pub(crate) fn arm(&mut self, arm_for: ArmFor) {
        // Arming for solicited completions doesn't revoke an earlier arming for any completion (vol. 1, 11.4.2).
        if self.armed != Some(ArmFor::Any) {
            self.armed = Some(arm_for);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the completions, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Completion> {
        self.entries.iter()
    }
}
