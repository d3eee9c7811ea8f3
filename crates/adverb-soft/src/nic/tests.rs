mod blocked;
mod guessing;
mod recording;
mod regions;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_proto::types::{
    CompletedOperation, RecvRequest, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest, Status,
    Transport,
};
use adverb_proto::{IcrcCheck, Init, ReadyToReceive, ReadyToSend};
use adverb_wire::cm::Timeout;
use adverb_wire::{Psn, RnrTimer};
use nix::poll::{PollFd, PollFlags, poll};
use parking_lot::Mutex;

use self::wire::{WireMode, two_nics, two_nics_and_batches};
use super::schedule::{Driver, POLLS_UNTIL_COMPLETION};
use super::*;
use crate::BatchPostError;

/// Memory that is registered with a NIC and accessed by a test.
struct Area<'a> {
    nic: &'a Nic,
    words: Vec<AtomicU64>,
    key: u32,
}

/// Deregisters the memory, because a peer that missed a response may retransmit its request after the test.
impl Drop for Area<'_> {
    fn drop(&mut self) {
        _ = self.nic.deregister(self.key);
    }
}

impl<'a> Area<'a> {
    fn new(nic: &'a Nic, pd: Pd, length: usize) -> Area<'a> {
        let words: Vec<AtomicU64> = (0..length.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let address = NonNull::from(words.as_slice()).cast::<u8>();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        // SAFETY: the words stay allocated until the area is dropped, which deregisters them first, and tests access
        // them as atomics.
        let key = unsafe { nic.register(pd, address, length, address.as_ptr().addr() as u64, access) };
        Area { nic, words, key: key.unwrap() }
    }

    fn addr(&self) -> u64 {
        self.words.as_ptr().addr() as u64
    }

    fn remote(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { addr: self.addr() + offset, rkey: self.key }
    }

    fn segment(&self, offset: u64, length: u32) -> Segment {
        Segment { addr: self.addr() + offset, length, lkey: self.key }
    }

    fn fill(&self, seed: u64) {
        for (index, word) in self.words.iter().enumerate() {
            word.store((index as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
        }
    }

    fn values(&self) -> Vec<u64> {
        self.words.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }
}

/// A queue pair with its own completion queue.
struct End<'a> {
    nic: &'a Nic,
    pd: Pd,
    cq: Cq,
    channel: Arc<Channel>,
    qpn: Qpn,
}

impl<'a> End<'a> {
    fn new(nic: &'a Nic, transport: Transport) -> End<'a> {
        let pd = nic.create_domain().unwrap();
        let channel = Arc::new(Channel::new().unwrap());
        let cq = nic.create_cq(64, Some(Arc::clone(&channel))).unwrap();
        let qpn = nic.create_qp(QpConfig::new(transport, pd, cq, cq)).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        nic.modify_qp(qpn, &Transition::Init(Init { qkey: 7, ..Init::new(access) })).unwrap();
        End { nic, pd, cq, channel, qpn }
    }

    /// Connects to a peer, with a timeout that is long enough for a peer that waits for a CPU.
    fn connect(&self, peer: &End<'_>) {
        self.connect_with_timeout(peer, Timeout::new(18).unwrap());
    }

    /// Connects to a peer that does not respond.
    fn connect_to_unresponsive(&self, peer: &End<'_>) {
        self.connect_with_timeout(peer, Timeout::new(12).unwrap());
    }

    fn connect_with_timeout(&self, peer: &End<'_>, timeout: Timeout) {
        let (local, remote) = (self.nic.addresses()[0], peer.nic.addresses()[0]);
        let port = Path::source_port_between(self.qpn, peer.qpn);
        let psn = Psn::wrapping(0xff_fff0);
        let receiving = ReadyToReceive {
            remote_qpn: peer.qpn,
            path: self.nic.path(local, remote, port).unwrap(),
            path_mtu: PathMtu::Mtu1024,
            psn,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(1).unwrap(),
        };
        let sending = ReadyToSend { psn, timeout, retry_count: 3, rnr_retry: 7, max_rd_atomic: 4 };
        self.nic.modify_qp(self.qpn, &Transition::ReadyToReceive(receiving)).unwrap();
        self.nic.modify_qp(self.qpn, &Transition::ReadyToSend(sending)).unwrap();
    }

    fn send(&self, wr_id: u64, operation: SendOperation, segments: &[Segment]) -> Result<(), BatchPostError> {
        let flags = SendFlags::SIGNALED;
        let request = SendRequest::<()> { wr_id, tag: 0, operation, flags, segments, destination: None };
        self.nic.post_sends(self.qpn, [(request, None)])
    }

    fn post_recv(&self, wr_id: u64, segments: &[Segment]) -> Result<(), BatchPostError> {
        self.nic.post_recvs(self.qpn, [RecvRequest { wr_id, tag: 0, segments }])
    }

    fn poll(&self) -> Option<Completion> {
        let mut found = None;
        self.nic.poll(self.cq, 1, |completion| found = Some(completion));
        found
    }

    /// Polls until there is a completion, and returns it.
    fn completion(&self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "no completion arrived");
        }
    }

    /// Waits for an event without polling, because `poll` would drive the NIC. Returns whether an event was delivered.
    fn wait(&self) -> bool {
        let mut entry = [PollFd::new(self.channel.as_fd(), PollFlags::POLLIN)];
        poll(&mut entry, TEST_TIMEOUT_MS).unwrap() == 1 && self.channel.take().unwrap()
    }
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const TEST_TIMEOUT_MS: u16 = 20_000;

fn pair(nic: &Nic) -> (End<'_>, End<'_>) {
    let ends = (End::new(nic, Transport::Rc), End::new(nic, Transport::Rc));
    ends.0.connect(&ends.1);
    ends.1.connect(&ends.0);
    ends
}

fn loopback() -> Nic {
    Nic::open(NicOptions::loopback()).unwrap()
}

#[test]
fn messages_writes_reads_and_atomics_work_between_two_queue_pairs_of_one_nic() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let (here, there) = (Area::new(&nic, one.pd, 8192), Area::new(&nic, other.pd, 8192));
    here.fill(1);
    other.post_recv(1, &[there.segment(8, 4096)]).unwrap();
    one.send(2, SendOperation::Send, &[here.segment(0, 3000)]).unwrap();
    let received = other.completion();
    assert_eq!((received.wr_id, received.outcome.unwrap().length), (1, 3000));
    assert_eq!(one.completion().wr_id, 2);
    assert_eq!(there.values()[1..376], here.values()[..375]);

    one.send(3, SendOperation::Write(there.remote(0)), &[here.segment(0, 8192)]).unwrap();
    assert_eq!(one.completion().outcome.unwrap().operation, CompletedOperation::Write);
    assert_eq!(there.values(), here.values());

    there.fill(2);
    one.send(4, SendOperation::Read(there.remote(0)), &[here.segment(0, 8192)]).unwrap();
    assert_eq!(one.completion().outcome.unwrap().operation, CompletedOperation::Read);
    assert_eq!(there.values(), here.values());

    let old = there.values()[3];
    let add = SendOperation::FetchAdd { remote: there.remote(24), add: 5 };
    one.send(5, add, &[here.segment(0, 8)]).unwrap();
    assert!(one.completion().outcome.is_ok());
    assert_eq!((here.values()[0], there.values()[3]), (old, old.wrapping_add(5)));
    let swap = SendOperation::CompareSwap { remote: there.remote(24), compare: old.wrapping_add(5), swap: 9 };
    one.send(6, swap, &[here.segment(0, 8)]).unwrap();
    assert!(one.completion().outcome.is_ok());
    assert_eq!(there.values()[3], 9);
}

#[test]
fn datagrams_deliver_the_grh_and_inline_bytes() {
    let nic = loopback();
    let (one, other) = (End::new(&nic, Transport::Ud), End::new(&nic, Transport::Ud));
    for end in [&one, &other] {
        nic.modify_qp(end.qpn, &Transition::ReadyToReceiveUd).unwrap();
        nic.modify_qp(end.qpn, &Transition::ReadyToSend(ReadyToSend::unreliable(Psn::wrapping(5)))).unwrap();
    }
    let there = Area::new(&nic, other.pd, 64);
    other.post_recv(1, &[there.segment(0, 64)]).unwrap();
    for address in nic.addresses() {
        let handle = nic.path(*address, *address, 0xc001).unwrap();
        let request = SendRequest {
            wr_id: 2,
            tag: 0,
            operation: SendOperation::Send,
            flags: SendFlags::SIGNALED | SendFlags::INLINE,
            segments: &[],
            destination: Some(adverb_proto::types::Destination { handle, qpn: other.qpn, qkey: 7 }),
        };
        nic.post_sends(one.qpn, [(request, Some(b"datagram".as_slice()))]).unwrap();
        assert!(one.completion().outcome.is_ok());
        let received = other.completion().outcome.unwrap();
        assert_eq!(received.length, 48);
        assert_eq!(there.values()[5], u64::from_ne_bytes(*b"datagram"));
        other.post_recv(1, &[there.segment(0, 64)]).unwrap();
    }
}

#[test]
fn a_nic_that_closes_sends_packets_that_the_link_refused() {
    let (one, other, mode) = two_nics();
    let sender = End::new(&one, Transport::Rc);
    let receiver = End::new(&other, Transport::Rc);
    sender.connect(&receiver);
    receiver.connect(&sender);
    receiver.post_recv(1, &[]).unwrap();
    *mode.lock() = Some(WireMode::Refuses(3));
    sender.send(2, SendOperation::Send, &[]).unwrap();
    drop(one);
    assert_eq!(receiver.completion().wr_id, 1);
}

#[test]
fn the_progress_thread_completes_a_long_message() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    const LENGTH: u32 = 4 << 20;
    let here = Area::new(&nic, one.pd, LENGTH as usize);
    let there = Area::new(&nic, other.pd, LENGTH as usize);
    here.fill(3);
    nic.arm_cq(one.cq, ArmFor::Any).unwrap();
    one.send(1, SendOperation::Write(there.remote(0)), &[here.segment(0, LENGTH)]).unwrap();
    assert!(one.wait(), "no event was delivered without a poll");
    assert!(one.completion().outcome.is_ok());
    assert!(there.values() == here.values());
}

#[test]
fn an_armed_queue_delivers_one_event() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let area = Area::new(&nic, other.pd, 64);
    nic.arm_cq(other.cq, ArmFor::Solicited).unwrap();
    for _ in 0..3 {
        other.post_recv(1, &[area.segment(0, 64)]).unwrap();
    }
    one.send(1, SendOperation::Send, &[]).unwrap();
    assert!(!other.channel.take().unwrap(), "an event of a message that is not solicited");
    let solicited = SendRequest::<()> {
        wr_id: 2,
        tag: 0,
        operation: SendOperation::Send,
        flags: SendFlags::SOLICITED | SendFlags::SIGNALED,
        segments: &[],
        destination: None,
    };
    nic.post_sends(one.qpn, [(solicited, None), (solicited, None)]).unwrap();
    assert!(other.channel.take().unwrap());
    assert!(!other.channel.take().unwrap(), "two events of a queue that was armed once");
    assert!(!one.channel.take().unwrap(), "an event of a queue that was not armed");
}

