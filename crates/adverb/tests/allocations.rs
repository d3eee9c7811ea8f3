//! Messages between software devices allocate nothing after a warm-up: neither the posting and polling callers nor the
//! devices' threads do. This test has its own process, whose allocations are counted.

#![cfg(feature = "soft")]

#[path = "common/counting.rs"]
mod counting;

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use adverb::memory::{Buffer, MemoryRegion};
use adverb::verbs::recording::ActiveRecording;
use adverb::verbs::{
    Access, Completion, CompletionQueue, Device, ProtectionDomain, QueuePair, SendRequest, SoftDevice,
    Switch, Transport,
};

/// The number of requests in flight.
const DEPTH: usize = 16;

/// The number of requests of each kind per round.
const REQUESTS: usize = 10_000;

struct End {
    domain: ProtectionDomain,
    cq: CompletionQueue,
    queue_pair: QueuePair,
    /// The polled completions. The list is reused.
    done: Vec<Completion>,
}

impl End {
    fn new(device: &Device) -> End {
        let domain = device.create_protection_domain().unwrap();
        let cq = device.completion_queue(256).create().unwrap();
        let queue_pair =
            domain.queue_pair(Transport::Rc).completion_queue(&cq).depth(64, 64).create().unwrap();
        End { domain, cq, queue_pair, done: Vec::with_capacity(256) }
    }

    fn buffers(&self, length: usize) -> Vec<Buffer> {
        (0..DEPTH).map(|_| self.domain.allocate_buffer(length).unwrap()).collect()
    }
}

/// Polls both ends until all buffers are back.
fn poll_all(ends: [(&mut End, &mut Vec<Buffer>); 2]) {
    let start = Instant::now();
    let [(one, ours), (other, theirs)] = ends;
    while ours.len() < DEPTH || theirs.len() < DEPTH {
        for (end, buffers) in [(&mut *one, &mut *ours), (&mut *other, &mut *theirs)] {
            end.cq.poll(&mut end.done).unwrap();
            for completion in end.done.drain(..) {
                assert!(completion.is_ok(), "{completion:?}");
                buffers.push(completion.into_buffer().unwrap());
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "not all requests have completed");
    }
}

/// Sends messages from one end to the other, or writes them to a region.
fn run(
    (one, ours): (&mut End, &mut Vec<Buffer>),
    (other, theirs): (&mut End, &mut Vec<Buffer>),
    region: Option<&MemoryRegion>,
) {
    for _ in 0..REQUESTS / DEPTH {
        if region.is_none() {
            for buffer in theirs.drain(..) {
                other.queue_pair.post_recv(buffer).unwrap();
            }
        }
        for buffer in ours.drain(..) {
            let request = match region {
                Some(region) => SendRequest::write(buffer, region.remote().at(0)),
                None => SendRequest::send(buffer),
            };
            one.queue_pair.post_send(request).unwrap();
        }
        poll_all([(&mut *one, ours), (&mut *other, theirs)]);
    }
}

#[test]
fn messages_allocate_nothing_after_a_warm_up() {
    let loopback = SoftDevice::loopback().open().unwrap();
    let switch = Switch::default();
    let [here, there] = ["10.0.0.1", "10.0.0.2"]
        .map(|address| SoftDevice::on_switch(&switch, address.parse().unwrap()).open().unwrap());
    let process = std::process::id();
    let host = |last| IpAddr::V4(Ipv4Addr::new(127, 232 + (process >> 8 & 15) as u8, process as u8, last));
    let [client, server] = [1, 2].map(|last| SoftDevice::at_addr(host(last)).open().unwrap());
    for (name, one, other) in
        [("loopback", &loopback, &loopback), ("mem", &here, &there), ("udp", &client, &server)]
    {
        for length in [8, 4096] {
            let (mut one, mut other) = (End::new(one), End::new(other));
            one.queue_pair.connect(&other.queue_pair.endpoint()).unwrap();
            other.queue_pair.connect(&one.queue_pair.endpoint()).unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let region = other.domain.allocate_region(length, access).unwrap();
            let (mut ours, mut theirs) = (one.buffers(length), other.buffers(length));
            for (kind, region) in [("SENDs", None), ("WRITEs", Some(&region))] {
                counting::assert_no_allocations(&format!("{name}, {kind} of {length} bytes"), 0, || {
                    run((&mut one, &mut ours), (&mut other, &mut theirs), region);
                });
                let active = [&one, &other].map(|end| end.cq.device().recording().payload_limit(64).start());
                counting::assert_no_allocations(
                    &format!("{name}, {kind} of {length} bytes, recorded"),
                    0,
                    || {
                        run((&mut one, &mut ours), (&mut other, &mut theirs), region);
                    },
                );
                // The two ends of the first pair are queue pairs of one device, which has one recording.
                let recordings = active.into_iter().filter_map(Result::ok).map(ActiveRecording::stop);
                assert!(recordings.map(|recording| recording.lost_count).sum::<u64>() > 0);
            }
        }
    }
}
