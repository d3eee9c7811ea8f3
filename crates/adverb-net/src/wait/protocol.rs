//! The wait protocol: how the callers of one connection wait for its completion events.
//!
//! One waiting caller leads. It spins for a while, then arms the completion queue, polls once more, and sleeps until an
//! event is raised. It processes completions for all callers. The other waiting callers follow: they sleep until they are
//! notified. A leader that leaves, because it has what it waits for or because it was cancelled, has a follower notified,
//! and that follower leads.
//!
//! [`Waiters`] decides and does nothing else: it knows neither threads nor tasks, completion queues nor time. It lies
//! behind the lock of the connection. [`WaitingCaller`] carries out the steps that don't block, under that lock, and returns
//! the next one that blocks ([`Block`]). The drivers differ only in how they block: a thread in a system call or on a
//! condition variable, a task by leaving its waker.
//!
//! Why no wake-up is lost:
//!
//! - A completion that arrives before the queue is armed raises no event, so a leader polls between arming and sleeping.
//! - The caller's condition is checked, and the decision to sleep made, under one hold of the lock. Code that changes the
//!   connection without a completion ([`Waiters::changed`], [`Waiters::replace_lane`]) therefore runs before the check,
//!   or it finds the leader asleep and wakes it.
//! - While callers follow, a caller leads or one of the followers has been notified. Each caller that leaves restores
//!   this ([`Waiters::leave`]), including a notified follower that leaves instead of leading.

use std::time::Duration;

/// The waiting callers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    leader: Leader,
    /// The number of callers that follow.
    followers: u32,
    arming: Arming,
    spin: AdaptiveSpin,
    #[cfg(test)]
    pub(crate) fault: Option<Fault>,
}

/// The caller that waits for events, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leader {
    #[default]
    Vacant,
    /// It holds the connection's lock, or is about to lock it.
    Awake,
    /// It polls the completion queue without the connection's lock.
    Spinning,
    /// It waits for an event, or to be woken.
    Asleep,
}

/// Whether the next completion raises an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Arming {
    #[default]
    Disarmed,
    /// It does, but completions that arrived before may be in the queue.
    PollDue,
    /// It does, and all completions that arrived before are processed.
    Armed,
}

/// One waiting caller.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    role: Role,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Role {
    /// It doesn't wait.
    #[default]
    Outside,
    Following,
    /// It waits for events, and has spun before it sleeps or hasn't.
    Leading {
        has_spun: bool,
    },
}

/// The next step of a waiting caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Request an event for the next completion.
    Arm,
    /// Poll the completion queue, process the completions, and report to [`Waiters::polled`].
    Poll,
    /// Block without the lock.
    Block(Block),
}

/// A step that blocks. Afterwards the caller's condition is checked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Block {
    /// Wait to be notified. The caller must be ready to be notified before the lock is released.
    Follow,
    /// Poll the completion queue for this long, or until it has completions, and report to [`Waiters::spun`]. Other
    /// callers don't poll meanwhile.
    Spin(Duration),
    /// Wait for an event or to be woken. A taken event is reported to [`Waiters::event_taken`].
    Sleep,
}

/// Callers to wake.
#[must_use = "callers that are not woken may wait forever"]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Wake {
    /// Whether to wake the leader, which is asleep.
    pub(crate) leader: bool,
    pub(crate) followers: Notify,
}

/// Followers to notify.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Notify {
    #[default]
    None,
    /// Any one of them.
    One,
    All,
}

