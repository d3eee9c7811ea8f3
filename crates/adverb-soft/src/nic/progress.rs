//! The thread that serves peers while the application does nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use adverb_proto::Time;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::Shared;
use super::engine::{ATTENDED, Engine, Work};
use crate::channel::Channel;

/// Serves until the adapter is closed or fails.
pub(super) fn run(shared: &Shared) {
    while !catch_unwind(AssertUnwindSafe(|| step(shared))).unwrap_or_else(|_| {
        shared.engine.lock().fail();
        true
    }) {}
}

/// Does what there is to be done, and sleeps until there is more; says whether that was all.
fn step(shared: &Shared) -> bool {
    // Announcements are only for waking, so they are taken before looking.
    while shared.kick.take().unwrap_or(false) {}
    let mut engine = shared.engine.lock();
    if engine.closing || engine.failed {
        return true;
    }
    let now = engine.now();
    // An application that polls does all this on its own core: it isn't disturbed, unless it stops.
    let is_attended = shared.readiness.is_some() && engine.attended_until().is_some_and(|until| now < until);
    if !is_attended {
        match engine.drive() {
            Ok(Work::Done) => {}
            Ok(Work::More) => return false,
            Err(_) => {
                engine.fail();
                return true;
            }
        }
    }
    let until = if is_attended { now + ATTENDED } else { engine.deadline() };
    engine.asleep_until = until;
    engine.resting = is_attended;
    engine.vain += u32::from(engine.watched);
    engine.relieved = engine.watched && engine.vain > MOST_VAIN;
    if engine.tell_link().is_err() {
        engine.fail();
        return true;
    }
    let readiness = if is_attended || engine.relieved { None } else { shared.readiness.as_ref() };
    let timeout = (until != Time::MAX).then(|| until - engine.now());
    drop(engine);
    if sleep(&shared.kick, readiness, timeout).is_err() {
        // The kernel has no memory for it, or the process may have no descriptors at all any more. Neither says that the
        // link is dead: that is what receiving says.
        std::thread::sleep(timeout.unwrap_or(Duration::MAX).min(POLL_INTERVAL));
    }
    false
}

/// Wakes the thread, if it would sleep too long.
pub(super) fn wake(shared: &Shared, engine: &mut Engine, work: Work) {
    let deadline = if work == Work::More { Time::ZERO } else { engine.deadline() };
    // Who polls looks at the clock by itself; the thread looks whether it still does.
    let deadline = engine.attended_until().map_or(deadline, |until| deadline.max(until));
    if deadline < engine.asleep_until {
        engine.asleep_until = deadline;
        shared.kick.announce();
    }
}

/// One who waits for an event, and serves the link meanwhile: then what comes for it needn't wake the thread first, which
/// would wake it. There is only one, so that not all are woken by everything.
pub(super) struct Watch<'a>(&'a Shared);

impl<'a> Watch<'a> {
    /// Begins, if nobody else does that already, and there is a link.
    pub(super) fn begin(shared: &'a Shared) -> Option<Watch<'a>> {
        shared.readiness.as_ref()?;
        let mut engine = shared.engine.lock();
        if engine.watched || engine.failed {
            return None;
        }
        engine.watched = true;
        engine.vain = 0;
        let watch = Watch(shared);
        if engine.tell_link().is_err() {
            engine.fail();
        }
        drop(engine);
        Some(watch)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut engine = self.0.engine.lock();
        engine.watched = false;
        if engine.relieved {
            engine.relieved = false;
            self.0.kick.announce();
        }
    }
}

/// How often the thread looks at the link where the system can't wait for it.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How often the thread is woken beside who waits before it leaves the link to that: calling it back costs as much.
const MOST_VAIN: u32 = 4;

/// Sleeps until the link has something, if that is given, something is announced, or the time is over.
pub(super) fn sleep(
    channel: &Channel,
    readiness: Option<&OwnedFd>,
    timeout: Option<Duration>,
) -> io::Result<()> {
    let kick = PollFd::new(channel.as_fd(), PollFlags::POLLIN);
    let mut both = [kick.clone(), kick];
    let count = match readiness {
        Some(readiness) => {
            both[1] = PollFd::new(readiness.as_fd(), PollFlags::POLLIN);
            2
        }
        None => 1,
    };
    match ppoll(&mut both[..count], timeout.map(TimeSpec::from), None) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
