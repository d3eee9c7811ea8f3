//! What both ends do in a case, as the one that decides sees it.

use std::fmt;

use adverb::verbs::PathMtu;
use anyhow::{Result, anyhow};
use serde::Serialize;

use super::actor::Actor;
use super::message::{Answer, Batch, Command, Connect, Heard, Immediate, Opened, Transport, Wire};
use super::{Operation, Settings, common_mtu, expect_answer};

/// One end, here or there.
pub(super) enum Side {
    Here(Box<Actor>),
    There(Wire),
}

impl Side {
    /// Has it do something. The outer error is that it can't be asked.
    pub(super) fn ask(&mut self, command: Command) -> Result<Result<Answer>> {
        let (answer, who) = match self {
            Side::Here(actor) => (actor.obey(command), "here"),
            Side::There(wire) => {
                wire.send(&command)?;
                (wire.receive()?, "there")
            }
        };
        Ok(match answer {
            Answer::Failed(reason) => Err(anyhow!("{who}: {reason}")),
            answer => Ok(answer),
        })
    }

    fn done(&mut self, command: Command) -> Result<()> {
        match self.ask(command)?? {
            Answer::Done => Ok(()),
            other => Err(anyhow!("{other:?} is no answer to that")),
        }
    }
}

/// How much there was of what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// Messages, or other operations, that one end performed.
    pub sent: u32,
    /// Those of them that arrived whole at the other.
    pub arrived: u32,
    /// How many bytes these had.
    pub bytes: u64,
}

/// What a device says that it can't do.
#[derive(Debug)]
pub(super) struct Lacking(&'static str);

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a device has no {}", self.0)
    }
}

impl std::error::Error for Lacking {}

/// A case that is under way: one end acts, the other is acted upon.
pub(super) struct Script<'a> {
    from: &'a mut Side,
    to: &'a mut Side,
    pub(super) settings: Settings,
    pub(super) seed: u64,
    pub(super) counts: Counts,
}

impl<'a> Script<'a> {
    pub(super) fn new(from: &'a mut Side, to: &'a mut Side, settings: Settings, seed: u64) -> Script<'a> {
        Script { from, to, settings, seed, counts: Counts::default() }
    }

    pub(super) fn play(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::RcSend => self.rc_send(Immediate::None),
            Operation::RcSendWithImm => self.rc_send(Immediate::All),
            Operation::RcSendInvalidate => self.rc_send_invalidate(),
            Operation::RcWrite => self.rc_write(Immediate::None),
            Operation::RcWriteWithImm => self.rc_write(Immediate::All),
            Operation::RcRead => self.rc_read(),
            Operation::RcCompareSwap => self.rc_atomics(true),
            Operation::RcFetchAdd => self.rc_atomics(false),
            Operation::UcSend => self.uc_send(),
            Operation::UcWrite => self.uc_write(),
            Operation::Ud => self.datagrams(),
        }
    }

    /// Makes a queue pair at each end, and connects them.
    pub(super) fn open(&mut self, transport: Transport) -> Result<Stage> {
        let from: Opened = expect_answer!(self.from.ask(Command::Open(transport))?, Opened)?;
        let to: Opened = expect_answer!(self.to.ask(Command::Open(transport))?, Opened)?;
        let mtu = common_mtu(&from, &to, self.settings.mtu)?;
        let max_rd_atomic = from.max_rd_atomic.min(to.max_rd_atomic).min(16);
        for (side, peer) in [(&mut *self.from, &to), (&mut *self.to, &from)] {
            let connect = Connect { peer: peer.endpoint, mtu: mtu.bytes(), max_rd_atomic };
            side.done(Command::Connect(connect))?;
        }
        Ok(Stage { transport, from, to, mtu })
    }

    /// The next messages, unlike all before them.
    pub(super) fn batch(&mut self, count: u32, len: u32, immediate: Immediate) -> Batch {
        let seed = self.seed;
        self.seed += u64::from(count);
        Batch { seed, count, len, immediate }
    }

    /// Has the end that acts do something.
    pub(super) fn act(&mut self, command: Command) -> Result<()> {
        self.from.done(command)
    }

    /// Has the end that is acted upon do something.
    pub(super) fn prepare(&mut self, command: Command) -> Result<()> {
        self.to.done(command)
    }

    /// Has the end that acts do atomics.
    pub(super) fn act_word(&mut self, command: Command) -> Result<u64> {
        expect_answer!(self.from.ask(command)?, Word)
    }

    /// Asks the end that is acted upon for its word.
    pub(super) fn word(&mut self, new: u64) -> Result<u64> {
        expect_answer!(self.to.ask(Command::Exchange(new))?, Word)
    }

    /// Has the end that is acted upon give a right.
    pub(super) fn window(&mut self) -> Result<adverb::memory::RemoteMemory> {
        expect_answer!(self.to.ask(Command::Bind)?, Window)
    }

    /// Asks the end that is acted upon what it got.
    pub(super) fn heard(&mut self, command: Command) -> Result<Heard> {
        expect_answer!(self.to.ask(command)?, Heard)
    }

    pub(super) fn count(&mut self, batch: Batch, arrived: usize) {
        let arrived = u32::try_from(arrived).unwrap_or(u32::MAX);
        self.counts.sent += batch.count;
        self.counts.arrived += arrived;
        self.counts.bytes += u64::from(arrived) * u64::from(batch.len);
    }
}

/// Two queue pairs that are connected.
pub(super) struct Stage {
    pub(super) transport: Transport,
    pub(super) from: Opened,
    pub(super) to: Opened,
    pub(super) mtu: PathMtu,
}

impl Stage {
    pub(super) fn mtu(&self) -> u32 {
        self.mtu.bytes().into()
    }

    /// What both devices must have.
    pub(super) fn need(&self, what: &'static str, has: impl Fn(&Opened) -> bool) -> Result<()> {
        if has(&self.from) && has(&self.to) { Ok(()) } else { Err(Lacking(what).into()) }
    }
}
