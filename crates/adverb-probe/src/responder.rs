//! The responder: answers probes at an address, in a thread of its own.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use adverb_verbs::internal::OwnerProcess;
use adverb_verbs::{Device, Key, Traffic};
use parking_lot::Mutex;

use crate::answer::{Answer, AnswerConfig, AnswerCounts, AnswerState, RandomNumbers, Rate};
use crate::error::{ProbeError, Result};
use crate::key::TagKey;
use crate::random;
use crate::stamp::Stamp;
use crate::ud_queue::{Event, UdQueue, UdQueueStats, Waker};

/// The port at which probers look up a responder, unless another one is chosen.
pub const DEFAULT_PORT: u16 = 18_516;

/// A responder: answers probes that arrive at one address of a device, in a thread of its own. Dropping it stops it.
///
/// On an in-memory [`Switch`](adverb_verbs::Switch), a process takes all stamps, so
/// [`network_rtt`](crate::figures::Figures::network_rtt) is `None`. Devices with sockets or of an RDMA NIC have other stamps.
///
/// ```
/// # #[cfg(feature = "soft")] {
/// use adverb::probe::{Prober, Responder};
/// use adverb::verbs::SoftDevice;
///
/// let addrs = ["127.91.1.1", "127.91.1.2"];
/// # // Other processes that run this test have other addresses.
/// # let pid = std::process::id();
/// # let addrs = [1, 2].map(|host| format!("127.91.{}.{}", pid >> 6 & 255, (pid & 63) << 2 | host));
/// let [here, there] = addrs.map(|addr| SoftDevice::at_addr(addr.parse().unwrap()).open().unwrap());
/// let responder = Responder::start(&there)?;
///
/// let mut prober = Prober::open(&here)?;
/// let peer = prober.connect(responder.local_addr())?;
/// let result = prober.probe(&peer)?;
/// match result.figures() {
///     Some(figures) => println!("network: {:?}", figures.network_rtt()), // `None` without stamps of a NIC or the kernel
///     None => println!("{}", result.name()),
/// }
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Responder {
    local_addr: SocketAddr,
    epoch: u32,
    waker: Waker,
    shared: Arc<Mutex<ResponderStats>>,
    thread: Option<JoinHandle<()>>,
    owner: OwnerProcess,
}

/// Counters of a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ResponderStats {
    /// Datagrams by result.
    pub answers: AnswerCounts,
    /// The counters of the queue.
    pub queue: UdQueueStats,
}

/// The options of a responder.
#[derive(Clone, Debug)]
#[must_use = "options do nothing by themselves"]
pub struct ResponderOptions {
    port: u16,
    local_addr: Option<IpAddr>,
    recv_slots: u32,
    spin: Duration,
    process_stamps: bool,
    answers: AnswerConfig,
}

impl ResponderOptions {
    /// Creates the default options: [`DEFAULT_PORT`], the device's first address, no key.
    pub fn new() -> ResponderOptions {
        ResponderOptions {
            port: DEFAULT_PORT,
            local_addr: None,
            recv_slots: DEFAULT_RECV_SLOTS,
            spin: Duration::ZERO,
            process_stamps: false,
            answers: AnswerConfig::default(),
        }
    }

    /// Sets the port at which probers look up the responder. With 0, the system chooses a free port.
    pub fn port(mut self, port: u16) -> ResponderOptions {
        self.port = port;
        self
    }

    /// Sets the address. The responder answers at this address only.
    pub fn local_addr(mut self, addr: IpAddr) -> ResponderOptions {
        self.local_addr = Some(addr);
        self
    }

    /// Sets the key. The responder then answers only probes of probers that have the same key. Other probers find the
    /// responder, but lose all probes.
    pub fn key(mut self, key: &Key) -> ResponderOptions {
        self.answers.key = Some(TagKey::new(key));
        self
    }

    /// Sets the maximum rate of answered probes from one address. The default is 50,000 per second.
    pub fn source_rate(mut self, rate: Rate) -> ResponderOptions {
        self.answers.source_rate = rate;
        self
    }

    /// Sets the maximum rate of answered probes in total. The default is 200,000 per second.
    pub fn total_rate(mut self, rate: Rate) -> ResponderOptions {
        self.answers.total_rate = rate;
        self
    }

    /// Sets the number of probes that may arrive before the thread polls. Each slot takes the memory of a packet of the
    /// MTU. The default is 1024.
    pub fn recv_slots(mut self, count: u32) -> ResponderOptions {
        self.recv_slots = count;
        self
    }

    /// Sets the time for which the thread spins before it sleeps: see
    /// [`UdQueueBuilder::spin`](crate::ud_queue::UdQueueBuilder::spin).
    pub fn spin(mut self, spin: Duration) -> ResponderOptions {
        self.spin = spin;
        self
    }

