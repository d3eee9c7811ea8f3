//! Brokers on the software NIC.

use std::time::{Duration, Instant};

use adverb_verbs::memory::{Buffer, MemoryRegion, Payload, RemoteMemory};
use adverb_verbs::{Access, ProtectionDomain, SoftDevice, Status};

use super::*;
use crate::{EndReason, PostError, RemoteRange, Ticket, TransferOperation};

/// The time after which a test that makes no progress fails.
pub(super) const TEST_DEADLINE: Duration = Duration::from_secs(60);

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

pub(super) fn small() -> BrokerConfig {
    BrokerConfig { send_slots: 8, recv_slots: 8, slot_size: 256, ..BrokerConfig::default() }
}

pub(super) fn domain() -> ProtectionDomain {
    SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap()
}

/// Returns two brokers in one protection domain, connected. Each is peer 0 of the other.
pub(super) fn pair(config: BrokerConfig) -> (Broker, Broker, ProtectionDomain) {
    let domain = domain();
    let mut a = Broker::builder(&domain).config(config).epoch(10).create().unwrap();
    let mut b = Broker::builder(&domain).config(config).epoch(20).create().unwrap();
    connect((&mut a, PeerId(0)), (&mut b, PeerId(0)));
    (a, b, domain)
}

pub(super) fn connect((a, peer_of_a): (&mut Broker, PeerId), (b, peer_of_b): (&mut Broker, PeerId)) {
    let (offer_of_a, offer_of_b) = (a.prepare(peer_of_a).unwrap(), b.prepare(peer_of_b).unwrap());
    a.establish(peer_of_a, &Offer::from_bytes(&offer_of_b.to_bytes()).unwrap()).unwrap();
    b.establish(peer_of_b, &Offer::from_bytes(&offer_of_a.to_bytes()).unwrap()).unwrap();
}

/// The events of a test, without borrowed data.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) messages: Vec<(PeerId, Vec<u8>)>,
    immediates: Vec<(u32, u32)>,
    pub(super) completed: Vec<(Ticket, Result<(), EndReason>, Vec<Payload>)>,
    pub(super) opened: Vec<u64>,
    pub(super) ended: Vec<(PeerId, u64, EndReason)>,
    pub(super) segment_changes: usize,
    unblocked: usize,
}

impl Log {
    pub(super) fn record(&mut self, event: Event<'_>) {
        match event {
            Event::Message { from, bytes } => self.messages.push((from, bytes.to_vec())),
            Event::Immediate { immediate, length, .. } => self.immediates.push((immediate, length)),
            Event::Completed { ticket, result, payloads, .. } => {
                self.completed.push((ticket, result.map_err(|error| error.reason), payloads.collect()));
            }
            Event::Unblocked { .. } => self.unblocked += 1,
            Event::SessionOpened { epoch, .. } => self.opened.push(epoch),
            Event::SessionEnded { peer, epoch, reason } => self.ended.push((peer, epoch, reason)),
            Event::SegmentsChanged { .. } => self.segment_changes += 1,
        }
    }

    /// Returns the buffer of the only ticket, which succeeded.
    pub(super) fn take_buffer(&mut self) -> Buffer {
        let (_, result, mut payloads) = self.completed.pop().unwrap();
        result.unwrap();
        payloads.pop().unwrap().into_buffer().unwrap()
    }
}

/// Polls brokers until the condition holds.
pub(super) fn poll_until(brokers: &mut [(&mut Broker, &mut Log)], mut is_done: impl FnMut(&[&Log]) -> bool) {
    let started = Instant::now();
    loop {
        for (broker, log) in brokers.iter_mut() {
            broker.poll(|_, event| log.record(event)).unwrap();
        }
        let logs: Vec<&Log> = brokers.iter().map(|(_, log)| &**log).collect();
        if is_done(&logs) {
            return;
        }
        assert!(started.elapsed() < TEST_DEADLINE, "no progress: {logs:?}");
        std::thread::yield_now();
    }
}

