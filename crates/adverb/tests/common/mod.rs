//! Two queue pairs of one device, connected to each other.

#![allow(dead_code, reason = "each test uses its part")]

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adverb::memory::Buffer;
use adverb::verbs::{
    Completion, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QueuePair, RequestId, SendRequest,
    Transport,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The timeout of every wait, far longer than any of them takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a device to test with. Without one the test prints the reason and is skipped.
pub(crate) fn device() -> Option<Device> {
    match Device::open_first() {
        Ok(device) => Some(device),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) queue_pair: QueuePair,
    pub(crate) completions: CompletionQueue,
    pub(crate) domain: ProtectionDomain,
}

impl End {
    pub(crate) fn new(device: &Device, depth: u32, events: bool) -> End {
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(2 * depth);
        let completions = if events { completions.events() } else { completions }.create().unwrap();
        End::with(domain, completions, depth)
    }

    pub(crate) fn with(domain: ProtectionDomain, completions: CompletionQueue, depth: u32) -> End {
        let queue_pair = domain
            .queue_pair(Transport::Rc)
            .completion_queue(&completions)
            .depth(depth, depth)
            .create()
            .unwrap();
        End { queue_pair, completions, domain }
    }

    /// Posts a request, and waits for its completion.
    pub(crate) fn run(&self, request: SendRequest) -> Completion {
        let id = self.queue_pair.post_send(request).unwrap();
        self.wait(id)
    }

    pub(crate) fn wait(&self, id: RequestId) -> Completion {
        self.completions.wait(id, TIMEOUT).unwrap()
    }

    /// Returns a buffer filled with `value`.
    pub(crate) fn buffer(&self, value: u8, len: usize) -> Buffer {
        let mut buffer = self.domain.allocate_buffer(len).unwrap();
        buffer.fill(value);
        buffer
    }
}

/// Returns two connected ends.
pub(crate) fn pair(device: &Device, depth: u32, events: bool) -> (End, End) {
    let (left, right) = (End::new(device, depth, events), End::new(device, depth, events));
    connect(&left, &right);
    (left, right)
}

pub(crate) fn connect(left: &End, right: &End) {
    // The ACK timeout is about a second, for busy machines.
    let options = ConnectOptions::new().ack_timeout(18);
    left.queue_pair.connect_with(&right.queue_pair.endpoint(), &options).unwrap();
    right.queue_pair.connect_with(&left.queue_pair.endpoint(), &options).unwrap();
}

/// A subscriber that passes events as lines of their fields.
pub(crate) struct LogSubscriber<F> {
    max_level: Level,
    on_line: F,
}

impl<F: Fn(String) + Send + Sync + 'static> LogSubscriber<F> {
    pub(crate) fn new(max_level: Level, on_line: F) -> LogSubscriber<F> {
        LogSubscriber { max_level, on_line }
    }
}

impl<F: Fn(String) + Send + Sync + 'static> Subscriber for LogSubscriber<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.max_level
    }
    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                write!(self.0, "{field}: {value:?} ").unwrap();
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        (self.on_line)(line.0);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Runs `run`, and checks that it logs no error. Memory that can't be freed is leaked, and only the log reports it.
pub(crate) fn assert_logs_no_error(run: impl FnOnce()) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let subscriber = LogSubscriber::new(Level::ERROR, |line| {
        LOGGED.store(true, Ordering::Relaxed);
        println!("logged: {line}");
    });
    tracing::subscriber::with_default(subscriber, run);
    assert!(!LOGGED.load(Ordering::Relaxed), "an error was logged");
}
