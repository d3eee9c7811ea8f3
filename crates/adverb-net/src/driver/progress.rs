//! Progress: completions, posted requests, and events of the connection.

use std::sync::Arc;

use adverb_net_proto::{
    Completed, EagerWrite, Event, HELLO_LEN, Payload, PhaseKind, Post, Register, RegisterMemory, Tag,
    Violation,
};
use adverb_verbs::internal::WithCauses;
use adverb_verbs::{
    Access, CompletedOperation, Completion, Error, PostError, RecvRequest, Result, SendRequest, Status,
};
use parking_lot::MutexGuard;

use super::lane::HELLO_RECV;
use super::memory::Buffer;
use super::operation::is_operation;
use super::region::Region;
use super::{Core, Driver, Lane, LaneState, abort, describe, lost_buffer, resume};
use crate::error::ConnectionError;
use crate::protocol::proof::SEAL_LEN;
use crate::remote::PeerRegion;
use crate::shared_region::MissingRegistration;

/// The maximum number of regions that a peer may expose over a lane.
const MAX_PEER_REGIONS: usize = 4096;

impl Driver {
    /// [Polls](Driver::poll_lane) the device, unless a leading thread does that. Returns whether the connection was
    /// advanced.
    pub(crate) fn drive(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        !core.waiters.has_leader() && self.poll_lane(core)
    }

    /// [Drives](Driver::drive) the connection once, unless another thread has locked it.
    pub(crate) fn poll_once(&self) {
        if let Some(mut core) = self.core.try_lock() {
            self.drive(&mut core);
        }
    }

    /// Polls the device, and [advances](Driver::advance) the connection, unless there are no completions and the lane is
    /// not being drained. Returns whether the connection was advanced.
    pub(super) fn poll_lane(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        let Core { lane, done, .. } = &mut **core;
        let polled = lane.completions.poll(done);
        // Most polls of a spinning caller find nothing.
        if let Ok(0) = polled
            && !core.is_draining()
        {
            core.unpolled = 0;
            core.waiters.polled(false);
            return false;
        }
        self.update_time(core);
        let mut done = std::mem::take(&mut core.done);
        self.handle_polled(core, polled, &mut done);
        core.done = done;
        true
    }

    /// Fails the lane.
    pub(crate) fn handle_lane_failure(&self, core: &mut MutexGuard<'_, Core>, failure: ConnectionError) {
        self.update_time(core);
        core.note_failure(|_| failure);
        let now = core.now;
        core.connection.handle_lane_failed(now);
        self.advance(core);
    }

    /// Handles the result of a poll, whose time is noted, and [advances](Driver::advance) the connection.
    pub(super) fn handle_polled(
        &self,
        core: &mut MutexGuard<'_, Core>,
        polled: Result<usize>,
        done: &mut Vec<Completion>,
    ) {
        core.unpolled = 0;
        if let Err(error) = polled {
            core.note_device_failure(error);
            let now = core.now;
            core.connection.handle_lane_failed(now);
        }
        self.handle_completions(core, done);
        self.advance(core);
    }

    fn handle_completions(&self, core: &mut Core, done: &mut Vec<Completion>) {
        core.waiters.polled(!done.is_empty());
        if done.is_empty() {
            return;
        }
        core.has_changes = true;
        for completion in done.drain(..) {
            handle_completion(core, completion);
        }
    }

    /// Fails the lane if the peer's connection manager has disconnected: the kernel's does when a process ends.
    pub(crate) fn check_manager(&self, core: &mut MutexGuard<'_, Core>) {
        let lane = core.lane();
        if lane.manager_events().is_none() || core.lane_state != LaneState::Active {
            return;
        }
        let failure = match lane.take_manager_events() {
            Ok(false) => return,
            Ok(true) => ConnectionError::PeerLost { peer: lane.peer, has_exited: true },
            Err(error) => ConnectionError::device(lane.peer, error),
        };
        // The peer sent its messages before it disconnected, so their completions are in the queue.
        self.update_time(core);
        let mut done = std::mem::take(&mut core.done);
        while lane.completions.poll(&mut done).is_ok_and(|count| count > 0) {
            self.handle_completions(core, &mut done);
        }
        core.done = done;
        core.note_failure(|_| failure);
        let now = core.now;
        core.connection.handle_lane_failed(now);
        self.advance(core);
    }

