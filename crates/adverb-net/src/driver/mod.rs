//! The driver of a connection: the state machine of adverb-net-proto on queue pairs.
//!
//! A driver has no thread. The calls of the application drive the connection: they poll the completion queue, pass the
//! completions to the state machine, post its requests, and act on its events. The peer's device reads a rendezvous
//! message without a call on this side.
//!
//! The state machine is under a lock. Memory is registered and deregistered without it, because that may take long.

mod at_exit;
mod close;
mod expose;
mod hello;
mod lane;
mod memory;
mod operation;
mod progress;
mod region;
mod resume;
mod send;
mod stream;
#[cfg(all(test, feature = "soft", not(loom)))]
mod tests;
mod wait;

pub(super) use close::LINGER;
pub(super) use expose::Announcement;
pub(super) use hello::{Established, FindSession, HelloExchange, LanePurpose};
pub(super) use lane::{Lane, LaneParts};
pub(super) use operation::{PendingOp, word_from_buffer};
pub(super) use region::register_exposures;
#[cfg(all(test, feature = "soft", not(loom)))]
pub(super) use region::with_revocation_failure;
pub(super) use resume::{LaneRequest, LaneSource};
pub(super) use send::{Outgoing, Sent};
#[cfg(feature = "tokio")]
pub(super) use stream::StreamWrite;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use adverb_net_proto::{
    Connection, EndReason, MAX_MESSAGE_SIZE, PhaseKind, Received, RegisterId, SessionId, Time,
};
use adverb_verbs::internal::{OwnerProcess, Watch};
use adverb_verbs::memory::Pool;
use adverb_verbs::{Completion, Status};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::{ConnectError, ConnectionError, RecvError};
use crate::message::{Message, UnacknowledgedMessage};
use crate::options::Options;
use crate::remote::PeerRegion;
use crate::shared_region::MissingRegistration;
use crate::wait::Waiters;
#[cfg(feature = "tokio")]
use crate::wait::Wakers;
use close::check_not_closed;
use memory::{Buffer, LaneMemory};
use region::{Binds, Region};

/// A connection, its lane, and the calls that wait for it.
pub(crate) struct Driver {
    /// The address of the peer over the first lane.
    peer: SocketAddr,
    pub(crate) options: Options,
    core: Mutex<Core>,
    /// The maximum length of an eager message, in the upper half, and that of any message, in the lower half.
    limits: AtomicU64,
    /// The origin of the connection's time.
    epoch: Instant,
    owner: OwnerProcess,
    /// Notified when another caller may have made progress for waiting threads.
    progress: Condvar,
    /// The wakers of waiting tasks.
    #[cfg(feature = "tokio")]
    tasks: Arc<Wakers>,
    /// The source of further lanes, if both sides enable reconnecting.
    lane_source: OnceLock<Box<dyn LaneSource>>,
    /// The events of all lanes, if tasks wait for more than those of one completion queue.
    watch: OnceLock<Watch>,
}

/// The part of a driver that its lock protects.
pub(crate) struct Core {
    /// The current lane, or the last one.
    lane: Arc<Lane>,
    lane_state: LaneState,
    /// Whether the lane's handshake has succeeded. The lane may have failed, or the peer closed, since.
    is_lane_established: bool,
    /// The status of the first request that failed on the current lane.
    lane_status: Option<Status>,
    connection: Connection<Buffer, Region>,
    /// The lane that replaces the current one, once that is drained.
    successor: Option<Arc<Lane>>,
    /// The time of the last reading of the clock.
    now: Time,
    /// The first failure of the current lane.
    failure: Option<ConnectionError>,
    /// The reason of the end, once the connection has ended.
    end: Option<ConnectionError>,
    /// The request for another lane, while the connection has no lane.
    lane_request: Option<Box<dyn LaneRequest>>,
    /// The number of requests for another lane.
    request_count: u32,
    /// The reason why the last request failed.
    request_failure: Option<Arc<ConnectError>>,
    /// The memory that the peer exposes over the current lane, by name.
    peer_regions: HashMap<String, PeerRegion>,
    /// The memory that the peer exposes at addresses, the latest last.
    peer_addresses: Vec<PeerRegion>,
    operations: operation::Operations,
    /// The windows of the lane that are being bound.
    binds: Binds,
    /// The registration of a shared region for which the current lane waits. A thread of its own registers the memory.
    missing: Option<(RegisterId, MissingRegistration)>,
    /// Regions that are to be deregistered without the lock.
    released: Vec<Region>,
    /// Whether waiting callers are to be notified of progress.
    has_changes: bool,
    /// The number of times that progress was reported to waiting callers.
    change_count: u64,
    /// The number of calls since the last poll of the device.
    unpolled: u32,
    /// Reused memory for completions.
    done: Vec<Completion>,
    waiters: Waiters,
}