#[test]
fn event_delivery_time_is_independent_of_the_number_of_queues() {
    let cost_at = |count| {
        let nic = loopback();
        let channel = Arc::new(Channel::new().unwrap());
        for _ in 0..count {
            nic.create_cq(1, Some(Arc::clone(&channel))).unwrap();
        }
        let (one, other) = pair(&nic);
        let area = Area::new(&nic, other.pd, 64);
        let attempt = |_| {
            other.post_recv(1, &[area.segment(0, 64)]).unwrap();
            nic.arm_cq(other.cq, ArmFor::Any).unwrap();
            let start = Instant::now();
            one.send(1, SendOperation::Send, &[]).unwrap();
            let cost = start.elapsed();
            assert!(other.wait(), "the armed queue delivers no event");
            one.completion();
            other.completion();
            cost
        };
        (0..50).map(attempt).min().unwrap()
    };
    // A scan of all queues would take a hundred times as long.
    let (cost_at_10, cost_at_200_000) = (cost_at(10), cost_at(200_000));
    assert!(
        cost_at_200_000 < cost_at_10 * 8,
        "{cost_at_10:?} with 10 queues, {cost_at_200_000:?} with 200,000"
    );
}

#[test]
fn timers_expire_while_the_application_is_idle() {
    let nic = loopback();
    let (one, other) = (End::new(&nic, Transport::Rc), End::new(&nic, Transport::Rc));
    one.connect_to_unresponsive(&other);
    // The peer's queue pair is destroyed, so no response arrives.
    assert!(nic.destroy_qp(other.qpn));
    nic.arm_cq(one.cq, ArmFor::Any).unwrap();
    one.send(1, SendOperation::Send, &[]).unwrap();
    assert!(one.wait());
    assert_eq!(one.completion().outcome.unwrap_err().status, Status::RetryExceeded);
    assert_eq!(nic.next_event(), Some(NicEvent::Queue(QueueEvent::Fatal(one.qpn))));
}

