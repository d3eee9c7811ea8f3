//! The wait protocol of a connection, which decides when callers spin, poll and sleep, and which of them are notified.
//!
//! A waiting caller spins for a while, then arms the completion queue, polls once more, and sleeps until an event is
//! raised. It processes completions for all callers.
//!
//! - Of several **threads**, one leads and sleeps in the kernel. The others follow: they sleep until they are notified.
//!   When the leader leaves, one follower is notified, and leads.
//! - **Tasks** have no leader, because a task that waits may never be polled again, and need not be dropped either. An
//!   event wakes all of them. The first that runs takes the event, and notifies the others.
//! - The **handshake** of a lane is polled when its descriptor is readable. Until the lane is established, it alone
//!   takes the events, and the other callers follow.
//!
//! [`Waiters`] only decides: it uses no threads, wakers, completion queues or time. The lock of the connection guards
//! it. [`WaitingCaller`] carries out the steps that don't block, under that lock, and returns the next step that blocks
//! ([`Block`]). Callers differ only in how they block: a thread in a system call or on a condition variable, a task by
//! registering its waker.
//!
//! Why no wake-up is lost:
//!
//! - A completion that arrives before the queue is armed raises no event, so a caller polls between arming and
//!   sleeping.
//! - The caller's condition is checked, and the decision to sleep made, under one hold of the lock. Code that changes
//!   the connection ([`Waiters::changed`], [`Waiters::replace_lane`]) therefore runs before the check, or it notifies
//!   the caller.
//! - While threads follow, one leads or one of the followers has been notified. Each caller that leaves restores this
//!   ([`Waiters::leave`]), including a notified follower that leaves instead of leading.
//! - While tasks sleep, the queue is armed, or all of them have been notified: a caller that takes the event, or finds
//!   completions, notifies them.
//! - A sleeping leader is woken by events only. A lane that is drained raises one, because it returns its requests; for
//!   other changes the leader limits the time of its sleep.

use std::ops::Deref;
use std::time::Duration;

/// The waiting callers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    leader: Leader,
    /// The number of callers to notify.
    followers: u32,
    arming: Arming,
    spin: AdaptiveSpin,
    #[cfg(test)]
    pub(super) fault: Option<Fault>,
}

/// The thread that waits for events, if there is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leader {
    #[default]
    Vacant,
    /// The leader sleeps, or has been woken.
    Present,
    /// The leader polls the completion queue without the connection's lock.
    Spinning,
}

/// Whether the next completion raises an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Arming {
    #[default]
    Disarmed,
    /// The queue is armed, but completions that arrived before may be in it.
    PollDue,
    /// The queue is armed, and all completions that arrived before are processed.
    Armed,
    /// The queue is not armed: its event was taken, and the completion may still be in the queue.
    Raised,
}

/// The means by which a caller blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallerKind {
    /// A thread blocks in system calls, so only one thread may wait for events.
    Thread,
    /// A task registers a waker.
    Task,
    /// A handshake registers nothing. It is polled again when its descriptor is readable.
    Handshake,
}

/// One waiting caller.
#[derive(Debug)]
struct Caller {
    kind: CallerKind,
    role: Role,
    has_spun: bool,
    /// The state of the caller's spinning, if that is independent of the other callers'.
    spin: Option<AdaptiveSpin>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Role {
    /// A caller that doesn't wait, or is awake.
    #[default]
    Outside,
    /// A caller that is to be notified.
    Following,
    /// A thread that waits for events.
    Leading,
}

/// The next step of a waiting caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Request an event for the next completion.
    Arm,
    /// Poll the completion queue, report to [`Waiters::polled`], and process the completions.
    Poll,
    /// Block without the lock.
    Block(Block),
}

/// A step that blocks. Afterwards the caller's condition is checked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Block {
    /// Wait to be notified. The caller must be ready to be notified before the lock is released.
    Follow,
    /// Poll the completion queue for this long, and report to [`Waiters::spun`]. A thread polls without the lock, and
    /// other callers don't poll meanwhile. A task lets other tasks run between its polls.
    Spin(Duration),
    /// Wait for an event. A taken event is reported to [`Waiters::event_taken`]. A task must be ready to be notified,
    /// too.
    Sleep,
}

/// Followers to notify.
#[must_use = "callers that are not notified may wait forever"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notify {
    None,
    /// One thread, and all tasks, because one of the tasks may never be polled again.
    One,
    All,
}

