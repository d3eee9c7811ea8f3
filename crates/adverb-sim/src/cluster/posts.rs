//! The driver of a member: the requests that its broker posts, and their checks.

use adverb_cluster_proto::{LocalMemory, PeerId, Phase, Post, RecvPost, SendPost};
use adverb_proto::types::{SendFlags, SendOperation};

use super::application::end_of;
use super::run::ClusterRun;
use crate::rc_model::ModelRequest;

/// An output of a broker.
enum Action {
    Receives(usize, Vec<RecvPost>),
    Sends(usize, Vec<SendPost>),
    Close(usize),
}

impl ClusterRun {
    /// Performs all or some of the actions of a member's broker, so that other members can run between two actions.
    pub(super) fn post_some(&mut self, member: usize) {
        let is_interrupted = !self.is_finishing && self.random.below(4) == 0;
        let count = if is_interrupted { self.random.below(3) } else { u64::MAX };
        if self.post_up_to(member, count) {
            self.check_posted(member);
        }
    }

    /// Performs all actions of a member's broker.
    pub(super) fn post(&mut self, member: usize) {
        self.post_up_to(member, u64::MAX);
        self.check_posted(member);
    }

    /// Performs at most `count` actions of a member's broker. Returns whether no actions are left.
    fn post_up_to(&mut self, member: usize, count: u64) -> bool {
        for _ in 0..count {
            let action = match self.members[member].broker.poll_post() {
                Some(Post::Receives { peer, requests, .. }) => {
                    Action::Receives(usize::from(peer.0), requests.to_vec())
                }
                Some(Post::Sends { peer, requests, .. }) => {
                    Action::Sends(usize::from(peer.0), requests.to_vec())
                }
                Some(Post::Close { peer }) => Action::Close(usize::from(peer.0)),
                None => return true,
            };
            match action {
                Action::Receives(peer, requests) => self.post_receives(member, peer, &requests),
                Action::Sends(peer, requests) => self.post_sends(member, peer, &requests),
                Action::Close(peer) => self.members[member].closing.push(peer),
            }
        }
        false
    }

    /// Checks that no flushed request waits for anything but the send queue.
    fn check_posted(&mut self, member: usize) {
        for peer in 0..self.members.len() {
            let is_open = self.members[member].broker.phase(PeerId(peer as u16)) == Phase::Open;
            let is_flushed =
                self.members[member].peers[peer].session.as_ref().is_none_or(|session| session.is_flushed());
            let end = end_of(member, peer);
            if is_open
                && !is_flushed
                && self.link(member, peer).is_some_and(|link| !link.connection.is_send_queue_full(end))
            {
                self.report_violation("flushed requests were not posted");
            }
        }
    }

    fn post_receives(&mut self, member: usize, peer: usize, requests: &[RecvPost]) {
        for request in requests {
            let view = &self.members[member].peers[peer];
            let is_held = view.held.iter().any(|(slot, _)| slot.index() == request.slot);
            let segment = self.members[member].memory.recv_slot(peer, request.slot);
            let end = end_of(member, peer);
            let fits = self
                .link_mut(member, peer)
                .is_none_or(|link| link.connection.post_recv(end, request.wr_id, segment));
            if is_held {
                self.report_violation("a receive slot was posted while the application holds it");
            }
            if !fits {
                self.report_violation("the receive queue overflowed");
            }
        }
    }

    fn post_sends(&mut self, member: usize, peer: usize, requests: &[SendPost]) {
        let interval = self.config.signal_interval;
        let interval = interval.min(self.config.send_slots.div_ceil(2));
        let interval = interval.min(self.config.send_queue_depth.div_ceil(2));
        let now = self.now;
        self.log.note(now, || format!("member {member} posts {} requests to {peer}", requests.len()));
        self.mix(&[5, member as u64, peer as u64, requests.len() as u64]);
        self.doorbells += 1;
        self.requests += requests.len() as u64;
        let Some(view) = &mut self.members[member].peers[peer].session else {
            return self.report_violation("requests were posted without a session");
        };
        match view.check_list(requests, interval) {
            Ok(control) => self.control_requests += control,
            Err(what) => return self.report_violation(&what),
        }
        for request in requests {
            self.check_posted_key(member, peer, request);
            self.mix(&[request.wr_id, u64::from(request.flags.bits())]);
            self.signaled += u64::from(request.flags.contains(SendFlags::SIGNALED));
            let local = match request.local {
                LocalMemory::None => None,
                LocalMemory::Slot { index, length } => {
                    Some(self.members[member].memory.send_slot(peer, index, length))
                }
                LocalMemory::Segment(segment) => Some(segment),
            };
            let SendPost { wr_id, operation, flags, .. } = *request;
            let end = end_of(member, peer);
            if let SendOperation::SendWithImm(immediate) = operation
                && let Some(link) = self.link(member, peer)
            {
                // The count of credits, without the flags of credit and control messages.
                let unused = (immediate << 2 >> 2).wrapping_sub(link.connection.received_count(end));
                if unused as usize > link.connection.posted_receive_count(end) && link.connection.is_working()
                {
                    self.report_violation("credits were announced before their receives were posted");
                }
            }
            let fits = self.link_mut(member, peer).is_none_or(|link| {
                link.connection.post_send(end, ModelRequest { wr_id, operation, flags, local })
            });
            if !fits {
                self.report_violation("the send queue overflowed");
            }
        }
    }
}
