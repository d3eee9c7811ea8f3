//! Shared receive queues.

use adverb::memory::PayloadSegment;
use adverb::verbs::{
    CompletionQueue, DeviceEvent, Error, ProtectionDomain, RecvRequest, SendRequest, SharedReceiveQueue,
    Status, Transport, Transport::Rc,
};
use anyhow::{Context, Result, ensure};

use super::datagrams::destination_to;
use crate::Need;
use crate::fixture::{
    COMPLETION_TIMEOUT, Fixture, QUIET_PERIOD, READ_WRITE, Side, buffer, check, check_equal, check_rejected,
    expect, immediate, pattern, read, take,
};
use crate::registry::tests;

tests! { "shared receive queues";
    [Need::SharedReceiveQueues] a_message_consumes_a_shared_receive,
    [Need::SharedReceiveQueues] many_queue_pairs_share_receives,
    [Need::SharedReceiveQueues] a_shared_receive_names_the_receiving_queue_pair,
    [Need::SharedReceiveQueues] shared_receives_are_consumed_in_order,
    [Need::SharedReceiveQueues] a_write_with_immediate_data_consumes_a_shared_receive,
    [Need::SharedReceiveQueues] a_message_waits_for_a_shared_receive,
    [Need::SharedReceiveQueues] shared_receives_are_scattered,
    [Need::SharedReceiveQueues] datagrams_consume_shared_receives,
    [Need::SharedReceiveQueues] a_full_shared_queue_refuses_and_returns_the_buffer,
    [Need::SharedReceiveQueues] a_shared_queue_wraps_around,
    [Need::SharedReceiveQueues] a_queue_pair_with_a_shared_queue_refuses_receives_of_its_own,
    [Need::SharedReceiveQueues] a_limit_event_is_delivered_once,
    [Need::SharedReceiveQueues] a_limit_that_is_not_reached_delivers_no_event,
    [Need::SharedReceiveQueues] a_limit_beyond_the_depth_is_refused,
    [Need::SharedReceiveQueues] a_shared_queue_depth_of_zero_or_beyond_the_limit_is_refused,
    [Need::SharedReceiveQueues] a_failed_queue_pair_leaves_the_others_their_receives,
    [Need::SharedReceiveQueues] a_message_too_long_for_a_shared_receive_fails_only_its_connection,
    [Need::SharedReceiveQueues] shared_receives_survive_their_handle,
    [Need::SharedReceiveQueues] shared_receives_complete_on_the_receivers_queue,
    [Need::SharedReceiveQueues] a_shared_queue_may_be_dropped_with_requests_in_it,
    [Need::SharedReceiveQueues] a_shared_queue_reserves_its_capacity_once,
}

/// A queue pair that takes its receives from a shared queue, connected to one that has its own.
struct Shared {
    receiver: Side,
    sender: Side,
}

fn connect(
    fixture: &Fixture,
    domain: &ProtectionDomain,
    cq: &CompletionQueue,
    shared: &SharedReceiveQueue,
) -> Result<Shared> {
    let builder = domain.queue_pair(Rc).completion_queue(cq).port(fixture.port.number).depth(4, 4);
    let receiver =
        Side { qp: builder.shared_receive_queue(shared).create()?, cq: cq.clone(), domain: domain.clone() };
    let sender = fixture.pair(Rc).side(None)?;
    receiver.qp.connect(&sender.qp.endpoint())?;
    sender.qp.connect(&receiver.qp.endpoint())?;
    Ok(Shared { receiver, sender })
}

/// Creates a shared queue of this depth, and `count` queue pairs on it with one completion queue.
fn create_shared(fixture: &Fixture, depth: u32, count: usize) -> Result<(SharedReceiveQueue, Vec<Shared>)> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(depth).create()?;
    let cq = fixture.device.completion_queue(depth + 4 * count as u32).create()?;
    let sides = (0..count).map(|_| connect(fixture, &domain, &cq, &shared)).collect::<Result<Vec<_>>>()?;
    Ok((shared, sides))
}

fn create_one(fixture: &Fixture, depth: u32) -> Result<(SharedReceiveQueue, Shared)> {
    let (shared, mut sides) = create_shared(fixture, depth, 1)?;
    Ok((shared, sides.pop().context("a shared receive queue was created")?))
}

/// Posts a receive of this length.
fn post_receive(shared: &SharedReceiveQueue, len: usize, tag: u64) -> Result<adverb::verbs::RequestId> {
    let request = RecvRequest::new(buffer(shared.protection_domain(), len)?).tag(tag);
    Ok(shared.post_recv(request).map_err(Error::from)?)
}

fn send(side: &Side, len: usize, seed: u64) -> Result<()> {
    side.execute(SendRequest::send(side.filled(len, seed)?))
}