impl Waiters {
    /// Returns the next step of a caller whose condition doesn't hold. The caller leads if no other caller does.
    pub(crate) fn advance(&mut self, caller: &mut Caller) -> Step {
        if !matches!(caller.role, Role::Leading { .. }) {
            if self.leader != Leader::Vacant {
                self.followers += u32::from(caller.role == Role::Outside);
                caller.role = Role::Following;
                return Step::Block(Block::Follow);
            }
            self.followers -= u32::from(caller.role == Role::Following);
            caller.role = Role::Leading { has_spun: false };
        }
        self.leader = Leader::Awake;
        if let Role::Leading { has_spun: has_spun @ false } = &mut caller.role {
            *has_spun = true;
            let time = self.spin.begin();
            if !time.is_zero() {
                self.leader = Leader::Spinning;
                return Step::Block(Block::Spin(time));
            }
        }
        match self.arming {
            Arming::Disarmed => {
                self.arming = Arming::PollDue;
                Step::Arm
            }
            Arming::PollDue if !self.has_fault(Fault::NoPollAfterArm) => Step::Poll,
            Arming::PollDue | Arming::Armed => {
                self.leader = Leader::Asleep;
                Step::Block(Block::Sleep)
            }
        }
    }

    /// Whether a caller may poll the completion queue under the connection's lock. It may not while the leader polls
    /// without the lock, because completions would be processed out of order.
    pub(crate) fn may_poll(&self) -> bool {
        self.leader != Leader::Spinning
    }

    /// Records a poll under the connection's lock, by any caller, after processing the completions if there were any.
    pub(crate) fn polled(&mut self, has_completions: bool) -> Wake {
        if has_completions {
            // If the queue was armed, they have raised its event.
            self.arming = Arming::Disarmed;
            return Wake { leader: false, followers: self.all_followers() };
        }
        if self.arming == Arming::PollDue {
            self.arming = Arming::Armed;
        }
        Wake::default()
    }

    /// Records the end of the leader's spinning, after processing the completions if there were any.
    pub(crate) fn spun(&mut self, caller: &mut Caller, has_completions: bool) -> Wake {
        self.leader = Leader::Awake;
        self.spin.end(has_completions);
        // A leader that finds completions, but not what it waits for, spins again.
        caller.role = Role::Leading { has_spun: !has_completions };
        self.polled(has_completions)
    }

    /// Records that the leader has taken an event.
    pub(crate) fn event_taken(&mut self) {
        self.arming = Arming::Disarmed;
    }

    /// Records a change of the connection that raises no event, so that every caller checks its condition.
    pub(crate) fn changed(&mut self) -> Wake {
        Wake { leader: self.leader == Leader::Asleep, followers: self.all_followers() }
    }

    /// Records that the connection has another lane, with a completion queue that is not armed.
    pub(crate) fn replace_lane(&mut self) -> Wake {
        self.arming = Arming::Disarmed;
        if self.has_fault(Fault::SleeperKeepsOldLane) {
            return Wake { leader: false, followers: self.all_followers() };
        }
        self.changed()
    }

    /// Ends a caller's wait, for whatever reason. A caller that doesn't wait has nothing to end.
    pub(crate) fn leave(&mut self, caller: &mut Caller) -> Wake {
        match std::mem::take(&mut caller.role) {
            Role::Outside => return Wake::default(),
            Role::Following => self.followers -= 1,
            Role::Leading { .. } => self.leader = Leader::Vacant,
        }
        let is_led = self.leader != Leader::Vacant;
        if is_led || self.followers == 0 || self.has_fault(Fault::NoHandover) {
            return Wake::default();
        }
        Wake { leader: false, followers: Notify::One }
    }

    /// Notifying is a system call even without followers.
    fn all_followers(&self) -> Notify {
        if self.followers > 0 { Notify::All } else { Notify::None }
    }

    fn has_fault(&self, _fault: Fault) -> bool {
        #[cfg(test)]
        return self.fault == Some(_fault);
        #[cfg(not(test))]
        false
    }
}

/// A mutation of the protocol for tests: each must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// A leader sleeps after arming without another poll.
    NoPollAfterArm,
    /// A leaving caller notifies no follower.
    NoHandover,
    /// A sleeping leader isn't woken when its lane is replaced.
    SleeperKeepsOldLane,
}

/// A locked connection, as far as the wait protocol needs it.
pub(crate) trait Events {
    type Error;

    fn waiters(&mut self) -> &mut Waiters;

