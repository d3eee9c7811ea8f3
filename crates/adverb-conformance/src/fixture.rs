//! Test fixtures: a device, and pairs of connected queue pairs.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use adverb::memory::{Buffer, MemoryRegion, Payload, RegionSlice};
use adverb::verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, ConnectOptions, Device, PathMtu, Port,
    PortState, ProtectionDomain, QpState, QueuePair, RecvRequest, RequestId, SendRequest, Status, Traffic,
    Transport,
};
use anyhow::{Context, Result, ensure};

/// The deadline of a completion.
pub(crate) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(20);

/// The deadline of a completion of up to 1 GiB on a busy machine.
const LONG_COMPLETION_TIMEOUT: Duration = Duration::from_secs(120);

/// The time to wait for a completion or event that must not arrive.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(60);

/// The deadline of an unacknowledged message with injected packet loss.
const LOSSY_COMPLETION_TIMEOUT: Duration = Duration::from_millis(500);

/// The number of attempts of an operation whose packets may be lost. At a loss of 5 %, an operation of forty packets
/// fails in all attempts once in a million runs.
const ATTEMPTS: u32 = 100;

/// The injected packet loss in packets per million. A process has one network.
static LOSS: AtomicU32 = AtomicU32::new(0);

/// Whether packet loss is injected.
pub(crate) fn is_lossy() -> bool {
    LOSS.load(Ordering::Relaxed) > 0
}

/// The loss of an unacknowledged message while packet loss is injected, which is not a failure of the device.
#[derive(Debug)]
pub(crate) struct MessageLost;

impl fmt::Display for MessageLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an unacknowledged message did not arrive")
    }
}

impl std::error::Error for MessageLost {}

/// Whether the error is caused by injected packet loss.
pub(crate) fn is_message_loss(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<MessageLost>())
}

/// All access rights that a region can grant a peer.
pub(crate) const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC));

/// The access rights for WRITE and READ, also on devices without atomics.
pub(crate) const READ_WRITE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// The queue key of all UD queue pairs.
pub(crate) const QKEY: u32 = 0x1234_5678;

/// The device under test, opened for one test.
pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) port: Port,
    /// The injected packet loss in packets per million.
    pub(crate) loss: u32,
}

impl Fixture {
    pub(crate) fn new(device: &str, loss: u32) -> Result<Fixture> {
        LOSS.store(loss, Ordering::Relaxed);
        let device = Device::open(device)?;
        let port = device.ports()?.into_iter().find(|port| port.state == PortState::Active);
        Ok(Fixture { device, port: port.context("no port of the device is active")?, loss })
    }

    /// Returns the default connection options of a test. With injected packet loss, the ACK timeout is shorter and the
    /// number of retransmissions larger.
    fn connect_options(&self) -> ConnectOptions {
        let options = ConnectOptions::new();
        if self.loss == 0 { options } else { options.ack_timeout(13).retry_count(7) }
    }

    /// Returns a builder of two queue pairs.
    pub(crate) fn pair(&self, transport: Transport) -> PairBuilder {
        PairBuilder {
            device: self.device.clone(),
            port: self.port.number,
            transport,
            depth: (64, 64),
            segments: (1, 1),
            inline: 0,
            events: false,
            extended: false,
            address: None,
            gid_index: None,
            right_access: None,
            pkey_indices: (0, 0),
            options: self.connect_options(),
            traffic: Traffic::new(),
        }
    }