fn a_message_consumes_a_shared_receive(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 16)?;
    ensure!(
        shared.outstanding_recv_count() == 0,
        "a new queue has {} requests",
        shared.outstanding_recv_count()
    );
    for (seed, size) in (1..).zip(fixture.sizes()) {
        let receiving = post_receive(&shared, size, seed)?;
        ensure!(
            shared.outstanding_recv_count() == 1,
            "the queue has {} requests, not 1",
            shared.outstanding_recv_count()
        );
        send(&side.sender, size, seed)?;
        let completion = side.receiver.wait(receiving)?;
        ensure!(completion.tag() == seed, "the tag is {}", completion.tag());
        check(&completion.into_message()?, seed)?;
        ensure!(
            shared.outstanding_recv_count() == 0,
            "the queue has {} requests, not 0",
            shared.outstanding_recv_count()
        );
    }
    Ok(())
}

fn many_queue_pairs_share_receives(fixture: &Fixture) -> Result<()> {
    let (shared, sides) = create_shared(fixture, 64, 16)?;
    (0..64).try_for_each(|tag| post_receive(&shared, 64, tag).map(drop))?;
    for round in 0..4 {
        for (number, side) in (0..).zip(&sides) {
            send(&side.sender, 64, 100 * number + round)?;
        }
    }
    let mut seen = Vec::new();
    for completion in take(&sides[0].receiver.cq, 64)? {
        let message = completion.into_message()?;
        let find = |seed: &u64| pattern(64, *seed) == message[..];
        let all = (0..16).flat_map(|number| (0..4).map(move |round| 100 * number + round));
        seen.push(all.into_iter().find(find).context("a message arrived that was not sent")?);
    }
    seen.sort_unstable();
    seen.dedup();
    ensure!(seen.len() == 64, "{} of 64 messages arrived", seen.len());
    Ok(())
}

fn a_shared_receive_names_the_receiving_queue_pair(fixture: &Fixture) -> Result<()> {
    let (shared, sides) = create_shared(fixture, 16, 4)?;
    (0..4).try_for_each(|tag| post_receive(&shared, 64, tag).map(drop))?;
    for (seed, side) in (0..).zip(&sides) {
        send(&side.sender, 64, seed)?;
    }
    for completion in take(&sides[0].receiver.cq, 4)? {
        let qpn = completion.qpn();
        let message = completion.into_message()?;
        let find = |seed: &u64| pattern(64, *seed) == message[..];
        let seed = (0..4).find(find).context("a message arrived that was not sent")?;
        let receiver = sides[seed as usize].receiver.qp.qpn();
        ensure!(qpn == Some(receiver), "queue pair {receiver} received it, but the completion names {qpn:?}");
    }
    Ok(())
}

fn shared_receives_are_consumed_in_order(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 32)?;
    (0..32).try_for_each(|tag| post_receive(&shared, 8, tag).map(drop))?;
    (0..32).try_for_each(|seed| send(&side.sender, 8, seed))?;
    for (tag, completion) in (0..).zip(side.receiver.take(32)?) {
        ensure!(completion.tag() == tag, "receive {} was consumed instead of {tag}", completion.tag());
        check(&completion.into_message()?, tag)?;
    }
    Ok(())
}

fn a_write_with_immediate_data_consumes_a_shared_receive(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 4)?;
    let region = side.receiver.region(64, READ_WRITE)?;
    let receiving = post_receive(&shared, 8, 0)?;
    let bytes = side.sender.filled(64, 1)?;
    side.sender.execute(SendRequest::write_with_imm(bytes, region.remote().at(0), 77))?;
    ensure!(immediate(&side.receiver.wait(receiving)?)? == Some(77), "the immediate data differs");
    check(&read(&region, 0, 64)?, 1)
}

fn a_message_waits_for_a_shared_receive(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 4)?;
    let sending = side.sender.post(SendRequest::send(side.sender.filled(64, 1)?))?;
    side.sender.expect_no_completion()?;
    let receiving = post_receive(&shared, 64, 0)?;
    check(&side.receiver.wait(receiving)?.into_message()?, 1)?;
    side.sender.wait(sending)?.result()?;
    Ok(())
}

fn shared_receives_are_scattered(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(4).max_sge(2).create()?;
    let cq = fixture.device.completion_queue(16).create()?;
    let side = connect(fixture, &domain, &cq, &shared)?;
    let size = fixture.mtu() + 10;
    let region = domain.allocate_region(size, READ_WRITE)?;
    let pieces =
        vec![PayloadSegment::Region(region.slice(0..7)?), PayloadSegment::Region(region.slice(7..size)?)];
    let receiving = shared.post_recv(RecvRequest::new(pieces)).map_err(Error::from)?;
    send(&side.sender, size, 5)?;
    side.receiver.wait(receiving)?.result()?;
    check_equal(&read(&region, 0, size)?, &pattern(size, 5))?;
    let three =
        (0..3).map(|_| Ok(PayloadSegment::Region(region.slice(0..1)?))).collect::<Result<Vec<_>>>()?;
    let before = shared.outstanding_recv_count();
    // A device may grant more segments than requested.
    if let Err(refused) = shared.post_recv(RecvRequest::new(three)) {
        ensure!(
            matches!(refused.error, Error::LimitExceeded { .. }),
            "refused with another error: {}",
            refused.error
        );
        ensure!(
            refused.requests.len() == 1 && shared.outstanding_recv_count() == before,
            "the error did not return the request"
        );
    }
    Ok(())
}

