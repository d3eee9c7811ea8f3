//! Outputs: requests to post, memory to register, and the next timeout.

use adverb_proto::Time;
use adverb_proto::types::RemoteAddress;

use super::{Connection, Next, Phase, Redial, Session};
use crate::MAX_RENDEZVOUS;
use crate::frame::{Frame, FrameKind, copy, frame_len};
use crate::hello::{Hello, SessionHello};
use crate::immediate::Immediate;
use crate::lane::{CloseState, HelloState, Linger, Probe, Report, RingRegion};
use crate::memory::{Buf, Memory, Region};
use crate::mutation::mutant;
use crate::recv::{Entry, RecvState, weight};
use crate::replay::{Content, Outstanding};
use crate::send::{ControlFrame, SendState, Timing};
use crate::types::{
    EagerWrite, EndReason, Payload, Post, Register, RegisterId, RegisterMemory, RegisterTarget, Tag,
};

impl<B: Buf, R: Region> Connection<B, R> {
    /// Whether [`poll_post`](Connection::poll_post) may return a request. The check is faster than the call.
    #[inline]
    pub fn has_output(&self) -> bool {
        let Phase::Established { lane, .. } = &self.phase else { return true };
        lane.has_recv_batch()
            || lane.hello == HelloState::Due
            || self.send.batch.is_some()
            || !self.recv.incomplete.is_empty()
            || lane.rendezvous_done > 0
            || lane.ring.must_report()
            || lane.report == Report::Due
            || lane.probe == Probe::Due
            || lane.close == CloseState::AckDue
            || self.send.state != SendState::Open
            || self.is_behind()
    }