impl Caller {
    fn new(kind: CallerKind) -> Caller {
        Caller { kind, role: Role::Outside, has_spun: kind == CallerKind::Handshake, spin: None }
    }
}

impl Waiters {
    /// Returns the next step of a caller whose condition doesn't hold. `has_lane` is whether the connection has a lane
    /// with events for callers other than its handshake.
    fn advance(&mut self, caller: &mut Caller, has_lane: bool) -> Step {
        let is_vacant = caller.role == Role::Leading || self.leader == Leader::Vacant;
        let waits_for_events = match caller.kind {
            CallerKind::Thread | CallerKind::Task => has_lane && is_vacant,
            CallerKind::Handshake => self.may_poll(),
        };
        if !waits_for_events {
            self.set_role(caller, Role::Following);
            return Step::Block(Block::Follow);
        }
        let is_thread = caller.kind == CallerKind::Thread;
        self.set_role(caller, if is_thread { Role::Leading } else { Role::Outside });
        if !caller.has_spun {
            caller.has_spun = true;
            let time = caller.spin.as_mut().unwrap_or(&mut self.spin).begin();
            if !time.is_zero() {
                if is_thread {
                    self.leader = Leader::Spinning;
                }
                return Step::Block(Block::Spin(time));
            }
        }
        match self.arming {
            Arming::Disarmed => {
                self.arming = Arming::PollDue;
                Step::Arm
            }
            Arming::Raised => Step::Poll,
            Arming::PollDue if !self.has_fault(Fault::NoPollAfterArm) => Step::Poll,
            Arming::PollDue | Arming::Armed => {
                if caller.kind == CallerKind::Task {
                    self.set_role(caller, Role::Following);
                }
                Step::Block(Block::Sleep)
            }
        }
    }

    fn set_role(&mut self, caller: &mut Caller, role: Role) {
        // A handshake can't be notified.
        let role = if caller.kind == CallerKind::Handshake { Role::Outside } else { role };
        match std::mem::replace(&mut caller.role, role) {
            Role::Outside => {}
            Role::Following => self.followers -= 1,
            Role::Leading => self.leader = Leader::Vacant,
        }
        match role {
            Role::Outside => {}
            Role::Following => self.followers += 1,
            Role::Leading => self.leader = Leader::Present,
        }
    }

    /// Whether a thread leads. Calls that don't wait leave the polling to it.
    pub(crate) fn has_leader(&self) -> bool {
        self.leader != Leader::Vacant
    }

    /// Whether a caller may poll the completion queue under the connection's lock. It may not while the leader polls
    /// without the lock, because completions would be processed out of order.
    pub(crate) fn may_poll(&self) -> bool {
        self.leader != Leader::Spinning
    }

    /// Whether the completion queue is armed, and needs no poll before its event is taken.
    #[cfg(all(test, feature = "soft", not(loom)))]
    pub(crate) fn is_armed(&self) -> bool {
        self.arming == Arming::Armed
    }

    /// Records a poll by any caller, before the connection's lock is released. Found completions are a
    /// [change](Waiters::changed).
    pub(crate) fn polled(&mut self, has_completions: bool) {
        self.arming = match self.arming {
            // If the queue was armed, the completions have raised its event.
            _ if has_completions => Arming::Disarmed,
            Arming::PollDue => Arming::Armed,
            Arming::Raised => Arming::Disarmed,
            arming => arming,
        };
    }

    /// Records the end of a caller's spinning. A thread's is successful if it has found completions, a task's if its
    /// condition holds.
    fn spun(&mut self, caller: &mut Caller, is_success: bool) {
        caller.spin.as_mut().unwrap_or(&mut self.spin).end(is_success);
        if caller.role == Role::Leading {
            self.leader = Leader::Present;
        }
        // A caller that finds completions, but not what it waits for, spins again.
        caller.has_spun = !is_success;
    }

    /// Records that a caller has taken an event.
    fn event_taken(&mut self, caller: &mut Caller) -> Notify {
        self.arming = Arming::Raised;
        if caller.role == Role::Leading {
            caller.has_spun = false;
            return Notify::None;
        }
        self.set_role(caller, Role::Outside);
        if self.has_fault(Fault::EventTakenWithoutNotify) {
            return Notify::None;
        }
        // The caller may leave without another poll, and tasks sleep only while the queue is armed.
        self.changed()
    }

