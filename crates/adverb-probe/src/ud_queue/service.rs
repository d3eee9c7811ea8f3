//! Finding a responder's queue pair by its address and port (service ID resolution, SIDR), and answering such requests.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use adverb_verbs::QueuePair;
use adverb_verbs::cm::{Connector, DatagramListener, DatagramService, PendingService};
use adverb_verbs::internal::{WithCauses, wait_either};

use super::{Destination, Waker};
use crate::error::{ProbeError, Result};

/// A peer's UD queue pair, found by its address and port.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Service {
    /// The destination of datagrams to the queue pair.
    pub destination: Destination,
    /// The private data of the answer, padded with zeros. A responder writes its epoch there.
    pub private_data: Vec<u8>,
}

impl Service {
    fn new(found: &DatagramService, queue_pair: &QueuePair) -> Result<Service> {
        // This also checks that the route to the peer begins at the queue pair's port.
        let route = found.create_ud_destination(queue_pair)?;
        let destination =
            Destination { gid: route.address_handle.gid(), qpn: found.qpn(), qkey: found.qkey() };
        Ok(Service { destination, private_data: found.private_data().to_vec() })
    }
}

/// The result of a lookup that [`UdQueue::begin_lookup`](super::UdQueue::begin_lookup) started.
#[derive(Debug)]
#[non_exhaustive]
pub struct LookupResult {
    /// The number that the caller chose.
    pub id: u64,
    /// The address and port of the service.
    pub peer: SocketAddr,
    /// The service, or the reason why it wasn't found.
    pub service: Result<Service>,
}

/// A lookup that isn't complete.
#[derive(Debug)]
pub(super) struct PendingLookup {
    pub(super) id: u64,
    peer: SocketAddr,
    pending: PendingService,
}

impl PendingLookup {
    /// Starts a lookup from the address of the queue pair.
    pub(super) fn begin(
        queue_pair: &QueuePair,
        id: u64,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<PendingLookup> {
        let local = SocketAddr::new(queue_pair.endpoint().gid.ip(), 0);
        let pending = Connector::new().local_addr(local).timeout(timeout).begin_resolve_service(peer)?;
        Ok(PendingLookup { id, peer, pending })
    }

    /// Returns the result, if there is one.
    pub(super) fn poll(&mut self, queue_pair: &QueuePair) -> Option<LookupResult> {
        let service = match self.pending.poll() {
            Ok(None) => return None,
            Ok(Some(found)) => Service::new(&found, queue_pair),
            Err(error) => Err(error.into()),
        };
        Some(LookupResult { id: self.id, peer: self.peer, service })
    }

    /// Returns the result of a lookup whose device has failed.
    pub(super) fn into_failure(self) -> LookupResult {
        let error = ProbeError::DeviceFailed { action: LOOKUP };
        LookupResult { id: self.id, peer: self.peer, service: Err(error) }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.pending.deadline()
    }

    /// Waits for the result. Returns an error if the waker stops the wait.
    pub(super) fn wait(mut self, queue_pair: &QueuePair, waker: &Waker) -> Result<Service> {
        loop {
            if let Some(result) = self.poll(queue_pair) {
                return result.service;
            }
            if waker.is_stopped() {
                return Err(ProbeError::Stopped { action: LOOKUP });
            }
            // A wake-up that isn't a stop is for a later wait, so this wait only checks the stop flag and continues.
            let left = self.deadline().saturating_duration_since(Instant::now()).min(STOP_CHECK_INTERVAL);
            wait_either(self.pending.as_fd(), None, Some(left)).map_err(|source| ProbeError::System {
                action: format!("waiting for the answer of {}", self.peer).into(),
                source,
            })?;
        }
    }
}

/// The operation in errors.
pub(super) const LOOKUP: &str = "looking a service up";

/// The maximum time until a blocking lookup notices that it was stopped.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(10);

impl AsFd for PendingLookup {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.pending.as_fd()
    }
}

/// Answers the waiting requests for the queue pair, at most [`MAX_ANSWERS`] of them. Returns the number of answers and
/// of requests that could not be answered.
pub(super) fn answer(
    listener: &DatagramListener,
    queue_pair: &QueuePair,
    private_data: &[u8],
) -> Result<(u64, u64)> {
    let (mut answered, mut rejected) = (0, 0);
    while answered + rejected < MAX_ANSWERS {
        let Some(request) = listener.try_accept()? else { break };
        match request.accept(queue_pair, private_data) {
            Ok(()) => answered += 1,
            Err(error) => {
                tracing::debug!(error = %WithCauses(&error), "a request for a queue pair was rejected");
                rejected += 1;
            }
        }
    }
    Ok((answered, rejected))
}

/// The maximum number of requests that are answered before datagrams are polled again.
const MAX_ANSWERS: u64 = 32;