    /// Advances the connection as far as possible without polling the device: posts requests, handles events, and
    /// registers memory. Then notifies waiting callers, if there may be progress for them. The lock may be released for
    /// a while.
    pub(crate) fn advance(&self, core: &mut MutexGuard<'_, Core>) {
        loop {
            self.post_all(core);
            // An event may cause requests, such as the probe of a new lane.
            if self.handle_events(core) || self.finish_drain(core) {
                continue;
            }
            if !core.released.is_empty() {
                let mut released = std::mem::take(&mut core.released);
                MutexGuard::unlocked(core, || released.clear());
                // The vector's allocation is reused.
                if core.released.is_empty() {
                    core.released = released;
                }
            }
            // Registered memory may need a window, and room for its bind.
            let can_register = core.binds.has_room() && !core.awaits_registration();
            let register = if can_register { core.connection.poll_register() } else { None };
            let Some(register) = register else { break };
            self.register(core, register);
        }
        if std::mem::take(&mut core.has_changes) {
            core.change_count += 1;
            let notify = core.waiters.changed();
            self.notify(core, notify);
        }
    }

    /// Registers memory without the lock.
    fn register(&self, core: &mut MutexGuard<'_, Core>, register: Register<Buffer, Region>) {
        let (lane, Register { id, memory }) = (core.lane(), register);
        core.binds.reserved += 1;
        let registered = MutexGuard::unlocked(core, || register_memory(&lane, memory));
        // A sender may wait for the room.
        core.has_changes |= !core.binds.has_room();
        core.binds.reserved -= 1;
        self.update_time(core);
        let now = core.now;
        match registered {
            Ok(Registered::Region(mut region)) => {
                let is_withdrawn = region.is_withdrawn();
                if !is_withdrawn {
                    core.bind(&lane, &mut region);
                }
                core.connection.handle_registered(id, region, now);
                if is_withdrawn {
                    core.connection.withdraw(|_, _, region| region.is_some_and(Region::is_withdrawn));
                }
            }
            Ok(Registered::Missing(region, missing)) => {
                let is_withdrawn = region.is_withdrawn();
                core.connection.handle_register_deferred(id, region);
                if is_withdrawn {
                    // The withdrawal did not find the region while it was to be registered.
                    core.connection.withdraw(|_, _, region| region.is_some_and(Region::is_withdrawn));
                } else if Arc::ptr_eq(&core.lane, &lane) {
                    core.missing = Some((id, missing.clone()));
                    MutexGuard::unlocked(core, || missing.start());
                }
            }
            Err(refused) => {
                let (failure, memory) = *refused;
                core.note_failure(|_| failure);
                core.connection.handle_register_failed(id, memory);
            }
        }
    }

    /// Posts all requests of the connection. Returns whether there may have been any.
    #[inline]
    pub(super) fn post_all(&self, core: &mut Core) -> bool {
        let has_output = core.connection.has_output();
        if has_output {
            self.post_requests(core);
        }
        has_output
    }

    fn post_requests(&self, core: &mut Core) {
        while core.connection.has_output() {
            let (connection, mut memory, now) = core.parts();
            let Some(post) = connection.poll_post(&mut memory, now) else {
                if let Some(error) = memory.failure {
                    core.note_device_failure(error);
                }
                return;
            };
            if let Err(refused) = post_one(&core.lane, post) {
                let (error, post) = *refused;
                core.note_device_failure(error);
                core.connection.handle_refused(post, core.now);
            }
        }
    }