    /// Records a change of the connection, so that every caller checks its condition.
    pub(crate) fn changed(&mut self) -> Notify {
        // Notifying is a system call even without followers.
        if self.followers > 0 { Notify::All } else { Notify::None }
    }

    /// Records that the connection has another lane, with a completion queue that is not armed. That is a
    /// [change](Waiters::changed).
    pub(crate) fn replace_lane(&mut self) {
        if !self.has_fault(Fault::NewLaneAssumedArmed) {
            self.arming = Arming::Disarmed;
        }
    }

    /// Ends a caller's wait. Has no effect on a caller that doesn't wait.
    fn leave(&mut self, caller: &mut Caller) -> Notify {
        let has_waited = caller.role != Role::Outside;
        self.set_role(caller, Role::Outside);
        *caller = Caller { spin: caller.spin.take(), ..Caller::new(caller.kind) };
        let is_handover = has_waited && caller.kind == CallerKind::Thread && !self.has_leader();
        if is_handover && self.followers > 0 && !self.has_fault(Fault::NoHandover) {
            return Notify::One;
        }
        Notify::None
    }

    fn has_fault(&self, _fault: Fault) -> bool {
        #[cfg(test)]
        return self.fault == Some(_fault);
        #[cfg(not(test))]
        false
    }
}

/// A mutation of the protocol. A test must detect each of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// A caller sleeps after arming without another poll.
    NoPollAfterArm,
    /// A leaving thread notifies no follower.
    NoHandover,
    /// The completion queue of a new lane is assumed to be armed if that of the old lane was.
    NewLaneAssumedArmed,
    /// A task that takes an event doesn't notify the others.
    EventTakenWithoutNotify,
}

/// A locked connection, as far as the wait protocol needs it.
pub(crate) trait Events {
    fn waiters(&mut self) -> &mut Waiters;

    /// Whether the connection has a lane with events for callers other than its handshake.
    fn has_lane(&self) -> bool;

    /// Requests an event for the next completion of the lane.
    fn arm(&mut self);

    /// Polls the lane, reports that to [`Waiters::polled`], and processes the completions.
    fn poll(&mut self);

    /// Notifies followers.
    fn notify(&mut self, notify: Notify);
}

/// A connection with a lock.
pub(crate) trait Lock {
    type Guard<'a>: Events
    where
        Self: 'a;

    fn lock(&self) -> Self::Guard<'_>;

    /// Whether the state belongs to this process, and not to the one that has forked it.
    fn is_owned(&self) -> bool;
}

/// The wait of one caller. Dropping it, as a cancelled future does, ends the wait.
pub(crate) struct WaitingCaller<L>
where
    L: Deref,
    L::Target: Lock,
{
    lock: L,
    caller: Caller,
}

impl<L> WaitingCaller<L>
where
    L: Deref,
    L::Target: Lock,
{
    pub(crate) fn new(lock: L, kind: CallerKind) -> WaitingCaller<L> {
        WaitingCaller { lock, caller: Caller::new(kind) }
    }

    /// Makes the caller's spinning independent of the other callers'.
    #[cfg(feature = "tokio")]
    pub(crate) fn spin_independently(&mut self) {
        self.caller.spin = Some(AdaptiveSpin::default());
    }

    /// Makes the caller's next wait sleep without spinning.
    #[cfg(feature = "tokio")]
    pub(crate) fn skip_spin(&mut self) {
        self.caller.has_spun = true;
    }

    /// Returns the connection.
    #[cfg(feature = "tokio")]
    pub(crate) fn connection(&self) -> &L {
        &self.lock
    }

    /// Carries out steps until `ready` returns a value or the caller must block: `Err` has the blocking step.
    ///
    /// # Errors
    ///
    /// The inner result is the error of `ready`. The wait has then ended.
    pub(crate) fn advance<G: Events, T, E>(
        &mut self,
        guard: &mut G,
        mut ready: impl FnMut(&mut G) -> Result<Option<T>, E>,
    ) -> Result<Result<T, E>, Block> {
        let ended = loop {
            match ready(guard) {
                Ok(None) => {}
                Ok(Some(value)) => break Ok(value),
                Err(error) => break Err(error),
            }
            let has_lane = guard.has_lane();
            match guard.waiters().advance(&mut self.caller, has_lane) {
                Step::Block(block) => return Err(block),
                Step::Arm => guard.arm(),
                Step::Poll => guard.poll(),
            }
        };
        let notify = guard.waiters().leave(&mut self.caller);
        guard.notify(notify);
        Ok(ended)
    }

    /// Records the end of [`Block::Spin`].
    pub(crate) fn spun(&mut self, guard: &mut impl Events, is_success: bool) {
        guard.waiters().spun(&mut self.caller, is_success);
    }

    /// Records that the caller has taken an event.
    pub(crate) fn event_taken(&mut self, guard: &mut impl Events) {
        let notify = guard.waiters().event_taken(&mut self.caller);
        guard.notify(notify);
    }
}

