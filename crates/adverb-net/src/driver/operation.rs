//! One-sided operations on the peer's memory.

use std::collections::HashMap;
use std::ops::Range;

use adverb_net_proto::{SendError as Refusal, Tag};
use adverb_verbs::memory::PoolBuf;
use adverb_verbs::{Completion, PostError, SendRequest};

use super::close::check_not_closed;
use super::send::refused;
use super::{Core, Driver, ended, lost_buffer};
use crate::access::RemoteAccess;
use crate::error::{RemoteError, RemoteErrorKind, SendErrorKind};
use crate::message::SendData;
use crate::remote::PeerRegion;

type Result<T, E = RemoteErrorKind> = std::result::Result<T, E>;

/// The operations of a connection, by their numbers.
#[derive(Default)]
pub(super) struct Operations {
    states: HashMap<u64, OperationState>,
    last: u64,
}

enum OperationState {
    Posted,
    /// Whether the operation succeeded, and its buffer.
    Done(bool, Option<PoolBuf>),
    /// The call that waited for the operation was cancelled.
    Detached,
}

/// Whether the id of a request is that of an operation.
pub(super) fn is_operation(wr_id: u64) -> bool {
    wr_id & 0xff == Tag::Operation.wr_id()
}

impl Operations {
    /// Adds an operation, and returns its number and the id of its request.
    fn add(&mut self) -> (u64, u64) {
        self.last += 1;
        self.states.insert(self.last, OperationState::Posted);
        (self.last, self.last << 8 | Tag::Operation.wr_id())
    }

    /// Handles the completion of an operation.
    pub(super) fn complete(&mut self, wr_id: u64, completion: Completion) {
        let number = wr_id >> 8;
        let is_ok = completion.is_ok();
        match self.states.get_mut(&number) {
            Some(state @ OperationState::Posted) => {
                *state = OperationState::Done(is_ok, completion.into_pool_buf());
            }
            _ => drop(self.states.remove(&number)),
        }
    }

    /// Takes the buffer of an operation that has completed.
    fn take_buffer(&mut self, number: u64) -> Option<PoolBuf> {
        match self.states.get_mut(&number) {
            Some(OperationState::Done(_, buffer)) => buffer.take(),
            Some(OperationState::Posted | OperationState::Detached) | None => None,
        }
    }

    /// Fails the operations that have no completion.
    pub(super) fn fail_posted(&mut self) {
        self.states.retain(|_, state| !matches!(state, OperationState::Detached));
        for state in self.states.values_mut() {
            if let OperationState::Posted = state {
                *state = OperationState::Done(false, None);
            }
        }
    }
}

/// An operation that is posted, or is to be posted. Dropping it cancels the wait: the device keeps the buffer until the
/// operation completes.
pub(crate) struct PendingOp<'a> {
    driver: &'a Driver,
    request: Option<SendRequest>,
    number: Option<u64>,
    region: PeerRegion,
    /// The buffer of an operation that has failed.
    buffer: Option<PoolBuf>,
}

impl PendingOp<'_> {
    /// Returns the error with the operation's buffer, unless the device has the buffer.
    pub(crate) fn into_error(mut self, kind: RemoteErrorKind) -> RemoteError {
        let unposted = self.request.take().and_then(|request| request.into_payload().into_pool_buf());
        // The operation may have completed just before its time limit.
        let completed = || self.number.and_then(|number| self.driver.lock().operations.take_buffer(number));
        RemoteError { kind, buffer: self.buffer.take().or(unposted).or_else(completed) }
    }
}

impl Drop for PendingOp<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number.filter(|_| self.driver.is_owned()) else { return };
        let states = &mut self.driver.lock().operations.states;
        match states.get_mut(&number) {
            Some(state @ OperationState::Posted) => *state = OperationState::Detached,
            _ => drop(states.remove(&number)),
        }
    }
}

impl Driver {
    /// Whether the peer has exposed memory at addresses.
    pub(crate) fn has_addresses(&self, core: &mut Core) -> Result<Option<()>> {
        if !core.peer_addresses.is_empty() {
            return Ok(Some(()));
        }
        check_exposing(core)?;
        Ok(None)
    }

    /// Returns the peer's memory with all of these addresses, and their offsets in it.
    pub(crate) fn find_addresses(&self, addresses: &Range<u64>) -> Result<(PeerRegion, Range<u64>)> {
        let core = self.lock();
        let mut regions = core.peer_addresses.iter().rev();
        let found = regions.find_map(|region| Some((region.clone(), region.offsets(addresses)?)));
        found.ok_or_else(|| end_or(&core, RemoteErrorKind::UnknownAddresses { addresses: addresses.clone() }))
    }

