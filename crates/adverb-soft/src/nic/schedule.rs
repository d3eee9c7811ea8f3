//! The schedule of a NIC: which thread drives the link, and when the progress thread wakes up.
//!
//! The schedule is a pure state machine under the NIC's lock. Callers and the progress thread report their steps with the
//! current time, and the schedule returns what to do: whether to wake the progress thread, how long that thread sleeps,
//! and whether it sleeps on the link's descriptor. The engine does the work in between.
//!
//! A polling caller and a waiting caller may use a NIC at the same time, so [`Driver`] is derived from the state of both.

use std::time::Duration;

use adverb_proto::Time;

/// The phases of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Running,
    /// The engine panicked or the link failed. A failed NIC stays failed when it is closed.
    Failed,
    /// The NIC is being dropped.
    Closing,
}

/// The thread that drives the link while the progress thread sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Driver {
    /// The progress thread, which sleeps on the link's descriptor and until the next timer expires. A waiting caller
    /// may sleep on the descriptor, too.
    ProgressThread,
    /// A polling caller drives the link and the timers. After the grace period, the progress thread checks whether the
    /// caller still polls.
    PollingCaller,
    /// The waiting caller drives the link alone: the progress thread sleeps only until the next timer expires.
    WaitingCaller,
}

/// The progress thread's next step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextStep {
    /// Drive the engine, then [sleep](Schedule::sleep).
    Drive,
    /// [Rest](Schedule::rest): a polling caller drives the link and the timers.
    Rest,
    /// Exit: the NIC is closing or has failed.
    Exit,
}

/// A sleep of the progress thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sleep {
    /// The end of the sleep, or [`Time::MAX`] if only a packet or a caller ends it.
    pub(super) until: Time,
    /// Whether packets on the link end the sleep.
    pub(super) on_link: bool,
}

/// The state of a NIC that decides which thread drives the link.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Schedule {
    phase: Phase,
    /// The time at which the progress thread wakes up without a packet or a caller.
    asleep_until: Time,
    /// Whether the progress thread leaves the link and the timers to a polling caller while it sleeps.
    is_resting: bool,
    /// The end of the last poll's grace period, or [`Time::ZERO`] before the first poll.
    polls_until: Time,
    /// Whether a caller has armed a completion queue since the last event: the caller may sleep instead of polling.
    is_armed: bool,
    /// The caller in `Nic::wait` that drives the link, if there is one.
    waiting: Option<Waiting>,
    /// The wake interest that was last passed to the link.
    wake_interest: bool,
    pub(super) delayed_ack: DelayedAck,
    pub(super) pacing: PollPacing,
}

/// A waiting caller that drives the link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Waiting {
    /// The number of unnecessary wake-ups of the progress thread since the caller began to wait.
    spurious_wakeups: u32,
}

impl Waiting {
    /// Whether the progress thread leaves the link to the caller.
    const fn drives_alone(self) -> bool {
        self.spurious_wakeups > MAX_SPURIOUS_WAKEUPS
    }
}

impl Schedule {
    /// Creates the schedule of a NIC whose progress thread starts soon.
    pub(super) fn new() -> Schedule {
        Schedule {
            phase: Phase::Running,
            asleep_until: Time::ZERO,
            is_resting: false,
            polls_until: Time::ZERO,
            is_armed: false,
            waiting: None,
            wake_interest: true,
            delayed_ack: DelayedAck::default(),
            pacing: PollPacing::default(),
        }
    }

