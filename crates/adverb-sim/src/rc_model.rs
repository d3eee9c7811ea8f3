//! Modeled queue pairs of a reliable connection, for layers above queue pairs.
//!
//! The model has no packets. It keeps the guarantees of a reliable connection, and no others:
//!
//! - requests are executed in order, and complete in order;
//! - when the connection breaks, the executed requests are a prefix of the posted ones, and the completed requests are
//!   a prefix of the executed ones;
//! - an unsignaled request that succeeds produces no completion, and a request that fails always produces one;
//! - an end whose peer has disappeared notices only if it has a request outstanding;
//! - until a READ completes, its response may be lost, and the peer executes it again.
//!
//! The caller decides when a request is executed and when it completes. The NIC reads the local memory of a SEND or a
//! WRITE when the request is executed, so memory that is reused too early changes the message.

use std::collections::VecDeque;

use adverb_proto::types::{
    CompletedOperation, Completion, Failure, Qpn, RemoteAddress, Segment, SendFlags, SendOperation, Status,
    Success,
};

/// The memory of one end of a connection, as its NIC accesses it.
pub(crate) trait NicMemory {
    /// Reads the source of a SEND or a WRITE.
    fn read_local(&mut self, segment: Segment) -> Vec<u8>;
    /// Writes a received message, or the result of a READ or an atomic.
    fn write_local(&mut self, segment: Segment, bytes: &[u8]);
    /// Reads memory for the peer, if the key and the range are valid.
    fn read_remote(&mut self, remote: RemoteAddress, length: u32) -> Option<Vec<u8>>;
    /// Writes memory for the peer, if the key and the range are valid.
    fn write_remote(&mut self, remote: RemoteAddress, bytes: &[u8]) -> Option<()>;
}

/// A send request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ModelRequest {
    pub(crate) wr_id: u64,
    pub(crate) operation: SendOperation,
    pub(crate) flags: SendFlags,
    /// The local memory; `None` for a request of zero bytes.
    pub(crate) local: Option<Segment>,
}

/// The result of an attempt to execute a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Execution {
    /// No request can be executed.
    Idle,
    /// A request was executed.
    Executed,
    /// The peer has no receive posted. The request stays in the queue.
    Rnr,
    /// The message is longer than its receive, and broke the connection.
    TooLong,
    /// The peer rejected the access, and the connection broke.
    AccessRejected,
}

