//! A client: one-sided GETs, and PUT and DELETE by RPC, many at a time.
//!
//! [`get`](crate::get) determines the READs of a GET and their order. The client posts them to the broker, which rings
//! the doorbell once for several of them, and passes their results back. A GET allocates no memory.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use adverb::cluster::{
    Broker, BrokerError, CallError, CallId, Event, PeerId, PostError, RemotePtr, Rpc, RpcEvent, TransferError,
};
use adverb::memory::{Buffer, Payload};

use crate::get::{Get, Rejection, Step};
use crate::index::{BUCKET_LEN, Geometry, Word, parse_bucket};
use crate::item::{self, MAX_KEY_LEN, Verify};
use crate::members::{MAX_WINDOW, MESSAGE_SIZE, NamedAddr, rpc_config};
use crate::protocol::{self, Description, Status};

/// The options of a [`Client`].
#[derive(Clone, Copy, Debug)]
pub struct ClientConfig {
    /// The maximum number of outstanding requests.
    pub window: usize,
    /// The way in which values are read.
    pub method: GetMethod,
    /// The number of words in the cache of the index, rounded up to a power of two. 0 disables it.
    pub cached_words: usize,
    /// The checks of items.
    pub verify: Verify,
    /// The maximum length of an item that is read without the server.
    pub max_item_len: usize,
    /// The time after which a call fails.
    pub call_timeout: Duration,
}

/// The way in which values are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GetMethod {
    /// With READs of the server's memory.
    OneSided,
    /// With calls.
    Rpc,
}

/// One-sided GETs, 64 outstanding requests, and a cache of 65,536 words.
impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            window: 64,
            method: GetMethod::OneSided,
            cached_words: 1 << 16,
            verify: Verify::Checksum,
            max_item_len: MESSAGE_SIZE as usize,
            call_timeout: Duration::from_secs(5),
        }
    }
}

/// The result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<'a> {
    /// The value of the key.
    Value(&'a [u8]),
    /// The key doesn't exist.
    Missing,
    /// The value was stored.
    Stored,
    /// The key was deleted.
    Deleted,
}

/// The error of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The client has no session with the server of the key.
    #[error("the server {server:?} of the key is not connected")]
    Unavailable {
        /// The server's name.
        server: String,
    },
    /// The session ended. A PUT or DELETE may have been executed.
    #[error("the session with the server {server:?} ended before the request completed")]
    SessionEnded {
        /// The server's name.
        server: String,
    },
    /// The server did not answer. A PUT or DELETE may have been executed.
    #[error("the server {server:?} did not answer before the deadline")]
    TimedOut {
        /// The server's name.
        server: String,
    },
    /// The server has no memory for the item.
    #[error("the memory of the server {server:?} is full")]
    Full {
        /// The server's name.
        server: String,
    },
    /// The server refused the request, or its answer is invalid.
    #[error("the server {server:?} refused the request, or its answer is invalid")]
    Refused {
        /// The server's name.
        server: String,
    },
    /// The key or the value is too long.
    #[error("a key and its value together have at most {max} bytes")]
    TooLong {
        /// The maximum length.
        max: usize,
    },
    /// The maximum number of requests is outstanding.
    #[error("{window} requests are outstanding already")]
    WindowFull {
        /// The maximum number.
        window: usize,
    },
    /// The device failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

impl KvError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            KvError::Unavailable { .. } => Some(
                "start the server; keys of other servers are available, and its part of the cache is empty after a restart"
                    .into(),
            ),
            KvError::Full { .. } => Some("start the server with more memory".into()),
            KvError::WindowFull { .. } => Some("poll until a request has ended".into()),
            KvError::Broker(error) => error.hint(),
            _ => None,
        }
    }
}

/// The numbers of READs, and of those whose items were not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClientStats {
    /// READs of buckets.
    pub bucket_reads: u64,
    /// READs of items.
    pub item_reads: u64,
    /// GETs that used a cached word.
    pub cached: u64,
    /// Items whose lengths or checksum did not match.
    pub torn: u64,
    /// Items that were replaced or deleted.
    pub retired: u64,
    /// Items whose memory had been reused for another key.
    pub reused: u64,
    /// Items of other keys with the same tag.
    pub same_tag: u64,
    /// One-sided GETs that were continued by RPC.
    pub fallbacks: u64,
}