    /// Whether the NIC has failed.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.phase == Phase::Failed
    }

    /// Marks the NIC as failed. Returns false if it had failed before.
    #[must_use]
    pub(super) fn fail(&mut self) -> bool {
        std::mem::replace(&mut self.phase, Phase::Failed) != Phase::Failed
    }

    /// Marks the NIC as closing. The progress thread must be woken afterwards.
    pub(super) fn close(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Closing;
        }
    }

    /// Returns the thread that drives the link while the progress thread sleeps.
    pub(super) fn driver(&self) -> Driver {
        match self.waiting {
            _ if self.is_resting => Driver::PollingCaller,
            Some(waiting) if waiting.drives_alone() => Driver::WaitingCaller,
            _ => Driver::ProgressThread,
        }
    }

    /// Records that a caller polled.
    #[inline]
    pub(super) fn record_poll(&mut self, now: Time) {
        self.polls_until = now + POLL_GRACE;
    }

    /// Returns the time until which a caller is assumed to poll, or [`Time::ZERO`] if no caller is.
    #[inline]
    fn polled_until(&self) -> Time {
        if self.is_armed { Time::ZERO } else { self.polls_until }
    }

    /// Records that a caller armed a completion queue. Returns whether the progress thread must be woken: the caller is
    /// about to sleep, so a progress thread that rests for it takes over.
    #[must_use]
    pub(super) fn arm(&mut self) -> bool {
        self.is_armed = true;
        let must_wake = std::mem::take(&mut self.is_resting);
        if must_wake {
            self.asleep_until = Time::MAX;
        }
        must_wake
    }

    /// Records that an event was delivered: the caller that armed the queue may poll again.
    #[inline]
    pub(super) fn record_event(&mut self) {
        self.is_armed = false;
    }

    /// Leaves the work that is due at `deadline` to the progress thread. Returns whether the progress thread must be
    /// woken, because it would sleep past the deadline.
    ///
    /// A polling caller checks the timers itself, so the progress thread wakes up at the end of its grace period at the
    /// earliest.
    #[inline]
    #[must_use]
    pub(super) fn hand_over(&mut self, deadline: Time) -> bool {
        let deadline = deadline.max(self.polled_until());
        let must_wake = deadline < self.asleep_until;
        if must_wake {
            self.asleep_until = deadline;
        }
        must_wake
    }

    /// Makes the caller the waiting caller that drives the link. Returns false if another waiting caller already does,
    /// so that a packet wakes one of them only, or if the NIC has failed.
    #[must_use]
    pub(super) fn begin_wait(&mut self) -> bool {
        let begins = self.waiting.is_none() && !self.has_failed();
        if begins {
            self.waiting = Some(Waiting::default());
        }
        begins
    }

    /// Whether a waiting caller drives the link.
    #[cfg(test)]
    pub(super) fn has_waiting_caller(&self) -> bool {
        self.waiting.is_some()
    }

    /// Ends the wait of the waiting caller. Returns whether the progress thread must be woken, because it has left the
    /// link to the caller.
    #[must_use]
    pub(super) fn end_wait(&mut self) -> bool {
        self.waiting.take().is_some_and(Waiting::drives_alone)
    }

    /// Returns the next step of the progress thread, which is awake. `has_descriptor` is whether a thread can sleep on
    /// the link: without a descriptor, the progress thread drives the engine whenever it wakes up.
    pub(super) fn next_step(&self, now: Time, has_descriptor: bool) -> NextStep {
        match self.phase {
            Phase::Failed | Phase::Closing => NextStep::Exit,
            Phase::Running if has_descriptor && now < self.polled_until() => NextStep::Rest,
            Phase::Running => NextStep::Drive,
        }
    }

    /// Returns the progress thread's sleep while a polling caller drives the link and the timers.
    pub(super) fn rest(&mut self, now: Time) -> Sleep {
        self.fall_asleep(true, now + POLL_GRACE)
    }

    /// Returns the progress thread's sleep after it drove the engine, whose next work is due at `deadline`.
    pub(super) fn sleep(&mut self, deadline: Time) -> Sleep {
        self.fall_asleep(false, deadline)
    }

    fn fall_asleep(&mut self, is_resting: bool, until: Time) -> Sleep {
        self.is_resting = is_resting;
        self.asleep_until = until;
        if let Some(waiting) = &mut self.waiting
            && !waiting.drives_alone()
        {
            waiting.spurious_wakeups += 1;
        }
        Sleep { until, on_link: self.driver() == Driver::ProgressThread }
    }

    /// Returns whether the link must wake threads that sleep on its descriptor, if this differs from the wake interest
    /// that was last passed to the link.
    #[must_use]
    pub(super) fn wake_interest_change(&mut self) -> Option<bool> {
        let interest = self.waiting.is_some() || self.driver() == Driver::ProgressThread;
        (std::mem::replace(&mut self.wake_interest, interest) != interest).then_some(interest)
    }
}