    /// Repeats an attempt that failed because an unacknowledged message was lost. Without injected packet loss, there
    /// is only one attempt.
    pub(crate) fn retry_after_loss<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 1..ATTEMPTS {
            match attempt() {
                Err(error) if self.loss > 0 && is_message_loss(&error) => {}
                outcome => return outcome,
            }
        }
        attempt().map_err(|error| anyhow::anyhow!("{error:#}, in {ATTEMPTS} attempts"))
    }

    /// Returns `count`, or a fiftieth of it with injected packet loss, because retransmissions take time.
    pub(crate) fn scaled_count(&self, count: u64) -> u64 {
        if self.loss > 0 { count / 50 } else { count }
    }

    /// Returns the maximum message length. With injected packet loss, it is limited so that a message doesn't take
    /// minutes.
    pub(crate) fn max_message_len(&self) -> usize {
        let max_message_len = self.port.max_message_size as usize;
        if self.loss > 0 { max_message_len.min(8 << 20) } else { max_message_len }
    }

    /// Returns two queue pairs with a reliable connection and default options.
    pub(crate) fn rc(&self) -> Result<Pair> {
        self.pair(Transport::Rc).connect()
    }

    /// Returns the number of payload bytes of a packet.
    pub(crate) fn mtu(&self) -> usize {
        self.port.active_mtu.bytes().into()
    }

    /// Returns the maximum length of a datagram and the header before it.
    pub(crate) fn max_datagram_len(&self) -> usize {
        40 + self.mtu()
    }

    /// Returns lengths at which packets, pages or driver behavior change.
    pub(crate) fn sizes(&self) -> Vec<usize> {
        let mtu = self.mtu();
        let sizes = vec![0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 64 << 10, 1 << 20];
        sizes.into_iter().filter(|size| *size <= self.port.max_message_size as usize).collect()
    }
}

#[derive(Clone)]
pub(crate) struct PairBuilder {
    device: Device,
    port: u8,
    transport: Transport,
    depth: (u32, u32),
    segments: (u32, u32),
    inline: u32,
    events: bool,
    extended: bool,
    address: Option<IpAddr>,
    gid_index: Option<u8>,
    right_access: Option<Access>,
    /// The P_Key index of the left side, and that of the right side.
    pkey_indices: (u16, u16),
    options: ConnectOptions,
    traffic: Traffic,
}

impl PairBuilder {
    pub(crate) fn depth(mut self, send: u32, recv: u32) -> PairBuilder {
        self.depth = (send, recv);
        self
    }

    pub(crate) fn max_sge(mut self, send: u32, recv: u32) -> PairBuilder {
        self.segments = (send, recv);
        self
    }

    pub(crate) fn max_inline_data(mut self, bytes: u32) -> PairBuilder {
        self.inline = bytes;
        self
    }

    pub(crate) fn events(mut self) -> PairBuilder {
        self.events = true;
        self
    }

    /// Uses an extended completion queue, from which completions are taken one by one.
    pub(crate) fn extended(mut self) -> PairBuilder {
        self.extended = true;
        self
    }

    pub(crate) fn address(mut self, address: IpAddr) -> PairBuilder {
        self.address = Some(address);
        self
    }

    pub(crate) fn gid_index(mut self, index: u8) -> PairBuilder {
        self.gid_index = Some(index);
        self
    }

    /// Sets the access rights of the left side through the right queue pair.
    pub(crate) fn right_access(mut self, access: Access) -> PairBuilder {
        self.right_access = Some(access);
        self
    }

    pub(crate) fn options(mut self, options: ConnectOptions) -> PairBuilder {
        self.options = options;
        self
    }

    pub(crate) fn mtu(self, mtu: PathMtu) -> PairBuilder {
        let options = self.options.mtu(mtu);
        self.options(options)
    }

    /// Sets the traffic settings of both queue pairs.
    pub(crate) fn traffic(mut self, traffic: Traffic) -> PairBuilder {
        self.traffic = traffic;
        self
    }

    /// Sets the partitions of the left and the right side, by their indexes in the port's table.
    pub(crate) fn pkey_indices(mut self, left: u16, right: u16) -> PairBuilder {
        self.pkey_indices = (left, right);
        self
    }

    /// Sets few retries and a short timeout, for a peer that doesn't respond.
    pub(crate) fn few_retries(self) -> PairBuilder {
        let options = self.options.ack_timeout(12).retry_count(1);
        self.options(options)
    }