#[test]
fn pending_events_of_a_destroyed_queue_pair_are_not_delivered() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    assert!(nic.destroy_qp(other.qpn));
    one.send(1, SendOperation::Send, &[]).unwrap();
    let mut engine = nic.shared.engine.lock();
    let mut now = engine.now();
    // The queue pair fails, and its event is not delivered yet.
    while let Some(due) = engine.device.poll_timeout() {
        now = now.max(due);
        engine.device.handle_timeout(now);
        while engine.device.poll_transmit(now).is_some() {}
    }
    drop(engine);
    assert!(nic.destroy_qp(one.qpn));
    // By now, all events would be delivered.
    for _ in 0..100 {
        nic.poll(one.cq, 1, |_| ());
    }
    assert_eq!(nic.next_event(), None);
}

#[test]
fn requests_before_one_that_cannot_be_posted_stay_posted() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let area = Area::new(&nic, other.pd, 64);
    let segments = [area.segment(0, 1); 17];
    let request = |wr_id, count: usize| RecvRequest { wr_id, tag: 0, segments: &segments[..count] };
    let error = nic.post_recvs(other.qpn, [request(1, 1), request(2, 17), request(3, 1)]).unwrap_err();
    assert_eq!(error.posted_count, 1);
    assert_eq!(error.error, Error::Post(adverb_proto::PostError::TooManySegments));
    assert_eq!(nic.query_qp(other.qpn).unwrap().recv_queue_len, 1);
    drop(one);
}

