//! The end of a connection: shutdown, graceful close, abort.
//!
//! A side that closes sends a close frame, and keeps its lane until the peer's device has acknowledged the frame and
//! the peer has read all rendezvous messages. It then sends a last write, the acknowledgement of the close. The peer
//! keeps its lane until that write arrives, because the acknowledgement of its device may have been lost: then the
//! closing side retransmits. The last write may be lost too, so the peer waits only for
//! [`Config::linger`](crate::Config::linger).

use adverb_proto::Time;

use super::{Connection, Next, Phase};
use crate::expose::Exposed;
use crate::frame::has_message;
use crate::lane::{CloseState, Linger, Probe};
use crate::memory::{Buf, Region};
use crate::mutation::mutant;
use crate::recv::RecvState;
use crate::replay::Replay;
use crate::send::{ControlFrame, Delivery, SendState};
use crate::types::{EndReason, Event};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Shuts down sending. The peer receives all messages, and then [`Received::Shutdown`](crate::Received::Shutdown).
    pub fn shutdown(&mut self) {
        if self.send.state == SendState::Open {
            self.send.state = SendState::Shutdown(ControlFrame::Pending);
            self.flush();
        }
    }

    /// Closes the connection: sends all messages, and receives none. Ends with [`Event::Closed`], at the latest after
    /// [`Config::close_timeout`](crate::Config::close_timeout).
    ///
    /// [`EndReason::Closed`] says that the peer's device has all messages, and that the peer has read the rendezvous
    /// messages. It doesn't say that the peer's application has received them. The application receives them unless its
    /// process ends, it closes or aborts the connection itself, or its handshake exceeds the time limit, so that it
    /// never had the connection.
    pub fn close(&mut self, now: Time) {
        if let SendState::Closing(_) = self.send.state {
            return;
        }
        let is_unneeded = self.has_peer_closed() && self.recv.is_whole();
        let frame = if is_unneeded { ControlFrame::Unneeded } else { ControlFrame::Pending };
        self.send.state = SendState::Closing(frame);
        self.close_deadline = Some(now + self.config.close_timeout);
        self.flush();
        self.recv.discard();
        self.check_close(now);
    }

    /// Ends the connection at once. The peer may lack messages, which
    /// [`take_unacknowledged`](Connection::take_unacknowledged) returns.
    pub fn abort(&mut self) {
        self.send.state = SendState::Closing(ControlFrame::Taken);
        self.recv.discard();
        self.end(EndReason::Aborted);
    }

    /// Ends the connection: stops its lane first, if it has one.
    pub(super) fn end(&mut self, reason: EndReason) {
        match std::mem::replace(&mut self.phase, Phase::Closed(reason)) {
            Phase::Handshake { lane, .. } => self.drain(lane, None, Next::End(reason)),
            Phase::Established { lane, peer } => self.drain(lane, Some(peer), Next::End(reason)),
            Phase::Draining { lane, peer, next } => {
                let next = match next {
                    Next::End(_) => next,
                    Next::Resume { .. } => Next::End(reason),
                };
                self.phase = Phase::Draining { lane, peer, next };
            }
            Phase::Disconnected { .. } => self.finish(reason),
            Phase::Closed(first) => self.phase = Phase::Closed(first),
        }
    }

    /// Ends a connection without a lane.
    pub(super) fn finish(&mut self, reason: EndReason) {
        self.phase = Phase::Closed(reason);
        let unposted = self.take_unposted();
        let unread_rendezvous = std::mem::take(&mut self.send.unread_rendezvous);
        if unposted.as_ref().is_some_and(|(_, frames)| has_message(frames.as_ref()))
            || !unread_rendezvous.is_empty()
        {
            self.send.delivery = Delivery::Incomplete;
        }
        let replay = self.replay.get_or_insert_with(Replay::new);
        replay.end_lane(unposted, unread_rendezvous.into_iter());
        if reason == EndReason::Closed {
            // The peer's device has all messages: only the report that the peer has read them may be missing.
            let released = replay.take_messages().into_iter().filter_map(|message| match message.payload {
                crate::types::Payload::Region(region) => Some(Event::Release(region)),
                crate::types::Payload::Buf(_) => None,
            });
            self.events.extend(released);
        }
        let exposed = std::mem::take(&mut self.exposed).into_iter().filter_map(Exposed::into_region);
        self.events.extend(exposed.map(Event::Release));
        self.events.push_back(Event::Closed(reason));
    }

    /// Returns the reason of a regular end, if nothing more is to be exchanged over this lane or another.
    pub(super) fn regular_end(&self, close: CloseState) -> Option<EndReason> {
        let is_closing = matches!(self.send.state, SendState::Closing(_));
        let has_arrived =
            is_closing && close != CloseState::Undelivered && self.send.unread_rendezvous.is_empty();
        let is_peer_done = matches!(self.recv.state, RecvState::Closed { .. }) && self.recv.is_whole();
        if has_arrived { Some(EndReason::Closed) } else { is_peer_done.then_some(EndReason::PeerClosed) }
    }

    /// Advances the close of either side.
    pub(super) fn check_close(&mut self, now: Time) {
        let is_sent = self.send.state == SendState::Closing(ControlFrame::Taken);
        let is_closing = matches!(self.send.state, SendState::Closing(_));
        let is_peer_closed = matches!(self.recv.state, RecvState::Closed { .. });
        let is_flushed = self.is_flushed();
        let Phase::Established { lane, peer } = &mut self.phase else { return };
        if is_peer_closed
            && lane.linger == Linger::Inactive
            && self.recv.is_whole()
            && lane.rendezvous_done == 0
        {
            lane.linger = Linger::Until(now + self.config.linger);
            if mutant!(NoLinger) {
                lane.linger = Linger::Finished;
            }
        }
        if is_sent && is_flushed && lane.close == CloseState::Undelivered && peer.ring.is_read() {
            lane.close = CloseState::Delivered;
        }
        let is_read =
            self.send.unread_rendezvous.is_empty() || is_peer_closed || mutant!(CloseIgnoresRendezvous);
        // A peer that has ended the lane needs no reports.
        let is_reported = lane.rendezvous_done == 0 || lane.linger == Linger::Finished;
        if lane.close == CloseState::Delivered && is_read && is_reported {
            if lane.queue.is_delivered() || peer.ring.is_read() {
                lane.close = if mutant!(NoCloseAck) { CloseState::Finished } else { CloseState::AckDue };
            } else if !lane.queue.awaits_completion() {
                lane.probe = Probe::Due;
            }
        }
        let is_acknowledged = lane.linger == Linger::Finished;
        if is_closing && is_acknowledged && !lane.queue.is_delivered() && !lane.queue.awaits_completion() {
            lane.probe = Probe::Due;
        }
        let is_finished = if lane.close == CloseState::Finished {
            !is_peer_closed || is_acknowledged
        } else if is_closing {
            // The peer has ended the lane, so a close frame that wasn't posted has no effect.
            is_acknowledged && lane.close == CloseState::Undelivered && lane.queue.is_delivered()
        } else {
            is_peer_closed && is_acknowledged
        };
        if is_finished {
            let reason = self.regular_end(self.close_state()).unwrap_or(EndReason::PeerClosed);
            self.end(reason);
        }
    }

    pub(super) fn close_state(&self) -> CloseState {
        match &self.phase {
            Phase::Established { lane, .. } | Phase::Draining { lane, .. } => lane.close,
            _ => CloseState::Undelivered,
        }
    }
}
