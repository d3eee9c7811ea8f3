//! Calls for tasks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::{Readiness, leave};
use crate::{BrokerError, CallError, CallId, Event, Execution, PeerId, PostError, Reply, Rpc, RpcEvent};

type Result<T, E = BrokerError> = std::result::Result<T, E>;

/// The maximum number of calls to a peer that wait to be sent. Further ones wait in their tasks.
const MAX_WAITING_CALLS: usize = 64;

/// The failure of a [`Caller`]'s call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallerError {
    /// The call was refused: without a session, or because it is too long.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The call ended without a reply.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The [`AsyncRpc`] was dropped, has failed, or has [left](AsyncRpc::leave).
    #[error("the calls of this thread have stopped")]
    Stopped,
}

impl CallerError {
    /// Returns whether the peer may have executed the call.
    pub const fn execution(&self) -> Execution {
        match self {
            CallerError::Post(_) => Execution::NotExecuted,
            CallerError::Call(error) => error.execution(),
            CallerError::Stopped => Execution::Unknown,
        }
    }

    /// Returns an action that may solve the problem, if one is known.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            CallerError::Post(error) => error.hint(),
            CallerError::Call(error) => error.hint(),
            CallerError::Stopped => Some("`AsyncRpc::run` must run as long as there are calls"),
        }
    }

    /// Whether the call expired.
    pub const fn is_timeout(&self) -> bool {
        matches!(self, CallerError::Call(error) if error.is_timeout())
    }

    /// Whether a further call can succeed later: see [`PostError::is_retryable`] and [`CallError::is_retryable`].
    pub const fn is_retryable(&self) -> bool {
        match self {
            CallerError::Post(error) => error.is_retryable(),
            CallerError::Call(error) => error.is_retryable(),
            CallerError::Stopped => false,
        }
    }
}

const _: () = assert!(size_of::<CallerError>() <= 64);

/// An [`Rpc`] for a task of tokio: the task [runs](AsyncRpc::run) it, and any task calls with a [`Caller`]. To stop, the task
/// drops the future of `run`, for example with `tokio::select!`, and awaits [`leave`](AsyncRpc::leave).
///
/// The example has two brokers without a [`Cluster`](crate::Cluster). The manual's chapter about clusters has one with three
/// members, which wait for their sessions, call each other, and leave.
///
/// ```
/// # #[cfg(feature = "soft")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::cluster::{AsyncRpc, Broker, PeerId, Rpc, RpcConfig, RpcEvent};
/// use adverb::verbs::SoftDevice;
///
/// let domain = SoftDevice::loopback().open()?.create_protection_domain()?;
/// let mut client = Broker::builder(&domain).epoch(7).create()?;
/// let mut server = Broker::builder(&domain).epoch(8).create()?;
/// let peer = PeerId(0);
/// let (offer_of_client, offer_of_server) = (client.prepare(peer)?, server.prepare(peer)?);
/// client.establish(peer, &offer_of_server)?;
/// server.establish(peer, &offer_of_client)?;
///
/// let mut server = AsyncRpc::new(Rpc::new(server, RpcConfig::default())?)?;
/// tokio::spawn(async move {
///     let served = server.run(|rpc, event| {
///         if let RpcEvent::Request { bytes, reply, .. } = event {
///             let answer = bytes.to_ascii_uppercase();
///             let _ = rpc.reply(reply, &answer); // fails only if the caller doesn't wait anymore
///         }
///     });
///     served.await
/// });
/// let mut client = AsyncRpc::new(Rpc::new(client, RpcConfig::default())?)?;
/// let caller = client.caller();
/// tokio::spawn(async move { client.run(|_, _| ()).await });
///
/// assert_eq!(caller.call(peer, 1, b"hello", None).await?, b"HELLO");
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub struct AsyncRpc {
    rpc: Rpc,
    readiness: Readiness,
    callers: Caller,
    /// The messages of callers. The channel needs no bound of its own: each call to a peer takes one of 64 permits and
    /// causes at most one cancellation, each reply belongs to a request, and each peer has at most one
    /// [`Message::Connect`].
    pub(super) messages: mpsc::UnboundedReceiver<Message>,
    /// The calls that were posted, and their numbers.
    posted: HashMap<CallId, (u64, ReplySender)>,
    numbers: HashMap<u64, CallId>,
    /// The calls that wait for credits, by peer.
    waiting: HashMap<PeerId, VecDeque<PendingCall>>,
}