fn datagrams_consume_shared_receives(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(8).create()?;
    let cq = fixture.device.completion_queue(16).create()?;
    let builder = domain.queue_pair(Transport::Ud).completion_queue(&cq).port(fixture.port.number);
    let qp = builder.depth(4, 4).qkey(crate::fixture::QKEY).shared_receive_queue(&shared).create()?;
    let receiver = Side { qp, cq, domain };
    receiver.qp.move_to_rts()?;
    let sender = fixture.pair(Transport::Ud).side(None)?;
    sender.qp.move_to_rts()?;
    for seed in 0..8 {
        let receiving = post_receive(&shared, fixture.max_datagram_len(), seed)?;
        let received = fixture.retry_after_loss(|| {
            sender.execute(
                SendRequest::send(sender.filled(64, seed)?).destination(&destination_to(&sender, &receiver)?),
            )?;
            receiver.wait(receiving)
        })?;
        let received = received.into_datagram()?;
        ensure!(received.source_qpn == sender.qp.qpn(), "the source is {}", received.source_qpn);
        check(&received.message, seed)?;
    }
    Ok(())
}

fn a_full_shared_queue_refuses_and_returns_the_buffer(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 8)?;
    (0..8).try_for_each(|tag| post_receive(&shared, 8, tag).map(drop))?;
    let refused =
        check_rejected(shared.post_recv(side.receiver.buffer(8)?), 1, 8, shared.outstanding_recv_count())?;
    ensure!(matches!(refused, Error::QueueFull { .. }), "refused with another error: {refused}");
    send(&side.sender, 8, 1)?;
    side.receiver.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    post_receive(&shared, 8, 8).context("the queue has space again")?;
    Ok(())
}

fn a_shared_queue_wraps_around(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 4)?;
    for tag in 0..4 {
        post_receive(&shared, 8, tag)?;
    }
    for tag in 0..200 {
        send(&side.sender, 8, tag)?;
        let completion = side.receiver.take(1)?.pop().context("one was taken")?;
        ensure!(completion.tag() == tag, "receive {} was consumed instead of {tag}", completion.tag());
        check(&completion.into_message()?, tag)?;
        post_receive(&shared, 8, tag + 4)?;
    }
    Ok(())
}

fn a_queue_pair_with_a_shared_queue_refuses_receives_of_its_own(fixture: &Fixture) -> Result<()> {
    let (_shared, side) = create_one(fixture, 4)?;
    let error = side.receiver.expect_recv_rejected(side.receiver.buffer(8)?)?;
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    Ok(())
}

/// Waits for the limit event of this queue. Returns whether it arrives.
fn take_event(fixture: &Fixture, shared: &SharedReceiveQueue) -> Result<bool> {
    Ok(match fixture.device.wait_event(QUIET_PERIOD)? {
        Some(event) => {
            ensure!(
                event == DeviceEvent::SharedReceiveQueueLimit(shared.id()),
                "unexpected event: {event:?}"
            );
            true
        }
        None => false,
    })
}

fn a_limit_event_is_delivered_once(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 16)?;
    (0..8).try_for_each(|tag| post_receive(&shared, 8, tag).map(drop))?;
    shared.arm(6)?;
    for taken in 1..=2 {
        send(&side.sender, 8, 1)?;
        ensure!(
            !take_event(fixture, &shared)?,
            "the limit event was delivered after {taken} of 8 receives, and the limit is 6"
        );
    }
    send(&side.sender, 8, 1)?;
    let event = fixture.device.wait_event(COMPLETION_TIMEOUT)?;
    ensure!(event == Some(DeviceEvent::SharedReceiveQueueLimit(shared.id())), "unexpected event: {event:?}");
    send(&side.sender, 8, 1)?;
    ensure!(!take_event(fixture, &shared)?, "a second event was delivered");
    shared.arm(4)?;
    send(&side.sender, 8, 1)?;
    let event = fixture.device.wait_event(COMPLETION_TIMEOUT)?;
    ensure!(
        event == Some(DeviceEvent::SharedReceiveQueueLimit(shared.id())),
        "unexpected event after arming again: {event:?}"
    );
    Ok(())
}

