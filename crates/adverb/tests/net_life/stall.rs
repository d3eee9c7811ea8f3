//! Receivers that stop receiving.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::{Options, SendErrorKind};
use adverb::verbs::{SoftDevice, Switch};

use crate::Messages;
use crate::connections::blocking_pair;

/// The maximum registered memory of each side: some rings and messages.
const MAX_REGISTERED: usize = 24 << 20;

#[test]
fn a_receiver_stopped_for_five_seconds_blocks_the_sender_and_loses_nothing() {
    let _guard = crate::share_process();
    for len in [100, 64 << 10] {
        // Between two devices, so that RNR NAKs would be possible.
        let switch = Switch::default();
        let devices = ["10.0.0.1", "10.0.0.2"]
            .map(|address| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap());
        let options =
            devices.each_ref().map(|device| Options::new().device(device).recv_buffer_limit(1 << 20));
        let (left, right) = blocking_pair(&options[0], &options[1]);
        let (messages, sent, stop) = (Messages::new(), AtomicUsize::new(0), AtomicBool::new(false));
        scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = sent.load(Ordering::Relaxed);
                    left.send(messages.message(number, len)).unwrap();
                    sent.fetch_add(1, Ordering::Relaxed);
                }
                left.shutdown().unwrap();
            });
            let receive = |number: usize| {
                let message = right.recv().unwrap().expect("the sender sends more messages");
                assert!(message[..] == *messages.message(number, len), "message {number}");
            };
            (0..1000).for_each(receive);
            // The receiver stops. The messages in flight are soon buffered, or wait for credits.
            let (start, mut before, mut last_change) = (Instant::now(), 0, Instant::now());
            while last_change.elapsed() < Duration::from_secs(2) {
                assert!(start.elapsed() < Duration::from_secs(60), "the sender was not blocked");
                sleep(Duration::from_millis(50));
                let now = sent.load(Ordering::Relaxed);
                if now != before {
                    (before, last_change) = (now, Instant::now());
                }
            }
            sleep(Duration::from_secs(3));
            assert_eq!(sent.load(Ordering::Relaxed), before, "the sender is blocked");
            let result = left.try_send(messages.message(0, len));
            let kind = result.unwrap_err().kind;
            assert!(matches!(kind, SendErrorKind::WouldBlock { .. }), "{kind:?}");
            let memory = [&left, &right].map(|side| side.pool().stats().registered_bytes);
            assert!(memory.iter().all(|bytes| *bytes <= MAX_REGISTERED), "{memory:?} bytes");
            stop.store(true, Ordering::Relaxed);
            (1000..before).for_each(receive);
            let mut received = before;
            while let Some(message) = right.recv().unwrap() {
                assert!(message[..] == *messages.message(received, len), "message {received}");
                received += 1;
            }
            assert_eq!(received, sent.load(Ordering::Relaxed));
            println!(
                "{received} messages of {len} bytes, {} of them sent while the receiver was stopped; {memory:?} bytes",
                before - 1000
            );
        });
        for device in &devices {
            let counters = device.counters(1).unwrap();
            let rnr_counters: Vec<_> = counters.iter().filter(|(name, _)| name.contains("rnr")).collect();
            assert!(rnr_counters.len() >= 2, "the device has RNR counters");
            assert!(rnr_counters.iter().all(|(_, count)| *count == 0), "{rnr_counters:?}");
        }
    }
}