/// The state of a lane, as the driver sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LaneState {
    Active,
    /// The queue pair is in the error state, and its requests are being returned.
    Draining,
    /// The queue pair has no requests, or can't return them. The state machine has not handled that yet.
    Stopped,
    /// The queue pair has no requests, and the state machine has handled that.
    Drained,
}

/// The maximum number of calls between two polls of the device. A call that waits polls anyway.
const MAX_UNPOLLED: u32 = 32;
/// The number of times that a task tries to lock the connection. They take a few microseconds, and most calls keep the
/// connection locked for less.
#[cfg(feature = "tokio")]
const LOCK_SPINS: u32 = 100;

impl Core {
    /// Returns the connection, the memory of its lane, and the time of the last reading of the clock.
    fn parts(&mut self) -> (&mut Connection<Buffer, Region>, LaneMemory<'_>, Time) {
        (&mut self.connection, LaneMemory::new(&self.lane.pool), self.now)
    }

    /// Returns the current lane, or the last one.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    /// Whether the lane has completions to wait for. A connection without such a lane makes progress by the redialer,
    /// or by a handshake.
    pub(crate) fn has_lane(&self) -> bool {
        self.lane_state != LaneState::Drained && self.connection.phase() != PhaseKind::Handshake
    }

    /// Whether the lane is being drained.
    fn is_draining(&self) -> bool {
        matches!(self.lane_state, LaneState::Draining | LaneState::Stopped)
    }

    /// Whether the lane waits for the registration of a shared region.
    fn awaits_registration(&mut self) -> bool {
        if self.missing.as_ref().is_some_and(|(_, missing)| !missing.is_in_progress()) {
            self.missing = None;
        }
        self.missing.is_some()
    }

    /// Whether the connection has failed, and is being re-established.
    fn is_reconnecting(&self) -> bool {
        use PhaseKind::{Disconnected, Draining, Handshake};
        self.connection.session().is_some()
            && matches!(self.connection.phase(), Draining | Disconnected | Handshake)
    }

    /// Returns the time from the last reading of the clock until the connection's next timeout.
    pub(crate) fn timeout(&self) -> Duration {
        self.connection.poll_timeout().map_or(Duration::MAX, |time| time - self.now)
    }

    /// Notes a time, which another caller's reading of the clock may have passed already.
    fn note_time(&mut self, time: Time) {
        self.now = self.now.max(time);
    }

    /// Records a failure of the lane, unless another one was recorded before.
    fn note_failure(&mut self, failure: impl FnOnce(SocketAddr) -> ConnectionError) {
        let peer = self.lane.peer;
        self.failure.get_or_insert_with(|| failure(peer));
    }

    /// Records a failure of the device, unless another failure was recorded before.
    fn note_device_failure(&mut self, error: adverb_verbs::Error) {
        self.note_failure(|peer| ConnectionError::device(peer, error));
    }
}

impl Driver {
    /// Whether this process created the connection, and isn't a forked child.
    pub(crate) fn is_owned(&self) -> bool {
        self.owner.is_current()
    }

    /// Makes sure that the driver is never dropped. A forked child must not end its parent's connection, and threads that
    /// the child doesn't have may hold the locks of the driver, its memory and its device.
    pub(crate) fn leak(driver: &Arc<Driver>) {
        std::mem::forget(Arc::clone(driver));
    }

    /// Creates the driver of a connection over its first lane.
    fn new(lane: Arc<Lane>, connection: Connection<Buffer, Region>, epoch: Instant) -> Arc<Driver> {
        let (peer, options) = (lane.peer, lane.options.clone());
        let core = Core {
            lane,
            lane_state: LaneState::Active,
            is_lane_established: false,
            lane_status: None,
            connection,
            successor: None,
            now: Time::ZERO,
            failure: None,
            end: None,
            lane_request: None,
            request_count: 0,
            request_failure: None,
            peer_regions: HashMap::new(),
            peer_addresses: Vec::new(),
            operations: operation::Operations::default(),
            binds: Binds::default(),
            missing: None,
            released: Vec::new(),
            has_changes: false,
            change_count: 0,
            unpolled: 0,
            done: Vec::with_capacity(64),
            waiters: Waiters::default(),
        };
        let driver = Arc::new(Driver {
            peer,
            options,
            core: Mutex::new(core),
            limits: AtomicU64::new(MAX_MESSAGE_SIZE.into()),
            epoch,
            owner: OwnerProcess::current(),
            progress: Condvar::new(),
            #[cfg(feature = "tokio")]
            tasks: Arc::default(),
            lane_source: OnceLock::new(),
            watch: OnceLock::new(),
        });
        at_exit::add(&driver);
        driver.advance(&mut driver.lock());
        driver
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Locks the connection for a task. Returns `None` if another thread keeps it locked for more than a few
    /// microseconds, as the redialer does while it gives the connection another lane. The task must then let other tasks
    /// run.
    #[cfg(feature = "tokio")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock().or_else(|| self.spin_for_lock())
    }

