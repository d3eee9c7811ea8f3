//! What is done with completions, and when.

use adverb_verbs::internal::error_event;
use adverb_verbs::memory::{PoolBuf, RemoteMemory};
use adverb_verbs::{
    Access, CompletedOperation, Completion, PostError, RecvRequest, RemoteAddress, Result, SendRequest,
    Status, explain,
};

use super::{
    Batch, DELIVERED, END, Entry, FAREWELL, FRAMES, GONE, Link, OPERATION, PeerRing, RECEIVE, State,
    break_off, end, end_for_good, resume, weight,
};
use crate::Message;
use crate::protocol::handshake::Hello;
use crate::protocol::{
    ANNOUNCEMENT_LEN, Announced, Frame, FrameKind, HEADER_LEN, Immediate, OFFERS, Outbound, Violation,
    longest_write,
};

impl Link {
    /// Takes in a completion.
    pub(super) fn complete(&self, state: &mut State, completion: Completion) -> Result<(), Violation> {
        let tag = completion.tag();
        let is_receive = tag == RECEIVE;
        if !is_receive {
            state.in_flight -= 1;
        }
        if tag & OPERATION != 0 {
            if let Err(failure) = completion.outcome() {
                fail(state, failure.status);
            }
            super::operation::complete(state, completion);
            return Ok(());
        }
        let success = match completion.outcome() {
            Ok(success) => success,
            Err(failure) => {
                fail(state, failure.status);
                if tag & FRAMES != 0 {
                    resume::written(state, completion.into_pool_buf());
                }
                return Ok(());
            }
        };
        state.delivered += u64::from(tag & DELIVERED != 0);
        state.is_known_shut |= tag & END != 0;
        state.is_known_gone |= tag & GONE != 0;
        state.farewell.is_known |= tag & FAREWELL != 0;
        match success.operation {
            CompletedOperation::RecvWrite { immediate } => {
                state.recvs_to_post += 1;
                self.written(state, Immediate::parse(immediate)?, success.length)
            }
            CompletedOperation::Read => {
                if let Some(buffer) = completion.into_pool_buf() {
                    has_read(state, buffer);
                }
                Ok(())
            }
            _ if is_receive => {
                let message = completion.into_pool_message();
                let message = message.map_err(|_| Violation("it sent a message instead of a write"))?;
                self.greeted(state, &message)
            }
            // The buffer of a write goes home, unless it may have to be written again.
            _ => {
                if state.resume.is_on && tag & FRAMES != 0 {
                    resume::written(state, completion.into_pool_buf());
                }
                Ok(())
            }
        }
    }

    /// The peer said hello.
    fn greeted(&self, state: &mut State, message: &[u8]) -> Result<(), Violation> {
        if state.outbound.is_some() {
            return Err(Violation("it sent a second hello"));
        }
        let hello = match &state.seal {
            Some(seal) => {
                seal.open(message).map_err(|_| Violation("its hello has no valid proof of the key"))?
            }
            None => message,
        };
        let Hello { ring: memory, writes, max_message_size, session } = Hello::parse(hello)?;
        self.recognise(state, session)?;
        let len = memory.len as u32;
        let longest_write = longest_write(len) as usize;
        self.set_limits(self.options.eager_for(len).min(max_message_size), max_message_size);
        state.outbound = Some(PeerRing { outbound: Outbound::new(len, writes), memory, longest_write });
        if state.owes_hello && !state.resume.is_interrupting() {
            self.say_hello(state);
        }
        Ok(())
    }

    /// Gives the peer its rights, and tells it where this side's ring is.
    pub(super) fn say_hello(&self, state: &mut State) {
        state.owes_hello = false;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        access.set(
            Access::REMOTE_ATOMIC,
            state.lane.pool.protection_domain().device().attributes().has_atomics,
        );
        if let Err(error) = state.lane.queue_pair.modify_access(access) {
            return end(state, error.to_string(), "");
        }
        // All that the peer may send then has a receive, so that it is never told to wait.
        self.post_recvs(state);
        let (writes, max_message_size) = (self.options.max_outstanding_writes, self.options.max_message_size);
        let ring = match state.lane.make_ring(self.options.recv_ring_size) {
            Ok(ring) => ring.remote(),
            Err(error) => return end(state, error.to_string(), ""),
        };
        let session = self.session_to_tell(state);
        let hello = Hello { ring, writes, max_message_size, session }.emit();
        let seal = state.seal.as_ref().map(|seal| seal.seal(&hello));
        let message = [seal.as_ref().map_or(&[][..], |seal| seal), &hello].concat();
        match state.lane.pool.copy_from(&message) {
            Ok(buffer) => drop(self.post(state, SendRequest::send(buffer), true)),
            Err(error) => end(state, error.to_string(), ""),
        }
    }

