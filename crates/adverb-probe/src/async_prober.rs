//! The prober for tokio.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adverb_verbs::Device;
use tokio::io::{Interest, unix::AsyncFd};

use crate::error::{ProbeError, Result};
use crate::prober::{Peer, ProbePath, Prober, ProberOptions, Strays};
use crate::session::{ProbeCounts, ProbeEvent, ProbeEventKind, ProbeResult};
use crate::ud_queue::{UdQueue, Waker};

/// A [`Prober`] for tasks of tokio. Its methods wait without blocking the thread, and it has no thread of its own, so a
/// runtime that shuts down just drops it.
///
/// All methods that wait are cancel-safe: no event is lost if a future is dropped before it completes.
///
/// On an in-memory [`Switch`](adverb_verbs::Switch), the round-trip time of the network is unknown: see
/// [`Responder`](crate::Responder).
///
/// ```
/// # #[cfg(feature = "soft")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::probe::{AsyncProber, Responder};
/// use adverb::verbs::SoftDevice;
///
/// let addrs = ["127.92.1.1", "127.92.1.2"];
/// # // Other processes that run this test have other addresses.
/// # let pid = std::process::id();
/// # let addrs = [1, 2].map(|host| format!("127.92.{}.{}", pid >> 6 & 255, (pid & 63) << 2 | host));
/// let [here, there] = addrs.map(|addr| SoftDevice::at_addr(addr.parse().unwrap()).open().unwrap());
/// let responder = Responder::start(&there)?;
///
/// let mut prober = AsyncProber::open(&here)?;
/// let peer = prober.connect(responder.local_addr()).await?;
/// let result = prober.probe(&peer).await?;
/// match result.figures() {
///     Some(figures) => println!("network: {:?}", figures.network_rtt()), // `None` without stamps of a NIC or the kernel
///     None => println!("{}", result.name()),
/// }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "soft"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
#[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
pub struct AsyncProber {
    prober: Prober,
    /// The registration of the queue's descriptor with tokio, and the descriptor's generation: each failure of the
    /// device and each reopening begins a new one.
    readiness: Option<(u64, AsyncFd<OwnedFd>)>,
}

/// The interval of attempts to send a probe.
const POST_RETRY_INTERVAL: Duration = Duration::from_millis(10);

impl ProberOptions {
    /// Creates a prober for tasks on the device that `open_device` opens. The prober calls the function again after the
    /// device has failed, in the task that waits, so the function should not block for long.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`open`](ProberOptions::open).
    #[cfg_attr(docsrs, doc(cfg(feature = "tokio")))]
    pub fn open_async(
        self,
        open_device: impl FnMut() -> adverb_verbs::Result<Device> + Send + 'static,
    ) -> Result<AsyncProber> {
        self.open(open_device).map(AsyncProber::from)
    }
}

impl From<Prober> for AsyncProber {
    fn from(prober: Prober) -> AsyncProber {
        AsyncProber { prober, readiness: None }
    }
}

impl AsyncProber {
    /// Creates a prober with the default options on an open device.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ProberOptions::open`].
    pub fn open(device: &Device) -> Result<AsyncProber> {
        Prober::open(device).map(AsyncProber::from)
    }