fn a_limit_that_is_not_reached_delivers_no_event(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 16)?;
    (0..8).try_for_each(|tag| post_receive(&shared, 8, tag).map(drop))?;
    shared.arm(2)?;
    (0..6).try_for_each(|seed| send(&side.sender, 8, seed))?;
    ensure!(
        !take_event(fixture, &shared)?,
        "the limit event was delivered with 2 receives left, and the limit is 2"
    );
    Ok(())
}

fn a_limit_beyond_the_depth_is_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(8).create()?;
    // A device may have created a deeper queue than requested.
    let refused = shared.arm(1 << 20);
    ensure!(matches!(refused, Err(Error::CallFailed { .. } | Error::LimitExceeded { .. })), "{refused:?}");
    Ok(())
}

fn a_shared_queue_depth_of_zero_or_beyond_the_limit_is_refused(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    for depth in [0, u32::MAX] {
        let refused = domain.shared_receive_queue(depth).create();
        ensure!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
    }
    Ok(())
}

fn a_failed_queue_pair_leaves_the_others_their_receives(fixture: &Fixture) -> Result<()> {
    let (shared, mut sides) = create_shared(fixture, 16, 3)?;
    (0..8).try_for_each(|tag| post_receive(&shared, 64, tag).map(drop))?;
    sides[0].receiver.qp.move_to_error()?;
    drop(sides.remove(1));
    for seed in 0..8 {
        send(&sides[1].sender, 64, seed)?;
    }
    for (seed, completion) in (0..).zip(take(&sides[1].receiver.cq, 8)?) {
        check(&completion.into_message()?, seed)?;
    }
    Ok(())
}

fn a_message_too_long_for_a_shared_receive_fails_only_its_connection(fixture: &Fixture) -> Result<()> {
    let (shared, sides) = create_shared(fixture, 16, 2)?;
    let small = post_receive(&shared, 10, 1)?;
    post_receive(&shared, 100, 2)?;
    let sender = &sides[0].sender;
    let sent = sender.run(SendRequest::send(sender.filled(100, 1)?))?;
    let received = sides[0].receiver.wait(small)?;
    ensure!(!sent.is_ok() && !received.is_ok(), "the oversized message arrived");
    send(&sides[1].sender, 100, 2)?;
    let completion = take(&sides[1].receiver.cq, 1)?.pop().context("one was taken")?;
    check(&completion.into_message()?, 2)?;
    expect("the receiver", &received, Status::LocalLength)
}

fn shared_receives_survive_their_handle(fixture: &Fixture) -> Result<()> {
    let (shared, side) = create_one(fixture, 4)?;
    let receiving = post_receive(&shared, 64, 1)?;
    drop(shared);
    send(&side.sender, 64, 3)?;
    check(&side.receiver.wait(receiving)?.into_message()?, 3)
}

fn shared_receives_complete_on_the_receivers_queue(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(8).create()?;
    let queue = || fixture.device.completion_queue(16).create();
    let first = connect(fixture, &domain, &queue()?, &shared)?;
    let second = connect(fixture, &domain, &queue()?, &shared)?;
    (0..8).try_for_each(|tag| post_receive(&shared, 64, tag).map(drop))?;
    for round in 0..4 {
        send(&first.sender, 64, round)?;
        send(&second.sender, 64, 10 + round)?;
    }
    for (side, base) in [(first, 0), (second, 10)] {
        for (seed, completion) in (base..).zip(side.receiver.take(4)?) {
            check(&completion.into_message()?, seed)?;
        }
    }
    Ok(())
}

fn a_shared_queue_may_be_dropped_with_requests_in_it(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let region = domain.allocate_region(64, adverb::verbs::Access::LOCAL_WRITE)?;
    let shared = domain.shared_receive_queue(8).create()?;
    for _ in 0..8 {
        shared.post_recv(RecvRequest::new(region.slice(0..64)?)).map_err(Error::from)?;
    }
    let region = region.into_buffer().err().context("outstanding requests did not keep their memory")?;
    drop(shared);
    ensure!(region.into_buffer().is_ok(), "the requests still keep their memory");
    Ok(())
}

fn a_shared_queue_reserves_its_capacity_once(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(8).create()?;
    let cq = fixture.device.completion_queue(16).create()?;
    let depth = cq.depth() - 8;
    let make = |send| {
        let builder = domain.queue_pair(Rc).completion_queue(&cq).port(fixture.port.number);
        builder.depth(send, 1).shared_receive_queue(&shared).create()
    };
    let first = make(depth - 2)?;
    let second = make(2).context("the shared queue's capacity was reserved twice")?;
    ensure!(
        matches!(make(1), Err(Error::LimitExceeded { .. })),
        "a queue pair beyond the capacity was created"
    );
    drop(first);
    make(depth - 2).context("a dropped queue pair did not release its capacity")?;
    drop(second);
    Ok(())
}
