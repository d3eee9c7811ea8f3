//! Cases over unreliable transports: a message arrives completely or not at all.

use anyhow::{Result, ensure};

use super::case_run::{CaseRun, ConnectedPair, Counts};
use super::message::{
    Action, Arrived, Batch, Command, ExpectedMemory, ExpectedReceives, Immediate, Kind, Perform, Transport,
};

/// The number of packets of a long message.
const LONG_MESSAGE_PACKETS: u32 = 6;

/// The number of packets sent before the other end reports the arrived messages. No flow control limits these packets:
/// they must fit in the other end's receive buffer.
const BURST: u32 = 12;

/// The length of the GRH, which precedes a datagram in the receive buffer.
const GRH_LEN: u32 = 40;

impl ConnectedPair {
    /// Returns the number and length of the messages of each batch.
    fn bursts(&self) -> Vec<(u32, u32)> {
        let mtu = self.mtu();
        let long = LONG_MESSAGE_PACKETS * mtu - 1;
        vec![
            (BURST, 0),
            (BURST, 1),
            (BURST, mtu),
            (BURST / 2, mtu + 1),
            (2, long),
            (2, long),
            (2, long),
            (2, long),
        ]
    }
}

impl CaseRun<'_> {
    pub(super) fn uc_send(&mut self) -> Result<()> {
        let pair = self.open(Transport::Uc)?;
        for (count, len) in pair.bursts() {
            self.run_at_responder(Command::PostReceives {
                count: BURST,
                len: LONG_MESSAGE_PACKETS * pair.mtu(),
            })?;
            let batch = self.batch(count, len, Immediate::EveryOther);
            self.perform(&pair, Action::Send, batch)?;
            let arrived = self.receive_some(batch, Kind::Message)?;
            self.count(batch, arrived.indices.len());
        }
        self.check_enough_arrived()
    }

    pub(super) fn uc_write(&mut self) -> Result<()> {
        let pair = self.open(Transport::Uc)?;
        for (count, len) in pair.bursts() {
            let batch = self.batch(count, len, Immediate::EveryOther);
            self.run_at_responder(Command::Clear(batch))?;
            self.run_at_responder(Command::PostReceives { count: BURST, len: 1 })?;
            self.perform(&pair, Action::Write, batch)?;
            // Messages that complete a receive must be complete.
            let Arrived { indices: whole } = self.receive_some(batch, Kind::Write)?;
            let (lossy, mtu) = (self.settings.lossy, pair.mtu.bytes());
            let arrived = self.arrived(Command::CheckMemory(ExpectedMemory { batch, lossy, mtu, whole }))?;
            self.count(batch, arrived.indices.len());
        }
        self.check_enough_arrived()
    }

    pub(super) fn datagrams(&mut self) -> Result<()> {
        let pair = self.open(Transport::Ud)?;
        let mtu = pair.mtu();
        let receive_len = GRH_LEN + u32::from(pair.to.mtu);
        for len in [0, 1, mtu - 1, mtu, mtu] {
            self.run_at_responder(Command::PostReceives { count: BURST, len: receive_len })?;
            let batch = self.batch(BURST, len, Immediate::EveryOther);
            self.perform(&pair, Action::Send, batch)?;
            let arrived = self.receive_some(batch, Kind::Message)?;
            self.count(batch, arrived.indices.len());
        }
        self.check_enough_arrived()
    }

    fn perform(&mut self, pair: &ConnectedPair, action: Action, batch: Batch) -> Result<()> {
        let recipient = (pair.transport == Transport::Ud).then_some(pair.to.endpoint);
        let memory = pair.to.memory;
        self.run_at_requester(Command::Perform(Perform { action, batch, memory, recipient, refused: false }))
    }

    fn receive_some(&mut self, batch: Batch, kind: Kind) -> Result<Arrived> {
        let lossy = self.settings.lossy;
        self.arrived(Command::Receive(ExpectedReceives { batch, kind, lossy, invalidated: None }))
    }

    /// Checks that more than half of the messages arrived. Test networks lose fewer.
    fn check_enough_arrived(&self) -> Result<()> {
        let Counts { sent, arrived, .. } = self.counts;
        ensure!(2 * arrived > sent, "of {sent} messages only {arrived} arrived");
        Ok(())
    }
}
