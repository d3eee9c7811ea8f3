//! The parts that the two kinds of threads have in common.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use adverb::cluster::{Arena, EndReason};
use adverb_wire::random::SplitMix64;
use anyhow::{Result, ensure};

use crate::content::Side;
use crate::lines::{Counts, Fault, Line, SessionReport, Settings, ThreadProgress};
use crate::session::{Kind, Session, SharedWords};

/// The time that a thread waits for events before it checks for commands of the coordinator.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_millis(100);
/// The interval of progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The number of requests to a peer between two polls.
pub(crate) const BURST: usize = 16;
/// The mean number of requests after which a member closes a session, in the part in which members are killed.
const CLOSE_INTERVAL: u64 = 1 << 16;
/// The number of messages before a fault is injected.
pub(crate) const FAULT_AT: u64 = 100;

/// The state that the threads share with the main thread.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Whether the coordinator has sent the command `finish`.
    pub(crate) is_finishing: AtomicBool,
    /// Whether the coordinator has sent the command `report`. The members exit soon, so sessions may end.
    pub(crate) is_reporting: AtomicBool,
    /// Whether the coordinator has closed the input.
    pub(crate) is_stopping: AtomicBool,
}

/// The state of a thread that the main thread prints.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) progress: Mutex<ThreadProgress>,
    pub(crate) report: Mutex<Option<Vec<SessionReport>>>,
}

/// A thread of a member.
pub(crate) struct Worker {
    pub(crate) settings: Arc<Settings>,
    pub(crate) thread: u16,
    pub(crate) this_side: Side,
    pub(crate) arena: Arena,
    pub(crate) shared: SharedWords,
    pub(crate) control: Arc<Control>,
    pub(crate) published: Arc<Published>,
    pub(crate) counts: Counts,
    pub(crate) random: SplitMix64,
    iterations: u64,
    published_at: Instant,
    is_finished: bool,
}

impl Worker {
    pub(crate) fn new(
        settings: Arc<Settings>,
        thread: u16,
        epoch: u64,
        arena: Arena,
        control: Arc<Control>,
        published: Arc<Published>,
    ) -> Result<Worker> {
        let member = settings.member;
        Ok(Worker {
            thread,
            this_side: Side { member, epoch },
            shared: SharedWords::new(&arena)?,
            arena,
            control,
            published,
            counts: Counts::default(),
            random: SplitMix64(settings.seed ^ epoch ^ u64::from(thread)),
            settings,
            iterations: 0,
            published_at: Instant::now(),
            is_finished: false,
        })
    }

    /// Returns the fault that this thread injects.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.settings.fault.filter(|_| self.settings.member == 0)
    }

    pub(crate) fn open(&mut self, peer: u16, peer_epoch: u64) -> Result<Session> {
        let peer_side = Side { member: peer, epoch: peer_epoch };
        let mut session =
            Session::new(&self.arena, self.thread, self.this_side, peer_side, self.settings.seed)?;
        session.set_fault(self.fault());
        Ok(session)
    }

    /// Handles the end of a session.
    pub(crate) fn end(&mut self, session: &Session, peer_epoch: u64, reason: EndReason) -> Result<()> {
        let (peer, expected) = (session.peer_side.member, session.peer_side.epoch);
        ensure!(peer_epoch == expected, "epoch {peer_epoch} of member {peer} ended instead of {expected}");
        session.end(&mut self.shared)?;
        if !self.control.is_reporting.load(Ordering::Acquire) {
            let reason = reason.to_string();
            Line::Ended { thread: self.thread, peer, peer_epoch, reason }.print();
        }
        Ok(())
    }

    /// Prints that messages arrive in a session.
    pub(crate) fn print_flowing(&self, session: &Session) {
        let Side { member: peer, epoch: peer_epoch } = session.peer_side;
        Line::Flowing { thread: self.thread, peer, peer_epoch }.print();
    }

    /// Whether a session that has sent `count` requests sends more.
    pub(crate) fn has_more(&self, count: u64) -> bool {
        match self.settings.quota {
            Some(quota) => count < quota,
            None => !self.control.is_finishing.load(Ordering::Acquire),
        }
    }

    /// Decides whether to close a session, which is then established again, and prints a line if so.
    pub(crate) fn choose_close(&mut self, session: &Session) -> bool {
        let is_allowed = self.settings.quota.is_none() && self.has_more(0);
        let is_closed = is_allowed && self.random.below(CLOSE_INTERVAL) == 0;
        if is_closed {
            let Side { member: peer, epoch: peer_epoch } = session.peer_side;
            Line::Closing { thread: self.thread, peer, peer_epoch }.print();
        }
        is_closed
    }

    /// Chooses a transfer that needs no message, for one of eight requests.
    pub(crate) fn choose(random: &mut SplitMix64) -> Option<Kind> {
        match random.below(40) {
            0 => Some(Kind::WriteWithImm),
            1 => Some(Kind::Read),
            2 => Some(Kind::Add),
            3 => Some(Kind::Swap),
            4 => Some(Kind::SharedSwap),
            _ => None,
        }
    }

    /// Marks the thread as finished, and checks the words that all sessions share.
    pub(crate) fn finish<'a>(&mut self, sessions: impl Iterator<Item = &'a Session>) -> Result<()> {
        if self.is_finished {
            return Ok(());
        }
        self.is_finished = true;
        let (mut adds, mut swaps, mut reports) = (0, 0, Vec::new());
        for session in sessions {
            adds += session.received.adds;
            swaps += session.received.shared_swaps;
            reports.push(session.report());
        }
        self.shared.check(adds, swaps)?;
        *self.published.report.lock().expect("no thread panics") = Some(reports);
        Ok(())
    }

    /// Counts an iteration, and publishes the state every second, and when the thread has finished.
    pub(crate) fn publish(&mut self, unfinished: impl FnOnce() -> String) {
        self.iterations += 1;
        let mut progress = self.published.progress.lock().expect("no thread panics");
        progress.iterations = self.iterations;
        progress.counts = self.counts;
        if self.published_at.elapsed() >= PROGRESS_INTERVAL || self.is_finished != progress.is_finished {
            self.published_at = Instant::now();
            progress.is_finished = self.is_finished;
            progress.unfinished = unfinished();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.control.is_stopping.load(Ordering::Acquire)
    }
}
