//! ATOMIC WRITE and FLUSH on software devices: over loopback, a switch in memory, and UDP.

#![cfg(feature = "soft")]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use adverb::memory::{MemoryRegion, RemoteMemory};
use adverb::verbs::{
    Access, CompletedOperation, Completion, CompletionQueue, ConnectOptions, Device, Error, FaultConfig,
    FlushPlacement, ProtectionDomain, QueuePair, SendRequest, SoftDevice, Status, Switch, Transport,
};

const TEST_DEADLINE: Duration = Duration::from_secs(20);

const FLUSHABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::FLUSH_GLOBAL);

struct End {
    domain: ProtectionDomain,
    cq: CompletionQueue,
    queue_pair: QueuePair,
}

impl End {
    fn new(device: &Device) -> End {
        let domain = device.create_protection_domain().unwrap();
        let cq = device.completion_queue(128).create().unwrap();
        let queue_pair = domain.queue_pair(Transport::Rc).completion_queue(&cq).create().unwrap();
        End { domain, cq, queue_pair }
    }

    fn write(&self, bytes: &[u8], memory: RemoteMemory) -> SendRequest {
        let mut buffer = self.domain.allocate_buffer(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        SendRequest::write(buffer, memory.at(0))
    }

    fn completions(&self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut completions = Vec::new();
        while completions.len() < count {
            assert!(start.elapsed() < TEST_DEADLINE, "{completions:?}");
            self.cq.poll_timeout(&mut completions, Duration::from_millis(100)).unwrap();
        }
        completions
    }
}

fn pair(one: &Device, other: &Device) -> (End, End) {
    let (one, other) = (End::new(one), End::new(other));
    // Some links lose packets. A request is retransmitted for about two seconds, for busy machines.
    let options = ConnectOptions::new().ack_timeout(16).retry_count(7);
    one.queue_pair.connect_with(&other.queue_pair.endpoint(), &options).unwrap();
    other.queue_pair.connect_with(&one.queue_pair.endpoint(), &options).unwrap();
    (one, other)
}

/// Pairs of devices, by their link.
fn links() -> Vec<(&'static str, Device, Device)> {
    let loopback = SoftDevice::loopback().open().unwrap();
    let switch = Switch::default();
    let on_switch = |address: &str| SoftDevice::on_switch(&switch, address.parse().unwrap());
    let process = std::process::id();
    let host = |last| IpAddr::V4(Ipv4Addr::new(127, 216 + (process >> 8 & 15) as u8, process as u8, last));
    let [client, server] = [1, 2].map(|last| SoftDevice::at_addr(host(last)).open().unwrap());
    let loss = |seed| FaultConfig { loss_ppm: 50_000, ..FaultConfig::new(seed) };
    vec![
        ("loopback", loopback.clone(), loopback),
        ("mem", on_switch("10.0.0.1").open().unwrap(), on_switch("10.0.0.2").open().unwrap()),
        (
            "mem with loss",
            on_switch("10.0.0.3").faults(loss(3)).open().unwrap(),
            on_switch("10.0.0.4").faults(loss(4)).open().unwrap(),
        ),
        ("udp", client, server),
    ]
}

/// Posts a batch of requests and returns the operations that completed, in order.
fn post(end: &End, requests: Vec<SendRequest>) -> Vec<CompletedOperation> {
    let count = requests.len();
    assert_eq!(end.queue_pair.post_sends(requests).unwrap().len(), count);
    end.completions(count).iter().map(|completion| completion.result().unwrap().operation).collect()
}

#[test]
fn a_batch_of_writes_flushes_and_atomic_writes_completes_in_order() {
    for (link, one, other) in links() {
        let (one, other) = pair(&one, &other);
        let region = other.domain.allocate_region(4096, FLUSHABLE).unwrap();
        let remote = region.remote();
        for round in 0..20u8 {
            let requests = vec![
                one.write(&[round; 4096], remote),
                SendRequest::flush(remote, FlushPlacement::GLOBAL),
                SendRequest::atomic_write([round ^ 0xff; 8], remote.at(16)),
                SendRequest::flush_region(remote.rkey, FlushPlacement::GLOBAL).unsignaled(),
                SendRequest::atomic_write([round ^ 0xfe; 8], remote.at(24)),
            ];
            let expected = [
                CompletedOperation::Write,
                CompletedOperation::Flush,
                CompletedOperation::AtomicWrite,
                CompletedOperation::Flush,
                CompletedOperation::AtomicWrite,
            ];
            assert_eq!(post(&one, requests), expected, "{link}");
            let mut bytes = [round; 4096];
            bytes[16..24].fill(round ^ 0xff);
            bytes[24..32].fill(round ^ 0xfe);
            assert_eq!(content(&region), bytes, "{link}");
        }
    }
}

fn content(region: &MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn an_atomic_write_is_seen_as_a_word_by_the_owner() {
    for (link, one, other) in links() {
        let (one, other) = pair(&one, &other);
        let region = other.domain.allocate_region(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        for value in [1, u64::MAX, 0x0102_0304_0506_0708] {
            let request = SendRequest::atomic_write(value.to_ne_bytes(), region.remote().at(8));
            assert_eq!(post(&one, vec![request]), [CompletedOperation::AtomicWrite], "{link}");
            assert_eq!(region.word(8).unwrap().load(Ordering::Acquire), value, "{link}");
        }
    }
}

#[test]
fn a_flush_of_memory_without_flush_access_fails() {
    for (link, one, other) in links() {
        let (one, other) = pair(&one, &other);
        let region = other.domain.allocate_region(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        one.queue_pair.post_send(SendRequest::flush(region.remote(), FlushPlacement::GLOBAL)).unwrap();
        let failure = one.completions(1)[0].outcome().unwrap_err();
        // The only NAK may be lost.
        let is_lossy = link.contains("loss");
        let is_expected =
            failure.status == Status::RemoteAccess || is_lossy && failure.status == Status::RetryExceeded;
        assert!(is_expected, "{link}: {failure:?}");
    }
}

#[test]
fn a_batch_with_an_unsupported_flush_posts_nothing_and_returns_every_request() {
    let device = SoftDevice::loopback().open().unwrap();
    let (one, other) = pair(&device, &device);
    let region = other.domain.allocate_region(64, FLUSHABLE).unwrap();
    let remote = region.remote();
    let rejected = one
        .queue_pair
        .post_sends([
            one.write(&[1; 64], remote),
            SendRequest::flush(remote, FlushPlacement::PERSISTENT),
            SendRequest::atomic_write([1; 8], remote.at(0)),
        ])
        .unwrap_err();
    assert!(matches!(rejected.error, Error::Unsupported { .. }), "{}", rejected.error);
    let message = rejected.error.to_string();
    assert!(message.ends_with(" does not support FLUSH to persistence"), "{message}");
    assert_eq!(rejected.requests.len(), 3);
    assert_eq!(content(&region), [0; 64]);
    // The returned requests can be posted again.
    let mut requests = rejected.requests;
    requests[1] = SendRequest::flush(remote, FlushPlacement::GLOBAL);
    assert_eq!(post(&one, requests).len(), 3);
    assert_eq!(content(&region), [1; 64]);
}

#[test]
fn registering_memory_with_persistent_flush_access_fails() {
    let device = SoftDevice::loopback().open().unwrap();
    let attributes = device.attributes();
    assert!(attributes.has_atomic_write && attributes.flush.global && !attributes.flush.persistent);
    let domain = device.create_protection_domain().unwrap();
    let error = domain.allocate_region(64, FLUSHABLE | Access::FLUSH_PERSISTENT).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().ends_with(" does not support FLUSH to persistence"), "{error}");
}