/// A client, for one thread.
#[derive(Debug)]
pub struct Client {
    rpc: Rpc,
    state: State,
}

#[derive(Debug)]
struct State {
    config: ClientConfig,
    servers: Vec<ServerState>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// The slots whose READs are outstanding, by server. The READs of a peer complete in order.
    reads: Vec<VecDeque<usize>>,
    calls: HashMap<CallId, usize>,
    /// The steps to retry, because the maximum number of requests or calls was outstanding.
    blocked: VecDeque<(usize, Step)>,
    cache: Vec<CachedWord>,
    stats: ClientStats,
    request: Vec<u8>,
}

#[derive(Debug)]
struct ServerState {
    name: String,
    peer: PeerId,
    phase: ServerPhase,
}

#[derive(Debug)]
enum ServerPhase {
    Disconnected,
    /// DESCRIBE was not sent yet, or must be sent again, because it failed.
    Connected {
        epoch: u64,
    },
    Describing {
        epoch: u64,
        call: CallId,
    },
    Ready {
        epoch: u64,
        geometry: Geometry,
        shards: Vec<RemotePtr>,
    },
}

#[derive(Debug)]
struct Slot {
    tag: u64,
    server: usize,
    operation: Operation,
    key: Vec<u8>,
    /// The value of a PUT.
    value: Vec<u8>,
    /// The registered memory for READs of buckets. The broker has it while such a READ is outstanding.
    bucket_buffer: Option<Buffer>,
    /// The registered memory for READs of items. The broker has it while such a READ is outstanding.
    item_buffer: Option<Buffer>,
}

#[derive(Debug)]
enum Operation {
    Get(Get),
    /// A GET by RPC.
    CallGet,
    Put,
    Delete,
}

#[derive(Clone, Copy, Default, Debug)]
struct CachedWord {
    hash: u64,
    epoch: u64,
    word: Word,
}