    /// Posts the write of a message.
    #[inline]
    pub(super) fn post_write(&self, core: &mut Core, write: EagerWrite<Buffer>) {
        let EagerWrite { buf, remote, immediate, is_signaled } = write;
        let request = SendRequest::write_with_imm(buf.0, remote, immediate).tag(Tag::Frames.wr_id());
        let request = if is_signaled { request } else { request.unsignaled() };
        if let Err(PostError { error, requests }) = core.lane.queue_pair.post_send(request) {
            core.note_device_failure(error);
            let (tag, buf) = (Tag::Frames, take_buffer(requests));
            let post = Post::Write { tag, buf, remote, immediate, is_signaled };
            core.connection.handle_refused(post, core.now);
        }
    }

    /// Handles the events of the connection. Returns whether there were any.
    fn handle_events(&self, core: &mut Core) -> bool {
        if !core.connection.has_events() {
            return false;
        }
        core.has_changes = true;
        while let Some(event) = core.connection.poll_event() {
            match event {
                Event::Established { lane } => self.handle_established(core, lane),
                Event::Exposed { name, region } => {
                    let earlier = core.peer_regions.get(&name);
                    let region = PeerRegion::new(&name, region, core.connection.lane(), earlier);
                    let count = core.peer_regions.len() + core.peer_addresses.len();
                    let is_new = region.is_by_address() || !core.peer_regions.contains_key(&name);
                    if count >= MAX_PEER_REGIONS && is_new {
                        core.connection.end_for_violation(Violation::new("it exposed too many regions"));
                    } else if region.is_by_address() {
                        core.peer_addresses.push(region);
                    } else {
                        core.peer_regions.insert(name, region);
                    }
                }
                Event::Withdrawn { name } => {
                    if let Some(region) = core.peer_regions.remove(&name) {
                        region.set_withdrawn();
                    }
                }
                Event::Release(region) => core.released.push(region),
                Event::Drain => self.begin_drain(core),
                Event::Redial { .. } => self.request_lane(core),
                Event::Closed(reason) => {
                    core.end = Some(describe(core, reason));
                    // The handshake of the successor answers the peer that the session is unknown.
                    (core.successor, core.lane_request) = (None, None);
                }
                _ => {}
            }
        }
        true
    }

    fn handle_established(&self, core: &mut Core, lane: u32) {
        core.is_lane_established = true;
        self.update_limits(core);
        core.peer_regions.clear();
        core.peer_addresses.clear();
        (core.failure, core.lane_request, core.request_failure) = (None, None, None);
        if lane > 0 {
            tracing::info!(peer = %core.lane.peer, "reconnected");
        }
    }

    /// Moves the queue pair to the error state, so that it returns all requests.
    fn begin_drain(&self, core: &mut Core) {
        core.peer_regions.clear();
        core.peer_addresses.clear();
        if core.lane_state == LaneState::Drained {
            // The lane is drained already, and the handshake of the lane that was to replace it was aborted.
            core.lane_state = LaneState::Stopped;
            return;
        }
        core.lane_state = LaneState::Draining;
        abort(core);
        if let Err(error) = core.lane.queue_pair.begin_drain() {
            tracing::debug!(error = %WithCauses(&error), "could not drain the queue pair of a connection");
            core.lane_state = LaneState::Stopped;
        }
    }

