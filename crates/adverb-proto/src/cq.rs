//! Completion queues.

use std::collections::VecDeque;

use crate::types::Completion;

/// The number of a completion queue of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cq(pub(crate) u32);

/// Which completions wake somebody who waits (vol. 1, 10.8.3 and 11.4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// The next one.
    Any,
    /// The next receive whose sender asked for it, or the next failure.
    Solicited,
}

/// A completion queue. It grows as it fills, up to its capacity.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    entries: VecDeque<Completion>,
    capacity: u32,
    wake: Option<Wake>,
    /// How many queue pairs complete here.
    pub(crate) users: u32,
    overflowed: bool,
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    /// It is there.
    Quietly,
    /// It is there, and somebody waits for it.
    Wake,
    /// There was no room: the completion is lost, and this is the first one.
    Overflow,
    /// The queue has overflowed before.
    Lost,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: u32) -> CompletionQueue {
        CompletionQueue { entries: VecDeque::new(), capacity, wake: None, users: 0, overflowed: false }
    }

    #[inline]
    pub(crate) fn push(&mut self, completion: Completion, solicited: bool) -> Pushed {
        if self.overflowed {
            return Pushed::Lost;
        }
        if self.entries.len() >= self.capacity as usize {
            self.overflowed = true;
            return Pushed::Overflow;
        }
        self.entries.push_back(completion);
        match self.wake {
            None => Pushed::Quietly,
            Some(Wake::Solicited) if !solicited && completion.outcome.is_ok() => Pushed::Quietly,
            Some(_) => {
                self.wake = None;
                Pushed::Wake
            }
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// Changes how many fit, if all that are there do.
    pub(crate) fn resize(&mut self, capacity: u32) -> bool {
        let fits = self.entries.len() <= capacity as usize;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    /// Asks for one wake-up. Completions that are there already don't cause it: look again after asking.
    pub(crate) fn wake_on(&mut self, wake: Wake) {
        // Asking for less than was asked before takes nothing back (vol. 1, 11.4.2).
        if self.wake != Some(Wake::Any) {
            self.wake = Some(wake);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}