    /// Requests an event for the next completion of the lane.
    fn arm(&mut self) -> Result<(), Self::Error>;

    /// Polls the lane and processes the completions. Returns whether there were any.
    fn poll(&mut self) -> Result<bool, Self::Error>;

    /// Wakes callers.
    fn wake(&mut self, wake: Wake);
}

/// A connection with a lock.
pub(crate) trait Lock {
    type Guard<'a>: Events
    where
        Self: 'a;

    fn lock(&self) -> Self::Guard<'_>;
}

/// The wait of one caller. Dropping it, as a cancelled future does, ends the wait, and another caller leads.
pub(crate) struct WaitingCaller<'a, L: Lock> {
    lock: &'a L,
    caller: Caller,
}

impl<'a, L: Lock> WaitingCaller<'a, L> {
    pub(crate) fn new(lock: &'a L) -> WaitingCaller<'a, L> {
        WaitingCaller { lock, caller: Caller::default() }
    }

    /// Carries out steps until `ready` returns a value or the caller must block: `Err` has the blocking step.
    ///
    /// # Errors
    ///
    /// The inner result is the error of `ready`, of arming or of polling. The wait has then ended.
    pub(crate) fn advance<'g, T>(
        &mut self,
        guard: &mut L::Guard<'g>,
        mut ready: impl FnMut(&mut L::Guard<'g>) -> Result<Option<T>, <L::Guard<'g> as Events>::Error>,
    ) -> Result<Result<T, <L::Guard<'g> as Events>::Error>, Block>
    where
        L: 'g,
    {
        let ended = loop {
            match ready(guard) {
                Ok(None) => {}
                Ok(Some(value)) => break Ok(value),
                Err(error) => break Err(error),
            }
            let done = match guard.waiters().advance(&mut self.caller) {
                Step::Block(block) => return Err(block),
                Step::Arm => guard.arm(),
                Step::Poll => guard.poll().map(|has_completions| {
                    let wake = guard.waiters().polled(has_completions);
                    guard.wake(wake);
                }),
            };
            if let Err(error) = done {
                break Err(error);
            }
        };
        let wake = guard.waiters().leave(&mut self.caller);
        guard.wake(wake);
        Ok(ended)
    }

    /// Records the end of [`Block::Spin`], after processing the completions if there were any.
    pub(crate) fn spun(&mut self, guard: &mut L::Guard<'_>, has_completions: bool) {
        let wake = guard.waiters().spun(&mut self.caller, has_completions);
        guard.wake(wake);
    }
}

impl<L: Lock> Drop for WaitingCaller<'_, L> {
    fn drop(&mut self) {
        if self.caller.role != Role::Outside {
            let mut guard = self.lock.lock();
            let wake = guard.waiters().leave(&mut self.caller);
            guard.wake(wake);
        }
    }
}

/// The time that a caller spins before it sleeps. Sleeping and being woken takes longer than a short message and its
/// answer. After an unsuccessful spin the next wait doesn't spin; after each further one, the next 3, 7, and so on. So a
/// caller that was preempted soon spins again, and a caller that waits for long hardly ever does.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveSpin {
    /// The number of waits without spinning before the next spin.
    skips: u32,
    /// How many of them have passed.
    skipped: u32,
}

/// About the time of sleeping and being woken on both sides of a connection.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// The maximum number of consecutive waits without spinning.
const MAX_SKIPS: u32 = 63;

impl AdaptiveSpin {
    /// Returns the time to spin in the wait that begins.
    pub(crate) fn begin(&mut self) -> Duration {
        if self.skipped < self.skips {
            self.skipped += 1;
            return Duration::ZERO;
        }
        self.skipped = 0;
        SPIN_TIME
    }