type ReplySender = oneshot::Sender<Result<Vec<u8>, CallerError>>;

/// A handle to an [`AsyncRpc`], for any task.
#[derive(Clone, Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub struct Caller {
    messages: mpsc::UnboundedSender<Message>,
    next_number: Arc<AtomicU64>,
    peers: Arc<[CallerPeer]>,
}

/// A peer, as all callers see it.
#[derive(Debug)]
struct CallerPeer {
    /// The permits for calls that wait to be sent.
    permits: Arc<Semaphore>,
    /// Whether a [`Message::Connect`] was sent, and not handled yet.
    is_wanted: AtomicBool,
    /// Whether calls to the peer can be posted.
    is_open: watch::Sender<bool>,
}

impl CallerPeer {
    fn set_open(&self, is_open: bool) {
        self.is_open.send_if_modified(|state| std::mem::replace(state, is_open) != is_open);
    }
}

#[derive(Debug)]
pub(super) enum Message {
    Call(PendingCall),
    /// The future of a call was dropped.
    Cancel(PeerId, u64),
    Reply(Reply, Vec<u8>),
    Connect(PeerId),
}

#[derive(Debug)]
pub(super) struct PendingCall {
    number: u64,
    peer: PeerId,
    method: u16,
    bytes: Vec<u8>,
    deadline: Option<Instant>,
    reply: ReplySender,
    _permit: OwnedSemaphorePermit,
}

impl Caller {
    /// Calls a method of a peer, and waits for the reply. Calls that can't be sent because of missing credits, or because too
    /// many are outstanding, wait. The timeout includes this time.
    ///
    /// If the future is dropped, the call is cancelled.
    ///
    /// # Errors
    ///
    /// Returns [`CallerError::Post`] without a session, or if the data is longer than a slot; [`CallerError::Call`] if the
    /// call fails, times out, or its session ends; and [`CallerError::Stopped`].
    ///
    /// # Panics
    ///
    /// Panics if the call has a timeout, outside a tokio runtime whose time is enabled.
    pub async fn call(
        &self,
        peer: PeerId,
        method: u16,
        bytes: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Vec<u8>, CallerError> {
        let Some(timeout) = timeout else { return self.call_until(peer, method, bytes, None).await };
        // If the deadline exceeds the clock's range, the call has none.
        let call = self.call_until(peer, method, bytes, Instant::now().checked_add(timeout));
        tokio::time::timeout(timeout, call).await.unwrap_or(Err(CallError::TimedOut { peer }.into()))
    }

    async fn call_until(
        &self,
        peer: PeerId,
        method: u16,
        bytes: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Vec<u8>, CallerError> {
        let state = self.peers.get(usize::from(peer.0)).ok_or(PostError::NotOpen { peer })?;
        let permit = Arc::clone(&state.permits).acquire_owned().await.map_err(|_| CallerError::Stopped)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let (reply, received) = oneshot::channel();
        let bytes = bytes.to_vec();
        let call = PendingCall { number, peer, method, bytes, deadline, reply, _permit: permit };
        self.messages.send(Message::Call(call)).map_err(|_| CallerError::Stopped)?;
        let mut guard = CancelGuard { caller: self, call: Some((peer, number)) };
        let result = tokio::select! {
            biased;
            result = received => result.unwrap_or(Err(CallerError::Stopped)),
            () = self.messages.closed() => Err(CallerError::Stopped),
        };
        guard.call = None;
        result
    }

    /// Answers a request from any task. If the caller doesn't wait anymore, or the data is longer than a slot, the call
    /// fails.
    pub fn reply(&self, reply: Reply, bytes: Vec<u8>) {
        // Without the task that runs the calls, the caller's session ends.
        let _ = self.messages.send(Message::Reply(reply, bytes));
    }

    /// Waits until a session with the peer is open, and returns at once if one is. A session that is open may end before the
    /// next call, which then fails with [`PostError::NotOpen`].
    ///
    /// Without a session, this function waits without a time limit: `tokio::time::timeout` sets one. The sessions are
    /// opened by [`AsyncRpc::run`]. With [lazy](crate::ClusterBuilder::lazy) sessions, call
    /// [`connect`](Caller::connect) first. A member never has a session with itself. Dropping the future has no effect.
    ///
    /// # Errors
    ///
    /// Returns [`CallerError::Post`] if the broker has no peer with this number, and [`CallerError::Stopped`].
    pub async fn opened(&self, peer: PeerId) -> Result<(), CallerError> {
        let state = self.peers.get(usize::from(peer.0)).ok_or(PostError::NotOpen { peer })?;
        let mut is_open = state.is_open.subscribe();
        tokio::select! {
            biased;
            () = self.messages.closed() => Err(CallerError::Stopped),
            // The sender belongs to `peers`, so waiting does not fail.
            result = is_open.wait_for(|is_open| *is_open) => result.map(drop).map_err(|_| CallerError::Stopped),
        }
    }

    /// Asks the cluster for a session: see [`Broker::connect`](crate::Broker::connect).
    pub fn connect(&self, peer: PeerId) {
        let state = self.peers.get(usize::from(peer.0));
        if state.is_some_and(|state| !state.is_wanted.swap(true, Ordering::AcqRel)) {
            let _ = self.messages.send(Message::Connect(peer));
        }
    }
}

/// Cancels a call whose future is dropped.
struct CancelGuard<'a> {
    caller: &'a Caller,
    call: Option<(PeerId, u64)>,
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        if let Some((peer, number)) = self.call {
            let _ = self.caller.messages.send(Message::Cancel(peer, number));
        }
    }
}

