//! Cases over unreliable transports: a message arrives completely or not at all.

use anyhow::{Result, ensure};

use super::message::{Action, Batch, Command, Hear, Heard, Immediate, Kind, Look, Perform, Transport};
use super::script::{Counts, Script, Stage};

/// The number of packets of a long message.
const MANY: u32 = 6;

/// The number of packets sent before the other end reports the arrived messages. Only its receive buffer limits them.
const BURST: u32 = 12;

/// The header before a datagram in the receive.
const ROUTE_HEADER: u32 = 40;

impl Stage {
    /// Returns the number and length of the messages of each batch.
    fn bursts(&self) -> Vec<(u32, u32)> {
        let mtu = self.mtu();
        let long = MANY * mtu - 1;
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

impl Script<'_> {
    pub(super) fn uc_send(&mut self) -> Result<()> {
        let stage = self.open(Transport::Uc)?;
        for (count, len) in stage.bursts() {
            self.prepare(Command::Offer { count: BURST, room: MANY * stage.mtu() })?;
            let batch = self.batch(count, len, Immediate::EveryOther);
            self.perform(&stage, Action::Send, batch)?;
            let heard = self.receive_some(batch, Kind::Message)?;
            self.count(batch, heard.indices.len());
        }
        self.enough_arrived()
    }

    pub(super) fn uc_write(&mut self) -> Result<()> {
        let stage = self.open(Transport::Uc)?;
        for (count, len) in stage.bursts() {
            let batch = self.batch(count, len, Immediate::EveryOther);
            self.prepare(Command::Clear(batch))?;
            self.prepare(Command::Offer { count: BURST, room: 1 })?;
            self.perform(&stage, Action::Write, batch)?;
            // Messages that complete a receive must be complete.
            let Heard { indices: whole } = self.receive_some(batch, Kind::Write)?;
            let (lossy, mtu) = (self.settings.lossy, stage.mtu.bytes());
            let heard = self.heard(Command::Look(Look { batch, lossy, mtu, whole }))?;
            self.count(batch, heard.indices.len());
        }
        self.enough_arrived()
    }

    pub(super) fn datagrams(&mut self) -> Result<()> {
        let stage = self.open(Transport::Ud)?;
        let mtu = stage.mtu();
        let room = ROUTE_HEADER + u32::from(stage.to.mtu);
        for len in [0, 1, mtu - 1, mtu, mtu] {
            self.prepare(Command::Offer { count: BURST, room })?;
            let batch = self.batch(BURST, len, Immediate::EveryOther);
            self.perform(&stage, Action::Send, batch)?;
            let heard = self.receive_some(batch, Kind::Message)?;
            self.count(batch, heard.indices.len());
        }
        self.enough_arrived()
    }

    fn perform(&mut self, stage: &Stage, action: Action, batch: Batch) -> Result<()> {
        let recipient = (stage.transport == Transport::Ud).then_some(stage.to.endpoint);
        let memory = stage.to.memory;
        self.act(Command::Perform(Perform { action, batch, memory, recipient, refused: false }))
    }

    fn receive_some(&mut self, batch: Batch, kind: Kind) -> Result<Heard> {
        let lossy = self.settings.lossy;
        self.heard(Command::Hear(Hear { batch, kind, lossy, invalidated: None }))
    }

    /// Checks that more than half of the messages arrived: a network doesn't lose more.
    fn enough_arrived(&self) -> Result<()> {
        let Counts { sent, arrived, .. } = self.counts;
        ensure!(2 * arrived > sent, "of {sent} messages only {arrived} arrived");
        Ok(())
    }
}