/// Acknowledgements that are delayed for a polling caller.
///
/// A caller that gets completions posts a response, or polls again, soon afterwards. The acknowledgements are sent
/// together with the response or by that poll, which saves a system call before the caller gets its completions. If the
/// completions are in another queue than the polled one, the caller needs more polls to get them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum DelayedAck {
    /// Acknowledgements are sent at once.
    #[default]
    Idle,
    /// Acknowledgements are sent after the next request, by the last of the next `polls` polls, by a poll that receives a
    /// packet, or at `time`.
    Until { time: Time, polls: u32 },
}

impl DelayedAck {
    /// Whether acknowledgements are delayed.
    #[inline]
    pub(super) fn is_pending(self) -> bool {
        self != DelayedAck::Idle
    }

    /// Returns the time at which the acknowledgements are due, or [`Time::MAX`] if none are delayed.
    #[inline]
    pub(super) fn deadline(self) -> Time {
        match self {
            DelayedAck::Idle => Time::MAX,
            DelayedAck::Until { time, .. } => time,
        }
    }

    /// Returns the state after a poll that began in this state. `max_polls` returns the number of polls for which
    /// acknowledgements can be delayed, if the poll found completions and only acknowledgements are to be sent.
    ///
    /// Acknowledgements are not delayed twice in a row: a caller whose every poll finds completions would never send them.
    #[inline]
    pub(super) fn after_poll(
        self,
        now: Time,
        has_received: bool,
        max_polls: impl FnOnce() -> Option<u32>,
    ) -> DelayedAck {
        match self {
            DelayedAck::Idle => match max_polls() {
                Some(polls) => DelayedAck::Until { time: now + MAX_ACK_DELAY, polls },
                None => DelayedAck::Idle,
            },
            DelayedAck::Until { time, polls } if polls > 1 && !has_received => {
                DelayedAck::Until { time, polls: polls - 1 }
            }
            DelayedAck::Until { .. } => DelayedAck::Idle,
        }
    }
}

/// Counters that let most polls skip some of the work.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct PollPacing {
    /// The number of polls since the link was driven.
    since_link: u32,
    /// The number of polls that received no packet.
    empty: u32,
}

impl PollPacing {
    /// Counts a poll. Returns whether it may return queued completions without driving the link.
    #[inline]
    #[must_use]
    pub(super) fn try_skip_link(&mut self) -> bool {
        self.since_link = self.since_link.wrapping_add(1);
        self.since_link < MAX_POLLS_WITHOUT_LINK
    }

    /// Records that the link is driven.
    #[inline]
    pub(super) fn record_link_driven(&mut self) {
        self.since_link = 0;
    }

    /// Counts a poll that received no packet. Returns whether it may return without reading the clock, which takes a
    /// tenth of the time of a poll.
    #[inline]
    #[must_use]
    pub(super) fn try_skip_clock(&mut self) -> bool {
        self.empty = self.empty.wrapping_add(1);
        !self.empty.is_multiple_of(EMPTY_POLLS_PER_CLOCK_READ)
    }
}

/// The time after a poll for which the caller is assumed to poll again.
const POLL_GRACE: Duration = Duration::from_millis(1);

/// The number of polls in which a caller is assumed to poll all its queues. UCX has four: two for connections and two for
/// datagrams.
pub(super) const POLLS_UNTIL_COMPLETION: u32 = 4;

/// The maximum delay of an acknowledgement.
const MAX_ACK_DELAY: Duration = POLL_GRACE;

/// The number of unnecessary wake-ups after which the progress thread leaves the link to a waiting caller. The wake-up
/// at the end of that caller's wait costs as much as a few of them.
const MAX_SPURIOUS_WAKEUPS: u32 = 4;

/// The number of polls in a row of which one drives the link even if the queue has completions.
const MAX_POLLS_WITHOUT_LINK: u32 = 256;

/// The number of polls without a packet of which one reads the clock.
const EMPTY_POLLS_PER_CLOCK_READ: u32 = 8;

#[cfg(test)]
mod tests;