fn range(region: &MemoryRegion, epoch: u64, offset: u64, len: u64) -> RemoteRange {
    let RemoteMemory { addr, rkey, .. } = region.remote();
    RemoteRange { epoch, memory: RemoteMemory { addr: addr + offset, rkey, len } }
}

pub(super) fn buffer(domain: &ProtectionDomain, bytes: &[u8]) -> Buffer {
    let mut buffer = domain.allocate_buffer(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

#[test]
fn all_operations_transfer_the_right_bytes() {
    let (mut a, mut b, domain) = pair(small());
    let (mut log_a, mut log_b) = (Log::default(), Log::default());
    let region = domain.allocate_region(4096, ALL).unwrap();
    let peer = PeerId(0);

    a.post_write(peer, buffer(&domain, b"written"), range(&region, 20, 0, 7)).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(&log_a.take_buffer()[..], b"written");
    assert_eq!((&log_a.opened[..], &log_b.opened[..]), (&[20][..], &[10][..]));

    a.post_write_with_imm(peer, buffer(&domain, b"announced"), range(&region, 20, 100, 9), 0).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| {
        logs[0].completed.len() == 1 && logs[1].immediates.len() == 1
    });
    log_a.take_buffer();
    assert_eq!(log_b.immediates, [(0, 9)], "immediate data 0 is delivered like any other");

    let read = domain.allocate_buffer(9).unwrap();
    a.post_read(peer, read, range(&region, 20, 100, 9)).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(&log_a.take_buffer()[..], b"announced");

    let word = range(&region, 20, 200, 8);
    a.post_fetch_add(peer, domain.allocate_buffer(8).unwrap(), word, 5).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(log_a.take_buffer()[..], 0u64.to_ne_bytes());
    a.post_compare_swap(peer, domain.allocate_buffer(8).unwrap(), word, 5, 77).unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    assert_eq!(log_a.take_buffer()[..], 5u64.to_ne_bytes());

    // A batch has one ticket, and returns its payloads in order.
    let mut transfers = vec![
        Transfer {
            operation: TransferOperation::Write,
            local: buffer(&domain, b"first").into(),
            remote: range(&region, 20, 300, 5),
        },
        Transfer {
            operation: TransferOperation::Read,
            local: domain.allocate_buffer(8).unwrap().into(),
            remote: range(&region, 20, 200, 8),
        },
    ];
    let ticket = a.post_batch(peer, &mut transfers).unwrap();
    assert!(transfers.is_empty());
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].completed.len() == 1);
    let (completed, result, payloads) = log_a.completed.pop().unwrap();
    assert_eq!((completed, result), (ticket, Ok(())));
    let buffers: Vec<Buffer> = payloads.into_iter().map(|payload| payload.into_buffer().unwrap()).collect();
    assert_eq!((&buffers[0][..], &buffers[1][..]), (&b"first"[..], &77u64.to_ne_bytes()[..]));

    let mut bytes = [0; 5];
    region.read(300, &mut bytes).unwrap();
    assert_eq!(&bytes, b"first");
    assert!(log_a.ended.is_empty() && log_b.ended.is_empty());
}

