//! Extended completion queues, whose completions may have timestamps.

use adverb::verbs::{
    Access, ArmFor, CompletedOperation, Error, SendRequest, Status, Transport, Transport::Rc, Transport::Ud,
};
use anyhow::{Context, Result, ensure};

use super::datagrams::{exchange, post_receive};
use crate::Need;
use crate::fixture::{
    COMPLETION_TIMEOUT, Fixture, READ_WRITE, check, expect, immediate, original, pattern, read, take,
};
use crate::registry::tests;

tests! { "extended queues";
    messages_of_every_size_arrive_through_an_extended_queue,
    an_extended_queue_reports_the_operation,
    [Need::Atomics] atomics_complete_in_an_extended_queue,
    an_extended_queue_delivers_immediate_data,
    an_extended_queue_reports_the_sender_of_a_datagram,
    [Need::MemoryWindows] an_extended_queue_reports_an_invalidated_key,
    an_extended_queue_reports_failures,
    an_extended_queue_returns_unsignaled_requests,
    an_extended_queue_delivers_more_completions_than_one_poll_takes,
    an_extended_queue_has_events,
    an_extended_queue_can_be_resized,
    completions_have_no_timestamp_unless_requested,
    [Need::Timestamps] timestamps_grow,
    unsupported_timestamps_are_refused_with_an_explanation,
}

fn messages_of_every_size_arrive_through_an_extended_queue(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let pair = fixture.pair(transport).extended().connect()?;
        for (seed, size) in (1..).zip([0, 1, fixture.mtu(), fixture.mtu() + 1, 64 << 10]) {
            let message = pair.deliver(pair.left.filled(size, seed)?)?;
            ensure!(message.len() == size, "{size} bytes were sent, but {} arrived", message.len());
            check(&message, seed)?;
        }
    }
    Ok(())
}

fn an_extended_queue_reports_the_operation(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(100, READ_WRITE)?;
    let at = region.remote().at(0);
    let written = pair.left.completed(SendRequest::write(pair.left.filled(100, 1)?, at))?.result()?;
    ensure!(written.operation == CompletedOperation::Write, "{written:?}");
    check(&read(&region, 0, 100)?, 1)?;
    region.write(0, &pattern(100, 2))?;
    let completion = pair.left.completed(SendRequest::read(pair.left.buffer(100)?, at))?;
    ensure!(completion.result()?.operation == CompletedOperation::Read, "{completion}");
    check(&completion.into_buffer().context("the completion has no buffer")?, 2)
}

fn atomics_complete_in_an_extended_queue(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(8, READ_WRITE | Access::REMOTE_ATOMIC)?;
    let at = region.remote().at(0);
    pair.left.execute(SendRequest::fetch_add(pair.left.buffer(8)?, at, 41))?;
    let before = original(pair.left.run(SendRequest::compare_swap(pair.left.buffer(8)?, at, 41, 7))?)?;
    ensure!(before == 41, "the word was {before}");
    Ok(())
}

fn an_extended_queue_delivers_immediate_data(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let receiving = [pair.right.post_receive(8)?, pair.right.post_receive(8)?, pair.right.post_receive(8)?];
    pair.left.execute(SendRequest::send_with_imm(pair.left.buffer(8)?, 0x0102_0304))?;
    pair.left.execute(SendRequest::write_with_imm(pair.left.buffer(8)?, region.remote().at(0), 5))?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    for (id, expected) in receiving.into_iter().zip([Some(0x0102_0304), Some(5), None]) {
        let received = immediate(&pair.right.wait(id)?)?;
        ensure!(received == expected, "received {received:x?} instead of {expected:x?}");
    }
    Ok(())
}

fn an_extended_queue_reports_the_sender_of_a_datagram(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).extended().connect()?;
    let received = exchange(fixture, &pair, SendRequest::send_with_imm(pair.left.filled(99, 1)?, 77))?;
    ensure!(received.source_qpn == pair.left.qp.qpn(), "the source is {}", received.source_qpn);
    ensure!(received.ip_header.is_some() || fixture.port.lid != 0, "the datagram has no IP header");
    ensure!(received.immediate == Some(77), "received {:?}", received.immediate);
    check(&received.message, 1)?;
    post_receive(fixture, &pair.right).map(drop)
}