    /// Finishes the drain of the lane, if all its requests were returned. Returns whether it did.
    fn finish_drain(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        // A spinning thread may have polled completions that it has not handled yet.
        if !core.is_draining() || !core.waiters.may_poll() {
            return false;
        }
        self.poll_draining(core);
        if core.lane_state == LaneState::Draining {
            // `poll_drain` posts a marker if the queue was full before, and the software NIC completes the marker at
            // once. If the call fails, the requests are reclaimed below.
            if let Ok(false) = core.lane.queue_pair.poll_drain() {
                self.poll_draining(core);
                if let Ok(false) = core.lane.queue_pair.poll_drain() {
                    return false;
                }
            }
            // The last call of `poll_drain` may have fetched completions.
            self.poll_draining(core);
        }
        core.lane_state = LaneState::Drained;
        let left = core.lane.queue_pair.reset().unwrap_or_else(|error| {
            tracing::warn!(error = %WithCauses(&error), "lost the outstanding requests of a failed queue pair");
            Vec::new()
        });
        let left = left.into_iter().filter_map(|request| {
            Some((Tag::from_wr_id(request.tag)?, request.payload.into_pool_buf().map(Buffer)))
        });
        let left = left.collect();
        core.operations.fail_posted();
        core.binds.clear();
        self.update_time(core);
        let (connection, mut memory, now) = core.parts();
        connection.handle_drained(&mut memory, left, now);
        self.handle_drained(core);
        core.has_changes = true;
        true
    }

    /// Handles the completions of a lane that is being drained.
    fn poll_draining(&self, core: &mut Core) {
        self.update_time(core);
        let mut done = Vec::new();
        let lane = core.lane();
        while lane.completions.poll(&mut done).is_ok_and(|count| count > 0) {
            self.handle_completions(core, &mut done);
        }
    }

    /// Continues after a drain: over the lane that replaces the drained one, or with a request for one.
    fn handle_drained(&self, core: &mut Core) {
        match (core.connection.phase(), core.successor.take()) {
            (PhaseKind::Handshake, Some(lane)) => self.use_lane(core, lane),
            (PhaseKind::Handshake, None) => {
                // The handshake of the new lane was aborted.
                let now = core.now;
                core.connection.handle_lane_failed(now);
            }
            (PhaseKind::Disconnected, _) => self.request_lane(core),
            _ => {}
        }
    }

    /// Makes a lane the current one.
    pub(super) fn use_lane(&self, core: &mut Core, lane: Arc<Lane>) {
        (core.lane_state, core.is_lane_established) = (LaneState::Active, false);
        (core.lane_status, core.missing) = (None, None);
        core.waiters.replace_lane();
        core.has_changes = true;
        if let Some(watch) = self.watch.get()
            && let Err(error) = lane.add_events(watch)
        {
            core.note_failure(|peer| ConnectionError::system(peer, "watching a completion queue", error));
            core.connection.abort();
        }
        let replaced = std::mem::replace(&mut core.lane, lane);
        if let Some(source) = self.lane_source.get() {
            source.destroy(replaced);
        }
    }
}

/// Passes a completion to the connection.
fn handle_completion(core: &mut Core, completion: Completion) {
    let wr_id = completion.tag();
    let status = match completion.outcome() {
        Ok(success) => {
            if let CompletedOperation::RecvWrite { immediate } = success.operation {
                return handle_completed(core, Completed::Received { immediate, len: success.length });
            }
            if wr_id == HELLO_RECV {
                return handle_hello(core, completion);
            }
            None
        }
        Err(failure) => {
            let status = failure.status;
            note_status(core, wr_id, status);
            Some(status)
        }
    };
    let (tag, buf) = match Tag::from_wr_id(wr_id) {
        // The receive of the hello failed.
        None if wr_id == HELLO_RECV => (Tag::Recv, None),
        None => {
            let Some(completion) = core.handle_bind(completion) else { return };
            debug_assert!(is_operation(wr_id), "requests have known tags");
            core.operations.complete(wr_id, completion);
            (Tag::Operation, None)
        }
        Some(Tag::Recv) if status.is_none() => {
            return core.connection.end_for_violation(Violation::new("it sent a message instead of a write"));
        }
        Some(tag @ (Tag::Frames | Tag::Close | Tag::Read)) => (tag, completion.into_pool_buf().map(Buffer)),
        Some(tag) => (tag, None),
    };
    match status {
        None => handle_completed(core, Completed::Sent { tag, buf }),
        Some(status) => handle_completed(core, Completed::Failed { tag, buf, status }),
    }
}

