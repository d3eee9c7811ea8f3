//! Lanes: the handshake, failures, and resuming over another lane.

use adverb_proto::Time;

use super::{Connection, Next, Origin, Phase, Redial, Session};
use crate::config::LaneConfig;
use crate::hello::{Hello, SessionHello};
use crate::lane::{Lane, Peer};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::replay::Replay;
use crate::send::{Batch, Delivery};
use crate::types::{EndReason, Event, Role, Tag, Violation};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Passes on the listener's hello to the connector.
    pub fn handle_hello<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M, bytes: &[u8], now: Time) {
        if let Phase::Draining { .. } | Phase::Closed(_) = self.phase {
            // The peer replays what it sends over this lane. If the handshake of the first lane has failed, the
            // application has no connection over which it could receive.
            return;
        }
        let hello = match Hello::parse(bytes) {
            Ok(hello) => hello,
            Err(violation) => return self.end(EndReason::ProtocolViolation(violation)),
        };
        if !matches!(self.phase, Phase::Handshake { hello: None, .. }) {
            return self.end(EndReason::ProtocolViolation(Violation("it sent a second hello")));
        }
        let session = match (self.session, hello.session) {
            (Session::Resumable(id), Some(SessionHello { id: known, received: Some(_) })) if known == id => {
                self.session
            }
            (Session::Resumable(_), None) if mutant!(UnknownSessionAccepted) => self.session,
            (Session::Resumable(_), _) => return self.end(EndReason::SessionUnknown),
            (Session::Requested(id), Some(answer)) => {
                if answer != (SessionHello { id, received: None }) {
                    let violation = Violation("it answered a new session with an old one");
                    return self.end(EndReason::ProtocolViolation(violation));
                }
                self.replay = Some(Replay::new());
                Session::Resumable(id)
            }
            (Session::None, Some(_)) => {
                let violation = Violation("it sent a session, but none was requested");
                return self.end(EndReason::ProtocolViolation(violation));
            }
            (Session::Requested(_) | Session::None, None) => Session::None,
        };
        self.session = session;
        self.establish(&hello, now);
        self.advance(memory, now);
    }

    /// Establishes the lane at the listener, which has the connector's hello.
    pub(super) fn answer_hello(&mut self, now: Time) {
        if let Phase::Handshake { hello: Some(hello), .. } = self.phase {
            self.establish(&hello, now);
        }
    }

    fn establish(&mut self, hello: &Hello, now: Time) {
        let Phase::Handshake { lane, origin, .. } =
            std::mem::replace(&mut self.phase, Phase::Closed(EndReason::Aborted))
        else {
            return;
        };
        let peer = Peer::new(&self.config, hello);
        self.phase = Phase::Established { lane, peer };
        if let Some((lane, _)) = self.lane_mut() {
            lane.last_activity = now;
        }
        if let (Origin::Resume { .. }, Some(replay)) = (origin, &mut self.replay) {
            let received = hello.session.and_then(|session| session.received).unwrap_or(0);
            let Some(released) = replay.begin_lane(received, self.send.taken) else {
                let violation = Violation("it resumed the session with a wrong number of messages");
                return self.end(EndReason::ProtocolViolation(violation));
            };
            (self.send.next, self.send.delivery) = (received, Delivery::Complete);
            let released = released.into_iter().filter(|_| !mutant!(RegionKeptByResume));
            self.events.extend(released.map(Event::Release));
        }
        self.events.push_back(Event::Established { lane: self.lane_number });
    }

    /// Stops a failed lane. The session resumes over another one, if it can.
    pub(super) fn fail_lane(&mut self, reason: EndReason, now: Time) {
        let until = now + self.config.reconnect.unwrap_or_default();
        match std::mem::replace(&mut self.phase, Phase::Closed(reason)) {
            Phase::Established { lane, peer } => {
                let next = match self.session {
                    Session::Resumable(_) => Next::Resume { until, successor: None },
                    Session::None | Session::Requested(_) => Next::End(reason),
                };
                self.drain(lane, Some(peer), next);
            }
            Phase::Handshake { lane, origin, .. } => {
                let next = match origin {
                    Origin::Begin => Next::End(reason),
                    Origin::Resume { until } => Next::Resume { until, successor: None },
                };
                self.drain(lane, None, next);
            }
            phase => self.phase = phase,
        }
    }

    pub(super) fn drain(&mut self, lane: Lane<R>, peer: Option<Peer>, next: Next) {
        self.events.push_back(Event::Drain);
        self.phase = Phase::Draining { lane, peer, next };
    }

    /// Notes that the lane is drained: no request of its queue pair is outstanding, and the peer can't access memory
    /// over it.
    ///
    /// `left` are the requests without a completion, in the order in which they were posted.
    pub fn handle_drained<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        left: Vec<(Tag, Option<B>)>,
        now: Time,
    ) {
        if !matches!(self.phase, Phase::Draining { .. }) {
            return;
        }
        for (tag, buf) in left {
            if let (Tag::Frames | Tag::Close, Some(buf)) = (tag, buf)
                && !mutant!(DrainedWriteLost)
            {
                self.keep_undelivered(buf);
            }
        }
        self.read_ring(memory, true);
        let aborted = Phase::Closed(EndReason::Aborted);
        let Phase::Draining { mut lane, peer, next } = std::mem::replace(&mut self.phase, aborted) else {
            return;
        };
        if peer.is_some_and(|peer| peer.ring.is_read()) {
            self.send.delivery = Delivery::Complete;
        }
        if let Some(region) = lane.take_region()
            && !mutant!(RingNotReleased)
        {
            self.events.push_back(Event::Release(region));
        }
        let end = match next {
            Next::End(
                reason @ (EndReason::ProtocolViolation(_) | EndReason::Aborted | EndReason::CloseTimedOut),
            ) => Some(reason),
            Next::End(reason) => Some(self.regular_end(lane.close).unwrap_or(reason)),
            Next::Resume { .. } => self.regular_end(lane.close),
        };
        self.recv.end_lane();
        if let Some(reason) = end {
            return self.finish(reason);
        }
        let Next::Resume { until, successor } = next else { return };
        let unposted = self.take_unposted();
        let unread_rendezvous = std::mem::take(&mut self.send.unread_rendezvous);
        let unread_rendezvous = unread_rendezvous.into_iter().filter(|_| !mutant!(RendezvousNotReplayed));
        if let Some(replay) = &mut self.replay {
            replay.end_lane(unposted, unread_rendezvous);
        }
        match (successor, self.role) {
            (Some((hello, lane)), _) => self.begin_lane(Some(hello), lane, until, now),
            (None, Role::Listener) => self.phase = Phase::Disconnected { until, redial: Redial::ByPeer },
            (None, Role::Connector) => {
                self.phase = Phase::Disconnected { until, redial: Redial::Dialing };
                if !mutant!(NoRedial) {
                    self.redial();
                }
            }
        }
    }

    /// Takes the frames that were never posted.
    pub(super) fn take_unposted(&mut self) -> Option<(u64, B)> {
        let Batch { mut buf, len, first, .. } = self.send.batch.take()?;
        buf.truncate(len);
        Some((first, buf))
    }

    pub(super) fn redial(&mut self) {
        let Session::Resumable(session) = self.session else { return };
        if let Phase::Disconnected { redial, .. } = &mut self.phase {
            *redial = Redial::Dialing;
            self.events.push_back(Event::Redial { session });
        }
    }

    /// Notes that the connector could not dial. It dials again after a pause.
    pub fn handle_dial_failed(&mut self, now: Time) {
        if let Phase::Disconnected { redial, .. } = &mut self.phase {
            *redial = Redial::At(now + self.config.redial_interval);
        }
    }

    /// Ends a session that can't be resumed, because the driver has given up dialing or waiting.
    pub fn handle_redial_failed(&mut self) {
        if let Phase::Disconnected { .. } | Phase::Handshake { origin: Origin::Resume { .. }, .. } =
            self.phase
        {
            self.end(EndReason::ReconnectTimedOut);
        }
    }

    /// Gives the connector another lane: a connected queue pair, on which a receive for the listener's hello is posted.
    /// Returns `false` if the connection has ended, or has a lane.
    pub fn attach(&mut self, lane: LaneConfig, now: Time) -> bool {
        match self.phase {
            Phase::Disconnected { until, .. } => {
                self.begin_lane(None, lane, until, now);
                true
            }
            _ => false,
        }
    }

    /// Gives the listener another lane: a queue pair that has received a hello which resumes the session. Returns
    /// `false` if the session has ended, or the hello is of another session; the driver then answers with
    /// [`Hello::unknown_session`].
    ///
    /// If the old lane still exists, it is drained first; the connection uses the new queue pair after
    /// [`handle_drained`](Connection::handle_drained). A later call replaces a queue pair that was not used yet. If the
    /// connection ends instead, the driver answers as if the session were unknown.
    pub fn resume(&mut self, hello: Hello, lane: LaneConfig, now: Time) -> bool {
        let is_known = match (self.session, hello.session) {
            (Session::Resumable(id), Some(SessionHello { id: requested, received: Some(_) })) => {
                id == requested
            }
            _ => false,
        };
        if !is_known || self.role != Role::Listener {
            return false;
        }
        if let Phase::Disconnected { until, .. } = self.phase {
            self.begin_lane(Some(hello), lane, until, now);
            return true;
        }
        self.fail_lane(EndReason::Replaced, now);
        match &mut self.phase {
            Phase::Draining { next: Next::Resume { successor, .. }, .. } => {
                *successor = Some((hello, lane));
                true
            }
            _ => false,
        }
    }

    fn begin_lane(&mut self, hello: Option<Hello>, lane: LaneConfig, until: Time, now: Time) {
        self.lane_number += 1;
        self.config = self.config.clone().with_lane(lane);
        let mut lane = Lane::new(&self.config, now);
        if mutant!(NotExposedAgain) {
            lane.exposed_count = self.exposed.len();
        }
        let deadline = (now + self.config.handshake_timeout).min(until);
        self.phase = Phase::Handshake { lane, hello, deadline, origin: Origin::Resume { until } };
    }
}
