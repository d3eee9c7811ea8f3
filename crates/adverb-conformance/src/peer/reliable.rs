//! Cases over reliable connections: all messages arrive once and in order, on any network.

use anyhow::{Result, ensure};

use super::Settings;
use super::case_run::{CaseRun, ConnectedPair};
use super::message::{
    Action, Atomics, Batch, Command, ExpectedMemory, ExpectedReceives, Immediate, Kind, Perform, Transport,
};

/// The number of packets of a long message, more than devices have in flight.
const LONG_MESSAGE_PACKETS: u32 = 150;

/// The number of atomics.
const ATOMICS: u32 = 48;

/// Returns the number of repetitions: on a lossy network, enough that packets are lost.
fn rounds(settings: Settings) -> usize {
    if settings.lossy { 3 } else { 1 }
}

impl ConnectedPair {
    /// Returns the batches: the number and length of the messages posted at once.
    fn plan(&self, settings: Settings) -> Vec<(u32, u32)> {
        let mtu = self.mtu();
        [(8, 0), (8, 1), (8, mtu), (8, mtu + 1), (2, LONG_MESSAGE_PACKETS * mtu + 3)].repeat(rounds(settings))
    }

    fn perform(&self, action: Action, batch: Batch) -> Command {
        Command::Perform(Perform { action, batch, memory: self.to.memory, recipient: None, refused: false })
    }
}

impl CaseRun<'_> {
    pub(super) fn rc_send(&mut self, immediate: Immediate) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        for (count, len) in pair.plan(self.settings) {
            let batch = self.batch(count, len, immediate);
            self.run_at_responder(Command::PostReceives { count, len })?;
            self.run_at_requester(pair.perform(Action::Send, batch))?;
            self.receive_all(batch, Kind::Message, None)?;
        }
        Ok(())
    }

    /// Sends messages that each invalidate a valid key.
    pub(super) fn rc_send_invalidate(&mut self) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        pair.need("memory windows", |opened| opened.memory_windows)?;
        let mut window = pair.to.memory;
        for (_, len) in pair.plan(self.settings) {
            window = self.window()?;
            let through = self.batch(1, pair.mtu() + 1, Immediate::None);
            self.run_at_responder(Command::Clear(through))?;
            let mut write = Perform {
                action: Action::Write,
                batch: through,
                memory: window,
                recipient: None,
                refused: false,
            };
            self.run_at_requester(Command::Perform(write.clone()))?;
            self.check_all(through, pair.mtu.bytes())?;
            let batch = self.batch(1, len, Immediate::None);
            self.run_at_responder(Command::PostReceives { count: 1, len })?;
            (write.action, write.batch) = (Action::SendInvalidate(window.rkey), batch);
            self.run_at_requester(Command::Perform(write))?;
            self.receive_all(batch, Kind::Message, Some(window.rkey))?;
        }
        if self.settings.lossy {
            // A NAK is sent once and may be lost: a requester that retries forever would wait forever.
            return Ok(());
        }
        // The rejected request is last, because it ends the connection.
        let batch = self.batch(1, 64, Immediate::None);
        let perform =
            Perform { action: Action::Write, batch, memory: window, recipient: None, refused: true };
        self.run_at_requester(Command::Perform(perform))
    }

    pub(super) fn rc_write(&mut self, immediate: Immediate) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        for (count, len) in pair.plan(self.settings) {
            let batch = self.batch(count, len, immediate);
            self.run_at_responder(Command::Clear(batch))?;
            if immediate == Immediate::All {
                self.run_at_responder(Command::PostReceives { count, len: 1 })?;
            }
            self.run_at_requester(pair.perform(Action::Write, batch))?;
            if immediate == Immediate::All {
                let expected = ExpectedReceives { batch, kind: Kind::Write, lossy: false, invalidated: None };
                self.arrived(Command::Receive(expected))?;
            }
            self.check_all(batch, pair.mtu.bytes())?;
        }
        Ok(())
    }

    pub(super) fn rc_read(&mut self) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        for (count, len) in pair.plan(self.settings) {
            let batch = self.batch(count, len, Immediate::None);
            self.run_at_responder(Command::Fill(batch))?;
            self.run_at_requester(pair.perform(Action::Read, batch))?;
            self.count(batch, count as usize);
        }
        Ok(())
    }

    pub(super) fn rc_atomics(&mut self, swap: bool) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        pair.need("atomic operations", |opened| opened.atomics)?;
        for _ in 0..rounds(self.settings) {
            self.run_atomics(&pair, swap)?;
        }
        Ok(())
    }

    pub(super) fn rc_atomic_write(&mut self) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        pair.need("ATOMIC WRITE", |opened| opened.atomic_write)?;
        for _ in 0..rounds(self.settings) {
            let batch = self.batch(ATOMICS, 8, Immediate::None);
            self.run_at_responder(Command::Clear(batch))?;
            self.run_at_requester(pair.perform(Action::AtomicWrite, batch))?;
            self.check_all(batch, pair.mtu.bytes())?;
        }
        Ok(())
    }

    pub(super) fn rc_flush(&mut self) -> Result<()> {
        let pair = self.open(Transport::Rc)?;
        pair.need("FLUSH to global visibility", |opened| opened.flush)?;
        for (count, len) in pair.plan(self.settings) {
            let batch = self.batch(count, len.max(1), Immediate::None);
            self.run_at_responder(Command::Clear(batch))?;
            self.run_at_requester(pair.perform(Action::WriteAndFlush, batch))?;
            self.check_all(batch, pair.mtu.bytes())?;
        }
        Ok(())
    }

    fn run_atomics(&mut self, pair: &ConnectedPair, swap: bool) -> Result<()> {
        let batch = self.batch(ATOMICS, 8, Immediate::None);
        let word = batch.seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
        self.run_at_responder(Command::Clear(batch))?;
        self.exchange_word(word)?;
        let atomics = Atomics { swap, count: ATOMICS, word, memory: pair.to.memory };
        let expected = self.run_atomics_at_requester(Command::Atomics(atomics))?;
        let found = self.exchange_word(0)?;
        ensure!(found == expected, "the final word is {found:#x}, not {expected:#x}");
        // No bytes next to the word may change.
        let nothing = Batch { count: 0, ..batch };
        self.arrived(Command::CheckMemory(ExpectedMemory {
            batch: nothing,
            lossy: false,
            mtu: pair.mtu.bytes(),
            whole: vec![],
        }))?;
        self.count(batch, ATOMICS as usize);
        Ok(())
    }

    fn receive_all(&mut self, batch: Batch, kind: Kind, invalidated: Option<u32>) -> Result<()> {
        let arrived =
            self.arrived(Command::Receive(ExpectedReceives { batch, kind, lossy: false, invalidated }))?;
        self.count(batch, arrived.indices.len());
        Ok(())
    }

    fn check_all(&mut self, batch: Batch, mtu: u16) -> Result<()> {
        let arrived =
            self.arrived(Command::CheckMemory(ExpectedMemory { batch, lossy: false, mtu, whole: vec![] }))?;
        self.count(batch, arrived.indices.len());
        Ok(())
    }
}