    /// Sets few RNR retries, for a peer without receives.
    pub(crate) fn few_rnr_retries(self) -> PairBuilder {
        let options = self.options.rnr_retry(1).min_rnr_timer(1);
        self.options(options)
    }

    /// Creates both sides without connecting them.
    pub(crate) fn create(self) -> Result<Pair> {
        let left = self.side(None)?;
        let right = self.clone().pkey_indices(self.pkey_indices.1, 0).side(self.right_access)?;
        Ok(Pair { left, right, options: self.options })
    }

    /// Creates both sides, and connects them.
    pub(crate) fn connect(self) -> Result<Pair> {
        let pair = self.create()?;
        pair.connect()?;
        Ok(pair)
    }

    /// Creates one unconnected side, with its own protection domain and completion queue.
    pub(crate) fn side(&self, access: Option<Access>) -> Result<Side> {
        let domain = self.device.create_protection_domain()?;
        let cq = self.device.completion_queue(self.depth.0 + self.depth.1);
        let cq = if self.events { cq.events() } else { cq };
        let cq = if self.extended { cq.extended() } else { cq }.create()?;
        self.side_of(&domain, &cq, access)
    }

    /// Creates one unconnected side from these objects.
    pub(crate) fn side_of(
        &self,
        domain: &ProtectionDomain,
        cq: &CompletionQueue,
        access: Option<Access>,
    ) -> Result<Side> {
        let mut builder = domain
            .queue_pair(self.transport)
            .completion_queue(cq)
            .port(self.port)
            .depth(self.depth.0, self.depth.1)
            .max_sge(self.segments.0, self.segments.1)
            .max_inline_data(self.inline)
            .traffic(self.traffic)
            .pkey_index(self.pkey_indices.0)
            .qkey(QKEY);
        if let Some(address) = self.address {
            builder = builder.local_addr(address);
        }
        if let Some(index) = self.gid_index {
            builder = builder.gid_index(index);
        }
        if let Some(access) = access {
            builder = builder.access(access);
        }
        Ok(Side { qp: builder.create()?, cq: cq.clone(), domain: domain.clone() })
    }
}

/// Two queue pairs that are connected to each other.
pub(crate) struct Pair {
    pub(crate) left: Side,
    pub(crate) right: Side,
    options: ConnectOptions,
}

impl Pair {
    /// Makes both sides ready: connected to each other or, for datagrams, ready for any peer.
    pub(crate) fn connect(&self) -> Result<()> {
        if self.left.qp.transport() == Transport::Ud {
            self.left.qp.move_to_rts()?;
            self.right.qp.move_to_rts()?;
            return Ok(());
        }
        self.left.qp.connect_with(&self.right.qp.endpoint(), &self.options)?;
        self.right.qp.connect_with(&self.left.qp.endpoint(), &self.options)?;
        Ok(())
    }

    /// Sends a message from left to right, and returns the received message. A message that may be lost is sent
    /// repeatedly.
    pub(crate) fn deliver(&self, payload: impl Into<Payload>) -> Result<Buffer> {
        let mut payload = payload.into();
        let receiving = self.right.post_receive(payload.len())?;
        for attempt in 0.. {
            let sent = self.left.completed(SendRequest::send(payload))?;
            match self.right.wait(receiving) {
                Err(error) if is_message_loss(&error) && attempt < 20 => payload = sent.into_payload(),
                Err(error) => return Err(error),
                Ok(received) => {
                    if attempt > 0 {
                        // A duplicate that is only late must find no receive, and especially not that of another
                        // message.
                        std::thread::sleep(QUIET_PERIOD);
                    }
                    return Ok(received.into_message()?);
                }
            }
        }
        unreachable!("the loop returns")
    }

    /// Checks that both directions work.
    pub(crate) fn ping(&self) -> Result<()> {
        for (from, to) in [(&self.left, &self.right), (&self.right, &self.left)] {
            let receiving = to.post_receive(100)?;
            from.execute(SendRequest::send(from.filled(100, 77)?))
                .context("a message over the connection")?;
            check(&to.wait(receiving)?.into_message()?, 77)?;
        }
        Ok(())
    }
}