#[test]
fn deregistered_memory_is_not_accessed() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let (here, there) = (Area::new(&nic, one.pd, 64), Area::new(&nic, other.pd, 64));
    here.fill(4);
    nic.deregister(there.key).unwrap();
    one.send(1, SendOperation::Write(there.remote(0)), &[here.segment(0, 64)]).unwrap();
    assert_eq!(one.completion().outcome.unwrap_err().status, Status::RemoteAccess);
    assert_eq!(there.values(), [0; 8]);
    assert!(nic.deregister(there.key).is_err());
}

#[test]
fn a_completion_queue_is_not_resized_below_its_completion_count() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    for _ in 0..3 {
        other.post_recv(1, &[]).unwrap();
        one.send(1, SendOperation::Send, &[]).unwrap();
    }
    assert_eq!(nic.resize_cq(one.cq, 2), Err(Error::InvalidCompletionQueue));
    nic.resize_cq(one.cq, 3).unwrap();
    other.post_recv(1, &[]).unwrap();
    one.send(1, SendOperation::Send, &[]).unwrap();
    assert_eq!(nic.next_event(), Some(NicEvent::Queue(QueueEvent::CqOverflow(one.cq))));
}

#[test]
fn destroying_a_queue_pair_discards_its_events() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let here = Area::new(&nic, one.pd, 64);
    let invalid = RemoteAddress { addr: 0, rkey: 1 };
    one.send(1, SendOperation::Write(invalid), &[here.segment(0, 8)]).unwrap();
    assert!(one.completion().outcome.is_err());
    nic.destroy_qp(one.qpn);
    assert_eq!(nic.next_event(), Some(NicEvent::Queue(QueueEvent::AccessError(other.qpn))));
    assert_eq!(nic.next_event(), None);
}