    /// The peer wrote something, or nothing.
    fn written(&self, state: &mut State, immediate: Immediate, len: u32) -> Result<(), Violation> {
        if len > 0 && !matches!(immediate, Immediate::Frames(_)) {
            return Err(Violation("it wrote bytes without frames"));
        }
        let credits = match immediate {
            Immediate::Read(count) => {
                let count = count as usize;
                if count > state.offers.len() {
                    return Err(Violation("it completed more rendezvous messages than were outstanding"));
                }
                // The right to a buffer ends before the buffer goes home.
                state.offers.drain(..count);
                if state.resume.is_on {
                    resume::forget(state);
                }
                return Ok(());
            }
            Immediate::Frames(credits) => {
                state.inbound.written(len)?;
                credits
            }
            Immediate::Credits(credits) => credits,
            Immediate::Farewell => {
                state.farewell.has_come = true;
                return Ok(());
            }
        };
        match &mut state.outbound {
            Some(ring) => {
                ring.outbound.credit(credits)?;
                let writes = ring.outbound.writes_read();
                if state.resume.is_on {
                    resume::acknowledged(state, writes);
                }
                Ok(())
            }
            None => Err(Violation("it wrote before its hello")),
        }
    }

    /// Does what has become possible.
    pub(super) fn advance(&self, state: &mut State) {
        let is_up = |state: &State| state.end.is_none() && !state.resume.is_down();
        if is_up(state) {
            self.post_recvs(state);
        }
        // What has come is taken in though the connection may have ended.
        self.read_ring(state);
        if is_up(state) {
            self.read_offers(state);
            if state.batch.as_ref().is_some_and(|batch| batch.is_due) {
                self.flush(state);
            }
            if !state.resume.replay.is_empty() {
                self.replay(state);
            }
            self.tell(state);
        }
    }

    pub(super) fn post_recvs(&self, state: &mut State) {
        let count = std::mem::take(&mut state.recvs_to_post);
        if count == 0 {
            return;
        }
        let requests = (0..count).map(|_| RecvRequest::new(()).tag(RECEIVE));
        if let Err(error) = state.lane.queue_pair.post_recvs(requests) {
            end(state, error.to_string(), "");
        }
    }

    /// Takes frames out of the ring while there is room for their messages.
    fn read_ring(&self, state: &mut State) {
        while let Some((offset, len)) = state.inbound.unread() {
            let (len, is_full) = (len as usize, state.buffered >= self.options.recv_buffer_limit);
            // A ring that nobody writes to any more is read to its end.
            if is_full && !state.inbox.is_empty() && !state.resume.is_down() {
                return;
            }
            // A copy, all at once: what is looked at doesn't change while it is looked at.
            let copy = state.lane.pool.alloc(len).and_then(|mut copy| {
                state.lane.ring()?.read(offset as usize, &mut copy)?;
                Ok(copy)
            });
            let frames = match copy {
                Ok(copy) => copy,
                Err(error) => return end_for_good(state, error.to_string(), ""),
            };
            state.inbound.read();
            state.has_news = true;
            if let Err(violation) = take_frames(state, frames, self.options.max_message_size) {
                return break_off(state, violation);
            }
        }
    }

    /// Begins to read messages from where they are, all that there is room for at once.
    fn read_offers(&self, state: &mut State) {
        self.gather_reads(state);
        if state.reads.is_empty() {
            return;
        }
        state.is_unheard = false;
        if let Err(PostError { error, requests }) = state.lane.queue_pair.post_sends(state.reads.drain(..)) {
            state.in_flight -= requests.len() as u32;
            end(state, error.to_string(), "");
        }
    }