/// A queue pair with its domain and completion queue.
pub(crate) struct Side {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
}

impl Side {
    /// Returns a buffer of `len` zeros, which may be empty.
    pub(crate) fn buffer(&self, len: usize) -> Result<Buffer> {
        buffer(&self.domain, len)
    }

    /// Returns a buffer of bytes that [`check`] expects.
    pub(crate) fn filled(&self, len: usize, seed: u64) -> Result<Buffer> {
        let mut buffer = self.buffer(len)?;
        fill(&mut buffer, seed);
        Ok(buffer)
    }

    pub(crate) fn region(&self, len: usize, access: Access) -> Result<MemoryRegion> {
        Ok(self.domain.allocate_region(len, access)?)
    }

    pub(crate) fn post(&self, request: SendRequest) -> Result<RequestId> {
        Ok(self.qp.post_send(request).map_err(adverb::verbs::Error::from)?)
    }

    /// Posts a receive request.
    pub(crate) fn recv(&self, request: impl Into<RecvRequest>) -> Result<RequestId> {
        Ok(self.qp.post_recv(request).map_err(adverb::verbs::Error::from)?)
    }

    /// Posts a receive request with a buffer of this length.
    pub(crate) fn post_receive(&self, len: usize) -> Result<RequestId> {
        self.recv(self.buffer(len)?)
    }

    pub(crate) fn wait(&self, id: RequestId) -> Result<Completion> {
        match self.cq.wait(id, self.completion_timeout()) {
            Err(adverb::verbs::Error::TimedOut { .. }) if self.may_lose() => Err(MessageLost.into()),
            waited => Ok(waited?),
        }
    }

    /// Whether messages may be lost.
    pub(crate) fn may_lose(&self) -> bool {
        is_lossy() && self.qp.transport() != Transport::Rc
    }

    fn completion_timeout(&self) -> Duration {
        if self.may_lose() { LOSSY_COMPLETION_TIMEOUT } else { LONG_COMPLETION_TIMEOUT }
    }

    /// Takes up to `count` completions. Takes exactly `count` if no message may be lost.
    pub(crate) fn take_up_to(&self, count: usize) -> Result<Vec<Completion>> {
        if !self.may_lose() {
            return self.take(count);
        }
        let mut completions = Vec::with_capacity(count);
        while completions.len() < count
            && self.cq.poll_timeout(&mut completions, LOSSY_COMPLETION_TIMEOUT)? > 0
        {}
        ensure!(completions.len() <= count, "{} completions arrived instead of {count}", completions.len());
        Ok(completions)
    }

    /// Posts a send request, and waits for its completion with any status.
    pub(crate) fn run(&self, request: SendRequest) -> Result<Completion> {
        let id = self.post(request)?;
        self.wait(id)
    }

    /// Posts a send request and waits for its success.
    pub(crate) fn execute(&self, request: SendRequest) -> Result<()> {
        self.completed(request).map(drop)
    }

    /// Posts a send request, waits for its success, and returns its completion.
    pub(crate) fn completed(&self, request: SendRequest) -> Result<Completion> {
        let completion = self.run(request)?;
        completion.result()?;
        Ok(completion)
    }

    /// Posts a send request, and checks that it fails with this status.
    pub(crate) fn expect_failure(&self, request: SendRequest, expected: Status) -> Result<()> {
        expect("the request", &self.run(request)?, expected)
    }

    /// Checks that the queue pair has this state.
    pub(crate) fn expect_state(&self, expected: QpState) -> Result<()> {
        let state = self.qp.state()?;
        ensure!(state == expected, "the queue pair is in state {state}, not {expected}");
        Ok(())
    }