    /// Records whether spinning was successful.
    pub(crate) fn end(&mut self, is_success: bool) {
        self.skips = if is_success { 0 } else { (self.skips * 2 + 1).min(MAX_SKIPS) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unsuccessful_spins_become_rare_and_are_tried_again() {
        let mut spin = AdaptiveSpin::default();
        let mut spins_in_vain = || {
            let spins = !spin.begin().is_zero();
            if spins {
                spin.end(false);
            }
            spins
        };
        assert_eq!([(); 6].map(|()| spins_in_vain()), [true, false, true, false, false, false]);
        let spins = (0..1000).filter(|_| spins_in_vain()).count();
        assert!((10..20).contains(&spins), "{spins} of 1000 waits");
        // After a success, every wait spins.
        while spin.begin().is_zero() {}
        spin.end(true);
        assert_eq!([(); 3].map(|()| spin.begin()), [SPIN_TIME; 3]);
    }

    #[test]
    fn a_leader_spins_arms_polls_and_sleeps() {
        let (mut waiters, mut caller) = (Waiters::default(), Caller::default());
        assert_eq!(waiters.advance(&mut caller), Step::Block(Block::Spin(SPIN_TIME)));
        assert!(!waiters.may_poll());
        assert_eq!(waiters.spun(&mut caller, false), Wake::default());
        assert!(waiters.may_poll());
        assert_eq!(waiters.advance(&mut caller), Step::Arm);
        assert_eq!(waiters.advance(&mut caller), Step::Poll);
        // Without the report of a poll, it stays due.
        assert_eq!(waiters.advance(&mut caller), Step::Poll);
        assert_eq!(waiters.polled(false), Wake::default());
        assert_eq!(waiters.advance(&mut caller), Step::Block(Block::Sleep));
        // Woken without an event, the queue is still armed.
        assert_eq!(waiters.advance(&mut caller), Step::Block(Block::Sleep));
        waiters.event_taken();
        assert_eq!(waiters.advance(&mut caller), Step::Arm);
        assert_eq!(waiters.polled(true), Wake::default(), "there are no followers");
        assert_eq!(waiters.leave(&mut caller), Wake::default());
        assert_eq!(waiters.leave(&mut caller), Wake::default(), "a second time has no effect");
    }

    #[test]
    fn followers_are_notified_of_completions_and_one_of_them_of_a_leader_that_leaves() {
        let mut waiters = Waiters::default();
        let [mut leader, mut first, mut second] = [(); 3].map(|()| Caller::default());
        assert_eq!(waiters.advance(&mut leader), Step::Block(Block::Spin(SPIN_TIME)));
        for follower in [&mut first, &mut second] {
            assert_eq!(waiters.advance(follower), Step::Block(Block::Follow));
            assert_eq!(waiters.advance(follower), Step::Block(Block::Follow), "it follows once");
        }
        let all = Wake { leader: false, followers: Notify::All };
        let one = Wake { leader: false, followers: Notify::One };
        assert_eq!(waiters.spun(&mut leader, true), all);
        assert_eq!(waiters.leave(&mut leader), one);
        // The notified follower leaves instead of leading.
        assert_eq!(waiters.leave(&mut first), one);
        assert!(matches!(waiters.advance(&mut second), Step::Block(Block::Spin(_))), "it leads");
        assert_eq!(waiters.leave(&mut second), Wake::default());
        assert_eq!(waiters.changed(), Wake::default());
    }

    #[test]
    fn a_sleeping_leader_is_woken_by_a_change_and_arms_another_lane() {
        let (mut waiters, mut leader) = (Waiters::default(), Caller::default());
        waiters.spin.end(false);
        assert_eq!(waiters.advance(&mut leader), Step::Arm);
        assert_eq!(waiters.changed(), Wake::default(), "an awake leader checks its condition anyway");
        assert_eq!(waiters.polled(false), Wake::default());
        assert_eq!(waiters.advance(&mut leader), Step::Block(Block::Sleep));
        let leader_only = Wake { leader: true, followers: Notify::None };
        assert_eq!(waiters.changed(), leader_only);
        assert_eq!(waiters.replace_lane(), leader_only);
        assert_eq!(waiters.advance(&mut leader), Step::Arm, "the other lane is not armed");
    }
}
