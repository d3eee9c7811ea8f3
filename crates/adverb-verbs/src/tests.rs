//! Objects that the device fails to destroy: their memory isn't freed, even if the log's subscriber panics.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::backend::with_destroy_failure;
use crate::memory::{Memory, MemoryRegion, Pages, Pool};

/// A subscriber that calls a function for every event.
struct OnEvent<F>(F);

impl<F: Fn(&Event<'_>) + 'static> Subscriber for OnEvent<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Memory that records when it is freed.
struct TrackedMemory {
    pages: Pages,
    is_freed: Arc<AtomicBool>,
}

// SAFETY: the pages satisfy the requirements, and nothing else accesses them.
unsafe impl Memory for TrackedMemory {
    fn as_ptr(&self) -> NonNull<u8> {
        self.pages.as_ptr()
    }

    fn len(&self) -> usize {
        self.pages.len()
    }
}

impl Drop for TrackedMemory {
    fn drop(&mut self) {
        self.is_freed.store(true, Ordering::SeqCst);
    }
}

/// Returns a domain, a region in it, and a flag that is set when the region's memory is freed.
fn tracked_region() -> (ProtectionDomain, MemoryRegion, Arc<AtomicBool>) {
    tracked_region_on("soft")
}

fn tracked_region_on(device: &str) -> (ProtectionDomain, MemoryRegion, Arc<AtomicBool>) {
    let domain = Device::open(device).unwrap().create_protection_domain().unwrap();
    let is_freed = Arc::new(AtomicBool::new(false));
    let memory = TrackedMemory { pages: Pages::new(4096).unwrap(), is_freed: Arc::clone(&is_freed) };
    let region = domain.register(memory, Access::LOCAL_WRITE).unwrap();
    (domain, region, is_freed)
}

/// Runs `work` while objects of this kind can't be destroyed and the subscriber panics. Returns whether `work`
/// panicked.
fn panics(object: &'static str, work: impl FnOnce()) -> bool {
    let panicking = OnEvent(|_: &Event<'_>| panic!("a subscriber that panics"));
    with_destroy_failure(object, || {
        catch_unwind(AssertUnwindSafe(|| tracing::subscriber::with_default(panicking, work))).is_err()
    })
}

fn queue_pair(domain: &ProtectionDomain) -> (CompletionQueue, QueuePair) {
    let completions = domain.device().completion_queue(64).create().unwrap();
    let builder = domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(4, 4);
    let queue_pair = builder.create().unwrap();
    queue_pair.connect(&queue_pair.endpoint()).unwrap();
    (completions, queue_pair)
}

#[test]
fn a_region_that_is_not_deregistered_keeps_its_memory() {
    let (_domain, region, is_freed) = tracked_region();
    assert!(panics("registration", || drop(region)), "the subscriber was never called");
    assert!(!is_freed.load(Ordering::SeqCst));

    // The buffer of a region doesn't return to its pool.
    let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
    let pool = Pool::new(&domain);
    let region = || pool.allocate(64).unwrap().register(Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let (first, second) = (region(), region());
    let used = pool.stats().used_bytes;
    assert!(panics("registration", || drop(first.into_pool_buf())), "the subscriber was never called");
    let second = with_destroy_failure("registration", || second.into_pool_buf()).unwrap_err();
    assert!(
        !second.is_mapped() && second.read(0, &mut [0]).is_err(),
        "this process can access leaked memory"
    );
    drop(second);
    assert_eq!(pool.stats().used_bytes, used, "memory that a peer may access returned to the pool");
}

#[test]
fn the_log_line_about_memory_that_is_not_deregistered_has_the_causes() {
    let (_domain, region, _) = tracked_region();
    let (sender, errors) = std::sync::mpsc::channel();
    let recording = OnEvent(move |event: &Event<'_>| {
        event.record(&mut |field: &Field, value: &dyn fmt::Debug| {
            if field.name() == "error" {
                sender.send(format!("{value:?}")).unwrap();
            }
        });
    });
    with_destroy_failure("registration", || tracing::subscriber::with_default(recording, || drop(region)));
    assert_eq!(Vec::from_iter(errors), ["destroying a registration failed: resource busy"]);
}

#[test]
fn a_queue_pair_that_is_not_destroyed_keeps_the_memory_of_its_requests() {
    let (domain, region, is_freed) = tracked_region();
    let (_completions, queue_pair) = queue_pair(&domain);
    queue_pair.post_recv(region.into_buffer().unwrap()).unwrap();
    assert!(panics("queue pair", || drop(queue_pair)), "the subscriber was never called");
    assert!(!is_freed.load(Ordering::SeqCst));
}

#[test]
fn a_shared_receive_queue_that_is_not_destroyed_keeps_the_memory_of_its_requests() {
    let (domain, region, is_freed) = tracked_region();
    let queue = domain.shared_receive_queue(4).create().unwrap();
    queue.post_recv(region.into_buffer().unwrap()).unwrap();
    assert!(panics("shared receive queue", || drop(queue)), "the subscriber was never called");
    assert!(!is_freed.load(Ordering::SeqCst));
}

/// For example, the device fails to free the window after a failed bind, and then the program revokes the access.
#[test]
fn the_access_through_a_window_that_is_not_destroyed_is_never_reported_as_ended() {
    let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
    let window = domain.create_memory_window().unwrap();
    assert!(!with_destroy_failure("memory window", || window.shared().free()));
    assert!(!window.shared().free() && !window.shared().free());
    let other = domain.create_memory_window().unwrap();
    assert!(other.shared().free() && other.shared().free());
}

#[test]
fn a_queue_pair_is_destroyed_before_its_memory_is_freed_even_if_a_window_is_not_destroyed() {
    // No other test uses this device, so its queue pairs can be counted.
    let (domain, region, is_freed) = tracked_region_on("soft:127.83.7.13");
    let (completions, queue_pair) = queue_pair(&domain);
    let exposed = domain.allocate_region(64, Access::LOCAL_WRITE | Access::WINDOW_BIND).unwrap();
    let window = domain.create_memory_window().unwrap();
    let bind = SendRequest::bind(window, exposed.slice(0..64).unwrap(), Access::REMOTE_READ);
    let id = queue_pair.post_send(bind).unwrap();
    let window = completions.wait(id, Duration::from_secs(10)).unwrap().into_window();
    queue_pair.post_recv(region.into_buffer().unwrap()).unwrap();
    let queue_pair_count = |domain: &ProtectionDomain| domain.device().resource_counts().unwrap().queue_pairs;
    let before = queue_pair_count(&domain);
    assert!(!panics("memory window", || drop(queue_pair)));
    assert_eq!(queue_pair_count(&domain), before - 1);
    assert!(is_freed.load(Ordering::SeqCst));
    drop(window);
}

#[test]
fn a_scope_whose_queue_pair_is_not_destroyed_aborts() {
    const NAME: &str = "tests::a_scope_whose_queue_pair_is_not_destroyed_aborts";
    if std::env::var_os("ADVERB_SCOPE_ABORTS").is_some() {
        let domain = Device::open("soft").unwrap().create_protection_domain().unwrap();
        let (_completions, mut queue_pair) = queue_pair(&domain);
        let mut buffer = domain.allocate_buffer(64).unwrap();
        panics("queue pair", || {
            let _ = queue_pair.scope(Duration::ZERO, |scope| scope.recv(&mut buffer).map(drop));
        });
        println!("the borrow has ended: {:?}", &buffer[..1]);
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let child = child.args([NAME, "--exact", "--nocapture"]).env("ADVERB_SCOPE_ABORTS", "1");
    let output = child.output().unwrap();
    let status = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!(status, Some(libc::SIGABRT), "{}", String::from_utf8_lossy(&output.stdout));
}