    /// Checks that a send request is rejected before it is posted, and is returned. Returns the reason.
    pub(crate) fn expect_rejected(&self, request: SendRequest) -> Result<adverb::verbs::Error> {
        let outstanding = self.qp.outstanding_send_count();
        check_rejected(self.qp.post_send(request), 1, outstanding, self.qp.outstanding_send_count())
    }

    /// Checks that a receive request is rejected before it is posted, and is returned. Returns the reason.
    pub(crate) fn expect_recv_rejected(
        &self,
        request: impl Into<RecvRequest>,
    ) -> Result<adverb::verbs::Error> {
        let outstanding = self.qp.outstanding_recv_count();
        check_rejected(self.qp.post_recv(request), 1, outstanding, self.qp.outstanding_recv_count())
    }

    /// Takes exactly `count` completions.
    pub(crate) fn take(&self, count: usize) -> Result<Vec<Completion>> {
        if !self.may_lose() {
            return take(&self.cq, count);
        }
        let completions = self.take_up_to(count)?;
        ensure!(completions.len() == count, MessageLost);
        Ok(completions)
    }

    /// Checks that no completion arrives.
    pub(crate) fn expect_no_completion(&self) -> Result<()> {
        let mut completions = Vec::new();
        self.cq.poll_timeout(&mut completions, QUIET_PERIOD)?;
        match completions.first() {
            Some(completion) => anyhow::bail!("unexpected completion: {completion}"),
            None => Ok(()),
        }
    }
}

/// Checks that requests were rejected, that all were returned, and that none was posted. Returns the reason.
pub(crate) fn check_rejected<T, R>(
    posted: Result<T, adverb::verbs::PostError<R>>,
    count: usize,
    before: u32,
    after: u32,
) -> Result<adverb::verbs::Error> {
    let rejected = posted.err().context("the request was posted")?;
    ensure!(
        rejected.requests.len() == count,
        "the error returned {} of {count} requests",
        rejected.requests.len()
    );
    ensure!(before == after, "{before} requests were outstanding before, and {after} afterwards");
    Ok(rejected.error)
}

/// Returns a buffer of `len` zeros, which may be empty.
pub(crate) fn buffer(domain: &ProtectionDomain, len: usize) -> Result<Buffer> {
    let mut buffer = domain.allocate_buffer(len.max(1))?;
    buffer.set_range(0..len)?;
    Ok(buffer)
}

/// Checks that each message is complete and in the order of the seeds. Returns the number of messages.
pub(crate) fn check_in_order(
    messages: impl IntoIterator<Item = Buffer>,
    seeds: std::ops::Range<u64>,
) -> Result<usize> {
    let (mut next, mut count) = (seeds.start, 0);
    for message in messages {
        let seed = (next..seeds.end).find(|seed| check(&message, *seed).is_ok());
        let Some(seed) = seed else {
            check(&message, next)?;
            anyhow::bail!("a message arrived that was not sent");
        };
        ensure!(is_lossy() || seed == next, "message {next} is missing");
        (next, count) = (seed + 1, count + 1);
    }
    let all = (seeds.end - seeds.start) as usize;
    // The loss rate is checked by tests with enough messages.
    ensure!(if is_lossy() { 2 * count > all } else { count == all }, "{count} of {all} messages arrived");
    Ok(count)
}

/// Checks that an attempt, which returns its duration, takes less than this time. It has five attempts, because another
/// process may delay some of them.
pub(crate) fn check_duration(limit: Duration, attempt: impl Fn() -> Result<Duration>) -> Result<()> {
    let mut took = attempt()?;
    for _ in 1..5 {
        if took < limit {
            break;
        }
        took = attempt()?;
    }
    ensure!(took < limit, "it took {took:?}, and at least {limit:?} in five attempts");
    Ok(())
}

/// Takes exactly `count` completions.
pub(crate) fn take(cq: &CompletionQueue, count: usize) -> Result<Vec<Completion>> {
    let deadline = Instant::now() + COMPLETION_TIMEOUT;
    let mut completions = Vec::with_capacity(count);
    while completions.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        let received = cq.poll_timeout(&mut completions, left)?;
        ensure!(received > 0, "only {} of {count} completions arrived", completions.len());
    }
    ensure!(completions.len() == count, "{} completions arrived instead of {count}", completions.len());
    Ok(completions)
}

