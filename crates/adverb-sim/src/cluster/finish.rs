//! The end of a run: after the faults end, everything must complete.

use adverb_cluster_proto::{PeerId, Phase};

use super::application::{PeerView, end_of};
use super::run::ClusterRun;

/// The maximum number of rounds in which everything must complete after the faults.
const MAX_FINAL_ROUNDS: usize = 3000;

impl ClusterRun {
    /// Ends the faults, and checks that all members connect, and that messages and transfers of each pair complete.
    pub(super) fn finish(&mut self) {
        let count = self.members.len();
        let now = self.now;
        self.is_finishing = true;
        self.log.note(now, || "the faults end".to_owned());
        let messages = 3 + usize::from(self.config.recv_slots);
        let mut is_connecting = true;
        for _ in 0..MAX_FINAL_ROUNDS {
            self.maintain(1_000_000);
            if is_connecting {
                // Keepalives detect the connections that broke before. Later work must complete without keepalives.
                self.advance();
            }
            // Each pair gets work once all members are connected.
            let all_alive = self.members.iter().all(|member| member.is_alive);
            if is_connecting && all_alive && self.pending.is_empty() && self.are_all_open() {
                is_connecting = false;
                for view in self.members.iter_mut().flat_map(|member| &mut member.peers) {
                    (view.messages_left, view.transfers_left) = (messages, 3);
                }
                for member in 0..if self.has_segments { count } else { 0 } {
                    self.act_segments(member);
                    self.withdraw_segment(member, 0);
                    self.add_segment(member);
                }
            }
            for member in 0..count {
                for peer in (0..count).filter(|peer| *peer != member) {
                    let view = &self.members[member].peers[peer];
                    let (messages, transfers) = (view.messages_left, view.transfers_left);
                    if self.members[member].is_alive {
                        if messages > 0 {
                            self.act_message(member, peer);
                        }
                        self.post_or_discard_slots(member, peer);
                        if transfers > 0 {
                            self.act_transfers(member, peer, 1);
                        }
                        self.release(member, peer, self.members[member].peers[peer].hold_limit);
                    }
                    self.transfer(member, peer, u64::MAX, u64::MAX);
                    if let Some(link) = self.link_mut(member, peer) {
                        link.connection.exceed_retries(end_of(member, peer));
                    }
                }
                self.poll(member);
                self.check_memory();
                if self.log.violation.is_some() {
                    return;
                }
            }
            if !is_connecting && self.is_done() {
                break;
            }
        }
        if is_connecting {
            return self.report_violation("the members did not connect after the faults");
        }
        if !self.is_done() {
            let stuck = self.describe_stuck();
            return self.report_violation(&format!("work did not complete: {stuck}"));
        }
        for member in 0..count {
            for peer in 0..count {
                self.release(member, peer, 0);
            }
            self.check_bounds(member);
        }
    }

    fn are_all_open(&self) -> bool {
        let count = self.members.len();
        let is_open = |member: usize, peer: usize| {
            self.members[member].broker.phase(PeerId(peer as u16)) == Phase::Open
                && self.link(member, peer).is_some_and(|link| link.connection.is_working())
        };
        (0..count).all(|member| (0..count).all(|peer| peer == member || is_open(member, peer)))
    }

    fn is_done(&self) -> bool {
        let is_done =
            |view: &PeerView| view.messages_left == 0 && view.transfers_left == 0 && view.tickets.is_empty();
        let count = self.members.len();
        let all = |member: usize| {
            (0..count).all(|peer| peer == member || is_done(&self.members[member].peers[peer]))
        };
        let is_settled =
            |member: usize| self.members[member].calls.is_empty() && self.are_segments_settled(member);
        (0..count).all(|member| all(member) && is_settled(member))
    }

    fn describe_stuck(&self) -> String {
        for (index, member) in self.members.iter().enumerate() {
            for (peer, view) in member.peers.iter().enumerate() {
                let (messages, tickets) = (view.messages_left, view.tickets.len());
                if peer != index && (messages > 0 || view.transfers_left > 0 || tickets > 0) {
                    return format!("member {index} to {peer}: {messages} messages, {tickets} tickets");
                }
            }
        }
        let unsettled = (0..self.members.len()).find(|member| !self.are_segments_settled(*member));
        let calls = (0..self.members.len()).find(|member| !self.members[*member].calls.is_empty());
        match (unsettled, calls) {
            (_, Some(member)) => self.describe_calls(member),
            (Some(member), None) => {
                format!("the segments of member {member}: {:?}", self.members[member].segments)
            }
            (None, None) => String::new(),
        }
    }
}
