//! Scopes in which requests borrow their memory.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use adverb_proto::types::{RemoteAddress, SendFlags, SendOperation};
use parking_lot::Mutex;

use super::QueuePair;
use super::post::BorrowedPostError;
use crate::completion_queue::Attached;
use crate::deadline::Deadline;
use crate::error::{Error, Result, WithCauses};
use crate::memory::{Buffer, Payload};
use crate::request::Success;
use crate::request_id::RequestId;

impl QueuePair {
    /// Runs `work` with a scope in which requests can borrow buffers instead of owning them.
    ///
    /// A SEND or WRITE borrows its buffer immutably, so the caller may read the buffer and post it any number of times.
    /// A READ or receive borrows it exclusively until the scope ends.
    ///
    /// ```no_run
    /// # use adverb::memory::{Buffer, RemoteMemory};
    /// # use adverb::verbs::QueuePair;
    /// # use std::time::Duration;
    /// # fn example(queue_pair: &mut QueuePair, page: &Buffer, old: &mut Buffer, table: RemoteMemory) -> adverb::verbs::Result<()> {
    /// queue_pair.scope(Duration::from_secs(1), |scope| {
    ///     scope.read(old, table.at(0))?;
    ///     for n in 1..8 {
    ///         scope.write(page, table.at(n * 4096))?;
    ///     }
    ///     Ok(())
    /// })?
    /// # }
    /// ```
    ///
    /// When the scope ends, even by a panic, it waits for all requests that borrow memory. If they haven't completed
    /// when `timeout` has passed since the start of the scope, the queue pair is destroyed, which cancels them. Every
    /// later operation on the queue pair fails. If destroying it fails, the process is aborted, because the device
    /// could still write to memory whose borrow has ended.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TimedOut`] if the requests didn't complete in time. The queue pair has been destroyed in this
    /// case.
    pub fn scope<'env, T>(
        &'env mut self,
        timeout: impl Into<Option<Duration>>,
        work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T,
    ) -> Result<T> {
        let timeout = timeout.into().unwrap_or(Duration::MAX);
        let scope = Scope {
            queue_pair: self,
            deadline: Deadline::new(timeout),
            borrowing: Mutex::default(),
            scope: PhantomData,
            env: PhantomData,
        };
        // This guard ends the borrows even if `work` panics.
        let end = EndOnDrop(&scope);
        let result = work(&scope);
        std::mem::forget(end);
        if scope.end() {
            Ok(result)
        } else {
            Err(Error::TimedOut { timeout, action: "ending a scope".into() })
        }
    }

    /// Destroys the queue pair before it is dropped, and returns the memory of its requests, which the device no longer
    /// uses. No other thread may use the queue pair meanwhile.
    fn destroy(&self) -> Result<Vec<(u64, Payload)>> {
        self.free_windows();
        self.return_shared_receives();
        self.backend.destroy()?;
        self.state.fail();
        Ok(self.take_all())
    }
}

/// A scope in which requests borrow their memory, created by [`QueuePair::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    queue_pair: &'env QueuePair,
    deadline: Deadline,
    /// The requests that borrow memory and have not been waited for.
    borrowing: Mutex<BorrowingRequests>,
    // These fields make both lifetimes invariant.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

#[derive(Default)]
struct BorrowingRequests {
    sends: Vec<RequestId>,
    recvs: Vec<RequestId>,
}

