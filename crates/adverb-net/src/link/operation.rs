//! One-sided operations: memory that is exposed, and requests whose completions somebody waits for.

use std::ops::Range;

use adverb_verbs::memory::{Memory, MemoryRegion, Payload, PoolBuf};
use adverb_verbs::{Completion, Error, Result, SendRequest};

use super::sending::Body;
use super::{End, Link, OPERATION, Ready, State, progress};
use crate::message::{SendData, SendError, Source};
use crate::protocol::{Announced, LONGEST_NAME};
use crate::remote::RemoteAccess;

/// A request that was posted, until it is asked after.
pub(super) enum Operation {
    Posted,
    /// It succeeded or not, and this is its buffer.
    Done(bool, Option<PoolBuf>),
    /// Nobody will ask.
    Detached,
}

/// A request that is posted, or to be. Dropped, it isn't asked after any more; what the device has, it keeps until it is
/// done.
pub(crate) struct Asked<'a> {
    link: &'a Link,
    request: Option<SendRequest>,
    id: Option<u64>,
    /// For which queue pairs of the connection's it was made.
    generation: u32,
    /// What it was to do something with, once it has failed.
    left: Option<PoolBuf>,
}

impl Asked<'_> {
    /// Why it wasn't done, with its buffer, if the device doesn't have that.
    pub(crate) fn refused(mut self, error: Error) -> SendError {
        let unposted = self.request.take().and_then(|request| request.into_payload().into_pool_buf());
        SendError { error, buffer: self.left.take().or(unposted) }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let operations = &mut self.link.lock().operations;
        match operations.get_mut(&id) {
            Some(operation @ Operation::Posted) => *operation = Operation::Detached,
            _ => drop(operations.remove(&id)),
        }
    }
}

impl Link {
    /// Makes memory that the peer may reach, and what tells it so.
    pub(crate) fn expose(
        &self,
        name: &str,
        len: usize,
        rights: RemoteAccess,
    ) -> Result<(MemoryRegion, Ready<'static>)> {
        if name.len() > LONGEST_NAME {
            return Err(Error::LimitExceeded {
                quantity: "length of a region's name".into(),
                requested: name.len() as u64,
                max: LONGEST_NAME as u64,
                hint: "use a shorter name".into(),
            });
        }
        let region = self.lane().pool.protection_domain().region(len, rights.access())?;
        Ok(announcement(region, name, rights.bits()))
    }

    /// Lets the peer reach memory by addresses from `base` on, and makes what tells it so.
    pub(crate) fn expose_addresses(
        &self,
        base: u64,
        memory: impl Memory,
        rights: RemoteAccess,
    ) -> Result<(MemoryRegion, Ready<'static>)> {
        let region = self.lane().pool.protection_domain().register_at(memory, base, rights.access())?;
        Ok(announcement(region, "", rights.bits_by_address()))
    }

    /// Whether the peer has exposed any memory by address.
    pub(crate) fn has_addresses(&self, state: &State) -> Result<Option<()>> {
        match &state.end {
            _ if !state.addresses.is_empty() => Ok(Some(())),
            Some(end) => Err(self.ended(end)),
            None if state.peer_is_shut => {
                Err(self.disconnected("the peer has shut down sending, and exposed no addresses", ""))
            }
            None => Ok(None),
        }
    }

    /// The peer's memory that has all of these addresses, and which part of it they are.
    pub(crate) fn find(&self, addresses: &Range<u64>) -> Result<(Announced, Range<u64>)> {
        let state = self.lock();
        let found =
            state.addresses.iter().rev().find_map(|memory| Some((*memory, memory.offsets(addresses)?)));
        found.ok_or_else(|| Error::InvalidRequest {
            reason: format!(
                "the peer exposes no memory with all addresses from {:#x} to {:#x}",
                addresses.start, addresses.end
            )
            .into(),
        })
    }

    /// The peer's memory of this name, if it was announced.
    pub(crate) fn announced(&self, state: &State, name: &str) -> Result<Option<Announced>> {
        match (state.announced.get(name), &state.end) {
            (Some(memory), _) => Ok(Some(*memory)),
            (None, Some(end)) => Err(self.ended(end)),
            (None, None) if state.peer_is_shut => {
                Err(self
                    .disconnected("the peer has shut down sending, and exposed no memory of this name", ""))
            }
            (None, None) => Ok(None),
        }
    }

