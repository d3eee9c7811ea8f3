//! Pollers, and what queues and devices count, on whatever device there is.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use adverb::verbs::{PollerOptions, SendRequest};

use common::{PATIENCE, device, pair};

#[test]
fn handler_comes_back_with_what_it_gathered() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 8, true);
    struct Gathered(Vec<u64>);
    let mut gathered = Gathered(Vec::new());
    let (sender, tags) = mpsc::channel();
    let poller = left
        .completions
        .poller_with(&PollerOptions::new().name("gatherer").spin(Duration::ZERO), move |completion| {
            gathered.0.push(completion.tag());
            let _ = sender.send((completion.tag(), std::thread::current().name().map(str::to_owned)));
        })
        .unwrap();
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8)).tag(77)).unwrap();
    assert_eq!(tags.recv_timeout(PATIENCE).unwrap(), (77, Some("gatherer".to_owned())));
    let mut handler = poller.stop().handler;
    // It is as it was, and can be used again.
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    let id = left.queue_pair.post_send(SendRequest::send(left.buffer(0, 8)).tag(78)).unwrap();
    handler(left.wait(id));
    assert_eq!(tags.try_recv().unwrap().0, 78);
}

#[test]
fn queue_has_one_poller_at_a_time() {
    let Some(device) = device() else { return };
    let queue = device.completion_queue(8).events().create().unwrap();
    let poller = queue.poller(|_| {}).unwrap();
    assert!(queue.poller(|_| {}).is_err());
    drop(poller);
    let poller = queue.poller(|_| {}).unwrap();
    drop(queue);
    assert!(poller.stop().error.is_none(), "it holds what it polls");
}

#[test]
fn device_counts_packets() {
    let Some(device) = device() else { return };
    let (left, right) = pair(&device, 16, false);
    let before = device.counters(1).unwrap();
    println!("{before:?}");
    let _ = right.queue_pair.post_recv(right.buffer(0, 8)).unwrap();
    left.run(SendRequest::send(left.buffer(0, 8))).success().unwrap();
    // As long as the kernel keeps what it has read.
    std::thread::sleep(Duration::from_millis(50));
    let difference = device.counters(1).unwrap().since(&before);
    let sent = ["sent_pkts", "port_xmit_packets"].iter().find_map(|name| difference.get(name));
    match sent {
        Some(sent) => assert!(sent > 0, "{difference:?}"),
        None => println!("skipped: {} doesn't count packets", device.name()),
    }
    assert!(device.counters(200).is_err(), "there is no such port");
}
