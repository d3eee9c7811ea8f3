//! The execution of a case, as the controlling end sees it.

use std::fmt;

use adverb::verbs::PathMtu;
use anyhow::{Result, anyhow};
use serde::Serialize;

use super::actor::Actor;
use super::message::{Answer, Arrived, Batch, Command, Connect, ControlStream, Immediate, Opened, Transport};
use super::{Operation, Settings, common_mtu, expect_answer};

/// One end: the local one, or the peer over TCP.
pub(super) enum Side {
    Here(Box<Actor>),
    There(ControlStream),
}

impl Side {
    /// Executes a command. The outer error means that the peer can't be reached.
    pub(super) fn send_command(&mut self, command: Command) -> Result<Result<Answer>> {
        let (answer, end) = match self {
            Side::Here(actor) => (actor.execute(command), "local"),
            Side::There(control) => {
                control.send(&command)?;
                (control.receive()?, "peer")
            }
        };
        Ok(match answer {
            Answer::Failed(reason) => Err(anyhow!("{end}: {reason}")),
            answer => Ok(answer),
        })
    }

    fn expect_done(&mut self, command: Command) -> Result<()> {
        match self.send_command(command)?? {
            Answer::Done => Ok(()),
            other => Err(anyhow!("unexpected answer {other:?}")),
        }
    }
}

/// The numbers of messages and bytes of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Counts {
    /// The number of messages or other operations that the requester posted.
    pub sent: u32,
    /// The number of messages or other operations that arrived completely at the peer.
    pub arrived: u32,
    /// The number of bytes of the arrived messages.
    pub bytes: u64,
}

/// A feature that a device lacks.
#[derive(Debug)]
pub(super) struct MissingFeature(&'static str);

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a device has no {}", self.0)
    }
}

impl std::error::Error for MissingFeature {}

/// A running case: `from` is the requester, `to` the responder.
pub(super) struct CaseRun<'a> {
    from: &'a mut Side,
    to: &'a mut Side,
    pub(super) settings: Settings,
    pub(super) seed: u64,
    pub(super) counts: Counts,
}

impl<'a> CaseRun<'a> {
    pub(super) fn new(from: &'a mut Side, to: &'a mut Side, settings: Settings, seed: u64) -> CaseRun<'a> {
        CaseRun { from, to, settings, seed, counts: Counts::default() }
    }

    pub(super) fn run(&mut self, operation: Operation) -> Result<()> {
        match operation {
            Operation::RcSend => self.rc_send(Immediate::None),
            Operation::RcSendWithImm => self.rc_send(Immediate::All),
            Operation::RcSendInvalidate => self.rc_send_invalidate(),
            Operation::RcWrite => self.rc_write(Immediate::None),
            Operation::RcWriteWithImm => self.rc_write(Immediate::All),
            Operation::RcRead => self.rc_read(),
            Operation::RcCompareSwap => self.rc_atomics(true),
            Operation::RcFetchAdd => self.rc_atomics(false),
            Operation::RcAtomicWrite => self.rc_atomic_write(),
            Operation::RcFlush => self.rc_flush(),
            Operation::UcSend => self.uc_send(),
            Operation::UcWrite => self.uc_write(),
            Operation::Ud => self.datagrams(),
        }
    }

    /// Creates a queue pair at each end, and connects them.
    pub(super) fn open(&mut self, transport: Transport) -> Result<ConnectedPair> {
        let from: Opened = expect_answer!(self.from.send_command(Command::Open(transport))?, Opened)?;
        let to: Opened = expect_answer!(self.to.send_command(Command::Open(transport))?, Opened)?;
        let mtu = common_mtu(&from, &to, self.settings.mtu)?;
        let max_rd_atomic = from.max_rd_atomic.min(to.max_rd_atomic).min(16);
        for (side, peer) in [(&mut *self.from, &to), (&mut *self.to, &from)] {
            let connect = Connect { peer: peer.endpoint, mtu: mtu.bytes(), max_rd_atomic };
            side.expect_done(Command::Connect(connect))?;
        }
        Ok(ConnectedPair { transport, from, to, mtu })
    }

    /// Returns the next messages, which differ from all earlier ones.
    pub(super) fn batch(&mut self, count: u32, len: u32, immediate: Immediate) -> Batch {
        let seed = self.seed;
        self.seed += u64::from(count);
        Batch { seed, count, len, immediate }
    }

    /// Sends a command to the requester.
    pub(super) fn run_at_requester(&mut self, command: Command) -> Result<()> {
        self.from.expect_done(command)
    }

    /// Sends a command to the responder.
    pub(super) fn run_at_responder(&mut self, command: Command) -> Result<()> {
        self.to.expect_done(command)
    }

    /// Executes atomics at the requester.
    pub(super) fn run_atomics_at_requester(&mut self, command: Command) -> Result<u64> {
        expect_answer!(self.from.send_command(command)?, Word)
    }

    /// Sets the responder's word, and returns the previous one.
    pub(super) fn exchange_word(&mut self, new: u64) -> Result<u64> {
        expect_answer!(self.to.send_command(Command::Exchange(new))?, Word)
    }

    /// Binds a window at the responder.
    pub(super) fn window(&mut self) -> Result<adverb::memory::RemoteMemory> {
        expect_answer!(self.to.send_command(Command::Bind)?, Window)
    }

    /// Returns the messages that arrived at the responder.
    pub(super) fn arrived(&mut self, command: Command) -> Result<Arrived> {
        expect_answer!(self.to.send_command(command)?, Arrived)
    }

    pub(super) fn count(&mut self, batch: Batch, arrived: usize) {
        let arrived = u32::try_from(arrived).unwrap_or(u32::MAX);
        self.counts.sent += batch.count;
        self.counts.arrived += arrived;
        self.counts.bytes += u64::from(arrived) * u64::from(batch.len);
    }
}

/// Two connected queue pairs.
pub(super) struct ConnectedPair {
    pub(super) transport: Transport,
    pub(super) from: Opened,
    pub(super) to: Opened,
    pub(super) mtu: PathMtu,
}

impl ConnectedPair {
    pub(super) fn mtu(&self) -> u32 {
        self.mtu.bytes().into()
    }

    /// Checks that both devices have a feature.
    pub(super) fn need(&self, what: &'static str, has: impl Fn(&Opened) -> bool) -> Result<()> {
        if has(&self.from) && has(&self.to) { Ok(()) } else { Err(MissingFeature(what).into()) }
    }
}