    /// Sends an eager message like [`send`](Connection::send), and returns its write, for the driver to post, as
    /// [`poll_post`](Connection::poll_post) would. Returns `None`, and has no effect, if the message is refused or
    /// waits, or if another request is posted first. The call is faster than those two.
    #[inline]
    pub fn send_at_once<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        bytes: &[u8],
        immediate: Option<u32>,
    ) -> Option<EagerWrite<B>> {
        if self.is_behind() {
            return None;
        }
        let Phase::Established { lane, peer } = &mut self.phase else { return None };
        let is_next = self.send.state == SendState::Open
            && self.send.batch.is_none()
            && !matches!(self.recv.state, RecvState::Closed { .. })
            && self.recv.is_whole()
            && !lane.has_recv_batch()
            && lane.hello == HelloState::Posted
            && lane.queue.has_room(1);
        let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= peer.eager_limit)?;
        if !is_next || self.replay.as_ref().is_some_and(|replay| replay.is_full()) {
            return None;
        }
        let frame_len = frame_len(bytes.len());
        let (offset, end) = peer.ring.find(frame_len as u32)?;
        let mut buf = memory.alloc(frame_len)?;
        Frame { kind: FrameKind::Message { len }, immediate }.emit_with(buf.as_mut(), copy(bytes));
        peer.ring.take(end);
        if let Some(replay) = &mut self.replay {
            replay.post(peer.ring.writes(), self.send.next);
        }
        (self.send.next, self.send.taken) = (self.send.next + 1, self.send.taken + 1);
        self.send.batch_count += 1;
        Some(EagerWrite {
            buf,
            remote: peer.memory.at(offset.into()),
            immediate: Immediate::Frames(lane.ring.report_credits()).emit(),
            is_signaled: lane.queue.post(Tag::Frames, false),
        })
    }

    /// Returns the next request to post. The driver posts the requests in this order, until there are none.
    pub fn poll_post<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        now: Time,
    ) -> Option<Post<B>> {
        if let Some(post) = self.poll_handshake() {
            return Some(post);
        }
        if !matches!(self.phase, Phase::Established { .. }) {
            return None;
        }
        if let Some(post) = self.poll_read(memory) {
            return Some(post);
        }
        if self.is_behind() {
            self.take_withdrawn(memory);
            self.take_exposed(memory);
            self.take_replayed(memory);
        }
        self.take_control_frame(memory);
        if let Some(post) = self.poll_frames() {
            return Some(post);
        }
        self.poll_control(now)
    }

    /// Returns receives and the hello.
    fn poll_handshake(&mut self) -> Option<Post<B>> {
        let (Phase::Handshake { lane, .. } | Phase::Established { lane, .. }) = &mut self.phase else {
            return None;
        };
        let RingRegion::Registered(region) = &lane.region else { return None };
        if lane.has_recv_batch() {
            let count = std::mem::take(&mut lane.receives);
            return Some(Post::Receives { count });
        }
        if lane.hello == HelloState::Posted {
            return None;
        }
        lane.hello = HelloState::Posted;
        lane.queue.post(Tag::Hello, true);
        let session = match self.session {
            Session::None => None,
            Session::Requested(id) => Some(SessionHello { id, received: None }),
            Session::Resumable(id) => {
                let received = (self.lane_number > 0).then_some(self.recv.taken);
                Some(SessionHello { id, received })
            }
        };
        let hello = Hello {
            ring: region.remote(),
            max_outstanding_writes: self.config.max_outstanding_writes,
            max_message_size: self.config.max_message_size,
            session,
        };
        Some(Post::Hello { bytes: hello.emit() })
    }

    /// Returns a READ of the next rendezvous message, if its memory fits the limit.
    fn poll_read<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) -> Option<Post<B>> {
        let Phase::Established { lane, .. } = &mut self.phase else { return None };
        let max_len = self.config.max_read_len as usize;
        if self.recv.unposted.is_none() {
            let index = self.recv.find_incomplete(|entry| matches!(entry, Entry::Rendezvous { .. }))?;
            let Entry::Rendezvous { len, remote, immediate } = self.recv.inbox[index] else { return None };
            let len = len as usize;
            let parts = len.div_ceil(max_len).max(1) as u32;
            let fits = index == 0 || self.recv.buffered + weight(len) <= self.config.recv_buffer_limit;
            if !fits || !lane.queue.has_room(parts) {
                return None;
            }
            let Some(buf) = memory.alloc(len) else {
                self.end(EndReason::OutOfMemory);
                return None;
            };
            self.recv.buffered += weight(len);
            self.recv.inbox[index] = Entry::Reading { arrived: None, parts, immediate };
            self.recv.unposted = Some((buf, remote));
            if mutant!(RendezvousDoneEarly) {
                lane.rendezvous_done += 1;
            }
        }
        // One-sided operations may have taken the room for later parts.
        if !lane.queue.has_room(1) {
            return None;
        }
        let (mut rest, remote) = self.recv.unposted.take()?;
        let buf = if rest.as_ref().len() > max_len {
            let part = rest.split_to(max_len);
            let addr = remote.addr.wrapping_add(max_len as u64);
            self.recv.unposted = Some((rest, RemoteAddress { addr, ..remote }));
            part
        } else {
            rest
        };
        lane.queue.post(Tag::Read, true);
        Some(Post::Read { buf, remote })
    }

    /// Moves messages of the replay to the batch.
    fn take_replayed<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) {
        let Phase::Established { peer, .. } = &self.phase else { return };
        let eager_limit = peer.eager_limit as usize;
        if self.has_unannounced() {
            return;
        }
        while let Some(replay) = &mut self.replay
            && let Some(item) = replay.queue.front_mut()
        {
            if mutant!(StaleRegionReplayed)
                && let Content::Message(Payload::Region(_)) = &item.content
                && let Content::Message(Payload::Region(region)) =
                    std::mem::replace(&mut item.content, Content::Registering)
            {
                item.content = Content::Registered(region);
            }
            let is_ready = match &item.content {
                Content::Message(Payload::Buf(buf)) => buf.as_ref().len() <= eager_limit,
                Content::Message(Payload::Region(_)) | Content::Registering => false,
                Content::Registered(_) => self.send.unread_rendezvous.len() < MAX_RENDEZVOUS as usize,
                Content::Shutdown | Content::Close => true,
            };
            if !is_ready {
                return;
            }
            let Some(item) = replay.queue.pop_front() else { return };
            if let Err(item) = self.replay_message(memory, item)
                && let Some(replay) = &mut self.replay
            {
                return replay.queue.push_front(item);
            }
        }
    }

    /// Adds the frame of a replayed message, or returns the message if the batch is full.
    fn replay_message<M: Memory<Buf = B, Region = R>>(
        &mut self,
        memory: &mut M,
        item: Outstanding<B, R>,
    ) -> Result<(), Outstanding<B, R>> {
        let immediate = item.immediate;
        let (kind, body, tag) = match &item.content {
            Content::Message(Payload::Buf(buf)) => {
                (FrameKind::Message { len: buf.as_ref().len() as u32 }, buf.as_ref(), Tag::Frames)
            }
            Content::Registered(region) => {
                let remote = region.remote();
                let len = remote.len as u32;
                (FrameKind::Rendezvous { len, addr: remote.addr, rkey: remote.rkey }, &[][..], Tag::Frames)
            }
            Content::Shutdown => (FrameKind::Shutdown, &[][..], Tag::Frames),
            Content::Close => (FrameKind::Close, &[][..], Tag::Close),
            Content::Message(Payload::Region(_)) | Content::Registering => return Err(item),
        };
        if !self.add_frame(memory, &Frame { kind, immediate }, tag, copy(body)) {
            return Err(item);
        }
        self.flush();
        match item.content {
            Content::Registered(region) => self.add_unread_rendezvous(region, immediate),
            _ => self.send.next += 1,
        }
        Ok(())
    }

    /// Adds a pending shutdown or close frame to the batch.
    fn take_control_frame<M: Memory<Buf = B, Region = R>>(&mut self, memory: &mut M) {
        let (kind, tag, taken) = match self.send.state {
            SendState::Shutdown(ControlFrame::Pending) => {
                (FrameKind::Shutdown, Tag::Frames, SendState::Shutdown(ControlFrame::Taken))
            }
            SendState::Closing(ControlFrame::Pending) => {
                (FrameKind::Close, Tag::Close, SendState::Closing(ControlFrame::Taken))
            }
            _ => return,
        };
        if (!self.is_behind() || mutant!(EndBeforeReplayed))
            && self.add_frame(memory, &Frame { kind, immediate: None }, tag, copy(&[]))
        {
            self.flush();
            self.send.state = taken;
            (self.send.next, self.send.taken) = (self.send.next + 1, self.send.taken + 1);
        }
    }

    /// Returns the write of the batch, if it is due and there are credits.
    fn poll_frames(&mut self) -> Option<Post<B>> {
        let Phase::Established { lane, peer } = &mut self.phase else { return None };
        let is_full = self.replay.as_ref().is_some_and(|replay| replay.is_full());
        let len = match &self.send.batch {
            Some(batch) if batch.timing == Timing::Due && !is_full && lane.queue.has_room(1) => batch.len,
            _ => return None,
        };
        let offset = peer.ring.place(len as u32)?;
        let mut batch = self.send.batch.take()?;
        batch.buf.truncate(len);
        if let Some(replay) = &mut self.replay {
            replay.post(peer.ring.writes(), batch.first);
        }
        let immediate = Immediate::Frames(lane.ring.report_credits()).emit();
        let is_signaled = lane.queue.post(batch.tag, batch.tag == Tag::Close);
        if mutant!(CloseUndelivered) && batch.tag == Tag::Close {
            lane.close = CloseState::Delivered;
        }
        let remote = peer.memory.at(offset.into());
        Some(Post::Write { tag: batch.tag, buf: Some(batch.buf), remote, immediate, is_signaled })
    }

    /// Returns a write without frames, if one is due.
    fn poll_control(&mut self, now: Time) -> Option<Post<B>> {
        let close_ack_timeout = self.config.close_ack_timeout;
        let Phase::Established { lane, peer } = &mut self.phase else { return None };
        if !lane.queue.has_room(1) {
            return None;
        }
        let remote = peer.memory.at(0);
        let has_peer_ended = lane.linger == Linger::Finished;
        let (tag, immediate) =
            if lane.rendezvous_done > 0 && !has_peer_ended && !mutant!(RendezvousDoneUnreported) {
                (Tag::RendezvousDone, Immediate::RendezvousDone(std::mem::take(&mut lane.rendezvous_done)))
            } else if (lane.ring.must_report() || lane.report == Report::Due) && !has_peer_ended {
                lane.report = Report::Usual;
                (Tag::Credits, Immediate::Credits(lane.ring.report_credits()))
            } else if lane.close == CloseState::AckDue {
                lane.close = CloseState::AckPosted { until: now + close_ack_timeout };
                (Tag::CloseAck, Immediate::CloseAck)
            } else if lane.probe == Probe::Due {
                lane.probe = Probe::Unneeded;
                if lane.queue.awaits_completion() {
                    return None;
                }
                lane.queue.post(Tag::Probe, true);
                return Some(Post::Probe { remote });
            } else {
                return None;
            };
        let is_signaled = lane.queue.post(tag, tag == Tag::CloseAck);
        // The report may be unsignaled, so that no completion would advance the close that waits for it.
        if tag == Tag::RendezvousDone
            && (self.is_closing() || self.has_peer_closed())
            && !mutant!(CloseIgnoresReport)
        {
            self.check_close(now);
        }
        Some(Post::Write { tag, buf: None, remote, immediate: immediate.emit(), is_signaled })
    }

    /// Returns the write that announces an end without a close, unless the peer already knows that the connection ends.
    /// The driver posts it as the last request. It does so too if a close has exceeded its time limit, or memory could not
    /// be allocated or registered, before it drains the lane.
    pub fn abort_write(&mut self) -> Option<Post<B>> {
        let has_posted_close = self.is_closing() && self.is_flushed();
        if has_posted_close || self.has_peer_closed() {
            return None;
        }
        let (Phase::Established { lane, peer }
        | Phase::Draining {
            lane,
            peer: Some(peer),
            next: Next::End(EndReason::CloseTimedOut | EndReason::OutOfMemory),
        }) = &mut self.phase
        else {
            return None;
        };
        if lane.hello == HelloState::Due || !lane.queue.has_room(1) {
            return None;
        }
        let (tag, immediate) = (Tag::CloseAck, Immediate::Abort.emit());
        let is_signaled = lane.queue.post(tag, true);
        Some(Post::Write { tag, buf: None, remote: peer.memory.at(0), immediate, is_signaled })
    }

    /// Returns the next memory to register. The driver registers it without a lock on the connection, and then calls
    /// [`handle_registered`](Connection::handle_registered) or
    /// [`handle_register_failed`](Connection::handle_register_failed).
    pub fn poll_register(&mut self) -> Option<Register<B, R>> {
        let lane_number = self.lane_number;
        match &mut self.phase {
            Phase::Handshake { lane, .. } if matches!(lane.region, RingRegion::Unregistered) => {
                lane.region = RingRegion::Registering;
                let id = RegisterId { lane: lane_number, target: RegisterTarget::Ring };
                let memory = RegisterMemory::Ring { len: self.config.recv_ring_size };
                Some(Register { id, memory })
            }
            Phase::Established { lane, peer } => {
                if !mutant!(StaleRegionExposed)
                    && let Some((number, region)) =
                        crate::expose::take_unregistered(&mut self.exposed, lane.exposed_count, lane_number)
                {
                    let id = RegisterId { lane: lane_number, target: RegisterTarget::Exposed(number) };
                    return Some(Register { id, memory: RegisterMemory::Exposed(region) });
                }
                let item = self.replay.as_mut()?.queue.front_mut()?;
                let must_register = match &item.content {
                    Content::Message(Payload::Buf(buf)) => buf.as_ref().len() > peer.eager_limit as usize,
                    Content::Message(Payload::Region(_)) => !mutant!(StaleRegionReplayed),
                    _ => false,
                };
                if !must_register {
                    return None;
                }
                let id = RegisterId { lane: lane_number, target: RegisterTarget::Message(item.number) };
                match std::mem::replace(&mut item.content, Content::Registering) {
                    Content::Message(payload) => {
                        Some(Register { id, memory: RegisterMemory::Message(payload) })
                    }
                    content => {
                        item.content = content;
                        None
                    }
                }
            }
            _ => None,
        }
    }

    /// Returns the time of the next [`handle_timeout`](Connection::handle_timeout), if one is needed.
    pub fn poll_timeout(&self) -> Option<Time> {
        let close =
            self.close_deadline.filter(|_| !matches!(self.phase, Phase::Closed(_) | Phase::Draining { .. }));
        match &self.phase {
            Phase::Handshake { deadline, .. } => earlier(Some(*deadline), close),
            Phase::Established { lane, .. } => {
                let keepalive = self.config.keepalive.filter(|_| !lane.queue.awaits_completion());
                let acknowledged = match lane.close {
                    CloseState::AckPosted { until } => Some(until),
                    _ => None,
                };
                let linger = match lane.linger {
                    Linger::Until(until) => Some(until),
                    Linger::Inactive | Linger::Finished => None,
                };
                let keepalive = keepalive.map(|interval| lane.last_activity + interval);
                earlier(earlier(keepalive, acknowledged), earlier(linger, close))
            }
            Phase::Disconnected { until, redial } => {
                let redial = match redial {
                    Redial::At(time) => Some(*time),
                    Redial::ByPeer | Redial::Dialing => None,
                };
                earlier(Some(*until), earlier(redial, close))
            }
            Phase::Draining { .. } | Phase::Closed(_) => None,
        }
    }
}

/// Returns the earlier of two times that may be absent.
fn earlier(first: Option<Time>, second: Option<Time>) -> Option<Time> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.min(second)),
        (first, None) => first,
        (None, second) => second,
    }
}