#[test]
fn a_ring_smaller_than_the_doorbell_batch_keeps_messages_in_order() {
    let rings = [(1, 1), (2, 1), (1, 3), (3, 8)];
    for (send_slots, recv_slots) in rings {
        let config = BrokerConfig {
            send_slots,
            recv_slots,
            doorbell_batch: 64,
            signal_interval: 64,
            send_queue_depth: 4,
            ..small()
        };
        let (mut a, mut b, _domain) = pair(config);
        let (mut log_a, mut log_b) = (Log::default(), Log::default());
        let count = 300u32;
        let (mut next_of_a, mut next_of_b) = (0u32, 0u32);
        let started = Instant::now();
        while log_a.messages.len() < count as usize || log_b.messages.len() < count as usize {
            for (broker, next) in [(&mut a, &mut next_of_a), (&mut b, &mut next_of_b)] {
                while *next < count {
                    match broker.send(PeerId(0), &next.to_le_bytes()) {
                        Ok(()) => *next += 1,
                        Err(PostError::WouldBlock { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            a.poll(|_, event| log_a.record(event)).unwrap();
            b.poll(|_, event| log_b.record(event)).unwrap();
            assert!(started.elapsed() < TEST_DEADLINE, "{send_slots} and {recv_slots} slots: no progress");
        }
        for log in [&log_a, &log_b] {
            let numbers =
                log.messages.iter().map(|(_, bytes)| u32::from_le_bytes(bytes[..].try_into().unwrap()));
            assert!(numbers.eq(0..count));
            assert!(log.ended.is_empty() && log.unblocked > 0);
        }
    }
}

#[test]
fn a_handler_can_post_requests() {
    let (mut a, mut b, _domain) = pair(small());
    let mut log = Log::default();
    for number in 0..4u8 {
        a.send(PeerId(0), &[number; 100]).unwrap();
    }
    let started = Instant::now();
    while log.messages.len() < 4 {
        b.poll(|b, event| {
            if let Event::Message { from, bytes } = event {
                let mut slot = b.allocate_send_buf(from).unwrap();
                slot.write(b"echo ").unwrap();
                slot.write(bytes).unwrap();
                b.post_send(slot).unwrap();
            }
        })
        .unwrap();
        a.poll(|_, event| log.record(event)).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    for (number, (_, bytes)) in (0..).zip(&log.messages) {
        assert_eq!(bytes.strip_prefix(b"echo "), Some(&[number; 100][..]));
    }
}

#[test]
fn a_handler_that_panics_loses_no_slot() {
    let (mut a, mut b, _) = pair(small());
    let peer = PeerId(0);
    let started = Instant::now();
    let (mut sent, mut received) = (0u32, 0u32);
    // More messages than slots and credits, and a panic for each.
    while received < 100 {
        if sent < 100 && a.send(peer, &sent.to_le_bytes()).is_ok() {
            sent += 1;
        }
        a.poll(|_, _| ()).unwrap();
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            b.poll(|_, event| {
                if let Event::Message { bytes, .. } = event {
                    assert_eq!(bytes, received.to_le_bytes());
                    received += 1;
                    // Without the message of the panic hook.
                    std::panic::resume_unwind(Box::new("the handler's panic"));
                }
            })
        }));
        if let Err(panic) = polled {
            assert_eq!(panic.downcast_ref(), Some(&"the handler's panic"));
        }
        assert!(started.elapsed() < TEST_DEADLINE, "{sent} sent, {received} received");
    }
}

#[test]
fn a_failed_request_ends_its_session_only() {
    let domain = domain();
    let [mut a, mut b, mut c] = [1, 2, 3]
        .map(|epoch| Broker::builder(&domain).config(small()).peer_count(3).epoch(epoch).create().unwrap());
    let (to_a, to_b, to_c) = (PeerId(0), PeerId(1), PeerId(2));
    connect((&mut a, to_b), (&mut b, to_a));
    connect((&mut a, to_c), (&mut c, to_a));
    let (mut log_a, mut log_b, mut log_c) = (Log::default(), Log::default(), Log::default());

    // A READ with an invalid key, requests behind it in flight, and requests that still wait.
    let region = domain.allocate_region(4096, ALL).unwrap();
    let mut invalid = range(&region, 2, 0, 8);
    invalid.memory.rkey ^= 0x5a5a_5a00;
    let mut tickets = vec![a.post_read(to_b, domain.allocate_buffer(8).unwrap(), invalid).unwrap()];
    tickets.push(a.post_write(to_b, buffer(&domain, b"later"), range(&region, 2, 0, 5)).unwrap());
    a.send(to_b, b"never received").unwrap();
    a.flush(to_b);
    tickets.push(a.post_write(to_b, buffer(&domain, b"last"), range(&region, 2, 0, 4)).unwrap());
    let held = a.allocate_send_buf(to_b).unwrap();
    a.send(to_c, b"to c").unwrap();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b), (&mut c, &mut log_c)], |logs| {
        !logs[0].ended.is_empty() && !logs[1].ended.is_empty() && !logs[2].messages.is_empty()
    });
    assert!(
        matches!(log_a.ended[..], [(peer, 2, EndReason::RequestFailed { status: Status::RemoteAccess })] if peer == to_b)
    );
    let ended: Vec<Ticket> = log_a.completed.iter().map(|(ticket, ..)| *ticket).collect();
    assert_eq!(ended, tickets);
    for (_, result, payloads) in &log_a.completed {
        assert!(result.is_err());
        assert!(payloads.len() == 1 && !payloads[0].is_empty(), "the payload is returned");
    }
    assert!(log_b.messages.is_empty() && log_c.ended.is_empty());
    assert!(matches!(a.post_send(held), Err(PostError::NotOpen { .. })));
    assert!(!a.is_open(to_b) && a.is_open(to_c));

    // The same broker connects again, with all of its slots.
    connect((&mut a, to_b), (&mut b, to_a));
    for number in 0..100u8 {
        while let Err(error) = a.send(to_b, &[number]) {
            assert_eq!(error, PostError::WouldBlock { peer: to_b });
            poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |_| true);
        }
    }
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[1].messages.len() == 100);
    assert!(log_b.messages.iter().map(|(_, bytes)| bytes[0]).eq(0..100));
}

