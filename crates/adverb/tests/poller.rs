//! Pollers, and the counters of queues and devices, on any device.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use adverb::verbs::{PollerOptions, SendRequest};

use common::{TIMEOUT, device, pair};

#[test]
fn stopping_a_poller_returns_the_handler_with_its_state() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 8, true);
    struct Collected(Vec<u64>);
    let mut collected = Collected(Vec::new());
    let (sender, tags) = mpsc::channel();
    let poller = left
        .completions
        .start_poller_with(
            &PollerOptions::new().name("collector").max_spin(Duration::ZERO),
            move |completion| {
                collected.0.push(completion.tag());
                let _ = sender.send((completion.tag(), std::thread::current().name().map(str::to_owned)));
            },
        )
        .unwrap();
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8)).tag(77)).unwrap();
    assert_eq!(tags.recv_timeout(TIMEOUT).unwrap(), (77, Some("collector".to_owned())));
    let mut handler = poller.stop().unwrap().handler;
    // The handler has its state, and can be called again.
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    let id = left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8)).tag(78)).unwrap();
    handler(left.wait(id));
    assert_eq!(tags.try_recv().unwrap().0, 78);
}

#[test]
fn a_queue_has_one_poller_at_a_time() {
    let Some(device) = device() else { return };
    let queue = device.completion_queue(8).events().create().unwrap();
    let poller = queue.start_poller(|_| {}).unwrap();
    assert!(queue.start_poller(|_| {}).is_err());
    drop(poller);
    let poller = queue.start_poller(|_| {}).unwrap();
    drop(queue);
    assert!(poller.stop().unwrap().error.is_none(), "the poller keeps its queue alive");
}

/// A child inherits the parent's locks in their state at the fork, but not the threads that hold them.
#[test]
fn dropping_objects_in_a_forked_child_doesnt_affect_the_parent() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 8, false);
    // The poller acquires the queue's lock all the time.
    let spinning = PollerOptions::new().max_spin(Duration::from_secs(60));
    let poller = left.completions.start_poller_with(&spinning, |_| {}).unwrap();
    let exchange = || {
        let before = poller.stats().completion_count;
        let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
        left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8))).unwrap();
        let deadline = std::time::Instant::now() + TIMEOUT;
        while poller.stats().completion_count == before {
            assert!(std::time::Instant::now() < deadline, "the poller found nothing");
            std::thread::yield_now();
        }
        right.completions.poll(&mut Vec::new()).unwrap();
    };
    for round in 0..50 {
        exchange();
        // SAFETY: the child only drops and stops objects, and exits without running the parent's exit handlers.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: this process drops the copy once, and exits without dropping the original.
            let poller = unsafe { std::ptr::read(&raw const poller) };
            // SAFETY: as above.
            let ends = unsafe { (std::ptr::read(&raw const left), std::ptr::read(&raw const right)) };
            if round % 2 == 0 {
                let is_rejected = poller.stop().is_err();
                // SAFETY: ends the child.
                unsafe { libc::_exit(if is_rejected { 0 } else { 1 }) };
            }
            drop(poller);
            drop(ends);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        wait_for(child);
    }
    exchange();
    assert!(poller.stop().unwrap().error.is_none());
}

/// Waits for a child, which must exit successfully and soon.
fn wait_for(child: libc::pid_t) {
    let deadline = std::time::Instant::now() + TIMEOUT;
    let mut status = 0;
    loop {
        // SAFETY: the status may be written.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 if std::time::Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: the pid is that of this test's child.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the child hangs");
            }
            found => break assert_eq!((found, status), (child, 0)),
        }
    }
}

#[test]
fn a_device_counts_packets() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 16, false);
    let before = device.counters(1).unwrap();
    println!("{before:?}");
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    left.run(SendRequest::send(left.buffer(0, 8))).result().unwrap();
    // The kernel caches counters for a while.
    std::thread::sleep(Duration::from_millis(50));
    let difference = device.counters(1).unwrap().since(&before);
    let sent = ["sent_pkts", "port_xmit_packets"].iter().find_map(|name| difference.get(name));
    match sent {
        Some(sent) => assert!(sent > 0, "{difference:?}"),
        None => println!("skipped: {} doesn't count packets", device.name()),
    }
    assert!(device.counters(200).is_err(), "the device has no such port");
}
