//! Inputs: completions, registered memory, and timeouts.

use adverb_proto::Time;
use adverb_proto::types::Status;

use super::{Connection, Next, Phase, Redial};
use crate::frame::has_message;
use crate::immediate::Immediate;
use crate::lane::{CloseState, Lane, Linger, Peer, Probe, Report, RingRegion};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::recv::RecvState;
use crate::replay::Content;
use crate::send::{Batch, Delivery, SendState, Timing};
use crate::types::{
    Completed, EndReason, Event, Payload, Post, RegisterId, RegisterMemory, RegisterTarget, Tag, Violation,
};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Passes on the completion of a request.
    // Inlined, because drivers know the variant.
    #[inline]
    pub fn handle_completion<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        completed: Completed<B>,
        now: Time,
    ) {
        match completed {
            Completed::Received { immediate, len } => self.handle_received(immediate, len, now),
            Completed::Sent { tag, buf } => self.handle_sent(tag, buf, now),
            Completed::Failed { tag, buf, status } => self.handle_failed(tag, buf, status, now),
        }
        self.advance(memory, now);
    }

    fn handle_received(&mut self, immediate: u32, len: u32, now: Time) {
        let Some((lane, _)) = self.lane_mut() else { return };
        lane.last_activity = now;
        lane.receives += u32::from(!mutant!(ReceiveNotPostedAgain));
        if let Err(violation) = self.handle_write(immediate, len) {
            self.end(EndReason::ProtocolViolation(violation));
        }
    }

    fn handle_sent(&mut self, tag: Tag, buf: Option<B>, now: Time) {
        let Some((lane, _)) = self.lane_mut() else { return };
        lane.last_activity = now;
        lane.queue.complete(tag);
        match tag {
            Tag::Close if lane.close == CloseState::Undelivered => lane.close = CloseState::Delivered,
            Tag::CloseAck => lane.close = CloseState::Finished,
            _ => {}
        }
        match (tag, buf) {
            (Tag::Frames | Tag::Close, Some(buf)) => self.keep(buf),
            (Tag::Read, Some(buf)) => self.add_part(buf),
            _ => {}
        }
    }

    #[cold]
    fn handle_failed(&mut self, tag: Tag, buf: Option<B>, status: Status, now: Time) {
        let Some((lane, _)) = self.lane_mut() else { return };
        if tag != Tag::Recv {
            lane.queue.complete(tag);
        }
        if let (Tag::Frames | Tag::Close, Some(buf)) = (tag, buf)
            && !mutant!(FlushedWriteLost)
        {
            self.keep_undelivered(buf);
        }
        self.fail_lane(EndReason::RequestFailed(status), now);
    }

    /// Takes a request back that the queue pair refused, which fails the lane.
    pub fn handle_refused(&mut self, post: Post<B>, now: Time) {
        if let Post::Write { tag: tag @ (Tag::Frames | Tag::Close), buf: Some(buf), .. } = post {
            if has_message(buf.as_ref()) {
                self.send.delivery = Delivery::Incomplete;
            }
            if let Some(first) = self.replay.as_mut().and_then(|replay| replay.refuse())
                && !mutant!(RefusedWriteLost)
            {
                let len = buf.as_ref().len();
                self.send.batch = Some(Batch { buf, len, first, tag, timing: Timing::Due });
            }
        }
        self.fail_lane(EndReason::LaneFailed, now);
    }

    /// Notes that the lane has failed: the device, or the connection manager, reported it.
    pub fn handle_lane_failed(&mut self, now: Time) {
        self.fail_lane(EndReason::LaneFailed, now);
    }

    pub(super) fn lane_mut(&mut self) -> Option<(&mut Lane<R>, Option<&mut Peer>)> {
        match &mut self.phase {
            Phase::Handshake { lane, .. } => Some((lane, None)),
            Phase::Established { lane, peer } => Some((lane, Some(peer))),
            Phase::Draining { lane, peer, .. } => Some((lane, peer.as_mut())),
            Phase::Disconnected { .. } | Phase::Closed(_) => None,
        }
    }

    /// Keeps a write for a replay, if the session can resume.
    pub(super) fn keep(&mut self, buf: B) {
        if let Some(replay) = &mut self.replay {
            replay.keep(buf);
            self.forget();
        }
    }

    /// Keeps a write that may not have reached the peer.
    pub(super) fn keep_undelivered(&mut self, buf: B) {
        if has_message(buf.as_ref()) {
            self.send.delivery = Delivery::Incomplete;
        }
        self.keep(buf);
    }

    /// Forgets the writes whose messages the peer has received.
    fn forget(&mut self) {
        let unread_rendezvous = self.send.unread_rendezvous.front().map(|message| message.number);
        let end = self.send.batch.as_ref().map_or(self.send.next, |batch| batch.first);
        if let Some(replay) = &mut self.replay {
            replay.forget(unread_rendezvous, end);
        }
    }

    fn add_part(&mut self, buf: B) {
        if self.recv.add_part(buf)
            && let Some((lane, _)) = self.lane_mut()
        {
            lane.rendezvous_done += u32::from(!mutant!(RendezvousDoneEarly));
            if mutant!(RendezvousDoneTwice) {
                lane.rendezvous_done += 1;
            }
        }
    }

    /// Handles a write of the peer.
    fn handle_write(&mut self, immediate: u32, len: u32) -> Result<(), Violation> {
        let immediate = Immediate::parse(immediate)?;
        if len > 0 && !matches!(immediate, Immediate::Frames(_)) {
            return Err(Violation("it wrote bytes without frames"));
        }
        let (lane, peer) = match &mut self.phase {
            Phase::Established { lane, peer } | Phase::Draining { lane, peer: Some(peer), .. } => {
                (lane, peer)
            }
            // The hello arrived after the lane had failed, and was ignored.
            Phase::Draining { peer: None, .. } => return Ok(()),
            _ => return Err(Violation("it wrote before its hello")),
        };
        match immediate {
            Immediate::Frames(credits) => {
                lane.ring.add_write(len)?;
                peer.ring.add_credits(credits)?;
            }
            Immediate::Credits(credits) => peer.ring.add_credits(credits)?,
            Immediate::RendezvousDone(count) => {
                let count = count as usize;
                if count > self.send.unread_rendezvous.len() {
                    return Err(Violation("it completed more rendezvous messages than were outstanding"));
                }
                for message in self.send.unread_rendezvous.drain(..count) {
                    self.events.push_back(Event::Release(message.region));
                }
                self.forget();
                return Ok(());
            }
            Immediate::Abort => {
                self.end(EndReason::PeerAborted);
                return Ok(());
            }
            Immediate::CloseAck => {
                if !mutant!(CloseAckIgnored) {
                    lane.linger = Linger::Finished;
                }
                return Ok(());
            }
        }
        let read = peer.ring.writes_read();
        if let Some(replay) = &mut self.replay {
            replay.acknowledge(read);
            self.forget();
        }
        Ok(())
    }

    /// Reads the ring, and advances the close, as far as the last input permits.
    #[inline]
    pub(super) fn advance<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M, now: Time) {
        if let Phase::Established { lane, .. } | Phase::Draining { lane, .. } = &self.phase
            && lane.ring.unread().is_some()
        {
            self.read_ring(memory, false);
        }
        if self.is_closing() || self.has_peer_closed() {
            self.check_close(now);
        }
    }

    /// Takes frames from the ring until the inbox is full, or all frames if `all` is set.
    pub(super) fn read_ring<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M, all: bool) {
        let discards = matches!(self.send.state, SendState::Closing(_));
        loop {
            let (Phase::Established { lane, .. } | Phase::Draining { lane, .. }) = &mut self.phase else {
                return;
            };
            let RingRegion::Registered(region) = &lane.region else { return };
            let Some((offset, len)) = lane.ring.unread() else { return };
            let is_full = self.recv.buffered >= self.config.recv_buffer_limit && !self.recv.inbox.is_empty();
            if is_full && !discards && !all && !mutant!(UnboundedInbox) {
                return;
            }
            // A copy, because the peer could change the ring while it is parsed.
            let Some(mut frames) = memory.alloc(len as usize) else {
                return self.end(EndReason::OutOfMemory);
            };
            memory.read_ring(region, offset, &mut frames);
            lane.ring.free();
            let events = &mut self.events;
            let announced = |name: &str, region| {
                let name = name.to_owned();
                events.push_back(match region {
                    Some(region) => Event::Exposed { name, region },
                    None => Event::Withdrawn { name },
                });
            };
            let done = lane.rendezvous_done;
            let max_message_size = self.config.max_message_size;
            if let Err(violation) = self.recv.take_frames(frames, max_message_size, discards, done, announced)
            {
                return self.end(EndReason::ProtocolViolation(violation));
            }
            if let RecvState::Closed { .. } = self.recv.state {
                // The peer may wait for these credits, if the acknowledgement of this side's device was lost.
                lane.report = Report::Due;
            }
        }
    }

    /// Passes on registered memory.
    pub fn handle_registered(&mut self, id: RegisterId, region: R, now: Time) {
        let is_current = id.lane == self.lane_number;
        let number = match id.target {
            RegisterTarget::Message(number) => number,
            RegisterTarget::Exposed(number) => return self.set_exposed(number, region, Some(id.lane)),
            RegisterTarget::Ring => return self.handle_ring_registered(region, is_current, now),
        };
        let is_usable = is_current && matches!(self.phase, Phase::Established { .. });
        let items = self.replay.iter_mut().flat_map(|replay| &mut replay.queue);
        let item = items.into_iter().find(|item| item.number == number && item.content.is_registering());
        match item {
            Some(item) if is_usable => item.content = Content::Registered(region),
            Some(item) => item.content = Content::Message(Payload::Region(region)),
            None => self.events.push_back(Event::Release(region)),
        }
    }

    fn handle_ring_registered(&mut self, region: R, is_current: bool, now: Time) {
        match &mut self.phase {
            Phase::Handshake { lane, .. } if is_current => {
                lane.region = RingRegion::Registered(region);
                self.answer_hello(now);
            }
            _ => self.events.push_back(Event::Release(region)),
        }
    }

    /// Takes memory back that could not be registered, and ends the connection.
    pub fn handle_register_failed(&mut self, id: RegisterId, memory: RegisterMemory<B, R>) {
        self.take_back(id, memory);
        if id.target != RegisterTarget::Ring || id.lane == self.lane_number {
            self.end(EndReason::OutOfMemory);
        }
    }

    /// Takes an exposed region back that can't be registered yet. [`poll_register`](Connection::poll_register) returns it
    /// again.
    pub fn handle_register_deferred(&mut self, id: RegisterId, region: R) {
        self.take_back(id, RegisterMemory::Exposed(region));
    }

    fn take_back(&mut self, id: RegisterId, memory: RegisterMemory<B, R>) {
        match (id.target, memory) {
            (RegisterTarget::Message(number), RegisterMemory::Message(payload)) => {
                let items = self.replay.iter_mut().flat_map(|replay| &mut replay.queue);
                let item =
                    items.into_iter().find(|item| item.number == number && item.content.is_registering());
                if let Some(item) = item {
                    item.content = Content::Message(payload);
                }
            }
            (RegisterTarget::Exposed(number), RegisterMemory::Exposed(region)) => {
                self.set_exposed(number, region, None);
            }
            _ => {}
        }
    }

    /// Handles the timeouts that are due.
    pub fn handle_timeout<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M, now: Time) {
        if self.close_deadline.is_some_and(|deadline| deadline <= now)
            && !matches!(self.phase, Phase::Draining { next: Next::End(_), .. } | Phase::Closed(_))
            && !mutant!(NoCloseTimeout)
        {
            let reason = self.regular_end(self.close_state()).unwrap_or(EndReason::CloseTimedOut);
            return self.end(reason);
        }
        match &mut self.phase {
            Phase::Handshake { deadline, .. } if *deadline <= now && !mutant!(NoHandshakeTimeout) => {
                self.fail_lane(EndReason::HandshakeTimedOut, now);
            }
            Phase::Established { lane, .. } => {
                if let Some(interval) = self.config.keepalive
                    && lane.last_activity + interval <= now
                    && !lane.queue.awaits_completion()
                    && !mutant!(NoKeepalive)
                {
                    lane.probe = Probe::Due;
                    lane.last_activity = now;
                }
                if let CloseState::AckPosted { until } = lane.close
                    && until <= now
                    && !mutant!(NoCloseAckTimeout)
                {
                    lane.close = CloseState::Finished;
                }
                if let Linger::Until(until) = lane.linger
                    && until <= now
                    && !mutant!(NoLingerTimeout)
                {
                    lane.linger = Linger::Finished;
                }
                self.advance(memory, now);
            }
            Phase::Disconnected { until, .. } if *until <= now && !mutant!(NoReconnectTimeout) => {
                self.end(EndReason::ReconnectTimedOut);
            }
            Phase::Disconnected { redial, .. } => {
                if let Redial::At(time) = *redial
                    && time <= now
                {
                    self.redial();
                }
            }
            _ => {}
        }
    }
}

impl<B, R> Content<B, R> {
    fn is_registering(&self) -> bool {
        matches!(self, Content::Registering)
    }
}