#[test]
fn refused_transfers_return_their_payload() {
    let (mut a, _b, domain) = pair(small());
    let region = domain.allocate_region(4096, ALL).unwrap();
    let refused = a.post_write(PeerId(0), buffer(&domain, b"old"), range(&region, 19, 0, 3)).unwrap_err();
    assert!(matches!(
        refused.error,
        TransferError::Post(PostError::StaleEpoch { current: 20, requested: 19, .. })
    ));
    assert_eq!(&refused.payload.into_buffer().unwrap()[..], b"old");
    let refused = a.post_write(PeerId(0), buffer(&domain, b"long"), range(&region, 20, 0, 3)).unwrap_err();
    assert!(matches!(refused.error, TransferError::Post(PostError::OutOfBounds { .. })));
    let segments: Vec<Buffer> = (0..5).map(|_| domain.allocate_buffer(1).unwrap()).collect();
    let refused = a.post_write(PeerId(0), segments, range(&region, 20, 0, 5)).unwrap_err();
    assert!(matches!(refused.error, TransferError::TooManySegments { count: 5, max: 4 }));
    assert!(matches!(a.send(PeerId(7), b"nobody"), Err(PostError::NotOpen { .. })));
    let mut slot = a.allocate_send_buf(PeerId(0)).unwrap();
    assert!(matches!(slot.write(&[0; 257]), Err(PostError::MessageTooLong { len: 257, max: 256 })));
}

#[test]
fn dropped_slots_return_to_the_broker() {
    let (mut a, _b, _domain) = pair(small());
    for _ in 0..100 {
        drop(a.allocate_send_buf(PeerId(0)).unwrap());
    }
    let slots: Vec<SendBuf> = std::iter::from_fn(|| a.allocate_send_buf(PeerId(0)).ok()).collect();
    assert_eq!(slots.len(), 8);
}