    /// Sets whether all stamps are the process's: see
    /// [`UdQueueBuilder::process_stamps`](crate::ud_queue::UdQueueBuilder::process_stamps).
    pub fn process_stamps(mut self, enabled: bool) -> ResponderOptions {
        self.process_stamps = enabled;
        self
    }

    /// Starts a responder on the device that `open_device` opens. The responder calls the function again after the
    /// device has failed.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::Verbs`] if the device can't be opened or the port is in use, and [`ProbeError::System`] if
    /// the system has no thread or no descriptor.
    pub fn start(
        self,
        open_device: impl FnMut() -> adverb_verbs::Result<Device> + Send + 'static,
    ) -> Result<Responder> {
        let builder = UdQueue::builder(open_device)
            .send_slots(SEND_SLOTS)
            .recv_slots(self.recv_slots)
            .spin(self.spin)
            .process_stamps(self.process_stamps);
        let builder = match self.local_addr {
            Some(addr) => builder.local_addr(addr),
            None => builder,
        };
        let mut queue = builder.open()?;
        let epoch = random::<4>().map(u32::from_be_bytes)?;
        let seed = random::<8>().map(u64::from_be_bytes)?;
        let local_addr = queue.listen(self.port, &epoch.to_be_bytes())?;
        let shared = Arc::new(Mutex::default());
        let waker = queue.waker();
        let mut answers = AnswerState::new(self.answers, RandomNumbers { epoch, seed });
        let stats = Arc::clone(&shared);
        let run = move || {
            while !queue.is_stopped() {
                queue.wait(None, |queue, event| handle(&mut answers, queue, event));
                *stats.lock() = ResponderStats { answers: *answers.counts(), queue: queue.stats() };
            }
        };
        let spawned = std::thread::Builder::new().name("adverb-responder".to_owned()).spawn(run);
        let thread = spawned.map_err(|source| ProbeError::System {
            action: "starting the thread of a responder".into(),
            source,
        })?;
        let owner = OwnerProcess::current();
        Ok(Responder { local_addr, epoch, waker, shared, thread: Some(thread), owner })
    }
}

impl Default for ResponderOptions {
    fn default() -> ResponderOptions {
        ResponderOptions::new()
    }
}

/// The maximum number of acknowledgements in flight.
const SEND_SLOTS: u32 = 512;
/// Default of [`ResponderOptions::recv_slots`].
const DEFAULT_RECV_SLOTS: u32 = 1024;

impl Responder {
    /// Starts a responder with the default options on an open device, at [`DEFAULT_PORT`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`ResponderOptions::start`].
    pub fn start(device: &Device) -> Result<Responder> {
        let device = device.clone();
        ResponderOptions::new().start(move || Ok(device.clone()))
    }

    /// Returns the address and port at which probers find the responder.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Returns the responder's epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the counters. They are updated after each batch of probes.
    pub fn stats(&self) -> ResponderStats {
        *self.shared.lock()
    }

    /// Stops the responder, and returns its counters.
    pub fn stop(mut self) -> ResponderStats {
        self.join();
        self.stats()
    }

    fn join(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.owner.is_current() {
            // A forked child doesn't have the thread, and the descriptor that wakes it is the parent's.
            return std::mem::forget(thread);
        }
        self.waker.stop();
        if thread.join().is_err() {
            tracing::error!("the thread of a responder panicked");
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.join();
    }
}

fn handle(answers: &mut AnswerState, queue: &mut UdQueue, event: Event<'_>) {
    match event {
        Event::Received(datagram) => {
            let now = Stamp::now().nanos;
            let answer = answers.handle_datagram(datagram.payload, datagram.source(), datagram.stamp, now);
            // A datagram that is refused was counted.
            if let Ok(answer) = answer
                && !send(queue, &answer, 0)
            {
                answers.handle_ack1_sent(answer.id, None);
            }
        }
        Event::Sent(sent) if sent.id & 1 == 0 => {
            let stamp = sent.failure.is_none().then_some(sent.stamp);
            if let Some(answer) = answers.handle_ack1_sent((sent.id >> 1) as usize, stamp)
                && !send(queue, &answer, 1)
            {
                answers.handle_ack2_not_sent();
            }
        }
        Event::Sent(sent) if sent.failure.is_some() => answers.handle_ack2_not_sent(),
        Event::Failed(_) => answers.reset_outstanding(),
        _ => {}
    }
}

/// Sends an acknowledgement, and returns whether it was posted. The lowest bit of its number is `second`.
fn send(queue: &mut UdQueue, answer: &Answer, second: u64) -> bool {
    let traffic = Traffic::new().dscp(answer.dscp).flow_label(answer.flow_label);
    queue.send((answer.id as u64) << 1 | second, &answer.destination, traffic, &answer.bytes).is_ok()
}