    #[cfg(feature = "tokio")]
    #[cold]
    fn spin_for_lock(&self) -> Option<MutexGuard<'_, Core>> {
        let locked = (0..LOCK_SPINS).find_map(|_| {
            std::hint::spin_loop();
            self.core.try_lock()
        });
        if locked.is_none() {
            // The thread that holds the lock may need this CPU.
            std::thread::yield_now();
        }
        locked
    }

    /// Reads the clock.
    pub(crate) fn update_time(&self, core: &mut Core) {
        core.now = self.time_at(Instant::now());
    }

    /// Returns the time that the connection's clock shows at an instant.
    fn time_at(&self, instant: Instant) -> Time {
        let elapsed = instant.saturating_duration_since(self.epoch);
        Time::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the wakers of waiting tasks.
    #[cfg(feature = "tokio")]
    pub(crate) fn wakers(&self) -> &Arc<Wakers> {
        &self.tasks
    }

    /// Watches the events of the current lane and of the lanes that replace it. Returns a descriptor that is readable
    /// when there may be an event.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch_events(&self) -> io::Result<BorrowedFd<'_>> {
        let watch = Watch::new()?;
        self.lane().add_events(&watch)?;
        Ok(self.watch.get_or_init(|| watch).as_fd())
    }

    /// Returns the current lane, or the last one.
    pub(crate) fn lane(&self) -> Arc<Lane> {
        self.lock().lane()
    }

    /// Returns the peer's address over the current lane.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.lock().lane.peer
    }

    /// Returns the pool of the current lane.
    pub(crate) fn pool(&self) -> Pool {
        self.lock().lane.pool.clone()
    }

    /// Moves the queue pair to the error state, as a failure of the network does, for tests.
    #[cfg(feature = "tokio")]
    pub(crate) fn break_lane(&self) -> adverb_verbs::Result<()> {
        self.lane().queue_pair.move_to_error()
    }

    /// Returns the session, if the connection can resume.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.lock().connection.session()
    }

    /// Returns the maximum length of an eager message, and of any message.
    fn limits(&self) -> (u32, u32) {
        let limits = self.limits.load(Ordering::Relaxed);
        ((limits >> 32) as u32, limits as u32)
    }

    /// Sets the limits to those of the current lane.
    fn update_limits(&self, core: &Core) {
        if let Some(limits) = core.connection.limits() {
            let limits = u64::from(limits.eager) << 32 | u64::from(limits.max_message_size);
            self.limits.store(limits, Ordering::Relaxed);
        }
    }

    /// Returns the next message, or `Some(None)` after the last one. Returns `None` if neither has arrived.
    pub(crate) fn try_recv(&self, core: &mut Core) -> Result<Option<Option<Message>>, RecvError> {
        let (connection, mut memory, now) = core.parts();
        match connection.recv(&mut memory, now) {
            Received::Message(adverb_net_proto::Message { buf: Buffer(buffer), immediate }) => {
                Ok(Some(Some(Message::new(buffer, immediate))))
            }
            Received::Ended(reason) => Err(ended(core, reason).into()),
            Received::Shutdown => Ok(check_not_closed(core).map(|()| Some(None))?),
            Received::Pending => Ok(check_not_closed(core).map(|()| None)?),
        }
    }

    /// Returns the value of `ready`. Polling the device may cost more than sending a message, so the call polls only if
    /// there is no value, or if [`MAX_UNPOLLED`] calls before it did not poll.
    pub(crate) fn try_now<T, E>(
        &self,
        core: &mut MutexGuard<'_, Core>,
        ready: &mut impl FnMut(&Driver, &mut Core) -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        core.unpolled += 1;
        if core.unpolled > MAX_UNPOLLED {
            self.drive(core);
        }
        let mut value = ready(self, core);
        if let Ok(None) = value {
            // The caller may wait for the answer to messages that were fed, so they are posted now.
            let has_posted = self.flush(core);
            let has_advanced = self.drive(core);
            // Nothing has changed, so `ready` would return none again.
            if !has_posted && !has_advanced && !core.connection.has_events() {
                return value;
            }
            value = ready(self, core);
        }
        self.handle_pending(core);
        value
    }

    /// Posts requests that a call has caused, such as a report of credits, and acts on events.
    fn handle_pending(&self, core: &mut MutexGuard<'_, Core>) {
        if core.connection.has_output() || core.connection.has_events() {
            self.advance(core);
        }
    }

    /// Handles the timeouts that are due at the time of the last reading of the clock.
    pub(crate) fn handle_timeout(&self, core: &mut MutexGuard<'_, Core>) {
        let (connection, mut memory, now) = core.parts();
        if connection.poll_timeout().is_some_and(|time| time <= now) {
            connection.handle_timeout(&mut memory, now);
            self.advance(core);
        }
    }

    /// Returns the messages that the peer may not have received, once a connection with a session has ended.
    pub(crate) fn take_unacknowledged(&self) -> Vec<UnacknowledgedMessage> {
        let mut core = self.lock();
        if core.connection.session().is_none() {
            return Vec::new();
        }
        let messages = core.connection.take_unacknowledged();
        drop(core);
        let message = |message: adverb_net_proto::Unacknowledged<Buffer, Region>| {
            let buffer = resume::reclaim(message.payload)?;
            Some(UnacknowledgedMessage { index: message.number, buffer, immediate: message.immediate })
        };
        messages.into_iter().filter_map(message).collect()
    }

    /// Returns the reason of the end, once the connection has ended.
    pub(crate) fn end(&self, core: &mut Core) -> Result<Option<ConnectionError>, ConnectionError> {
        Ok(core.connection.end_reason().map(|reason| ended(core, reason)))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_owned() {
            abort(self.core.get_mut());
        }
    }
}

