//! Requests of a failed queue pair.

use adverb::verbs::{Access, Completion, QpState, SendRequest, Status, Transport, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{
    COMPLETION_TIMEOUT, Fixture, MessageLost, Pair, QUIET_PERIOD, expect, is_lossy, status,
};
use crate::registry::tests;

tests! { "flushing";
    receives_are_flushed_once_each_and_in_order,
    sends_are_flushed_once_each_and_in_order,
    both_queues_are_flushed,
    unsignaled_requests_are_flushed_once_each,
    receives_of_an_unreliable_connection_are_flushed,
    a_refused_peers_receives_are_flushed,
    the_requests_behind_a_refused_one_are_flushed,
    flushed_requests_return_their_buffers,
    draining_returns_requests_in_flight,
    draining_an_idle_queue_pair_returns_at_once,
    draining_keeps_the_completions_of_others,
    a_send_posted_to_a_failed_queue_pair_is_flushed,
    a_receive_posted_to_a_failed_queue_pair_is_flushed,
}

/// Checks that these are the completions of requests with tags from `first`, flushed, each once and in order.
fn check_all_flushed(completions: &[Completion], first: u64) -> Result<()> {
    for (tag, completion) in (first..).zip(completions) {
        ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
        expect(&format!("request {tag}"), completion, Status::Flushed)?;
    }
    Ok(())
}

/// Posts receives to the left side, with tags from `first`.
fn post_receive(pair: &Pair, first: u64, count: u64) -> Result<()> {
    for tag in first..first + count {
        pair.left.recv(adverb::verbs::RecvRequest::new(pair.left.buffer(64)?).tag(tag))?;
    }
    Ok(())
}

/// Posts messages from the left side without receives at the right side, with tags from `first`.
fn send(pair: &Pair, first: u64, count: u64) -> Result<()> {
    for tag in first..first + count {
        pair.left.post(SendRequest::send(pair.left.filled(64, tag)?).tag(tag))?;
    }
    Ok(())
}

fn receives_are_flushed_once_each_and_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    post_receive(&pair, 1, 40)?;
    pair.left.qp.move_to_error()?;
    check_all_flushed(&pair.left.take(40)?, 1)?;
    pair.left.expect_no_completion()
}

fn sends_are_flushed_once_each_and_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    send(&pair, 1, 40)?;
    pair.left.qp.move_to_error()?;
    check_all_flushed(&pair.left.take(40)?, 1)?;
    pair.left.expect_no_completion()
}

fn both_queues_are_flushed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    post_receive(&pair, 100, 20)?;
    send(&pair, 1, 20)?;
    pair.left.qp.move_to_error()?;
    let (receives, sends): (Vec<_>, Vec<_>) =
        pair.left.take(40)?.into_iter().partition(|completion| completion.tag() >= 100);
    ensure!(sends.len() == 20, "{} of 20 sends completed", sends.len());
    check_all_flushed(&sends, 1)?;
    check_all_flushed(&receives, 100)?;
    pair.left.expect_no_completion()
}

/// Vol. 1, 10.7.3.1: a request that fails produces a completion even if it is unsignaled.
fn unsignaled_requests_are_flushed_once_each(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for tag in 0..16 {
        pair.left.post(SendRequest::send(pair.left.filled(64, tag)?).tag(tag).unsignaled())?;
    }
    pair.left.expect_no_completion()?;
    pair.left.qp.move_to_error()?;
    check_all_flushed(&pair.left.take(16)?, 0)?;
    pair.left.expect_no_completion()
}

fn receives_of_an_unreliable_connection_are_flushed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Transport::Uc).connect()?;
    post_receive(&pair, 1, 10)?;
    pair.left.qp.move_to_error()?;
    check_all_flushed(&pair.left.take(10)?, 1)?;
    pair.left.expect_no_completion()
}

fn a_refused_peers_receives_are_flushed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    post_receive(&pair, 1, 10)?;
    let region = pair.left.region(8, Access::LOCAL_WRITE)?;
    let request = SendRequest::write(pair.right.filled(8, 1)?, region.remote().at(0));
    pair.right.expect_failure(request, Status::RemoteAccess)?;
    check_all_flushed(&pair.left.take(10)?, 1)?;
    pair.left.expect_no_completion()
}