impl<L> Drop for WaitingCaller<L>
where
    L: Deref,
    L::Target: Lock,
{
    fn drop(&mut self) {
        if self.caller.role != Role::Outside && self.lock.is_owned() {
            let mut guard = self.lock.lock();
            let notify = guard.waiters().leave(&mut self.caller);
            guard.notify(notify);
        }
    }
}

/// The time that a caller spins before it sleeps. Sleeping and being woken takes longer than a short message and its
/// answer. After an unsuccessful spin the next wait doesn't spin; after each further one, the next 3, 7, and so on. So
/// a caller that was preempted soon spins again, and a caller that waits for long hardly ever does.
#[derive(Debug, Default)]
struct AdaptiveSpin {
    /// The number of waits without spinning before the next spin.
    skips: u32,
    /// The number of these waits that have passed.
    skipped: u32,
}

/// About the time of sleeping and being woken on both sides of a connection.
const SPIN_TIME: Duration = Duration::from_micros(50);
/// The maximum number of consecutive waits without spinning.
const MAX_SKIPS: u32 = 63;

impl AdaptiveSpin {
    /// Returns the time to spin in the wait that begins.
    fn begin(&mut self) -> Duration {
        if self.skipped < self.skips {
            self.skipped += 1;
            return Duration::ZERO;
        }
        self.skipped = 0;
        SPIN_TIME
    }