    /// Finds memory for messages that are to be read, and room for the requests.
    fn gather_reads(&self, state: &mut State) {
        while let Some(&number) = state.to_read.front() {
            let index = (number - state.taken) as usize;
            let Some(&Entry::Offer { len, remote, immediate }) = state.inbox.get(index) else { return };
            let is_next = index == 0;
            // Devices don't move just any length at once.
            let parts = (len as usize).div_ceil(state.longest_request).max(1);
            if parts as u32 > state.send_depth {
                return end(state, "a message exceeds the maximum that this device can read".to_owned(), "");
            }
            let has_room = state.in_flight + parts as u32 <= state.send_depth;
            if !has_room || !is_next && state.buffered + weight(len as usize) > self.options.recv_buffer_limit
            {
                return;
            }
            let mut rest = match state.lane.pool.alloc(len as usize) {
                Ok(buffer) => buffer,
                Err(error) => return end(state, error.to_string(), ""),
            };
            state.inbox[index] = Entry::Reading { come: None, parts: parts as u32, immediate };
            state.reading.extend(state.to_read.pop_front());
            state.buffered += weight(len as usize);
            let mut at = remote;
            while rest.len() > state.longest_request {
                let Ok(part) = rest.split_to(state.longest_request) else { return };
                state.reads.push(SendRequest::read(part, at));
                at.addr = at.addr.wrapping_add(state.longest_request as u64);
            }
            state.reads.push(SendRequest::read(rest, at));
            state.in_flight += parts as u32;
        }
    }

    /// Writes the frames that wait, if there is room for them; if not, they go when there is.
    pub(crate) fn flush(&self, state: &mut State) {
        if let Some(batch) = state.batch.take() {
            state.batch = self.write(state, Batch { is_due: true, ..batch }).err();
        }
    }

    /// Writes the frames into the peer's ring, or gives them back if there is no room.
    pub(super) fn write(&self, state: &mut State, mut batch: Batch) -> Result<(), Batch> {
        if !has_room(state) || state.end.is_some() || state.resume.is_down() || state.resume.is_full() {
            return Err(batch);
        }
        let Some(PeerRing { outbound, memory, .. }) = &mut state.outbound else { return Err(batch) };
        let Some(offset) = outbound.place(batch.len as u32) else { return Err(batch) };
        let place = memory.at(offset.into());
        if batch.buffer.len() != batch.len && batch.buffer.resize(batch.len).is_err() {
            return Err(batch);
        }
        if state.resume.is_on {
            state.resume.writes(outbound.writes(), batch.first);
        }
        let Batch { buffer, tag, .. } = batch;
        let immediate = Immediate::Frames(state.inbound.tell());
        let request = SendRequest::write_with_imm(buffer, place, immediate.emit()).tag(tag);
        state.to_deliver += u64::from(tag & DELIVERED != 0);
        if let Some(request) = self.post(state, request, tag & GONE != 0) {
            resume::refused(state, request.into_payload().into_pool_buf());
        }
        Ok(())
    }

    /// Tells the peer what was read, where it might wait for that.
    fn tell(&self, state: &mut State) {
        let Some(PeerRing { memory, .. }) = state.outbound else { return };
        if state.farewell.has_come {
            // There is nobody to be told.
            (state.reads_to_tell, state.owes_credits) = (0, false);
            return;
        }
        if state.reads_to_tell > 0 && has_room(state) {
            let immediate = Immediate::Read(std::mem::take(&mut state.reads_to_tell));
            state.to_deliver += 1;
            self.post(state, without_bytes(&memory, immediate).tag(DELIVERED), false);
        }
        if (state.inbound.must_tell() || state.owes_credits) && has_room(state) {
            state.owes_credits = false;
            let immediate = Immediate::Credits(state.inbound.tell());
            self.post(state, without_bytes(&memory, immediate), false);
        }
    }

    /// Posts a request, and asks for its completion or not. If that fails the connection has ended, and the request comes back.
    pub(super) fn post(
        &self,
        state: &mut State,
        request: SendRequest,
        is_signaled: bool,
    ) -> Option<SendRequest> {
        match state.lane.queue_pair.post_send(if is_signaled { request } else { request.unsignaled() }) {
            Ok(_) => {
                (state.in_flight, state.is_unheard) = (state.in_flight + 1, !is_signaled);
                None
            }
            Err(PostError { error, mut requests }) => {
                end(state, error.to_string(), "");
                requests.pop()
            }
        }
    }
}

/// Ends the connection because a request failed.
fn fail(state: &mut State, status: Status) {
    if status != Status::Flushed || state.end.is_some() || state.resume.is_down() {
        return end(state, status.to_string(), status.hint().unwrap_or_default());
    }
    // No request of this side failed before, so that no completion has the cause: the device refused a request of the
    // peer, or failed.
    let event = error_event(&state.lane.queue_pair).and_then(explain::device_event);
    match event {
        Some(event) => end(state, event.summary.to_owned(), event.hint.unwrap_or_default()),
        None => end(state, status.to_string(), UNKNOWN_CAUSE),
    }
}

/// The hint if the device does not say why it flushes requests.
const UNKNOWN_CAUSE: &str = "check the device's events: it may have refused a request of the peer, because no request of this side failed";

