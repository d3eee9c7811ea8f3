//! Requests for the driver to post.

use adverb_proto::types::{RemoteAddress, SendFlags, SendOperation};

use super::Broker;
use crate::credits;
use crate::mutation::mutant;
use crate::rail::{InFlight, RequestKind};
use crate::session::{Lifecycle, Probe, RecvSlotState, Session, WaitingRequest};
use crate::wr_id::{Queue, WrId};
use crate::{LocalMemory, PeerId, Post, RailId, RecvPost, SendPost};

/// The kind of the next output.
enum Next {
    Receives,
    Sends,
    Close,
    Nothing,
}

impl Broker {
    /// Returns the next action of the driver.
    ///
    /// The receives of a peer precede the sends that announce them to the peer.
    pub fn poll_post(&mut self) -> Option<Post<'_>> {
        let rail = RailId(0);
        loop {
            let peer = *self.ready.front()?;
            match self.next(peer) {
                Next::Receives => return Some(Post::Receives { peer, rail, requests: &self.recv_posts }),
                Next::Sends => {
                    self.check_unblocked(peer);
                    return Some(Post::Sends { peer, rail, requests: &self.send_posts });
                }
                Next::Close => return Some(Post::Close { peer }),
                Next::Nothing => {
                    self.ready.pop_front();
                    if let Some(state) = self.peers.get_mut(usize::from(peer.0)) {
                        state.is_ready = false;
                    }
                }
            }
        }
    }

    /// Fills the list of the peer's next output.
    fn next(&mut self, peer: PeerId) -> Next {
        let Some(state) = self.peers.get_mut(usize::from(peer.0)) else { return Next::Nothing };
        let (session, is_posted) = match &mut state.lifecycle {
            Lifecycle::Closed => return Next::Nothing,
            Lifecycle::Closing { is_announced: true, .. } => return Next::Nothing,
            Lifecycle::Closing { is_announced, .. } => {
                *is_announced = true;
                return Next::Close;
            }
            Lifecycle::Preparing(session) => {
                return fill_receives(peer, session, &mut state.recv_slots, &mut self.recv_posts);
            }
            Lifecycle::Open { session, .. } => (session, None),
            Lifecycle::Leaving { session, is_posted, .. } => (session, Some(is_posted)),
        };
        if mutant!(ReceivesAfterSends) {
            session.recv_credits.grant(core::mem::take(&mut session.repost_grants));
        } else if !session.reposts.is_empty() {
            return fill_receives(peer, session, &mut state.recv_slots, &mut self.recv_posts);
        }
        let interval = self.config.effective_signal_interval();
        fill_sends(peer, session, &mut self.send_posts, interval, is_posted);
        if mutant!(SlotFreedWhenPosted) {
            let slots = self.send_posts.iter().filter_map(|post| match post.local {
                LocalMemory::Slot { index, .. } => Some(index),
                _ => None,
            });
            state.free_send_slots.extend(slots);
        }
        if !self.send_posts.is_empty() {
            Next::Sends
        } else if mutant!(ReceivesAfterSends) {
            fill_receives(peer, session, &mut state.recv_slots, &mut self.recv_posts)
        } else {
            Next::Nothing
        }
    }
}

/// Takes the receives to post, and grants their credits.
fn fill_receives(
    peer: PeerId,
    session: &mut Session,
    slots: &mut [RecvSlotState],
    posts: &mut Vec<RecvPost>,
) -> Next {
    posts.clear();
    for slot in session.reposts.drain(..) {
        if let Some(state) = slots.get_mut(usize::from(slot)) {
            *state = RecvSlotState::Posted;
        }
        let id = WrId { peer, session: session.number, queue: Queue::Recv, index: u32::from(slot) };
        posts.push(RecvPost { wr_id: id.encode(), slot });
    }
    session.recv_credits.grant(core::mem::take(&mut session.repost_grants));
    if posts.is_empty() { Next::Nothing } else { Next::Receives }
}

/// Takes requests that fit the send queue, in this order: a probe that is due; a credit message, if no message carries
/// the credits; the flushed requests; and a leave message, if the broker leaves. `is_posted` is whether the leave
/// message was taken.
fn fill_sends(
    peer: PeerId,
    session: &mut Session,
    posts: &mut Vec<SendPost>,
    interval: u16,
    is_posted: Option<&mut bool>,
) {
    posts.clear();
    let mut room = session.rails[0].room();
    if session.probe == Probe::Due && room > 0 {
        session.probe = Probe::InFlight;
        // A WRITE of zero bytes needs neither a valid key nor a receive.
        let operation = SendOperation::Write(RemoteAddress { addr: 0, rkey: 0 });
        let probe =
            WaitingRequest { kind: RequestKind::Probe, operation, local: LocalMemory::None, ticket: None };
        push(peer, session, posts, probe);
        room -= 1;
    }
    let is_message = |request: &WaitingRequest| matches!(request.kind, RequestKind::Message(_));
    let carries_credits = session.waiting.iter().take(room.min(session.flushed)).any(is_message);
    if room > 0 && !carries_credits && session.recv_credits.is_due() {
        let operation = SendOperation::SendWithImm(credits::encode(session.recv_credits.announce(), true));
        if mutant!(CreditMessageUsesCredit) {
            session.send_credits.take(1);
        }
        let credit =
            WaitingRequest { kind: RequestKind::Credit, operation, local: LocalMemory::None, ticket: None };
        push(peer, session, posts, credit);
        room -= 1;
    }
    for _ in 0..room.min(session.flushed) {
        let Some(mut request) = session.waiting.pop_front() else { break };
        session.flushed -= 1;
        if let (true, SendOperation::SendWithImm(flags)) = (is_message(&request), request.operation) {
            let count = session.recv_credits.announce();
            request.operation = SendOperation::SendWithImm(credits::encode(count, false) | flags);
        }
        push(peer, session, posts, request);
    }
    if mutant!(ListOutOfOrder) && posts.len() > 2 {
        posts.swap(1, 2);
    }
    let can_leave =
        (session.waiting.is_empty() || mutant!(LeaveBeforeRequests)) && session.rails[0].room() > 0;
    if let Some(is_posted) = is_posted.filter(|is_posted| !**is_posted && can_leave) {
        *is_posted = true;
        let immediate = credits::encode(session.recv_credits.announce(), false) | credits::LEAVE_MESSAGE;
        let operation = SendOperation::SendWithImm(immediate);
        let leave =
            WaitingRequest { kind: RequestKind::Leave, operation, local: LocalMemory::None, ticket: None };
        push(peer, session, posts, leave);
    }
    session.rails[0].signal(posts, interval);
}

fn push(peer: PeerId, session: &mut Session, posts: &mut Vec<SendPost>, request: WaitingRequest) {
    let WaitingRequest { kind, operation, local, ticket } = request;
    let sequence = session.rails[0].push(InFlight { kind, ticket });
    let id = WrId { peer, session: session.number, queue: Queue::Send, index: sequence };
    posts.push(SendPost { wr_id: id.encode(), operation, flags: SendFlags::empty(), local });
}