    /// Whether the device moves so many bytes at once.
    pub(crate) fn check_len(&self, len: usize) -> Result<()> {
        let most = self.lane().queue_pair.max_message_size();
        if len <= most as usize {
            return Ok(());
        }
        let hint = "split the transfer: the maximum is that of the device's port";
        Err(Error::MessageTooLong { len: len as u64, max: most.into(), hint })
    }

    /// A request that is to be posted.
    pub(crate) fn ask_for(&self, request: SendRequest, generation: u32) -> Asked<'_> {
        Asked { link: self, request: Some(request), id: None, generation, left: None }
    }

    /// Posts the request, when there is room, and returns its buffer when it is done.
    pub(crate) fn finish(&self, state: &mut State, asked: &mut Asked<'_>) -> Result<Option<Option<PoolBuf>>> {
        if let Some(id) = asked.id {
            return match state.operations.get(&id) {
                Some(Operation::Done(..)) => match state.operations.remove(&id) {
                    Some(Operation::Done(true, buffer)) => Ok(Some(buffer)),
                    Some(Operation::Done(false, buffer)) => {
                        asked.left = buffer;
                        Err(self.why(state))
                    }
                    _ => Err(self.why(state)),
                },
                Some(_) => Ok(None),
                None => Err(self.why(state)),
            };
        }
        if state.end.is_some() {
            return Err(self.why(state));
        }
        if state.peer_is_gone {
            return Err(self.disconnected("the peer closed the connection", ""));
        }
        if state.resume.is_down() || state.resume.generation != asked.generation {
            // Nobody knows whether it was done, if it was under way; and the peer's memory is found anew.
            return Err(self.disconnected(
                "the connection was re-established",
                "call `remote_region` again: remote regions are valid for one connection",
            ));
        }
        if progress::has_room(state)
            && let Some(request) = asked.request.take()
        {
            state.next_operation += 1;
            let id = state.next_operation;
            asked.id = Some(id);
            state.operations.insert(id, Operation::Posted);
            let request = request.tag(OPERATION | id << (OPERATION.trailing_zeros() + 1));
            asked.request = self.post(state, request, true);
            if state.end.is_some() {
                // It wasn't posted, so that nothing comes of it.
                state.operations.remove(&id);
                return Err(self.why(state));
            }
        }
        Ok(None)
    }

    /// Posts as many requests as there is room for, before any of them is waited for.
    pub(crate) fn post_all(&self, asked: &mut [Asked<'_>]) -> Result<()> {
        let mut state = self.lock();
        asked.iter_mut().try_for_each(|asked| self.finish(&mut state, asked).map(drop))
    }

    fn why(&self, state: &State) -> Error {
        let hint = "check whether the operation took effect; after a reconnect, call `remote_region` again";
        let unknown =
            End { reason: "the connection failed while the operation was in flight".to_owned(), hint };
        self.ended(state.end.as_ref().unwrap_or(&unknown))
    }

    /// Registered memory with what is to be written.
    pub(crate) fn buffer_of(&self, message: SendData<'_>) -> Result<PoolBuf, SendError> {
        match message.0 {
            Source::Buffer(buffer) if buffer.protection_domain() == self.pool().protection_domain() => {
                Ok(buffer)
            }
            _ => self.pool().copy_from(message.bytes()).map_err(|error| message.refused(error)),
        }
    }
}

/// Gives up operations of which nothing was heard.
pub(super) fn abandon(state: &mut State) {
    state.operations.retain(|_, operation| !matches!(operation, Operation::Detached));
    for operation in state.operations.values_mut() {
        if let Operation::Posted = operation {
            *operation = Operation::Done(false, None);
        }
    }
}

/// A region that is to be exposed, and what tells the peer so.
fn announcement(region: MemoryRegion, name: &str, rights: u8) -> (MemoryRegion, Ready<'static>) {
    let remote = region.remote();
    let memory = Announced { addr: remote.addr, len: remote.len, rkey: remote.rkey, rights, generation: 0 };
    let body = Body::Announcement { name: name.to_owned(), memory, region: region.clone() };
    (region, Ready { body, immediate: None })
}

/// Takes in the completion of an operation.
pub(super) fn complete(state: &mut State, completion: Completion) {
    let id = completion.tag() >> (OPERATION.trailing_zeros() + 1);
    let is_ok = completion.is_ok();
    match state.operations.get_mut(&id) {
        Some(operation @ Operation::Posted) => {
            *operation = Operation::Done(is_ok, Payload::into_pool_buf(completion.into_payload()));
        }
        _ => drop(state.operations.remove(&id)),
    }
}