    /// Returns the peer's memory of this name, if the peer has exposed it.
    pub(crate) fn find_region(&self, core: &mut Core, name: &str) -> Result<Option<PeerRegion>> {
        if let Some(region) = core.peer_regions.get(name) {
            return Ok(Some(region.clone()));
        }
        check_exposing(core)?;
        Ok(None)
    }

    /// Prepares a READ of a range of the peer's memory.
    pub(crate) fn prepare_read(&self, region: &PeerRegion, range: &Range<u64>) -> Result<PendingOp<'_>> {
        let request = region.range_addr(range, RemoteAccess::READ).and_then(|(remote_addr, len)| {
            self.check_len(len)?;
            Ok(SendRequest::read(self.alloc(len)?, remote_addr))
        });
        self.operation(request, region)
    }

    /// Prepares a READ into a buffer, whose length is that of the range.
    pub(crate) fn prepare_read_into(
        &self,
        region: &PeerRegion,
        offset: u64,
        buffer: PoolBuf,
    ) -> Result<PendingOp<'_>, RemoteError> {
        let len = buffer.len();
        let remote_addr = region.remote_addr(offset, len, RemoteAccess::READ).and_then(|remote_addr| {
            self.check_len(len)?;
            if buffer.protection_domain() != self.pool().protection_domain() {
                return Err(RemoteErrorKind::ForeignBuffer { peer: self.peer });
            }
            Ok(remote_addr)
        });
        match remote_addr {
            Ok(remote_addr) => Ok(self.operation(Ok(SendRequest::read(buffer, remote_addr)), region)?),
            Err(kind) => Err(RemoteError { kind: end_or(&self.lock(), kind), buffer: Some(buffer) }),
        }
    }

    /// Prepares a WRITE to the peer's memory.
    pub(crate) fn prepare_write(
        &self,
        region: &PeerRegion,
        offset: u64,
        bytes: SendData<'_>,
    ) -> Result<PendingOp<'_>, RemoteError> {
        let len = bytes.bytes().len();
        let remote_addr = region
            .remote_addr(offset, len, RemoteAccess::WRITE)
            .and_then(|remote_addr| self.check_len(len).map(|()| remote_addr));
        let remote_addr = match remote_addr {
            Ok(remote_addr) => remote_addr,
            Err(kind) => {
                return Err(RemoteError { kind: end_or(&self.lock(), kind), buffer: bytes.into_buffer() });
            }
        };
        Ok(self.operation(Ok(SendRequest::write(self.buffer_of(bytes)?, remote_addr)), region)?)
    }

    /// Prepares a fetch-and-add to a word of the peer's memory.
    pub(crate) fn prepare_fetch_add(
        &self,
        region: &PeerRegion,
        offset: u64,
        add: u64,
    ) -> Result<PendingOp<'_>> {
        let request = region
            .word_addr(offset)
            .and_then(|remote_addr| Ok(SendRequest::fetch_add(self.alloc(8)?, remote_addr, add)));
        self.operation(request, region)
    }

    /// Prepares a compare-and-swap of a word of the peer's memory.
    pub(crate) fn prepare_compare_swap(
        &self,
        region: &PeerRegion,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<PendingOp<'_>> {
        let request = region.word_addr(offset).and_then(|remote_addr| {
            Ok(SendRequest::compare_swap(self.alloc(8)?, remote_addr, compare, swap))
        });
        self.operation(request, region)
    }

    /// Checks that the device can transfer this number of bytes in one request.
    fn check_len(&self, len: usize) -> Result<()> {
        let max = self.lane().queue_pair.max_message_size();
        if len <= max as usize {
            return Ok(());
        }
        Err(RemoteErrorKind::TooLong { len: len as u64, max: max.into() })
    }

    fn alloc(&self, len: usize) -> Result<PoolBuf> {
        self.pool().allocate(len).map_err(|error| RemoteErrorKind::memory(self.peer, error))
    }

    fn operation(&self, request: Result<SendRequest>, region: &PeerRegion) -> Result<PendingOp<'_>> {
        let request = request.map_err(|kind| end_or(&self.lock(), kind))?;
        let region = region.clone();
        Ok(PendingOp { driver: self, request: Some(request), number: None, region, buffer: None })
    }

    /// Posts the operation if the send queue is not full. Returns the buffer once the operation is complete.
    pub(crate) fn poll_operation(
        &self,
        core: &mut Core,
        operation: &mut PendingOp<'_>,
    ) -> Result<Option<PoolBuf>> {
        if let Some(number) = operation.number {
            return match core.operations.states.remove(&number) {
                Some(OperationState::Done(true, Some(buffer))) => Ok(Some(buffer)),
                Some(OperationState::Done(true, None)) => Err(lost_buffer(self.peer).into()),
                Some(OperationState::Done(false, buffer)) => {
                    operation.buffer = buffer;
                    Err(interrupted(core))
                }
                Some(state) => {
                    core.operations.states.insert(number, state);
                    Ok(None)
                }
                None => Err(interrupted(core)),
            };
        }
        check_not_closed(core)?;
        operation.region.check_exposed(self.peer).map_err(|kind| end_or(core, kind))?;
        match core.connection.post_operation(operation.region.lane()) {
            Ok(()) => {}
            Err(Refusal::WouldBlock) => return Ok(None),
            Err(Refusal::StaleRegion) => return Err(RemoteErrorKind::Stale { peer: self.peer }),
            Err(refusal) => return Err(refused_operation(core, refusal)),
        }
        let Some(request) = operation.request.take() else { return Ok(None) };
        let (number, wr_id) = core.operations.add();
        match core.lane.queue_pair.post_send(request.tag(wr_id)) {
            Ok(_) => {
                operation.number = Some(number);
                Ok(None)
            }
            Err(PostError { error, mut requests }) => {
                core.operations.states.remove(&number);
                operation.request = requests.pop();
                core.note_device_failure(error);
                let now = core.now;
                core.connection.handle_operation_refused(now);
                Err(interrupted(core))
            }
        }
    }

    /// Posts operations until the send queue is full, before the caller waits for any of them.
    pub(crate) fn post_operations(&self, operations: &mut [PendingOp<'_>]) -> Result<()> {
        let mut core = self.lock();
        operations.iter_mut().try_for_each(|operation| self.poll_operation(&mut core, operation).map(drop))
    }

    /// Returns registered memory with the bytes to write.
    fn buffer_of(&self, message: SendData<'_>) -> Result<PoolBuf, RemoteError> {
        message.into_buffer_of(self.pool().protection_domain()).or_else(|message| {
            let copy = self.pool().allocate_copy(message.bytes());
            copy.map_err(|error| RemoteError {
                kind: end_or(&self.lock(), RemoteErrorKind::memory(self.peer, error)),
                buffer: message.into_buffer(),
            })
        })
    }
}