/// A connection: two queue pairs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RcConnection {
    ends: [End; 2],
    /// Whether packets no longer arrive, in either direction.
    is_cut: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum EndState {
    Working,
    Failed,
    Destroyed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct End {
    state: EndState,
    /// The requests that have not completed, in order.
    posted: VecDeque<ModelRequest>,
    /// The number of posted requests that the peer has executed.
    executed: usize,
    receives: VecDeque<(u64, Segment)>,
    /// The number of messages that consumed a receive of this end, except SENDs without a local buffer.
    received: u32,
    send_completions: VecDeque<Completion>,
    recv_completions: VecDeque<Completion>,
    /// The `wr_id`s of the requests that occupy the send queue: those after the last polled completion.
    occupied: VecDeque<u64>,
    send_queue_depth: usize,
    recv_queue_depth: usize,
}

impl End {
    fn new(send_queue_depth: usize, recv_queue_depth: usize) -> End {
        End {
            state: EndState::Working,
            posted: VecDeque::new(),
            executed: 0,
            receives: VecDeque::new(),
            received: 0,
            send_completions: VecDeque::new(),
            recv_completions: VecDeque::new(),
            occupied: VecDeque::new(),
            send_queue_depth,
            recv_queue_depth,
        }
    }

    fn fail(&mut self, status: Status) {
        if self.state != EndState::Working {
            return;
        }
        self.state = EndState::Failed;
        let mut status = status;
        for request in self.posted.drain(..) {
            self.send_completions.push_back(failed(request.wr_id, status));
            status = Status::Flushed;
        }
        self.executed = 0;
        for (wr_id, _) in self.receives.drain(..) {
            self.recv_completions.push_back(failed(wr_id, Status::Flushed));
        }
    }
}

fn failed(wr_id: u64, status: Status) -> Completion {
    Completion { wr_id, qpn: Qpn::GSI, outcome: Err(Failure { status, vendor_error: 0 }) }
}

fn succeeded(wr_id: u64, operation: CompletedOperation, length: u32) -> Completion {
    Completion { wr_id, qpn: Qpn::GSI, outcome: Ok(Success { operation, length }) }
}

impl RcConnection {
    /// Creates a connection whose ends are ready to send.
    pub(crate) fn new(send_queue_depth: usize, recv_queue_depth: usize) -> RcConnection {
        let ends = [(); 2].map(|()| End::new(send_queue_depth, recv_queue_depth));
        RcConnection { ends, is_cut: false }
    }

    /// Posts a send request. Returns `false` if the send queue is full.
    #[must_use]
    pub(crate) fn post_send(&mut self, end: usize, request: ModelRequest) -> bool {
        let end = &mut self.ends[end];
        match end.state {
            EndState::Destroyed => return true,
            EndState::Failed => end.send_completions.push_back(failed(request.wr_id, Status::Flushed)),
            EndState::Working => end.posted.push_back(request),
        }
        end.occupied.push_back(request.wr_id);
        end.occupied.len() <= end.send_queue_depth
    }

    /// Posts a receive request. Returns `false` if the receive queue is full.
    #[must_use]
    pub(crate) fn post_recv(&mut self, end: usize, wr_id: u64, segment: Segment) -> bool {
        let end = &mut self.ends[end];
        match end.state {
            EndState::Destroyed => {}
            EndState::Failed => end.recv_completions.push_back(failed(wr_id, Status::Flushed)),
            EndState::Working => end.receives.push_back((wr_id, segment)),
        }
        end.receives.len() <= end.recv_queue_depth
    }

    pub(crate) fn is_send_queue_full(&self, end: usize) -> bool {
        self.ends[end].occupied.len() >= self.ends[end].send_queue_depth
    }

    /// Returns the number of receives that no message has consumed.
    pub(crate) fn posted_receive_count(&self, end: usize) -> usize {
        self.ends[end].receives.len()
    }

    /// Returns the number of messages that consumed a receive of this end, except SENDs without a local buffer.
    pub(crate) fn received_count(&self, end: usize) -> u32 {
        self.ends[end].received
    }

    /// Whether the NIC may still read this local memory: a request that has not completed uses it.
    pub(crate) fn uses(&self, end: usize, addr: u64) -> bool {
        self.ends[end].posted.iter().any(|request| request.local.is_some_and(|local| local.addr == addr))
    }

    /// Whether the end has requests that have not completed.
    pub(crate) fn is_busy(&self, end: usize) -> bool {
        !self.ends[end].posted.is_empty()
    }

    /// Executes the next request of an end. `local` is the memory of this end, and `remote` is that of the peer.
    pub(crate) fn execute<M: NicMemory>(&mut self, end: usize, local: &mut M, remote: &mut M) -> Execution {
        if self.is_cut || self.ends.iter().any(|end| end.state != EndState::Working) {
            return Execution::Idle;
        }
        let Some(request) = self.ends[end].posted.get(self.ends[end].executed).copied() else {
            return Execution::Idle;
        };
        let execution = self.access(end, &request, local, remote);
        match execution {
            Execution::Executed => self.ends[end].executed += 1,
            Execution::AccessRejected | Execution::TooLong => {
                // The NAK also acknowledges the requests before this one.
                while self.ends[end].executed > 0 {
                    self.complete(end);
                }
                self.ends[end].fail(Status::RemoteAccess);
                self.ends[1 - end].fail(Status::Flushed);
            }
            Execution::Idle | Execution::Rnr => {}
        }
        execution
    }

    /// Executes again the READs of an end that have not completed, as if their responses were lost. Their data stays
    /// the same, because only one peer writes it.
    pub(crate) fn repeat_reads<M: NicMemory>(&mut self, end: usize, remote: &mut M) -> Execution {
        if self.is_cut || self.ends.iter().any(|end| end.state != EndState::Working) {
            return Execution::Idle;
        }
        for request in self.ends[end].posted.iter().take(self.ends[end].executed) {
            let length = request.local.map_or(0, |local| local.length);
            if let SendOperation::Read(address) = request.operation
                && remote.read_remote(address, length).is_none()
            {
                return Execution::AccessRejected;
            }
        }
        Execution::Executed
    }

    /// Performs the operation of a request.
    fn access<M: NicMemory>(
        &mut self,
        end: usize,
        request: &ModelRequest,
        local: &mut M,
        remote: &mut M,
    ) -> Execution {
        let peer = &mut self.ends[1 - end];
        let length = request.local.map_or(0, |local| local.length);
        let mut source = || request.local.map_or(Vec::new(), |segment| local.read_local(segment));
        match request.operation {
            SendOperation::Send | SendOperation::SendWithImm(_) => {
                let Some((wr_id, target)) = peer.receives.front().copied() else { return Execution::Rnr };
                if length > target.length {
                    return Execution::TooLong;
                }
                peer.receives.pop_front();
                peer.received += u32::from(request.local.is_some());
                if length > 0 {
                    remote.write_local(Segment { length, ..target }, &source());
                }
                let immediate = request.operation.immediate();
                let operation =
                    CompletedOperation::Recv { immediate, invalidated: None, source: None, has_grh: false };
                peer.recv_completions.push_back(succeeded(wr_id, operation, length));
            }
            // A WRITE of zero bytes needs no valid key.
            SendOperation::Write(_) if length == 0 => {}
            SendOperation::Write(address) => {
                if remote.write_remote(address, &source()).is_none() {
                    return Execution::AccessRejected;
                }
            }
            SendOperation::WriteWithImm(address, immediate) => {
                if peer.receives.is_empty() {
                    return Execution::Rnr;
                }
                if length > 0 && remote.write_remote(address, &source()).is_none() {
                    return Execution::AccessRejected;
                }
                if let Some((wr_id, _)) = peer.receives.pop_front() {
                    peer.received += 1;
                    let operation = CompletedOperation::RecvWrite { immediate };
                    peer.recv_completions.push_back(succeeded(wr_id, operation, length));
                }
            }
            SendOperation::Read(address) => {
                let Some(bytes) = remote.read_remote(address, length) else {
                    return Execution::AccessRejected;
                };
                if let Some(segment) = request.local {
                    local.write_local(segment, &bytes);
                }
            }
            SendOperation::CompareSwap { remote: address, compare, swap } => {
                let exchange = |old: u64| if old == compare { swap } else { old };
                return atomic(request, address, exchange, local, remote);
            }
            SendOperation::FetchAdd { remote: address, add } => {
                return atomic(request, address, |old| old.wrapping_add(add), local, remote);
            }
            // Connections don't use the others.
            SendOperation::SendInvalidate(_)
            | SendOperation::AtomicWrite { .. }
            | SendOperation::Flush(_)
            | SendOperation::LocalInvalidate(_)
            | SendOperation::BindWindow(_) => return Execution::AccessRejected,
        }
        Execution::Executed
    }

    /// Returns the requests of an end that have not completed.
    pub(crate) fn posted(&self, end: usize) -> impl Iterator<Item = &ModelRequest> {
        self.ends[end].posted.iter()
    }

    /// Returns the receives of an end that no message has consumed.
    pub(crate) fn receives(&self, end: usize) -> impl Iterator<Item = (u64, Segment)> {
        self.ends[end].receives.iter().copied()
    }

    /// Adds the completion of a receive, which the device that executes the requests reported.
    pub(crate) fn consume_receive(&mut self, end: usize, completion: Completion) {
        let end = &mut self.ends[end];
        if end.state == EndState::Working {
            end.receives.pop_front();
            end.recv_completions.push_back(completion);
        }
    }

    /// Adds the completion of a request, which the device that executes the requests reported, and completes the
    /// requests before it.
    pub(crate) fn complete_through(&mut self, end: usize, completion: Completion) {
        self.complete_before(end, completion.wr_id);
        let end = &mut self.ends[end];
        if end.posted.front().is_some_and(|request| request.wr_id == completion.wr_id) {
            end.posted.pop_front();
            end.send_completions.push_back(completion);
        }
    }

    /// Completes the unsignaled requests before this one.
    pub(crate) fn complete_before(&mut self, end: usize, wr_id: u64) {
        let posted = &mut self.ends[end].posted;
        while posted.front().is_some_and(|request| request.wr_id < wr_id) {
            posted.pop_front();
        }
    }

    /// Completes the next executed request of an end. Returns whether there was one.
    pub(crate) fn complete(&mut self, end: usize) -> bool {
        let is_cut = self.is_cut;
        let end = &mut self.ends[end];
        if is_cut || end.executed == 0 || end.state != EndState::Working {
            return false;
        }
        end.executed -= 1;
        let Some(request) = end.posted.pop_front() else { return false };
        if request.flags.contains(SendFlags::SIGNALED) {
            let length = request.local.map_or(0, |local| local.length);
            let operation = request.operation.completed();
            end.send_completions.push_back(succeeded(request.wr_id, operation, length));
        }
        true
    }

    /// Cuts the connection: no more packets arrive.
    pub(crate) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Whether both queue pairs work, and packets still arrive.
    pub(crate) fn is_working(&self) -> bool {
        !self.is_cut && self.ends.iter().all(|end| end.state == EndState::Working)
    }

    /// Fails an end whose peer does not respond, if a request is outstanding. Returns whether it failed.
    pub(crate) fn exceed_retries(&mut self, end: usize) -> bool {
        let can_fail = !self.is_working() && self.is_busy(end) && self.ends[end].state == EndState::Working;
        if can_fail {
            self.ends[end].fail(Status::RetryExceeded);
        }
        can_fail
    }

    /// Fails an end, because the device that executes the requests reported a failure.
    pub(crate) fn fail(&mut self, end: usize, status: Status) {
        self.ends[end].fail(status);
    }

    /// Whether the connection is cut.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether the queue pair of an end was destroyed.
    pub(crate) fn is_end_destroyed(&self, end: usize) -> bool {
        self.ends[end].state == EndState::Destroyed
    }

    /// Moves the queue pair of an end to the error state, which flushes its requests.
    pub(crate) fn move_to_error(&mut self, end: usize) {
        self.ends[end].fail(Status::Flushed);
    }

    /// Whether the queue pair of an end can still be used.
    pub(crate) fn is_end_working(&self, end: usize) -> bool {
        self.ends[end].state == EndState::Working
    }

    /// Whether both queue pairs were destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.ends.iter().all(|end| end.state == EndState::Destroyed)
    }

    /// Destroys the queue pair of an end, and returns its completions that were not polled.
    pub(crate) fn destroy(&mut self, end: usize) -> Vec<Completion> {
        let end = &mut self.ends[end];
        end.state = EndState::Destroyed;
        end.posted.clear();
        end.receives.clear();
        end.executed = 0;
        end.send_completions.drain(..).chain(end.recv_completions.drain(..)).collect()
    }

    /// Takes the next completion of a send request.
    pub(crate) fn poll_send(&mut self, end: usize) -> Option<Completion> {
        let end = &mut self.ends[end];
        let completion = end.send_completions.pop_front()?;
        if let Some(index) = end.occupied.iter().position(|wr_id| *wr_id == completion.wr_id) {
            end.occupied.drain(..=index);
        }
        Some(completion)
    }

    /// Takes the next completion of a receive request.
    pub(crate) fn poll_recv(&mut self, end: usize) -> Option<Completion> {
        self.ends[end].recv_completions.pop_front()
    }
}

/// Performs an atomic on a word in little-endian order.
fn atomic<M: NicMemory>(
    request: &ModelRequest,
    address: RemoteAddress,
    change: impl Fn(u64) -> u64,
    local: &mut M,
    remote: &mut M,
) -> Execution {
    let word = remote.read_remote(address, 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    let Some(old) = word else { return Execution::AccessRejected };
    let new = change(u64::from_le_bytes(old)).to_le_bytes();
    if remote.write_remote(address, &new).is_none() {
        return Execution::AccessRejected;
    }
    if let Some(segment) = request.local {
        local.write_local(segment, &old);
    }
    Execution::Executed
}
