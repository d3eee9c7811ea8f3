//! The right to answer a request.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_cluster_proto::rpc::RequestId;
use adverb_cluster_proto::{PeerId, PostError};
use parking_lot::Mutex;

use crate::broker::Waker;

/// The right to answer a request once: in the handler or later, with [`Rpc::reply`](super::Rpc::reply) and others.
///
/// A token that is dropped makes the call fail with [`Failure::NoReply`](crate::Failure::NoReply), so its caller stops
/// waiting. A token can be dropped in any thread; the thread of the [`Rpc`](super::Rpc) sends the failure, and is woken if it
/// [waits](super::Rpc::wait).
#[derive(Debug)]
#[must_use = "dropping the token makes the call fail"]
pub struct Reply {
    request: RequestId,
    /// Absent once the request is answered.
    dropped: Option<Arc<DroppedReplies>>,
}

impl Reply {
    pub(super) fn new(request: RequestId, dropped: &Arc<DroppedReplies>) -> Reply {
        Reply { request, dropped: Some(Arc::clone(dropped)) }
    }

    /// Returns the peer that sent the request.
    pub fn peer(&self) -> PeerId {
        self.request.peer()
    }

    pub(super) fn request(&self) -> RequestId {
        self.request
    }

    /// Consumes the token of a request that was answered.
    pub(super) fn consume(mut self) {
        self.dropped = None;
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(dropped) = self.dropped.take() {
            dropped.put(self.request);
        }
    }
}

/// A reply that was refused, with the token. `Display` prints the cause.
#[derive(Debug)]
#[non_exhaustive]
pub struct RefusedReply {
    /// The cause.
    pub error: PostError,
    /// The token. Dropping it makes the call fail, if the call still waits.
    pub reply: Reply,
}

impl RefusedReply {
    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        self.error.hint()
    }
}

impl fmt::Display for RefusedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for RefusedReply {}

/// Drops the token and keeps the cause.
impl From<RefusedReply> for PostError {
    fn from(refused: RefusedReply) -> PostError {
        refused.error
    }
}

/// The requests whose tokens were dropped.
#[derive(Debug)]
pub(super) struct DroppedReplies {
    has_requests: AtomicBool,
    requests: Mutex<Vec<RequestId>>,
    waker: Arc<Waker>,
}

impl DroppedReplies {
    pub(super) fn new(waker: Arc<Waker>) -> DroppedReplies {
        DroppedReplies { has_requests: AtomicBool::new(false), requests: Mutex::default(), waker }
    }

    pub(super) fn take(&self) -> Option<RequestId> {
        if !self.has_requests.load(Ordering::Acquire) {
            return None;
        }
        let mut requests = self.requests.lock();
        let request = requests.pop();
        if request.is_none() {
            self.has_requests.store(false, Ordering::Release);
        }
        request
    }

    fn put(&self, request: RequestId) {
        let mut requests = self.requests.lock();
        requests.push(request);
        self.has_requests.store(true, Ordering::Release);
        drop(requests);
        self.waker.wake();
    }
}