#[inline]
fn handle_completed(core: &mut Core, completed: Completed<Buffer>) {
    let (connection, mut memory, now) = core.parts();
    connection.handle_completion(&mut memory, completed, now);
    if let Some(error) = memory.failure {
        core.note_device_failure(error);
    }
}

/// Passes the listener's hello to the connection.
fn handle_hello(core: &mut Core, completion: Completion) {
    let Ok(message) = completion.into_pool_message() else { return };
    match open_hello(&core.lane, &message) {
        Ok(hello) => {
            let (connection, mut memory, now) = core.parts();
            connection.handle_hello(&mut memory, hello, now);
        }
        Err(violation) => core.connection.end_for_violation(violation),
    }
}

/// Returns the bytes of a hello, if its seal is valid.
pub(super) fn open_hello<'a>(lane: &Lane, message: &'a [u8]) -> Result<&'a [u8], Violation> {
    let seal_len = lane.seal.as_ref().map_or(0, |_| SEAL_LEN);
    // Padding follows the hello.
    let message = message.get(..seal_len + HELLO_LEN).unwrap_or(message);
    match &lane.seal {
        Some(seal) => {
            seal.open(message).map_err(|_| Violation::new("its hello has no valid proof of the key"))
        }
        None => Ok(message),
    }
}

/// Records the reason why the request with this id failed, if it is the first failure of the lane.
fn note_status(core: &mut Core, wr_id: u64, status: Status) {
    if core.lane_state == LaneState::Active {
        core.lane_status.get_or_insert(status);
    }
    if core.failure.is_some() || core.lane_state != LaneState::Active {
        return;
    }
    if status == Status::RemoteAccess && uses_memory_of_connection(wr_id) {
        // The peer keeps this memory as long as the queue pair. When a process ends, the kernel may free its memory first.
        return core.note_failure(|peer| ConnectionError::PeerLost { peer, has_exited: false });
    }
    if status != Status::Flushed {
        return core.note_failure(|peer| ConnectionError::request_failed(peer, status));
    }
    // No request of this side failed before, so no completion has the cause: the device refused a request of the peer,
    // or failed.
    let event = core.lane.queue_pair.error_event();
    core.note_failure(|peer| ConnectionError::QueuePairFailed { peer, event });
}

/// Whether the request with this id reads or writes the peer's ring, or a message that the peer has announced, in contrast to
/// memory that the peer has exposed.
fn uses_memory_of_connection(wr_id: u64) -> bool {
    let tag = Tag::from_wr_id(wr_id);
    tag.is_some_and(|tag| match tag {
        Tag::Frames | Tag::Close | Tag::Credits | Tag::RendezvousDone | Tag::CloseAck | Tag::Read => true,
        Tag::Recv | Tag::Hello | Tag::Probe | Tag::Operation => false,
    })
}

/// An error, and the operand that the device refused. Boxed, because the usual result is success.
type Refused<T, E = Error> = Box<(E, T)>;