impl AsyncRpc {
    /// Registers the calls of a broker with the runtime of the current task.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::System`] if the descriptor can't be registered.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub fn new(rpc: Rpc) -> Result<AsyncRpc> {
        let action = "registering the descriptor of a broker with tokio";
        let readiness = Readiness::new(rpc.fd()).map_err(|source| BrokerError::System { action, source })?;
        let (sender, messages) = mpsc::unbounded_channel();
        let peer = |_| CallerPeer {
            permits: Arc::new(Semaphore::new(MAX_WAITING_CALLS)),
            is_wanted: AtomicBool::new(false),
            is_open: watch::Sender::new(false),
        };
        let peers = (0..rpc.broker().peer_count()).map(peer).collect();
        let callers = Caller { messages: sender, next_number: Arc::default(), peers };
        let (posted, numbers, waiting) = Default::default();
        Ok(AsyncRpc { rpc, readiness, callers, messages, posted, numbers, waiting })
    }

    /// Returns a handle for calls.
    pub fn caller(&self) -> Caller {
        self.callers.clone()
    }

    /// Returns the [`Rpc`].
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Returns the [`Rpc`], for example to set up sessions.
    pub fn rpc_mut(&mut self) -> &mut Rpc {
        &mut self.rpc
    }

    /// Runs the calls and passes requests and events to the handler, until the device fails. The handler gets no
    /// [`RpcEvent::CallEnded`] of a [`Caller`]'s calls: the futures of [`Caller::call`] return the results.
    ///
    /// The handler must not block. It answers requests at once, or passes the [`Reply`] to a task, which answers with
    /// [`Caller::reply`]. To read bytes of the caller's arena, it posts a READ with [`Rpc::broker_mut`], and keeps the `Reply`
    /// until [`Event::Completed`](crate::Event::Completed): the manual's chapter about clusters has an example.
    ///
    /// Dropping the future ends no session and fails no RPC: the task can run the `AsyncRpc` again.
    ///
    /// # Errors
    ///
    /// Returns [`BrokerError::Verbs`] if the device failed. All calls have ended then, and later ones fail with
    /// [`CallerError::Stopped`].
    pub async fn run(&mut self, handler: impl FnMut(&mut Rpc, RpcEvent<'_>)) -> Result<()> {
        let result = self.run_until_failure(handler).await;
        self.stop();
        result
    }

    /// Leaves all sessions, and waits until they have ended, without blocking the thread: see
    /// [`Broker::leave`](crate::Broker::leave). Messages and replies that have a credit of their peer are posted first. The
    /// calls of all callers, now and later, fail with [`CallerError::Stopped`]. The manual's chapter about clusters compares
    /// the ways to leave.
    ///
    /// Returns `false` if the timeout expires first. The remaining sessions are closed then, and their peers may detect
    /// this only when a request fails. If the future is dropped after it was polled, the sessions end when the `AsyncRpc`
    /// is dropped.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Broker::leave`](crate::Broker::leave).
    pub async fn leave(&mut self, timeout: impl Into<Option<Duration>>) -> Result<bool> {
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Reply(..) = message {
                self.handle_message(message);
            }
        }
        self.stop();
        self.rpc.flush_all();
        leave(self.rpc.broker_mut(), &self.readiness, timeout.into()).await
    }

    async fn run_until_failure(&mut self, mut handler: impl FnMut(&mut Rpc, RpcEvent<'_>)) -> Result<()> {
        // The events of these sessions were delivered before, or the caller polled the `Rpc` itself.
        for (index, peer) in (0..).zip(&*self.callers.peers) {
            peer.set_open(self.rpc.is_current(PeerId(index)));
        }
        loop {
            while let Ok(message) = self.messages.try_recv() {
                self.handle_message(message);
            }
            self.post_waiting();
            let count = self.poll(&mut handler)?;
            self.post_waiting();
            // The count must not be tested first: arming also posts the requests.
            if self.rpc.arm()? || count > 0 {
                // A task that always has events must let others run.
                tokio::task::coop::consume_budget().await;
                continue;
            }
            tokio::select! {
                () = self.readiness.wait(self.rpc.timeout()) => {}
                // `callers` has a sender, too, so this is `None` only after `stop`.
                Some(message) = self.messages.recv() => self.handle_message(message),
            }
        }
    }

    /// Ends the calls of all callers, now and later.
    fn stop(&mut self) {
        self.callers.peers.iter().for_each(|peer| peer.permits.close());
        self.messages.close();
        while self.messages.try_recv().is_ok() {}
        self.waiting.clear();
        self.posted.clear();
        self.numbers.clear();
    }

    fn poll(&mut self, handler: &mut impl FnMut(&mut Rpc, RpcEvent<'_>)) -> Result<usize> {
        let AsyncRpc { rpc, posted, numbers, callers, .. } = self;
        let set_open = |peer: PeerId, is_open| {
            if let Some(state) = callers.peers.get(usize::from(peer.0)) {
                state.set_open(is_open);
            }
        };
        rpc.poll(|rpc, event| match event {
            RpcEvent::CallEnded { call, result } if posted.contains_key(&call) => {
                if let Some((number, reply)) = posted.remove(&call) {
                    numbers.remove(&number);
                    // The future may have been dropped.
                    let _ = reply.send(result.map(<[u8]>::to_vec).map_err(CallerError::from));
                }
            }
            event => {
                match event {
                    RpcEvent::Broker(Event::SessionOpened { peer, .. }) => set_open(peer, true),
                    RpcEvent::Broker(Event::SessionEnded { peer, .. }) => set_open(peer, false),
                    _ => {}
                }
                handler(rpc, event);
            }
        })
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Call(call) => self.waiting.entry(call.peer).or_default().push_back(call),
            Message::Cancel(peer, number) => {
                match (self.numbers.remove(&number), self.waiting.get_mut(&peer)) {
                    (Some(call), _) => {
                        self.posted.remove(&call);
                        self.rpc.cancel(call);
                    }
                    (None, Some(calls)) => calls.retain(|call| call.number != number),
                    (None, None) => {}
                }
            }
            Message::Reply(reply, bytes) => {
                // If the reply can't be posted, its `Reply` is dropped, and the peer's call fails.
                let _ = self.rpc.reply(reply, &bytes);
            }
            // The session's event tells the task the result.
            Message::Connect(peer) => {
                if let Some(state) = self.callers.peers.get(usize::from(peer.0)) {
                    state.is_wanted.store(false, Ordering::Release);
                }
                drop(self.rpc.broker_mut().connect(peer));
            }
        }
    }

    /// Posts the calls that wait, as far as there are credits.
    fn post_waiting(&mut self) {
        let AsyncRpc { rpc, posted, numbers, waiting, .. } = self;
        waiting.retain(|peer, calls| {
            while let Some(call) = calls.front() {
                let timeout = call.deadline.map(|at| at.saturating_duration_since(Instant::now()));
                match rpc.call(*peer, call.method, &call.bytes, timeout) {
                    Err(PostError::WouldBlock { .. } | PostError::TooManyCalls { .. }) => return true,
                    result => {
                        let Some(PendingCall { number, reply, .. }) = calls.pop_front() else { return false };
                        match result {
                            Ok(call) => {
                                posted.insert(call, (number, reply));
                                numbers.insert(number, call);
                            }
                            Err(error) => drop(reply.send(Err(error.into()))),
                        }
                    }
                }
            }
            false
        });
    }
}

impl Drop for AsyncRpc {
    fn drop(&mut self) {
        self.stop();
    }
}