/// Returns an error if the peer will expose no more memory.
fn check_exposing(core: &Core) -> Result<()> {
    check_not_closed(core)?;
    match core.connection.end_reason() {
        Some(reason) => Err(ended(core, reason).into()),
        None if core.connection.has_peer_shutdown() => {
            Err(RemoteErrorKind::NotExposed { peer: core.lane.peer })
        }
        None => Ok(()),
    }
}

/// Returns the reason of the end if the connection has ended, and otherwise the error of a failed check. Successful
/// checks do not look for the end, because that takes the lock.
#[cold]
fn end_or(core: &Core, kind: RemoteErrorKind) -> RemoteErrorKind {
    match (check_not_closed(core), core.connection.check_not_ended()) {
        (Err(error), _) => error.into(),
        (Ok(()), Err(refusal)) => refused_operation(core, refusal),
        (Ok(()), Ok(())) => kind,
    }
}

/// Returns the error of an operation on a connection that has ended.
fn refused_operation(core: &Core, refusal: Refusal) -> RemoteErrorKind {
    match refused(core, refusal) {
        SendErrorKind::ConnectionLost(error) => error.into(),
        _ => interrupted(core),
    }
}

/// Returns the error of an operation whose lane has failed.
fn interrupted(core: &Core) -> RemoteErrorKind {
    match (core.connection.end_reason(), &core.failure) {
        (Some(reason), _) => ended(core, reason).into(),
        (None, Some(failure)) if core.connection.session().is_none() => failure.clone().into(),
        (None, _) => RemoteErrorKind::Interrupted { peer: core.lane.peer },
    }
}

/// Returns the word that an atomic operation returned.
pub(crate) fn word_from_buffer(buffer: &PoolBuf) -> u64 {
    u64::from_ne_bytes(buffer.first_chunk().copied().unwrap_or_default())
}