/// Posts a request, or returns it with the error.
pub(super) fn post_one(lane: &Lane, post: Post<Buffer>) -> Result<(), Refused<Post<Buffer>>> {
    match post {
        Post::Write { tag, buf, remote, immediate, is_signaled } => {
            let request = match buf {
                Some(buf) => SendRequest::write_with_imm(buf.0, remote, immediate),
                None => SendRequest::write_with_imm((), remote, immediate),
            };
            let request = request.tag(tag.wr_id());
            let request = if is_signaled { request } else { request.unsignaled() };
            lane.queue_pair.post_send(request).map(drop).map_err(|PostError { error, requests }| {
                let buf = take_buffer(requests);
                Box::new((error, Post::Write { tag, buf, remote, immediate, is_signaled }))
            })
        }
        Post::Receives { count } => {
            let requests = (0..count).map(|_| RecvRequest::new(()).tag(Tag::Recv.wr_id()));
            let posted = lane.queue_pair.post_recvs(requests).map(drop);
            posted.map_err(|failure| Box::new((failure.error, Post::Receives { count })))
        }
        Post::Hello { bytes } => {
            let posted = post_hello(lane, &bytes, Tag::Hello.wr_id());
            posted.map_err(|error| Box::new((error, Post::Hello { bytes })))
        }
        Post::Probe { remote } => {
            let request = SendRequest::write((), remote).tag(Tag::Probe.wr_id());
            let posted = lane.queue_pair.post_send(request).map(drop);
            posted.map_err(|failure| Box::new((failure.error, Post::Probe { remote })))
        }
        Post::Read { buf, remote } => {
            let request = SendRequest::read(buf.0, remote).tag(Tag::Read.wr_id());
            let posted = lane.queue_pair.post_send(request).map(drop);
            // The buffer is not returned: the message is read again over another lane, into another buffer. The
            // connection treats a refused probe like a refused READ.
            posted.map_err(|failure| Box::new((failure.error, Post::Probe { remote })))
        }
    }
}

/// Grants the peer its rights, and posts a hello.
pub(super) fn post_hello(lane: &Lane, hello: &[u8], tag: u64) -> Result<()> {
    let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    access.set(Access::REMOTE_ATOMIC, lane.pool.protection_domain().device().attributes().has_atomics);
    lane.queue_pair.modify_access(access)?;
    let seal = lane.seal.as_ref().map(|seal| seal.seal(hello));
    let mut message = [seal.as_ref().map_or(&[][..], |seal| seal), hello].concat();
    // A packet of the full path MTU: if the path does not pass it, the handshake fails, and not a long message.
    message.resize(message.len().max(lane.mtu().into()), 0);
    let request = SendRequest::send(lane.pool.allocate_copy(&message)?).tag(tag);
    lane.queue_pair.post_send(request).map(drop).map_err(|failure| failure.error)
}

/// Returns the buffer of a request that was not posted.
fn take_buffer(mut requests: Vec<SendRequest>) -> Option<Buffer> {
    requests.pop().and_then(|request| request.into_payload().into_pool_buf()).map(Buffer)
}

/// The result of registering memory for a lane.
enum Registered {
    Region(Region),
    /// The exposed region is part of a shared region, which is not registered in the lane's protection domain.
    Missing(Region, MissingRegistration),
}

/// Registers memory for a lane.
fn register_memory(
    lane: &Lane,
    memory: RegisterMemory<Buffer, Region>,
) -> Result<Registered, Refused<RegisterMemory<Buffer, Region>, ConnectionError>> {
    let domain = lane.pool.protection_domain();
    let refused = |memory| |error| Box::new((ConnectionError::device(lane.peer, error), memory));
    match memory {
        RegisterMemory::Ring { len } => Region::allocate(lane, len as usize, Access::REMOTE_WRITE)
            .map(Registered::Region)
            .map_err(refused(RegisterMemory::Ring { len })),
        RegisterMemory::Exposed(mut region) => match region.register_for(lane) {
            Ok(None) => Ok(Registered::Region(region)),
            Ok(Some(missing)) => Ok(Registered::Missing(region, missing)),
            Err(error) => Err(refused(RegisterMemory::Exposed(region))(error)),
        },
        RegisterMemory::Message(payload) => {
            let lost = RegisterMemory::Ring { len: 0 };
            let Some(buffer) = resume::reclaim(payload) else {
                return Err(Box::new((lost_buffer(lane.peer), lost)));
            };
            let buffer = if buffer.protection_domain() == domain {
                buffer
            } else {
                match lane.pool.allocate_copy(&buffer) {
                    Ok(copy) => copy,
                    Err(error) => {
                        let memory = RegisterMemory::Message(Payload::Buf(Buffer(buffer)));
                        return Err(refused(memory)(error));
                    }
                }
            };
            Region::message(lane, buffer).map(Registered::Region).map_err(refused(lost))
        }
    }
}