fn the_requests_behind_a_refused_one_are_flushed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, Access::LOCAL_WRITE)?;
    (0..30).try_for_each(|_| pair.right.post_receive(64).map(drop))?;
    send(&pair, 0, 10)?;
    pair.left.post(SendRequest::write(pair.left.filled(8, 1)?, region.remote().at(0)).tag(10))?;
    send(&pair, 11, 10)?;
    let completions = pair.left.take(21)?;
    for completion in &completions[..10] {
        // After a NAK the responder acknowledges nothing more, including earlier requests.
        ensure!(!(is_lossy() && status(completion) == Status::RetryExceeded), MessageLost);
        completion.result()?;
    }
    expect("the write", &completions[10], Status::RemoteAccess)?;
    check_all_flushed(&completions[11..], 11)?;
    let theirs = pair.right.take(30)?;
    let received = theirs.iter().filter(|completion| completion.is_ok()).count();
    ensure!(received == 10, "{received} messages arrived, not 10");
    ensure!(
        theirs[10..].iter().all(|completion| status(completion) == Status::Flushed),
        "not all requests were flushed"
    );
    pair.left.expect_no_completion()?;
    pair.right.expect_no_completion()
}

fn flushed_requests_return_their_buffers(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut buffer = pair.left.filled(1000, 5)?;
    buffer.set_range(100..300)?;
    pair.left.recv(buffer)?;
    pair.left.qp.move_to_error()?;
    let completion = pair.left.take(1)?.pop();
    let mut buffer =
        completion.and_then(Completion::into_buffer).expect("a flushed receive returns its buffer");
    ensure!(
        buffer.range() == (100..300) && buffer.capacity() == 1000,
        "another buffer was returned: {buffer:?}"
    );
    buffer.reset_range();
    crate::fixture::check(&buffer, 5)
}

fn draining_returns_requests_in_flight(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(512, 512).connect()?;
    post_receive(&pair, 1000, 512)?;
    send(&pair, 0, 512)?;
    pair.left.qp.drain(COMPLETION_TIMEOUT)?;
    let outstanding = (pair.left.qp.outstanding_send_count(), pair.left.qp.outstanding_recv_count());
    ensure!(outstanding == (0, 0), "outstanding sends and receives: {outstanding:?}");
    let (receives, sends): (Vec<_>, Vec<_>) =
        pair.left.take(1024)?.into_iter().partition(|completion| completion.tag() >= 1000);
    check_all_flushed(&sends, 0)?;
    check_all_flushed(&receives, 1000)?;
    pair.left.expect_no_completion()
}

fn draining_an_idle_queue_pair_returns_at_once(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let side = fixture.pair(transport).side(None)?;
        side.qp.drain(QUIET_PERIOD)?;
        side.expect_state(QpState::Error)?;
        side.expect_no_completion()?;
    }
    Ok(())
}

fn draining_keeps_the_completions_of_others(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc);
    let cq = fixture.device.completion_queue(256).create()?;
    let domain = fixture.device.create_protection_domain()?;
    let (drained, other) = (builder.side_of(&domain, &cq, None)?, builder.side_of(&domain, &cq, None)?);
    let peer = builder.side(None)?;
    other.qp.connect(&peer.qp.endpoint())?;
    peer.qp.connect(&other.qp.endpoint())?;
    let receiving = other.post_receive(64)?;
    let flushed = drained.post_receive(64)?;
    peer.execute(SendRequest::send(peer.filled(64, 3)?))?;
    drained.qp.drain(COMPLETION_TIMEOUT)?;
    crate::fixture::check(&other.wait(receiving)?.into_message()?, 3)?;
    expect("the drained receive", &drained.wait(flushed)?, Status::Flushed)
}

/// The device knows that the queue pair has failed, but the program doesn't yet: vol. 1, 10.3.1.7.
fn a_send_posted_to_a_failed_queue_pair_is_flushed(fixture: &Fixture) -> Result<()> {
    let pair = failed(fixture)?;
    pair.left.expect_failure(SendRequest::send(pair.left.filled(8, 1)?), Status::Flushed)
}

fn a_receive_posted_to_a_failed_queue_pair_is_flushed(fixture: &Fixture) -> Result<()> {
    let pair = failed(fixture)?;
    let receiving = pair.left.post_receive(8)?;
    let mut completions = Vec::new();
    pair.left.cq.poll_timeout(&mut completions, COMPLETION_TIMEOUT)?;
    ensure!(!completions.is_empty(), "no completion arrived");
    ensure!(completions[0].id() == receiving, "the completion of another request was returned");
    expect("the receive", &completions[0], Status::Flushed)
}

/// Returns a pair whose left side has failed at the device.
fn failed(fixture: &Fixture) -> Result<Pair> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, Access::LOCAL_WRITE)?;
    let request = SendRequest::write(pair.left.filled(8, 1)?, region.remote().at(0));
    pair.left.expect_failure(request, Status::RemoteAccess)?;
    Ok(pair)
}