fn an_extended_queue_reports_an_invalidated_key(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(4096, Access::LOCAL_WRITE | Access::WINDOW_BIND)?;
    let window = pair.right.domain.create_memory_window()?;
    let bind = SendRequest::bind(window, region.slice(0..64)?, Access::REMOTE_WRITE);
    let window = pair.right.completed(bind)?.into_window().context("the completion has no window")?;
    let rkey = window.remote().context("the window isn't bound")?.rkey;
    let receiving = pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send_invalidate(pair.left.buffer(8)?, rkey))?;
    let completion = pair.right.wait(receiving)?;
    let CompletedOperation::Recv { invalidated, .. } = completion.result()?.operation else {
        anyhow::bail!("the completion is not that of a receive: {completion}")
    };
    ensure!(invalidated == Some(rkey), "{invalidated:x?} was invalidated, not {rkey:x}");
    ensure!(!window.is_bound(), "the window is still bound");
    Ok(())
}

fn an_extended_queue_reports_failures(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(8, Access::LOCAL_WRITE)?;
    let request = SendRequest::write(pair.left.buffer(8)?, region.remote().at(0));
    pair.left.expect_failure(request, Status::RemoteAccess)?;
    let pair = fixture.pair(Rc).extended().connect()?;
    let receiving = pair.right.post_receive(8)?;
    pair.right.qp.move_to_error()?;
    expect("the receive", &pair.right.wait(receiving)?, Status::Flushed)
}

fn an_extended_queue_returns_unsignaled_requests(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).extended().connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for _ in 0..5 {
        pair.left.post(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)).unsignaled())?;
    }
    pair.left.post(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)))?;
    for completion in pair.left.take(6)? {
        completion.result()?;
    }
    Ok(())
}

fn an_extended_queue_delivers_more_completions_than_one_poll_takes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(64, 64).extended().connect()?;
    for _ in 0..10 {
        let mut last = None;
        for _ in 0..50 {
            pair.right.post_receive(8)?;
            last = Some(pair.left.post(SendRequest::send(pair.left.buffer(8)?))?);
        }
        pair.left.wait(last.context("no request was posted")?)?.result()?;
        pair.left.take(49)?.iter().try_for_each(|completion| completion.result().map(drop))?;
        pair.right.take(50)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    Ok(())
}

fn an_extended_queue_has_events(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().extended().connect()?;
    pair.right.cq.arm(ArmFor::Any)?;
    let receiving = pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(pair.right.cq.wait_event(COMPLETION_TIMEOUT)?, "no event was delivered");
    pair.right.wait(receiving)?.result()?;
    pair.ping()
}

fn an_extended_queue_can_be_resized(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(8, 8).extended().connect()?;
    for _ in 0..8 {
        pair.right.post_receive(8)?;
        pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    }
    pair.right.cq.resize(500)?;
    take(&pair.right.cq, 8)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    Ok(())
}

fn completions_have_no_timestamp_unless_requested(fixture: &Fixture) -> Result<()> {
    for builder in [fixture.pair(Rc), fixture.pair(Rc).extended()] {
        let pair = builder.connect()?;
        let receiving = pair.right.post_receive(8)?;
        let completion = pair.left.completed(SendRequest::send(pair.left.buffer(8)?))?;
        ensure!(completion.timestamp().is_none(), "the timestamp is {:?}", completion.timestamp());
        let completion = pair.right.wait(receiving)?;
        ensure!(completion.timestamp().is_none(), "the timestamp is {:?}", completion.timestamp());
    }
    Ok(())
}

fn timestamps_grow(fixture: &Fixture) -> Result<()> {
    let clock = fixture.device.attributes().timestamp_clock.context("the device has no clock")?;
    let domain = fixture.device.create_protection_domain()?;
    let cq = fixture.device.completion_queue(256).timestamps().create()?;
    let (left, right) = (fixture.pair(Rc).side_of(&domain, &cq, None)?, fixture.pair(Rc).side(None)?);
    left.qp.connect(&right.qp.endpoint())?;
    right.qp.connect(&left.qp.endpoint())?;
    let mut before: Option<u64> = None;
    for _ in 0..20 {
        right.post_receive(8)?;
        let completion = left.completed(SendRequest::send(left.buffer(8)?))?;
        let now = completion.timestamp().context("the completion has no timestamp")?;
        // The clock may wrap. It advances by less than half of its range between two completions.
        let passed = before.map_or(1, |before| now.wrapping_sub(before) & clock.mask);
        ensure!(passed > 0 && passed < clock.mask / 2, "timestamp {now} follows {before:?}");
        before = Some(now);
    }
    Ok(())
}

fn unsupported_timestamps_are_refused_with_an_explanation(fixture: &Fixture) -> Result<()> {
    let made = fixture.device.completion_queue(8).timestamps().create();
    match (fixture.device.attributes().timestamp_clock, made) {
        (Some(_), made) => made.map(drop)?,
        (None, Err(error @ Error::Unsupported { .. })) => {
            ensure!(error.hint().is_some(), "the error has no hint: {error}");
        }
        (None, made) => anyhow::bail!("the device has no timestamps, but the result is {made:?}"),
    }
    Ok(())
}
