//! Queue pairs that exist to be attacked.

use std::net::IpAddr;
use std::sync::Arc;

use adverb_proto::Path;
use adverb_proto::types::{Destination, QpState, RemoteAddress, SendOperation, Transport};
use adverb_sim::{AttackerState, DecisionSource};
use adverb_soft::Nic;
use adverb_wire::{Psn, Qpn};

use super::end::End;
use super::{Outcome, QKEY};

/// A queue pair whose peer is an attacker.
pub(super) struct Target {
    pub(super) end: End,
    pub(super) local: IpAddr,
    remote: IpAddr,
    /// The index of the attacker.
    pub(super) sender: usize,
    /// The number of the attacker's queue pair, to which the target sends.
    pub(super) peer: Qpn,
    pub(super) attacker_state: AttackerState,
}

impl Target {
    pub(super) fn new(
        nic: &Arc<Nic>,
        transport: Transport,
        local: IpAddr,
        remote: IpAddr,
        sender: usize,
        peer: Qpn,
    ) -> Outcome<Target> {
        let end = End::new(nic, transport)?;
        Ok(Target { end, local, remote, sender, peer, attacker_state: AttackerState::default() })
    }

    /// Connects the queue pair if it is new or an attack moved it to the error state, and posts requests.
    pub(super) fn restore_and_post(&mut self, decisions: &mut DecisionSource<'_>) -> Outcome<()> {
        while self.end.poll().is_some() {}
        if self.end.state() != Some(QpState::ReadyToSend) {
            self.end.reset()?;
            self.attacker_state = AttackerState::default();
            match self.end.transport {
                Transport::Ud => self.end.start_datagrams(QKEY)?,
                _ => {
                    let psn = Psn::wrapping(decisions.bits(24) as u32);
                    self.end.connect(self.local, self.remote, self.peer, psn)?;
                }
            }
        }
        // The queue pair rejects receives if its queue is full.
        for _ in 0..decisions.below(4) {
            self.end.post_recv(2, 4096);
        }
        if decisions.one_in(4) {
            let length = decisions.pick(&[0, 8, 700, 4000]);
            let remote = RemoteAddress { addr: 0x5000, rkey: 0x1234 };
            let destination = match self.end.transport {
                Transport::Ud => self.end.nic.path(self.local, self.remote, 0xc001),
                _ => None,
            };
            let destination: Option<Destination<Path>> =
                destination.map(|handle| Destination { handle, qpn: self.peer, qkey: QKEY });
            let (operation, length) = match decisions.below(5) {
                0 => (SendOperation::Send, length),
                1 => (SendOperation::Write(remote), length),
                2 => (SendOperation::Read(remote), length),
                3 => (SendOperation::FetchAdd { remote, add: 1 }, 8),
                _ => (SendOperation::CompareSwap { remote, compare: 1, swap: 2 }, 8),
            };
            self.end.post(1, operation, length, destination);
        }
        Ok(())
    }
}