impl Client {
    /// Creates a client, for one thread. `servers` are the first members of the cluster.
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Broker`] if no memory can be registered.
    pub fn new(broker: Broker, servers: &[NamedAddr], config: ClientConfig) -> Result<Client, KvError> {
        let config = ClientConfig { window: config.window.clamp(1, MAX_WINDOW), ..config };
        let domain = broker.protection_domain().clone();
        let new_slot = |_| {
            Ok(Slot {
                tag: 0,
                server: 0,
                operation: Operation::CallGet,
                key: Vec::new(),
                value: Vec::new(),
                bucket_buffer: Some(domain.allocate_buffer(BUCKET_LEN).map_err(BrokerError::from)?),
                item_buffer: Some(domain.allocate_buffer(config.max_item_len).map_err(BrokerError::from)?),
            })
        };
        let slots = (0..config.window).map(new_slot).collect::<Result<Vec<_>, KvError>>()?;
        let new_server = |(index, server): (usize, &NamedAddr)| ServerState {
            name: server.name.clone(),
            peer: PeerId(index as u16),
            phase: ServerPhase::Disconnected,
        };
        let cache_len = if config.cached_words == 0 { 0 } else { config.cached_words.next_power_of_two() };
        let state = State {
            config,
            servers: servers.iter().enumerate().map(new_server).collect(),
            free: (0..slots.len()).rev().collect(),
            reads: servers.iter().map(|_| VecDeque::with_capacity(config.window)).collect(),
            calls: HashMap::with_capacity(2 * config.window),
            blocked: VecDeque::with_capacity(config.window),
            cache: vec![CachedWord::default(); cache_len],
            stats: ClientStats::default(),
            request: Vec::new(),
            slots,
        };
        Ok(Client { rpc: Rpc::new(broker, rpc_config())?, state })
    }

    /// Returns the numbers of READs.
    pub fn stats(&self) -> &ClientStats {
        &self.state.stats
    }

    /// Returns the number of requests that have not ended.
    pub fn outstanding_count(&self) -> usize {
        self.state.slots.len() - self.state.free.len()
    }

    /// Returns the index of the server that has a key.
    pub fn server_of(&self, key: &[u8]) -> usize {
        self.state.server_of(key)
    }

    /// Whether requests to a server can be started.
    pub fn is_available(&self, server: usize) -> bool {
        matches!(self.state.servers[server].phase, ServerPhase::Ready { .. })
    }

    /// Waits until all servers are available, or returns `false` after the timeout. No request may be outstanding.
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Broker`] if the device failed.
    pub fn wait_available(&mut self, timeout: Duration) -> Result<bool, KvError> {
        let deadline = Instant::now() + timeout;
        for server in 0..self.state.servers.len() {
            if !self.wait_for_server(server, deadline.saturating_duration_since(Instant::now()))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until a server is available, or returns `false` after the timeout. No request may be outstanding.
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Broker`] if the device failed.
    pub fn wait_for_server(&mut self, server: usize, timeout: Duration) -> Result<bool, KvError> {
        let deadline = Instant::now() + timeout;
        while !self.is_available(server) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.wait(left)?;
            self.poll(|_, _| {})?;
        }
        Ok(true)
    }

    /// Starts a GET. `tag` identifies it in [`poll`](Client::poll).
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Unavailable`] if the key's server is not connected, [`KvError::WindowFull`] if the maximum
    /// number of requests is outstanding, and [`KvError::TooLong`] if the key is too long.
    pub fn get(&mut self, key: &[u8], tag: u64) -> Result<(), KvError> {
        let Client { rpc, state } = self;
        let (server, epoch, geometry) = state.ready_server(key)?;
        let (operation, step) = match state.config.method {
            GetMethod::Rpc => (Operation::CallGet, Step::Call),
            GetMethod::OneSided => {
                let placement = geometry.place(key);
                let cached = state.cached_word(placement.hash, epoch);
                state.stats.cached += u64::from(cached.is_some());
                let (get, step) = Get::new(placement, cached);
                (Operation::Get(get), step)
            }
        };
        state.start(rpc, server, tag, operation, key, b"", step)
    }

    /// Starts a PUT.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get`](Client::get); the value can be too long, too.
    pub fn put(&mut self, key: &[u8], value: &[u8], tag: u64) -> Result<(), KvError> {
        let (server, ..) = self.state.ready_server(key)?;
        self.state.start(&mut self.rpc, server, tag, Operation::Put, key, value, Step::Call)
    }

    /// Starts a DELETE.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`get`](Client::get).
    pub fn delete(&mut self, key: &[u8], tag: u64) -> Result<(), KvError> {
        let (server, ..) = self.state.ready_server(key)?;
        self.state.start(&mut self.rpc, server, tag, Operation::Delete, key, b"", Step::Call)
    }

    /// Processes completions, and passes the tag and the result of each ended request to the handler.
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Broker`] if the device failed.
    pub fn poll(
        &mut self,
        mut handler: impl FnMut(u64, Result<Outcome<'_>, KvError>),
    ) -> Result<(), KvError> {
        let Client { rpc, state } = self;
        rpc.poll(|rpc, event| state.handle_event(rpc, event, &mut handler))?;
        state.retry_blocked(rpc, &mut handler);
        state.describe_servers(rpc);
        Ok(())
    }

    /// Posts the waiting requests, and waits until [`poll`](Client::poll) has results. Returns `false` if the timeout expires
    /// first.
    ///
    /// # Errors
    ///
    /// Returns [`KvError::Broker`] if the device failed.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, KvError> {
        Ok(self.rpc.wait(timeout)?)
    }

    /// Returns the value of a key. No other request may be outstanding.
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub fn get_blocking(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.get(key, 0)?;
        self.finish_one()
    }

    /// Stores a value. No other request may be outstanding.
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub fn put_blocking(&mut self, key: &[u8], value: &[u8]) -> Result<(), KvError> {
        self.put(key, value, 0)?;
        self.finish_one().map(|_| ())
    }

    /// Deletes a key. No other request may be outstanding.
    ///
    /// # Errors
    ///
    /// Returns the error of the request.
    pub fn delete_blocking(&mut self, key: &[u8]) -> Result<(), KvError> {
        self.delete(key, 0)?;
        self.finish_one().map(|_| ())
    }

    fn finish_one(&mut self) -> Result<Option<Vec<u8>>, KvError> {
        let mut ended = None;
        while ended.is_none() {
            self.wait(Duration::MAX)?;
            self.poll(|_, result| {
                ended = Some(result.map(|outcome| match outcome {
                    Outcome::Value(value) => Some(value.to_vec()),
                    _ => None,
                }));
            })?;
        }
        ended.unwrap_or(Ok(None))
    }
}

/// A function that receives the tag and the result of each ended request.
trait Handler: FnMut(u64, Result<Outcome<'_>, KvError>) {}
impl<F: FnMut(u64, Result<Outcome<'_>, KvError>)> Handler for F {}

impl State {
    fn server_of(&self, key: &[u8]) -> usize {
        Geometry { servers: self.servers.len(), shards: 1, buckets: 1 }.place(key).server
    }

    fn ready_server(&self, key: &[u8]) -> Result<(usize, u64, Geometry), KvError> {
        let server = self.server_of(key);
        match &self.servers[server].phase {
            ServerPhase::Ready { epoch, geometry, .. } => Ok((server, *epoch, *geometry)),
            _ => Err(KvError::Unavailable { server: self.servers[server].name.clone() }),
        }
    }

    fn cached_word(&self, hash: u64, epoch: u64) -> Option<Word> {
        let cached = self.cache.get(hash as usize & self.cache.len().wrapping_sub(1))?;
        (cached.hash == hash && cached.epoch == epoch && !cached.word.is_empty()).then_some(cached.word)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    fn start(
        &mut self,
        rpc: &mut Rpc,
        server: usize,
        tag: u64,
        operation: Operation,
        key: &[u8],
        value: &[u8],
        step: Step,
    ) -> Result<(), KvError> {
        let max = rpc.max_data_len() - 2;
        if key.len() > MAX_KEY_LEN || key.len() + value.len() > max {
            return Err(KvError::TooLong { max });
        }
        let window_full = KvError::WindowFull { window: self.slots.len() };
        let index = self.free.pop().ok_or(window_full)?;
        let slot = &mut self.slots[index];
        (slot.tag, slot.server, slot.operation) = (tag, server, operation);
        slot.key.clear();
        slot.key.extend_from_slice(key);
        slot.value.clear();
        slot.value.extend_from_slice(value);
        self.execute(rpc, index, step).inspect_err(|_| self.free.push(index))
    }

    /// Posts the READ or call of a step.
    fn execute(&mut self, rpc: &mut Rpc, index: usize, step: Step) -> Result<(), KvError> {
        let slot = &mut self.slots[index];
        let server = &self.servers[slot.server];
        let unavailable = || KvError::Unavailable { server: server.name.clone() };
        let ServerPhase::Ready { epoch, shards, .. } = &server.phase else { return Err(unavailable()) };
        let posted = match (step, &slot.operation) {
            (Step::ReadBucket(bucket), Operation::Get(get)) => {
                let start = (bucket * BUCKET_LEN) as u64;
                // A server that restarted during the GET may have fewer shards or buckets.
                let shard = shards.get(get.placement().shard);
                let ptr = shard.and_then(|shard| shard.part(start..start + BUCKET_LEN as u64));
                let ptr = ptr.ok_or_else(unavailable)?;
                self.stats.bucket_reads += 1;
                post_read(rpc, server.peer, &mut slot.bucket_buffer, ptr)
            }
            (Step::ReadItem(word), Operation::Get(_)) if word.len() <= self.config.max_item_len as u64 => {
                let RemotePtr { member, .. } = shards[0];
                let (segment, offset, len) = (word.segment(), word.offset(), word.len());
                let ptr = RemotePtr { member, segment, epoch: *epoch, offset, len };
                if let Some(buffer) = &mut slot.item_buffer {
                    buffer.set_range(0..len as usize).map_err(|_| unavailable())?;
                }
                self.stats.item_reads += 1;
                post_read(rpc, server.peer, &mut slot.item_buffer, ptr)
            }
            _ => {
                let method = match slot.operation {
                    Operation::Get(_) | Operation::CallGet => protocol::GET,
                    Operation::Put => protocol::PUT,
                    Operation::Delete => protocol::DELETE,
                };
                protocol::encode_request(&mut self.request, &slot.key, &slot.value);
                let timeout = Some(self.config.call_timeout);
                match rpc.call(server.peer, method, &self.request, timeout) {
                    Ok(call) => {
                        if let Operation::Get(_) = slot.operation {
                            self.stats.fallbacks += 1;
                        }
                        self.calls.insert(call, index);
                        return Ok(());
                    }
                    Err(error) => Err(TransferError::Post(error)),
                }
            }
        };
        match posted {
            Ok(()) => self.reads[slot.server].push_back(index),
            Err(TransferError::Post(PostError::WouldBlock { .. } | PostError::TooManyCalls { .. })) => {
                self.blocked.push_back((index, step));
            }
            Err(_) => return Err(unavailable()),
        }
        Ok(())
    }

    fn handle_event(&mut self, rpc: &mut Rpc, event: RpcEvent<'_>, handler: &mut impl Handler) {
        match event {
            RpcEvent::Broker(Event::Completed { peer, result, mut payloads, .. }) => {
                let Some(reads) = self.reads.get_mut(usize::from(peer.0)) else { return };
                let Some(index) = reads.pop_front() else { return };
                let buffer = payloads.next().and_then(Payload::into_buffer);
                match result {
                    Ok(()) => self.handle_read(rpc, index, buffer, handler),
                    Err(_) => {
                        self.slots[index].return_buffer(buffer);
                        let server = self.server_name(index);
                        self.end(index, Err(KvError::SessionEnded { server }), handler);
                    }
                }
            }
            RpcEvent::CallEnded { call, result } => match self.calls.remove(&call) {
                Some(index) => self.handle_reply(index, result, handler),
                None => self.handle_description(call, result),
            },
            RpcEvent::Broker(Event::SessionOpened { peer, epoch }) => {
                if let Some(server) = self.servers.get_mut(usize::from(peer.0)) {
                    server.phase = ServerPhase::Connected { epoch };
                }
            }
            RpcEvent::Broker(Event::SessionEnded { peer, .. }) => {
                if let Some(server) = self.servers.get_mut(usize::from(peer.0)) {
                    server.phase = ServerPhase::Disconnected;
                }
            }
            _ => {}
        }
    }

    /// Processes the bytes of a READ.
    fn handle_read(
        &mut self,
        rpc: &mut Rpc,
        index: usize,
        buffer: Option<Buffer>,
        handler: &mut impl Handler,
    ) {
        let slot = &mut self.slots[index];
        let server = &self.servers[slot.server];
        let (Operation::Get(get), Some(buffer)) = (&mut slot.operation, buffer) else {
            let server = server.name.clone();
            return self.end(index, Err(KvError::SessionEnded { server }), handler);
        };
        let step = if slot.bucket_buffer.is_none() {
            let words = parse_bucket(&buffer).unwrap_or_default();
            slot.bucket_buffer = Some(buffer);
            get.handle_bucket(words)
        } else {
            let ServerPhase::Ready { epoch, geometry, .. } = &server.phase else {
                slot.item_buffer = Some(buffer);
                let server = server.name.clone();
                return self.end(index, Err(KvError::SessionEnded { server }), handler);
            };
            let item = item::parse(&buffer, self.config.verify);
            let (step, rejection) = get.handle_item(&slot.key, geometry, item);
            if let (Step::Found, Ok(item)) = (step, item) {
                let hash = get.placement().hash;
                let position = hash as usize & self.cache.len().wrapping_sub(1);
                if let (Some(cached), Some(word)) = (self.cache.get_mut(position), get.word()) {
                    *cached = CachedWord { hash, epoch: *epoch, word };
                }
                handler(slot.tag, Ok(Outcome::Value(item.value)));
                slot.item_buffer = Some(buffer);
                self.free.push(index);
                return;
            }
            match rejection {
                Some(Rejection::Torn) => self.stats.torn += 1,
                Some(Rejection::Retired) => self.stats.retired += 1,
                Some(Rejection::Reused) => self.stats.reused += 1,
                Some(Rejection::SameTag) => self.stats.same_tag += 1,
                None => {}
            }
            slot.item_buffer = Some(buffer);
            step
        };
        match step {
            Step::Missing => self.end(index, Ok(Outcome::Missing), handler),
            step => {
                if let Err(error) = self.execute(rpc, index, step) {
                    self.end(index, Err(error), handler);
                }
            }
        }
    }

    fn handle_reply(&mut self, index: usize, result: Result<&[u8], CallError>, handler: &mut impl Handler) {
        let slot = &self.slots[index];
        let server = || self.server_name(index);
        let result = match result.map(protocol::parse_reply) {
            Ok(Some((Status::Ok, value))) => Ok(match slot.operation {
                Operation::Get(_) | Operation::CallGet => Outcome::Value(value),
                Operation::Put => Outcome::Stored,
                Operation::Delete => Outcome::Deleted,
            }),
            Ok(Some((Status::Missing, _))) => Ok(Outcome::Missing),
            Ok(Some((Status::Full, _))) => Err(KvError::Full { server: server() }),
            Err(CallError::TimedOut { .. }) => Err(KvError::TimedOut { server: server() }),
            Err(CallError::SessionEnded { .. }) => Err(KvError::SessionEnded { server: server() }),
            _ => Err(KvError::Refused { server: server() }),
        };
        self.end(index, result, handler);
    }

    fn end(&mut self, index: usize, result: Result<Outcome<'_>, KvError>, handler: &mut impl Handler) {
        handler(self.slots[index].tag, result);
        self.free.push(index);
    }

    fn server_name(&self, index: usize) -> String {
        self.servers[self.slots[index].server].name.clone()
    }

    fn retry_blocked(&mut self, rpc: &mut Rpc, handler: &mut impl Handler) {
        for _ in 0..self.blocked.len() {
            let Some((index, step)) = self.blocked.pop_front() else { return };
            if let Err(error) = self.execute(rpc, index, step) {
                self.end(index, Err(error), handler);
            }
        }
    }

    /// Asks servers whose sessions were opened for the locations of their indexes.
    fn describe_servers(&mut self, rpc: &mut Rpc) {
        for server in &mut self.servers {
            let ServerPhase::Connected { epoch } = server.phase else { continue };
            // If the call can't be sent, the next poll tries again.
            let called = rpc.call(server.peer, protocol::DESCRIBE, b"", Some(self.config.call_timeout));
            if let Ok(call) = called {
                server.phase = ServerPhase::Describing { epoch, call };
            }
        }
    }

    fn handle_description(&mut self, call: CallId, result: Result<&[u8], CallError>) {
        let servers = self.servers.len();
        let Some(server) = self.servers.get_mut(usize::from(call.peer().0)) else { return };
        let ServerPhase::Describing { epoch, call: described } = server.phase else { return };
        if described != call {
            return;
        }
        let description =
            result.ok().and_then(protocol::parse_reply).and_then(|(_, data)| Description::parse(data));
        server.phase = match description {
            Some(Description { buckets, shards }) => {
                let geometry = Geometry { servers, shards: shards.len(), buckets: buckets as usize };
                ServerPhase::Ready { epoch, geometry, shards }
            }
            // The next poll asks again, until the session ends.
            None => ServerPhase::Connected { epoch },
        };
    }
}

impl Slot {
    /// Takes the buffer of a READ back.
    fn return_buffer(&mut self, buffer: Option<Buffer>) {
        let place =
            if self.bucket_buffer.is_none() { &mut self.bucket_buffer } else { &mut self.item_buffer };
        *place = buffer;
    }
}

fn post_read(
    rpc: &mut Rpc,
    peer: PeerId,
    buffer: &mut Option<Buffer>,
    ptr: RemotePtr,
) -> Result<(), TransferError> {
    // A device that failed may have lost the buffer.
    let payload = buffer.take().ok_or(PostError::NotOpen { peer })?;
    match rpc.broker_mut().post_read(peer, payload, ptr) {
        Ok(_) => Ok(()),
        Err(refused) => {
            *buffer = refused.payload.into_buffer();
            Err(refused.error)
        }
    }
}