#[test]
fn peers_are_served_while_the_application_is_idle() {
    let (first, second, _) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    const LENGTH: u32 = 1 << 20;
    let here = Area::new(&first, one.pd, LENGTH as usize);
    let there = Area::new(&second, other.pd, LENGTH as usize);
    here.fill(5);
    one.send(1, SendOperation::Write(there.remote(0)), &[here.segment(0, LENGTH)]).unwrap();
    assert!(one.completion().outcome.is_ok());
    assert!(there.values() == here.values());
    there.fill(6);
    first.arm_cq(one.cq, ArmFor::Any).unwrap();
    one.send(2, SendOperation::Read(there.remote(0)), &[here.segment(0, LENGTH)]).unwrap();
    // Neither side polls from now on.
    assert!(one.wait());
    assert!(one.completion().outcome.is_ok());
    assert!(there.values() == here.values());
}

#[test]
fn poll_of_another_queue_delivers_the_event_of_an_armed_one() {
    let (first, second, _) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    let unrelated = End::new(&second, Transport::Rc);
    for round in 0..200 {
        other.post_recv(1, &[]).unwrap();
        second.arm_cq(other.cq, ArmFor::Any).unwrap();
        one.send(2, SendOperation::Send, &[]).unwrap();
        // Usually this poll receives the packet, before the progress thread does.
        assert_eq!(unrelated.poll(), None);
        assert!(other.wait(), "round {round}: the event was not delivered");
        assert!(other.completion().outcome.is_ok());
        assert!(one.completion().outcome.is_ok());
    }
}

#[test]
fn a_waiting_caller_is_woken_and_drives_the_link_only_while_it_waits() {
    let (first, second, _) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    let here = Area::new(&first, one.pd, 64);
    let there = Area::new(&second, other.pd, 64);
    here.fill(7);
    let is_driven_by_waiter = || second.shared.engine.lock().schedule.driver() == Driver::WaitingCaller;
    assert!(!second.wait(&other.channel, Some(Duration::ZERO)).unwrap(), "no event was delivered");
    std::thread::scope(|scope| {
        second.arm_cq(other.cq, ArmFor::Any).unwrap();
        let waiter = scope.spawn(|| second.wait(&other.channel, None));
        // WRITEs deliver no event. The progress thread is woken until it leaves the link to the waiting caller.
        let start = Instant::now();
        while !is_driven_by_waiter() {
            one.send(1, SendOperation::Write(there.remote(0)), &[here.segment(0, 64)]).unwrap();
            assert!(one.completion().outcome.is_ok());
            assert!(start.elapsed() < TEST_TIMEOUT, "packets still wake the progress thread");
        }
        assert!(!waiter.is_finished());
        other.post_recv(2, &[]).unwrap();
        one.send(3, SendOperation::Send, &[]).unwrap();
        assert!(waiter.join().unwrap().unwrap());
    });
    assert!(!is_driven_by_waiter());
    assert!(other.completion().outcome.is_ok());
    assert!(one.completion().outcome.is_ok());
    // No caller waits now, so the progress thread responds.
    for round in 0..10 {
        here.fill(round);
        one.send(4, SendOperation::Write(there.remote(0)), &[here.segment(0, 64)]).unwrap();
        assert!(one.completion().outcome.is_ok());
        assert!(there.values() == here.values());
    }
}

#[test]
fn a_long_response_continues_while_a_caller_waits() {
    let (second, first, mode) = two_nics();
    *mode.lock() = Some(WireMode::AcceptsAll);
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    // The timeout is long, so that the request is not retransmitted.
    one.connect_with_timeout(&other, Timeout::new(22).unwrap());
    other.connect(&one);
    let length = 4 << 20;
    let (here, there) = (Area::new(&first, one.pd, length), Area::new(&second, other.pd, length));
    there.fill(9);
    let idle = Channel::new().unwrap();
    std::thread::scope(|scope| {
        let idle_waiter = scope.spawn(|| second.wait(&idle, None));
        let start = Instant::now();
        while second.shared.engine.lock().schedule.driver() != Driver::WaitingCaller {
            one.send(1, SendOperation::Write(there.remote(0)), &[]).unwrap();
            assert!(one.completion().outcome.is_ok());
            assert!(start.elapsed() < TEST_TIMEOUT, "packets still wake the progress thread");
        }
        one.send(2, SendOperation::Read(there.remote(0)), &[here.segment(0, length as u32)]).unwrap();
        let completed = catch_unwind(AssertUnwindSafe(|| one.completion()));
        idle.notify();
        assert!(idle_waiter.join().unwrap().unwrap());
        assert!(completed.unwrap().outcome.is_ok());
    });
    assert!(here.values() == there.values());
}