/// Tells the peer that this side ends the connection without a close, if it does not know that the connection ends.
fn abort(core: &mut Core) {
    if let Some(write) = core.connection.abort_write() {
        // A peer that does not receive the write notices the end when it probes this side.
        let _ = progress::post_one(&core.lane, write);
    }
}

/// Returns the error of a connection whose device did not return a buffer.
fn lost_buffer(peer: SocketAddr) -> ConnectionError {
    let error = io::Error::other("the device did not return the buffer");
    ConnectionError::system(peer, "reclaiming a buffer", error)
}

/// Returns the error of a connection that ends for this reason.
fn ended(core: &Core, reason: EndReason) -> ConnectionError {
    core.end.clone().unwrap_or_else(|| describe(core, reason))
}

/// Returns the error for the reason of an end, while the connection is ending.
fn describe(core: &Core, reason: EndReason) -> ConnectionError {
    let peer = core.lane.peer;
    let failure = |otherwise: fn(SocketAddr) -> ConnectionError| {
        core.failure.clone().unwrap_or_else(|| otherwise(peer))
    };
    let unacknowledged = core.connection.unacknowledged();
    match reason {
        EndReason::Closed => ConnectionError::LocallyClosed { peer },
        EndReason::PeerClosed => ConnectionError::PeerClosed { peer },
        EndReason::PeerAborted => ConnectionError::PeerAborted { peer, unacknowledged },
        EndReason::CloseTimedOut => {
            ConnectionError::CloseTimedOut { peer, timeout: core.lane.options.connect_timeout }
        }
        EndReason::ProtocolViolation(violation) => {
            ConnectionError::ProtocolViolation { peer, reason: violation.clause() }
        }
        EndReason::ReconnectTimedOut => {
            let timeout = core.lane.options.reconnect.unwrap_or_default();
            let none = || Arc::new(ConnectError::ReconnectTimedOut { peer, timeout });
            let source = core.request_failure.clone().unwrap_or_else(none);
            ConnectionError::ReconnectFailed { peer, unacknowledged, source }
        }
        EndReason::SessionUnknown => {
            let source = Arc::new(ConnectError::SessionUnknown { peer });
            ConnectionError::ReconnectFailed { peer, unacknowledged, source }
        }
        // The driver aborts a connection whose lane it cannot use.
        EndReason::Aborted => failure(|peer| ConnectionError::LocallyClosed { peer }),
        EndReason::RequestFailed(status) => {
            core.failure.clone().unwrap_or_else(|| ConnectionError::request_failed(peer, status))
        }
        EndReason::OutOfMemory => failure(|peer| {
            ConnectionError::system(peer, "allocating memory", io::ErrorKind::OutOfMemory.into())
        }),
        _ => failure(|peer| ConnectionError::QueuePairFailed { peer, event: None }),
    }
}