/// How many pieces of memory a peer may expose.
const MOST_ANNOUNCED: usize = 4096;

/// A write of nothing but the immediate.
pub(super) fn without_bytes(ring: &RemoteMemory, immediate: Immediate) -> SendRequest {
    SendRequest::write_with_imm((), ring.at(0), immediate.emit())
}

/// Whether the send queue has room.
pub(super) fn has_room(state: &State) -> bool {
    state.in_flight < state.send_depth
}

/// A part of the oldest message that is being read has come. (Reads complete in order.)
fn has_read(state: &mut State, buffer: PoolBuf) {
    let Some(number) = state.reading.front() else { return };
    let Some(entry) = state.inbox.get_mut((number - state.taken) as usize) else { return };
    let Entry::Reading { come, parts, immediate } = entry else { return };
    *parts -= 1;
    let buffer = match come.take() {
        None => buffer,
        Some(mut come) => match come.unsplit(buffer) {
            Ok(()) => come,
            Err(_) => return end(state, "parts of a message arrived out of order".to_owned(), ""),
        },
    };
    if *parts > 0 {
        *come = Some(buffer);
        return;
    }
    *entry = Entry::Message(Message { buffer, immediate: *immediate });
    state.reading.pop_front();
    state.reads_to_tell += 1;
}

/// Puts what a write brought into the inbox. The messages share the buffer that they came in.
fn take_frames(state: &mut State, frames: PoolBuf, longest: u32) -> Result<(), Violation> {
    let cut = |_| Violation("it sent a truncated frame");
    let mut rest = Some(frames);
    while let Some(mut frames) = rest.take() {
        let frame = Frame::parse(&frames)?;
        let may_follow_the_end = matches!(frame.kind, FrameKind::Gone | FrameKind::Announcement { .. });
        if state.peer_is_gone || state.peer_is_shut && !may_follow_the_end {
            return Err(Violation("it sent frames after its shutdown"));
        }
        if let FrameKind::Message { len } | FrameKind::Offer { len, .. } = frame.kind
            && len > longest
        {
            return Err(Violation("it sent a message longer than the maximum"));
        }
        state.resume.taken += u64::from(frame.kind.is_numbered());
        // The last, which mostly is the only one, has all that is left: to share it would cost more than to parse it.
        let mut this = if frame.len() < frames.len() {
            let this = frames.split_to(frame.len()).map_err(cut)?;
            rest = Some(frames);
            this
        } else {
            frames
        };
        match frame.kind {
            FrameKind::Message { len } => {
                this.advance(HEADER_LEN).map_err(cut)?;
                this.resize(len as usize).map_err(cut)?;
                state.buffered += weight(this.len());
                state.inbox.push_back(Entry::Message(Message { buffer: this, immediate: frame.immediate }));
            }
            FrameKind::Offer { len, addr, rkey } => {
                let waiting = state.to_read.len() + state.reading.len();
                if waiting + state.reads_to_tell as usize >= OFFERS as usize {
                    return Err(Violation("it sent more rendezvous messages than allowed"));
                }
                let remote = RemoteAddress { addr, rkey };
                state.to_read.push_back(state.taken + state.inbox.len() as u64);
                state.inbox.push_back(Entry::Offer { len, remote, immediate: frame.immediate });
            }
            FrameKind::Announcement { name_len, memory } => {
                let begin = HEADER_LEN + ANNOUNCEMENT_LEN;
                let name = this.get(begin..begin + name_len as usize);
                let name = name.and_then(|name| std::str::from_utf8(name).ok());
                let name = name.ok_or(Violation("it sent a malformed expose frame"))?;
                let is_by_address = memory.is_by_address();
                if is_by_address && !name.is_empty() {
                    return Err(Violation("it sent a malformed expose frame"));
                }
                let count = state.announced.len() + state.addresses.len();
                if count >= MOST_ANNOUNCED && (is_by_address || !state.announced.contains_key(name)) {
                    return Err(Violation("it exposed too many regions"));
                }
                let memory = Announced { generation: state.resume.generation, ..memory };
                if is_by_address {
                    state.addresses.push(memory);
                } else {
                    state.announced.insert(name.to_owned(), memory);
                }
            }
            FrameKind::End => {
                state.peer_is_shut = true;
                state.resume.ends += 1;
            }
            FrameKind::Gone => {
                state.resume.ends += 1;
                (state.peer_is_shut, state.peer_is_gone) = (true, true);
                // It may wait for this, if its device hasn't heard from ours.
                state.owes_credits = true;
            }
        }
    }
    Ok(())
}