#[test]
fn one_waiting_caller_drives_the_link_and_others_only_wait() {
    let (first, second, _) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    let idle = Channel::new().unwrap();
    std::thread::scope(|scope| {
        let idle_waiter = scope.spawn(|| second.wait(&idle, None));
        while !second.shared.engine.lock().schedule.has_waiting_caller() {
            std::thread::yield_now();
        }
        second.arm_cq(other.cq, ArmFor::Any).unwrap();
        let waiter = scope.spawn(|| second.wait(&other.channel, Some(TEST_TIMEOUT)));
        other.post_recv(1, &[]).unwrap();
        one.send(2, SendOperation::Send, &[]).unwrap();
        assert!(waiter.join().unwrap().unwrap(), "the driving caller delivers no event");
        assert!(second.shared.engine.lock().schedule.has_waiting_caller());
        idle.notify();
        assert!(idle_waiter.join().unwrap().unwrap());
    });
    assert!(!second.shared.engine.lock().schedule.has_waiting_caller());
}

#[test]
fn a_polled_message_is_acknowledged_without_another_poll() {
    let (first, second, _) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    let here = Area::new(&first, one.pd, 64);
    let there = Area::new(&second, other.pd, 64);
    for round in 0..20 {
        here.fill(round);
        other.post_recv(round, &[there.segment(0, 64)]).unwrap();
        one.send(round, SendOperation::Send, &[here.segment(0, 64)]).unwrap();
        assert!(other.completion().outcome.is_ok());
        assert!(there.values() == here.values());
        assert!(one.completion().outcome.is_ok());
    }
}

/// Checks that an acknowledgement is sent with the response of a caller that also polls `idle_count` queues without
/// completions.
fn assert_acknowledged_with_response(idle_count: usize) {
    let (first, second, _, batches) = two_nics_and_batches();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect(&one);
    let here = Area::new(&first, one.pd, 64);
    let there = Area::new(&second, other.pd, 64);
    let idle: Vec<Cq> = (0..idle_count).map(|_| second.create_cq(1, None).unwrap()).collect();
    const ROUNDS: usize = 10;
    let count_batches_of_two = || {
        batches.lock().clear();
        for _ in 0..ROUNDS {
            other.post_recv(1, &[there.segment(0, 8)]).unwrap();
            one.post_recv(1, &[here.segment(0, 8)]).unwrap();
            one.send(2, SendOperation::Send, &[here.segment(0, 8)]).unwrap();
            idle.iter().for_each(|cq| assert_eq!(second.poll(*cq, 1, |_| ()), 0));
            while other.completion().wr_id != 1 {}
            other.send(2, SendOperation::Send, &[there.segment(0, 8)]).unwrap();
            while one.completion().wr_id != 1 {}
        }
        batches.lock().iter().filter(|&&packets| packets == 2).count()
    };
    // If the test has to wait for a CPU, the progress thread sends the acknowledgement before the response. So a
    // busy machine needs several attempts.
    let start = Instant::now();
    while count_batches_of_two() <= ROUNDS / 2 {
        assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", batches.lock());
    }
}

#[test]
fn an_acknowledgement_is_sent_with_the_response() {
    assert_acknowledged_with_response(0);
}

#[test]
fn an_acknowledgement_is_sent_with_the_response_of_a_caller_with_several_queues() {
    // The message is received while the first of them is polled.
    assert_acknowledged_with_response(POLLS_UNTIL_COMPLETION as usize - 1);
}