/// Fills `bytes` with a pattern that depends on the seed and on the position.
pub(crate) fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// Returns the bytes that [`fill`] writes.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

/// Checks that these are the bytes that [`fill`] writes.
pub(crate) fn check(bytes: &[u8], seed: u64) -> Result<()> {
    check_equal(bytes, &pattern(bytes.len(), seed))
}

/// Checks that these are the expected bytes.
pub(crate) fn check_equal(bytes: &[u8], expected: &[u8]) -> Result<()> {
    ensure!(bytes.len() == expected.len(), "there are {} bytes, not {}", bytes.len(), expected.len());
    if let Some(at) = bytes.iter().zip(expected).position(|(byte, expected)| byte != expected) {
        anyhow::bail!("byte {at} of {} is {:#04x}, not {:#04x}", bytes.len(), bytes[at], expected[at]);
    }
    Ok(())
}

/// Returns a copy of bytes of a region.
pub(crate) fn read(region: &MemoryRegion, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    region.read(offset, &mut bytes)?;
    Ok(bytes)
}

/// Returns a slice of the whole region, for a request.
pub(crate) fn whole(region: &MemoryRegion) -> Result<RegionSlice> {
    Ok(region.slice(0..region.len())?)
}

pub(crate) fn status(completion: &Completion) -> Status {
    completion.outcome().as_ref().map_or_else(|failure| failure.status, |_| Status::Success)
}

/// Checks that a completion has this status.
pub(crate) fn expect(what: &str, completion: &Completion, expected: Status) -> Result<()> {
    let status = status(completion);
    let is_nak =
        matches!(expected, Status::RemoteAccess | Status::RemoteInvalidRequest | Status::RemoteOperation);
    // A responder sends the NAK once (vol. 1, 9.9.3), and the NAK may have been lost.
    ensure!(!(is_lossy() && is_nak && status == Status::RetryExceeded), MessageLost);
    ensure!(status == expected, "{what}: {status:?}, not {expected:?}");
    Ok(())
}

/// Returns the immediate data of a completion.
pub(crate) fn immediate(completion: &Completion) -> Result<Option<u32>> {
    Ok(match completion.result()?.operation {
        CompletedOperation::Recv { immediate, .. } => immediate,
        CompletedOperation::RecvWrite { immediate } => Some(immediate),
        _ => None,
    })
}

/// Returns the original value, which an atomic operation returned.
pub(crate) fn original(completion: Completion) -> Result<u64> {
    completion.result()?;
    let buffer = completion.into_buffer().context("the completion has no buffer")?;
    Ok(u64::from_ne_bytes(buffer[..].try_into()?))
}

/// A thread that is about to sleep.
pub(crate) struct Sleeper(PathBuf);

impl Sleeper {
    pub(crate) fn this_thread() -> Result<Sleeper> {
        let task = fs::read_link("/proc/thread-self").context("could not read /proc")?;
        Ok(Sleeper(Path::new("/proc").join(task).join("status")))
    }

    /// Waits until the thread sleeps. On a busy machine, a thread may start long after it was created.
    pub(crate) fn wait(&self) -> Result<()> {
        let start = Instant::now();
        let mut before = String::new();
        loop {
            // The state and the number of context switches. If a thread sleeps twice without a context switch in
            // between, it doesn't just wait for a lock for a moment.
            let status = fs::read_to_string(&self.0).context("the thread has ended")?;
            let lines =
                status.lines().filter(|line| line.starts_with("State:") || line.contains("ctxt_switches:"));
            let now: String = lines.collect();
            if now.contains("(sleeping)") && now == before {
                return Ok(());
            }
            ensure!(start.elapsed() < COMPLETION_TIMEOUT, "the thread never sleeps");
            before = now;
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
