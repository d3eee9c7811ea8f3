//! One-sided access: memory that is exposed, and operations on the peer's memory.

use std::collections::HashMap;
use std::ops::Range;

use adverb_net_proto::{MAX_NAME_LEN, SendError as Refusal, Tag};
use adverb_verbs::memory::{Memory, MemoryRegion, PoolBuf};
use adverb_verbs::{Completion, Error, PostError, Result, SendRequest};

use super::{Core, Driver, Outgoing};
use crate::message::{SendData, SendError};
use crate::remote::{PeerRegion, RemoteAccess};

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
    /// The number of the lane over which the peer has exposed the memory.
    lane: u32,
    /// The buffer of an operation that has failed.
    buffer: Option<PoolBuf>,
}

impl PendingOp<'_> {
    /// Returns the error with the operation's buffer, unless the device has the buffer.
    pub(crate) fn into_error(mut self, error: Error) -> SendError {
        let unposted = self.request.take().and_then(|request| request.into_payload().into_pool_buf());
        // The operation may have completed just before its time limit.
        let completed = || self.number.and_then(|number| self.driver.lock().operations.take_buffer(number));
        SendError { error, buffer: self.buffer.take().or(unposted).or_else(completed) }
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
    /// Registers new memory to be exposed, and returns it with the frame for the peer.
    pub(crate) fn expose(
        &self,
        name: &str,
        len: usize,
        access: RemoteAccess,
    ) -> Result<(MemoryRegion, Outgoing<'static>)> {
        if name.len() > MAX_NAME_LEN {
            return Err(Error::LimitExceeded {
                quantity: "length of a region's name".into(),
                requested: name.len() as u64,
                max: MAX_NAME_LEN as u64,
                hint: "use a shorter name".into(),
            });
        }
        let (lane, number) = self.lane_and_number();
        let region = lane.region(len, access.access())?;
        Ok((region.clone(), Outgoing::expose(name, region, access.bits(), number)))
    }

    /// Registers memory to be exposed at the addresses from `base`, and returns it with the frame for the peer.
    pub(crate) fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        access: RemoteAccess,
    ) -> Result<(MemoryRegion, Outgoing<'static>)> {
        let (lane, number) = self.lane_and_number();
        let region = lane.pool.protection_domain().register_at(memory, base, access.access())?;
        Ok((region.clone(), Outgoing::expose("", region, access.bits_by_address(), number)))
    }

    fn lane_and_number(&self) -> (std::sync::Arc<super::Lane>, u32) {
        let core = self.lock();
        (core.lane(), core.connection.lane())
    }

    /// Whether the peer has exposed memory at addresses.
    pub(crate) fn has_addresses(&self, core: &mut Core) -> Result<Option<()>> {
        if !core.peer_addresses.is_empty() {
            return Ok(Some(()));
        }
        self.check_exposing(core, "the peer has shut down sending, and exposed no addresses")?;
        Ok(None)
    }

    /// Returns the peer's memory with all of these addresses, and their offsets in it.
    pub(crate) fn find_addresses(&self, addresses: &Range<u64>) -> Result<(PeerRegion, Range<u64>)> {
        let core = self.lock();
        let mut regions = core.peer_addresses.iter().rev();
        let found = regions.find_map(|region| Some((*region, region.offsets(addresses)?)));
        found.ok_or_else(|| Error::InvalidRequest {
            reason: format!(
                "the peer exposes no memory with all addresses from {:#x} to {:#x}",
                addresses.start, addresses.end
            )
            .into(),
        })
    }

    /// Returns the peer's memory of this name, if the peer has exposed it.
    pub(crate) fn find_region(&self, core: &mut Core, name: &str) -> Result<Option<PeerRegion>> {
        if let Some(region) = core.peer_regions.get(name) {
            return Ok(Some(*region));
        }
        self.check_exposing(core, "the peer has shut down sending, and exposed no memory of this name")?;
        Ok(None)
    }

    /// Returns an error if the peer will expose no more memory.
    fn check_exposing(&self, core: &Core, shutdown: &str) -> Result<()> {
        match core.connection.end_reason() {
            Some(reason) => Err(self.ended(core, reason)),
            None if core.connection.has_peer_shutdown() => Err(self.disconnected(shutdown, "")),
            None => Ok(()),
        }
    }

    /// Prepares a READ of a range of the peer's memory.
    pub(crate) fn prepare_read(&self, region: &PeerRegion, range: &Range<u64>) -> Result<PendingOp<'_>> {
        let (remote_addr, len) = region.range_addr(range, RemoteAccess::READ)?;
        self.check_len(len)?;
        Ok(self.operation(SendRequest::read(self.pool().alloc(len)?, remote_addr), region))
    }

    /// Prepares a READ into a buffer, whose length is that of the range.
    pub(crate) fn prepare_read_into(
        &self,
        region: &PeerRegion,
        offset: u64,
        buffer: PoolBuf,
    ) -> Result<PendingOp<'_>, SendError> {
        let len = buffer.len();
        let remote_addr = region.remote_addr(offset, len, RemoteAccess::READ).and_then(|remote_addr| {
            self.check_len(len)?;
            if buffer.protection_domain() != self.pool().protection_domain() {
                let reason =
                    "the device reads only into buffers of the connection's pool: `Connection::pool`";
                return Err(Error::InvalidRequest { reason: reason.into() });
            }
            Ok(remote_addr)
        });
        match remote_addr {
            Ok(remote_addr) => Ok(self.operation(SendRequest::read(buffer, remote_addr), region)),
            Err(error) => Err(SendError { error, buffer: Some(buffer) }),
        }
    }

    /// Prepares a WRITE to the peer's memory.
    pub(crate) fn prepare_write(
        &self,
        region: &PeerRegion,
        offset: u64,
        bytes: SendData<'_>,
    ) -> Result<PendingOp<'_>, SendError> {
        let len = bytes.bytes().len();
        let remote_addr = region
            .remote_addr(offset, len, RemoteAccess::WRITE)
            .and_then(|remote_addr| self.check_len(len).map(|()| remote_addr));
        let remote_addr = match remote_addr {
            Ok(remote_addr) => remote_addr,
            Err(error) => return Err(bytes.into_error(error)),
        };
        Ok(self.operation(SendRequest::write(self.buffer_of(bytes)?, remote_addr), region))
    }

    /// Prepares a fetch-and-add to a word of the peer's memory.
    pub(crate) fn prepare_fetch_add(
        &self,
        region: &PeerRegion,
        offset: u64,
        add: u64,
    ) -> Result<PendingOp<'_>> {
        let remote_addr = region.word_addr(offset)?;
        Ok(self.operation(SendRequest::fetch_add(self.pool().alloc(8)?, remote_addr, add), region))
    }

    /// Prepares a compare-and-swap of a word of the peer's memory.
    pub(crate) fn prepare_compare_swap(
        &self,
        region: &PeerRegion,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<PendingOp<'_>> {
        let remote_addr = region.word_addr(offset)?;
        let request = SendRequest::compare_swap(self.pool().alloc(8)?, remote_addr, compare, swap);
        Ok(self.operation(request, region))
    }

    /// Checks that the device can transfer this number of bytes in one request.
    fn check_len(&self, len: usize) -> Result<()> {
        let max = self.lane().queue_pair.max_message_size();
        if len <= max as usize {
            return Ok(());
        }
        let hint = "split the transfer: the maximum is that of the device's port";
        Err(Error::MessageTooLong { len: len as u64, max: max.into(), hint })
    }

    fn operation(&self, request: SendRequest, region: &PeerRegion) -> PendingOp<'_> {
        PendingOp { driver: self, request: Some(request), number: None, lane: region.lane(), buffer: None }
    }

    /// Posts the operation if the send queue is not full. Returns the buffer once the operation is complete.
    pub(crate) fn poll_operation(
        &self,
        core: &mut Core,
        operation: &mut PendingOp<'_>,
    ) -> Result<Option<Option<PoolBuf>>> {
        if let Some(number) = operation.number {
            return match core.operations.states.remove(&number) {
                Some(OperationState::Done(true, buffer)) => Ok(Some(buffer)),
                Some(OperationState::Done(false, buffer)) => {
                    operation.buffer = buffer;
                    Err(self.interrupted(core))
                }
                Some(state) => {
                    core.operations.states.insert(number, state);
                    Ok(None)
                }
                None => Err(self.interrupted(core)),
            };
        }
        match core.connection.post_operation(operation.lane) {
            Ok(()) => {}
            Err(Refusal::WouldBlock) => return Ok(None),
            Err(Refusal::StaleRegion) => {
                return Err(self.disconnected(
                    "the connection was re-established",
                    "call `remote_region` again: remote regions are valid for one connection",
                ));
            }
            Err(refusal) => return Err(self.refusal_error(core, refusal)),
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
                core.note_failure(error.to_string(), "");
                let now = core.now;
                core.connection.handle_operation_refused(now);
                Err(self.interrupted(core))
            }
        }
    }

    /// Posts operations until the send queue is full, before the caller waits for any of them.
    pub(crate) fn post_operations(&self, operations: &mut [PendingOp<'_>]) -> Result<()> {
        let mut core = self.lock();
        operations.iter_mut().try_for_each(|operation| self.poll_operation(&mut core, operation).map(drop))
    }

    /// Returns the error of an operation whose lane has failed.
    fn interrupted(&self, core: &Core) -> Error {
        match core.connection.end_reason() {
            Some(reason) => self.ended(core, reason),
            None if core.connection.session().is_none() && core.failure.is_some() => {
                self.ended(core, adverb_net_proto::EndReason::LaneFailed)
            }
            None => self.disconnected(
                "the connection failed while the operation was in flight",
                "check whether the operation took effect; after a reconnect, call `remote_region` again",
            ),
        }
    }

    /// Returns registered memory with the bytes to write.
    fn buffer_of(&self, message: SendData<'_>) -> Result<PoolBuf, SendError> {
        message.into_buffer_of(self.pool().protection_domain()).or_else(|message| {
            self.pool().copy_from(message.bytes()).map_err(|error| message.into_error(error))
        })
    }
}

/// Returns the word that an atomic operation returned.
pub(crate) fn word_from_buffer(buffer: Option<PoolBuf>) -> u64 {
    let bytes = buffer.and_then(|buffer| buffer.first_chunk().copied());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}