/// Checks that a received message is acknowledged before `end`, or dropping the NIC, destroys its receiver.
fn assert_acknowledged_before(end: impl FnOnce(&End<'_>)) {
    let (first, second, _) = two_nics();
    let one = End::new(&first, Transport::Rc);
    {
        let other = End::new(&second, Transport::Rc);
        one.connect(&other);
        other.connect(&one);
        other.post_recv(1, &[]).unwrap();
        one.send(2, SendOperation::Send, &[]).unwrap();
        assert!(other.completion().outcome.is_ok());
        end(&other);
    }
    drop(second);
    assert!(one.completion().outcome.is_ok(), "the received message was not acknowledged");
}

#[test]
fn received_messages_are_acknowledged_before_the_queue_pair_is_destroyed() {
    assert_acknowledged_before(|end| assert!(end.nic.destroy_qp(end.qpn)));
}

#[test]
fn received_messages_are_acknowledged_before_the_queue_pair_moves_to_error() {
    assert_acknowledged_before(|end| end.nic.modify_qp(end.qpn, &Transition::Error).unwrap());
}

#[test]
fn received_messages_are_acknowledged_before_the_nic_is_closed() {
    assert_acknowledged_before(|_| ());
}

#[test]
fn poll_returns_queued_completions_in_order() {
    let nic = loopback();
    let (one, other) = pair(&nic);
    let here = Area::new(&nic, one.pd, 8);
    let there = Area::new(&nic, other.pd, 8);
    for round in 0..40 {
        one.send(round, SendOperation::Write(there.remote(0)), &[here.segment(0, 8)]).unwrap();
    }
    for round in 0..40 {
        assert_eq!(one.poll().unwrap().wr_id, round);
    }
    assert!(one.poll().is_none());
}

/// Checks that every request completes after a fault, and that no more requests can be posted.
fn assert_all_requests_complete(mode: WireMode) {
    let (first, second, wire_mode) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    other.connect_to_unresponsive(&one);
    let here = Area::new(&first, one.pd, 64);
    for wr_id in 0..5 {
        one.post_recv(wr_id, &[here.segment(0, 64)]).unwrap();
    }
    *wire_mode.lock() = Some(mode);
    first.arm_cq(one.cq, ArmFor::Any).unwrap();
    // The peer's first packet makes the progress thread send a response, which fails.
    other.send(9, SendOperation::Send, &[]).unwrap();
    assert!(one.wait());
    let mut completed = Vec::new();
    while completed.len() < 5 {
        let completion = one.completion();
        completed.push((completion.wr_id, completion.outcome.is_ok()));
    }
    assert_eq!(completed, [(0, true), (1, false), (2, false), (3, false), (4, false)]);
    assert_eq!(one.poll(), None);
    assert_eq!(one.post_recv(6, &[]).unwrap_err().error, Error::NicFailed);
    assert_eq!(one.send(6, SendOperation::Send, &[]).unwrap_err().error, Error::NicFailed);
    assert_eq!(first.create_domain(), Err(Error::NicFailed));
    let events: Vec<NicEvent> = std::iter::from_fn(|| first.next_event()).collect();
    assert!(events.contains(&NicEvent::Failed), "{events:?}");
    // All objects can be destroyed.
    assert!(first.destroy_qp(one.qpn));
    first.destroy_cq(one.cq).unwrap();
    first.deregister(here.key).unwrap();
    first.destroy_domain(one.pd).unwrap();
    // The peer's request fails, too.
    assert_eq!(other.completion().outcome.unwrap_err().status, Status::RetryExceeded);
}

#[test]
fn a_panic_of_the_progress_thread_completes_all_requests() {
    assert_all_requests_complete(WireMode::Panics);
}

#[test]
fn a_link_failure_completes_all_requests() {
    assert_all_requests_complete(WireMode::Fails);
}

#[test]
fn a_panic_in_a_call_of_the_application_completes_all_requests() {
    let (first, second, wire_mode) = two_nics();
    let (one, other) = (End::new(&first, Transport::Rc), End::new(&second, Transport::Rc));
    one.connect(&other);
    *wire_mode.lock() = Some(WireMode::Panics);
    // The panic doesn't reach the application.
    one.send(1, SendOperation::Send, &[]).unwrap();
    assert_eq!(one.completion().outcome.unwrap_err().status, Status::Flushed);
}