#[test]
fn filtered_polls_deliver_only_their_events() {
    let (mut a, mut b, domain) = pair(small());
    let region = domain.allocate_region(64, ALL).unwrap();
    let (mut sends, mut receives, mut others) = (Log::default(), Log::default(), Log::default());
    a.post_write(PeerId(0), buffer(&domain, b"x"), range(&region, 20, 0, 1)).unwrap();
    a.flush_all();
    b.send(PeerId(0), b"message").unwrap();
    b.flush_all();
    let started = Instant::now();
    while sends.completed.is_empty() {
        a.poll_sq(|_, event| sends.record(event)).unwrap();
        b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    while receives.messages.is_empty() {
        a.poll_peer(PeerId(5), |_, event| others.record(event)).unwrap();
        a.poll_rq(|_, event| receives.record(event)).unwrap();
        b.poll(|_, _| ()).unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    assert!(sends.messages.is_empty() && receives.completed.is_empty());
    assert!(others.messages.is_empty() && others.completed.is_empty());
}

/// Executes a READ of one byte, so that all earlier requests of `b` have completed at both sides.
fn read_byte(a: &mut Broker, b: &mut Broker, region: &MemoryRegion, domain: &ProtectionDomain) {
    let ticket = b.post_read(PeerId(0), buffer(domain, b"x"), range(region, 10, 0, 1)).unwrap();
    let (mut is_read, started) = (false, Instant::now());
    while !is_read {
        a.poll_sq(|_, _| ()).unwrap();
        b.poll(|_, event| {
            is_read |= matches!(event, Event::Completed { ticket: ended, .. } if ended == ticket);
        })
        .unwrap();
        assert!(started.elapsed() < TEST_DEADLINE);
    }
}

#[test]
fn a_peer_cannot_queue_more_immediate_data_than_it_has_credits() {
    let (mut a, mut b, domain) = pair(small());
    let region = domain.allocate_region(64, ALL).unwrap();
    let peer = PeerId(0);
    let write = |b: &mut Broker| b.post_write_with_imm(peer, (), range(&region, 10, 0, 0), 7);
    let mut written = 0;
    for _ in 0..50 {
        while write(&mut b).is_ok() {
            written += 1;
        }
        // The application of `a` waits only for its own requests.
        read_byte(&mut a, &mut b, &region, &domain);
        assert!(a.events.len() <= 8, "{} events are queued", a.events.len());
    }
    assert_eq!((written, a.events.len()), (8, 8));
    // The credits return when the events are delivered.
    let (mut log_a, mut log_b) = (Log::default(), Log::default());
    a.poll_rq(|_, event| log_a.record(event)).unwrap();
    assert_eq!(log_a.immediates, [(7, 0); 8]);
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[1].unblocked > 0);
    write(&mut b).unwrap();
}

#[test]
fn a_peer_that_grants_single_credits_queues_one_event() {
    let (mut a, mut b, _domain) = pair(small());
    let (mut log_b, mut sent, started) = (Log::default(), 0, Instant::now());
    while log_b.messages.len() < 200 {
        // The application of `a` repeats refused requests, and reads no event about them.
        while a.send(PeerId(0), b"x").is_ok() {
            sent += 1;
        }
        a.poll_rq(|_, _| ()).unwrap();
        b.poll(|_, event| log_b.record(event)).unwrap();
        assert!(a.events.len() <= 1, "{} events are queued after {sent} messages", a.events.len());
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    let mut log_a = Log::default();
    poll_until(&mut [(&mut a, &mut log_a), (&mut b, &mut log_b)], |logs| logs[0].unblocked > 0);
}

#[test]
fn a_peer_may_return_with_a_smaller_epoch_or_be_refused() {
    let (mut a, mut b, domain) = pair(small());
    a.close(PeerId(0));
    b.close(PeerId(0));
    let mut other = Broker::builder(&domain).config(small()).epoch(19).create().unwrap();
    let (mut offer, _) = (other.prepare(PeerId(0)).unwrap(), a.prepare(PeerId(0)).unwrap());
    a.establish(PeerId(0), &offer).unwrap();
    assert_eq!(a.peer_epoch(PeerId(0)), Some(19));
    a.close(PeerId(0));
    let _ = a.prepare(PeerId(0)).unwrap();
    offer.slot_size = 512;
    let refused = a.establish(PeerId(0), &offer).unwrap_err();
    assert!(matches!(refused, BrokerError::SlotSizeMismatch { local: 256, remote: 512, .. }));
    // After the refusal, a new session can be prepared.
    assert!(matches!(a.establish(PeerId(0), &offer), Err(BrokerError::Session(_))));
    let _ = a.prepare(PeerId(0)).unwrap();
}

#[test]
fn a_completion_queue_that_could_overflow_is_refused() {
    let domain = domain();
    let max = domain.device().attributes().max_completion_queue_depth;
    let config = BrokerConfig { send_queue_depth: 1 << 14, recv_slots: 1 << 14, ..small() };
    let per_peer = (1 << 14) + u32::from(config.recv_queue_depth());
    // Up to eight peers have two queue pairs for a moment.
    let fitting = (max / per_peer) as usize - 8;
    Broker::builder(&domain).config(config).peer_count(fitting).epoch(10).create().unwrap();
    match Broker::builder(&domain).config(config).peer_count(fitting + 1).epoch(10).create().unwrap_err() {
        BrokerError::CompletionQueueTooDeep { peer_count, requested, max: reported } => {
            assert_eq!((peer_count, reported), (fitting + 1, max));
            assert_eq!(requested, per_peer * (fitting as u32 + 9));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_waiting_thread_sleeps_until_a_message_arrives() {
    let (mut a, mut b, _domain) = pair(BrokerConfig { keepalive: None, ..small() });
    let mut log = Log::default();
    assert!(b.wait(Duration::ZERO).unwrap(), "the session was opened");
    b.poll(|_, event| log.record(event)).unwrap();
    assert!(!b.wait(Duration::from_millis(5)).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut received = 0;
            while received < 50 {
                b.wait(None).unwrap();
                b.poll(|b, event| {
                    if let Event::Message { from, bytes } = event {
                        received += 1;
                        b.send(from, bytes).unwrap();
                    }
                })
                .unwrap();
            }
            b.wait(Duration::from_millis(100)).unwrap();
        });
        for number in 0..50u8 {
            // The other thread usually sleeps by now. The test holds if it doesn't.
            std::thread::sleep(Duration::from_millis(1));
            a.send(PeerId(0), &[number]).unwrap();
            let mut reply = None;
            while reply.is_none() {
                assert!(a.wait(TEST_DEADLINE).unwrap());
                a.poll(|_, event| {
                    if let Event::Message { bytes, .. } = event {
                        reply = Some(bytes[0]);
                    }
                })
                .unwrap();
            }
            assert_eq!(reply, Some(number));
        }
    });
}

#[test]
fn messages_of_a_session_follow_its_opening() {
    let domain = domain();
    let mut a = Broker::builder(&domain).config(small()).epoch(10).create().unwrap();
    let mut b = Broker::builder(&domain).config(small()).epoch(20).create().unwrap();
    let peer = PeerId(0);
    let (offer_of_a, offer_of_b) = (a.prepare(peer).unwrap(), b.prepare(peer).unwrap());
    // The queue pair of `b` is connected, but the session is not open yet.
    b.peers[0].link.as_ref().unwrap().queue_pair.connect(&offer_of_a.endpoint).unwrap();
    a.establish(peer, &offer_of_b).unwrap();
    a.send(peer, b"early").unwrap();
    let started = Instant::now();
    while b.peers[0].early_events.is_empty() {
        a.poll(|_, _| ()).unwrap();
        assert_eq!(b.poll(|_, event| panic!("{event:?}")).unwrap(), 0);
        assert!(started.elapsed() < TEST_DEADLINE);
    }
    b.open(peer, &offer_of_a).unwrap();
    let mut texts = Vec::new();
    b.poll(|_, event| texts.push(format!("{event:?}"))).unwrap();
    assert!(texts[0].starts_with("SessionOpened") && texts[1].starts_with("Message"), "{texts:?}");
}