impl<'scope> Scope<'scope, '_> {
    /// Posts a SEND. The request is signaled: it produces a completion.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`QueuePair::post_send`].
    pub fn send(&'scope self, buffer: &'scope Buffer) -> Result<RequestId> {
        self.post_send(SendOperation::Send, buffer)
    }

    /// Posts a SEND with immediate data.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Scope::send).
    pub fn send_with_imm(&'scope self, buffer: &'scope Buffer, immediate: u32) -> Result<RequestId> {
        self.post_send(SendOperation::SendWithImm(immediate), buffer)
    }

    /// Posts an RDMA WRITE to the peer's memory.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Scope::send).
    pub fn write(&'scope self, buffer: &'scope Buffer, remote: RemoteAddress) -> Result<RequestId> {
        self.post_send(SendOperation::Write(remote), buffer)
    }

    /// Posts an RDMA READ from the peer's memory that fills the buffer's active range.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`send`](Scope::send).
    pub fn read(&'scope self, buffer: &'scope mut Buffer, remote: RemoteAddress) -> Result<RequestId> {
        check_writable(buffer)?;
        self.post_send(SendOperation::Read(remote), buffer)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`QueuePair::post_recv`].
    pub fn recv(&'scope self, buffer: &'scope mut Buffer) -> Result<RequestId> {
        check_writable(buffer)?;
        let posted = self.queue_pair.post_borrowed_recv(buffer);
        record_posted(&mut self.borrowing.lock().recvs, posted)
    }

    /// Waits for a request of this scope to complete, at most until the scope's timeout.
    ///
    /// # Errors
    ///
    /// Returns [`Error::RequestFailed`] if the request failed, and [`Error::TimedOut`] if the request doesn't complete
    /// in time, or if another caller has polled its completion.
    pub fn wait(&self, id: RequestId) -> Result<Success> {
        let is_recv = self.borrowing.lock().recvs.contains(&id);
        let queue = match is_recv {
            true => self.queue_pair.recv_completion_queue(),
            false => self.queue_pair.send_completion_queue(),
        };
        let completion = queue.wait(id, self.deadline.left())?;
        let mut borrowing = self.borrowing.lock();
        let waited = if is_recv { &mut borrowing.recvs } else { &mut borrowing.sends };
        waited.retain(|other| *other != id);
        completion.result()
    }

    /// Returns the queue pair, for posting requests that own their memory.
    pub fn queue_pair(&self) -> &QueuePair {
        self.queue_pair
    }

    fn post_send(&self, operation: SendOperation, buffer: &Buffer) -> Result<RequestId> {
        let posted = self.queue_pair.post_borrowed_send(operation, SendFlags::SIGNALED, buffer);
        record_posted(&mut self.borrowing.lock().sends, posted)
    }

    /// Waits until no request borrows memory, or else destroys the queue pair. Returns `false` if it was destroyed.
    fn end(&self) -> bool {
        // A panic in here, for example of a log subscriber, must not end borrows of memory that the device still uses.
        let abort = AbortOnDrop;
        let borrowing = std::mem::take(&mut *self.borrowing.lock());
        let queue_pair = self.queue_pair;
        loop {
            let are_sends_complete = have_all_completed(Some(&queue_pair.send), &borrowing.sends);
            if are_sends_complete && have_all_completed(queue_pair.recv.own(), &borrowing.recvs) {
                queue_pair.send_completion_queue().discard(&borrowing.sends);
                queue_pair.recv_completion_queue().discard(&borrowing.recvs);
                std::mem::forget(abort);
                return true;
            }
            if self.deadline.left().is_zero() {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        match queue_pair.destroy() {
            Ok(left) => {
                std::mem::forget(abort);
                drop(left);
            }
            Err(error) => {
                tracing::error!(error = %WithCauses(&error), "destroying a queue pair failed; its requests may still access borrowed memory");
                drop(abort);
            }
        }
        false
    }
}

/// Records a request that the device has, or may have.
fn record_posted(
    borrowing: &mut Vec<RequestId>,
    posted: Result<RequestId, BorrowedPostError>,
) -> Result<RequestId> {
    let id = match &posted {
        Ok(id) => Some(*id),
        Err(BorrowedPostError { posted, .. }) => *posted,
    };
    borrowing.extend(id);
    posted.map_err(|BorrowedPostError { error, .. }| error)
}

fn check_writable(buffer: &Buffer) -> Result<()> {
    if buffer.is_locally_writable() {
        return Ok(());
    }
    let reason = "the buffer of a READ or receive request requires LOCAL_WRITE access";
    Err(Error::InvalidRequest { reason: reason.into() })
}

/// Whether all of these requests have completed.
fn have_all_completed(queue: Option<&Attached>, requests: &[RequestId]) -> bool {
    let (Some(queue), false) = (queue, requests.is_empty()) else { return true };
    // If the queue can't be polled, the requests may still be outstanding.
    let is_polled = queue.completion_queue().fetch_completions().is_ok();
    let queue = queue.lock();
    is_polled && !requests.iter().any(|request| queue.is_outstanding(*request))
}

/// A guard that aborts the process when it is dropped.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A guard that ends the borrows of a scope when it is dropped.
struct EndOnDrop<'a, 'scope, 'env>(&'a Scope<'scope, 'env>);

impl Drop for EndOnDrop<'_, '_, '_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("queue_pair", self.queue_pair).finish_non_exhaustive()
    }
}