    /// Records whether spinning was successful.
    fn end(&mut self, is_success: bool) {
        self.skips = if is_success { 0 } else { (self.skips * 2 + 1).min(MAX_SKIPS) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn unsuccessful_spins_become_rare_and_are_tried_again() {
        let mut spin = AdaptiveSpin::default();
        let mut wait_unsuccessfully = || {
            let spins = !spin.begin().is_zero();
            if spins {
                spin.end(false);
            }
            spins
        };
        assert_eq!([(); 6].map(|()| wait_unsuccessfully()), [true, false, true, false, false, false]);
        let spins = (0..1000).filter(|_| wait_unsuccessfully()).count();
        assert!((10..20).contains(&spins), "{spins} of 1000 waits");
        // After a success, every wait spins.
        while spin.begin().is_zero() {}
        spin.end(true);
        assert_eq!([(); 3].map(|()| spin.begin()), [SPIN_TIME; 3]);
    }

    fn callers<const N: usize>(kind: CallerKind) -> [Caller; N] {
        [(); N].map(|()| Caller::new(kind))
    }

    const SPIN: Step = Step::Block(Block::Spin(SPIN_TIME));
    const SLEEP: Step = Step::Block(Block::Sleep);
    const FOLLOW: Step = Step::Block(Block::Follow);

    #[test]
    fn a_leader_spins_arms_polls_and_sleeps() {
        let mut waiters = Waiters::default();
        let [mut caller] = callers(CallerKind::Thread);
        assert_eq!(waiters.advance(&mut caller, true), SPIN);
        assert!(!waiters.may_poll());
        waiters.spun(&mut caller, false);
        assert!(waiters.may_poll() && waiters.has_leader());
        assert_eq!(waiters.advance(&mut caller, true), Step::Arm);
        assert_eq!(waiters.advance(&mut caller, true), Step::Poll);
        // Without the report of a poll, it stays due.
        assert_eq!(waiters.advance(&mut caller, true), Step::Poll);
        waiters.polled(false);
        assert_eq!(waiters.advance(&mut caller, true), SLEEP);
        // The caller was woken without an event, so the queue is still armed.
        assert_eq!(waiters.advance(&mut caller, true), SLEEP);
        assert_eq!(waiters.event_taken(&mut caller), Notify::None);
        // The last spin was unsuccessful, so this wait doesn't spin.
        assert_eq!(waiters.advance(&mut caller, true), Step::Poll, "before it arms");
        waiters.polled(false);
        assert_eq!(waiters.advance(&mut caller, true), Step::Arm);
        waiters.polled(true);
        assert_eq!(waiters.changed(), Notify::None, "there are no followers");
        assert_eq!(waiters.leave(&mut caller), Notify::None);
        assert_eq!(waiters.leave(&mut caller), Notify::None, "a second time has no effect");
        assert!(!waiters.has_leader());
    }

    #[test]
    fn followers_are_notified_of_changes_and_one_of_them_of_a_leader_that_leaves() {
        let mut waiters = Waiters::default();
        let [mut leader, mut first, mut second] = callers(CallerKind::Thread);
        assert_eq!(waiters.advance(&mut leader, true), SPIN);
        for follower in [&mut first, &mut second] {
            assert_eq!(waiters.advance(follower, true), FOLLOW);
            assert_eq!(waiters.advance(follower, true), FOLLOW, "it follows once");
        }
        waiters.spun(&mut leader, true);
        waiters.polled(true);
        assert_eq!(waiters.changed(), Notify::All);
        assert_eq!(waiters.leave(&mut leader), Notify::One);
        // The notified follower leaves instead of leading.
        assert_eq!(waiters.leave(&mut first), Notify::One);
        assert_eq!(waiters.advance(&mut second, true), SPIN, "it leads");
        assert_eq!(waiters.leave(&mut second), Notify::None);
        assert_eq!(waiters.changed(), Notify::None);
    }

    #[test]
    fn callers_follow_while_a_handshake_has_the_lane() {
        let mut waiters = Waiters::default();
        let ([mut thread], [mut task]) = (callers(CallerKind::Thread), callers(CallerKind::Task));
        let [mut handshake] = callers(CallerKind::Handshake);
        assert_eq!(waiters.advance(&mut thread, true), SPIN);
        assert_eq!(waiters.advance(&mut handshake, true), FOLLOW, "the leader polls");
        waiters.spun(&mut thread, false);
        assert_eq!(waiters.advance(&mut thread, false), FOLLOW, "a leader follows, too");
        assert_eq!(waiters.advance(&mut task, false), FOLLOW);
        assert_eq!(waiters.advance(&mut handshake, false), Step::Arm);
        assert_eq!(waiters.advance(&mut handshake, false), Step::Poll);
        waiters.polled(false);
        assert_eq!(waiters.advance(&mut handshake, false), SLEEP);
        assert_eq!(waiters.leave(&mut handshake), Notify::None);
        assert_eq!(waiters.changed(), Notify::All);
        // The handshake has left the queue armed.
        assert_eq!(waiters.advance(&mut thread, true), SLEEP);
    }

    #[test]
    fn tasks_sleep_while_the_queue_is_armed() {
        let mut waiters = Waiters::default();
        let [mut first, mut second] = callers(CallerKind::Task);
        assert_eq!(waiters.advance(&mut first, true), SPIN);
        assert!(waiters.may_poll(), "a task polls under the lock");
        waiters.spun(&mut first, false);
        assert_eq!(waiters.advance(&mut first, true), Step::Arm);
        waiters.polled(false);
        assert_eq!(waiters.advance(&mut first, true), SLEEP);
        assert_eq!(waiters.advance(&mut second, true), SLEEP, "the queue is armed already");
        // An event wakes both, and one of them takes it.
        assert_eq!(waiters.event_taken(&mut first), Notify::All);
        assert_eq!(waiters.advance(&mut second, true), Step::Poll);
        waiters.polled(true);
        assert_eq!(waiters.changed(), Notify::None, "both are awake");
        assert_eq!(waiters.advance(&mut second, true), Step::Arm);
        waiters.polled(false);
        assert_eq!(waiters.advance(&mut second, true), SLEEP);
        waiters.replace_lane();
        assert_eq!(waiters.changed(), Notify::All);
        assert_eq!(waiters.advance(&mut second, true), Step::Arm, "the other lane is not armed");
        assert_eq!([&mut first, &mut second].map(|task| waiters.leave(task)), [Notify::None; 2]);
    }
}