    /// Looks up a responder and waits for the answer, like [`Prober::connect`]. If the future is dropped, the answer is
    /// ignored.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Prober::connect`], and [`ProbeError::System`] if the process has too many open
    /// descriptors.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub async fn connect(&mut self, addr: SocketAddr) -> Result<Peer> {
        self.prober.begin_connect(addr);
        self.drive(Prober::poll_connect).await?
    }

    /// Adds a responder without waiting: see [`Prober::add`].
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Prober::add`].
    pub fn add(&mut self, addr: SocketAddr) -> Result<Peer> {
        self.prober.add(addr)
    }

    /// Whether the responder has been found.
    pub fn is_found(&self, peer: &Peer) -> bool {
        self.prober.is_found(peer)
    }

    /// Sends a probe, without waiting: see [`Prober::post`]. Its events are passed to the function of
    /// [`wait`](AsyncProber::wait).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Prober::post`].
    pub fn post(&mut self, peer: &Peer, path: ProbePath) -> Result<bool> {
        self.prober.post(peer, path)
    }

    /// Waits for events of probes, and calls `handle` with each of them. Returns their number, which is 0 if a
    /// [waker](AsyncProber::waker) stops the prober.
    ///
    /// If the future is dropped, the next call passes the events.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::System`] if the process has too many open descriptors.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub async fn wait(&mut self, mut handle: impl FnMut(Peer, ProbeEvent)) -> Result<usize> {
        let drive = self.drive(|prober| match prober.take_events(&mut handle) {
            0 if !prober.queue().is_stopped() => None,
            count => Some(count),
        });
        drive.await
    }

    /// Sends a probe and waits for its result.
    ///
    /// Events of other probes are dropped: don't mix this method with [`post`](AsyncProber::post). If the future is
    /// dropped, the probe is still counted when its answers arrive or it times out.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`wait`](AsyncProber::wait) and [`post`](AsyncProber::post), and
    /// [`ProbeError::TimedOut`] or [`ProbeError::Stopped`] if the probe can't be sent.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub async fn probe(&mut self, peer: &Peer) -> Result<ProbeResult> {
        self.probe_on(peer, ProbePath::default()).await
    }

    /// Sends a probe like [`probe`](AsyncProber::probe), on a path and in a class.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`probe`](AsyncProber::probe).
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime whose I/O and time are enabled.
    pub async fn probe_on(&mut self, peer: &Peer, path: ProbePath) -> Result<ProbeResult> {
        let limit = self.prober.probe_timeout();
        let started = Instant::now();
        let sequence = loop {
            if let Some(sequence) = self.prober.post_probe(peer, path)? {
                break sequence;
            }
            if started.elapsed() >= limit || self.prober.queue().is_stopped() {
                return Err(self.prober.not_sent());
            }
            if let Ok(waited) = tokio::time::timeout(POST_RETRY_INTERVAL, self.wait(|_, _| {})).await {
                waited?;
            }
        };
        let mut result = None;
        let posted = Instant::now();
        while result.is_none() {
            let left = limit.saturating_sub(posted.elapsed());
            if left.is_zero() || self.prober.queue().is_stopped() {
                // Neither the probe nor the lookups of the responder were answered.
                self.prober.finish(peer);
            }
            let wait = self.wait(|event_peer, event| {
                if let ProbeEventKind::Finished(finished) = event.kind
                    && event_peer == *peer
                    && event.probe.sequence == sequence
                {
                    result = Some(finished);
                }
            });
            if let Ok(waited) = tokio::time::timeout(left, wait).await {
                waited?;
            }
        }
        result.ok_or(ProbeError::TimedOut { action: "waiting for a probe", timeout: limit })
    }

    /// Ends the probes of a responder: see [`Prober::finish`].
    pub fn finish(&mut self, peer: &Peer) {
        self.prober.finish(peer);
    }

    /// Returns the counts of a responder's probes.
    pub fn counts(&self, peer: &Peer) -> ProbeCounts {
        self.prober.counts(peer)
    }

    /// Returns the numbers of datagrams that belong to no probe.
    pub fn strays(&self) -> Strays {
        self.prober.strays()
    }

    /// Returns a handle that stops a waiting task from any thread.
    pub fn waker(&self) -> Waker {
        self.prober.waker()
    }

    /// Returns the queue.
    pub fn queue(&self) -> &UdQueue {
        self.prober.queue()
    }

    /// Returns the prober for threads. Its outstanding probes stay outstanding.
    pub fn into_blocking(self) -> Prober {
        self.prober
    }

    /// Handles events until `poll` returns a value. All changes of the state are between two waits, so the future can be
    /// dropped at any time.
    async fn drive<T>(&mut self, mut poll: impl FnMut(&mut Prober) -> Option<T>) -> Result<T> {
        loop {
            self.prober.poll_events();
            if let Some(value) = poll(&mut self.prober) {
                return Ok(value);
            }
            if self.prober.prepare_sleep() {
                // A prober with many answers doesn't keep other tasks from running.
                tokio::task::consume_budget().await;
                continue;
            }
            let due =
                self.prober.next_due(Instant::now()).into_iter().chain(self.prober.queue().next_due()).min();
            let readiness = self.readiness()?;
            match due {
                Some(due) => _ = tokio::time::timeout_at(due.into(), ready(readiness)).await,
                None => ready(readiness).await,
            }
            self.prober.handle_readiness();
        }
    }

    /// Registers the queue's descriptor with tokio, unless it is registered.
    fn readiness(&mut self) -> Result<&AsyncFd<OwnedFd>> {
        let queue = self.prober.queue();
        // The descriptor changes with each failure, and when the device is opened again.
        let generation = queue.stats().device_failures + queue.stats().reopens;
        if self.readiness.as_ref().is_none_or(|(registered, _)| *registered != generation) {
            // The old descriptor is deregistered first.
            self.readiness = None;
            let fd = queue.readiness().try_clone_to_owned();
            let registered = fd.and_then(register).map_err(|source| ProbeError::System {
                action: "registering the descriptor of a prober with tokio".into(),
                source,
            })?;
            self.readiness = Some((generation, registered));
        }
        let Some((_, registered)) = &self.readiness else { unreachable!("it was registered above") };
        Ok(registered)
    }
}

/// Waits until the descriptor is readable.
async fn ready(descriptor: &AsyncFd<OwnedFd>) {
    if let Ok(mut guard) = descriptor.readable().await {
        // The caller polls all sources of events after this, so the next readiness is a new one.
        guard.clear_ready();
    }
}

#[allow(deprecated, reason = "the replacement is unsafe, and this crate has no unsafe code")]
fn register(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}
