//! Draining with markers: a request that is posted after all others in the error state is flushed after them.

use std::time::{Duration, Instant};

use adverb::verbs::{
    ArmFor, Completion, QpState, RecvRequest, SendRequest, Status, Transport, Transport::Rc,
};
use anyhow::{Result, ensure};

use crate::fixture::{COMPLETION_TIMEOUT, Fixture, Pair, Side, expect};
use crate::registry::{Need, tests};

tests! { "draining";
    a_drain_returns_all_requests_in_order,
    a_drain_returns_unsignaled_requests_that_succeeded,
    a_drain_of_full_queues_returns_all_requests,
    a_drain_of_an_idle_queue_pair_ends,
    a_drain_of_a_failed_queue_pair_ends,
    an_unreliable_connection_is_drained,
    queue_pairs_of_one_completion_queue_are_drained_each,
    the_end_of_a_drain_raises_a_completion_event,
    a_drained_queue_pair_can_be_connected_again,
    [Need::SharedReceiveQueues] a_drain_leaves_a_shared_receive_queue_alone,
}

/// The tags of receive requests begin here.
const RECEIVES: u64 = 1000;

/// Drains a queue pair and returns the completions, which must be all of its requests.
fn drain(side: &Side) -> Result<Vec<Completion>> {
    side.qp.begin_drain()?;
    let mut completions = Vec::new();
    poll_until_drained(side, &mut completions)?;
    let outstanding = (side.qp.outstanding_send_count(), side.qp.outstanding_recv_count());
    ensure!(outstanding == (0, 0), "outstanding sends and receives after the drain: {outstanding:?}");
    side.expect_state(QpState::Error)?;
    Ok(completions)
}

/// Polls until a queue pair is drained.
fn poll_until_drained(side: &Side, completions: &mut Vec<Completion>) -> Result<()> {
    let deadline = Instant::now() + COMPLETION_TIMEOUT;
    while !side.qp.poll_drain()? {
        ensure!(
            Instant::now() < deadline,
            "no marker was flushed within {COMPLETION_TIMEOUT:?}; {} requests completed",
            completions.len()
        );
        if side.cq.poll(completions)? == 0 {
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// Checks that these are the completions of `sends` send requests and `receives` receive requests, each once and in
/// order, and that in each queue no request succeeded after one that did not. Returns the number of sends that
/// succeeded.
fn check(completions: &[Completion], sends: u64, receives: u64) -> Result<usize> {
    let (of_sends, of_receives): (Vec<&Completion>, Vec<_>) =
        completions.iter().partition(|completion| completion.tag() < RECEIVES);
    for (queue, first, count) in [(&of_sends, 0, sends), (&of_receives, RECEIVES, receives)] {
        let tags: Vec<u64> = queue.iter().map(|completion| completion.tag()).collect();
        ensure!(tags.iter().copied().eq(first..first + count), "requests completed: {tags:?}");
        let failed = queue.iter().skip_while(|completion| completion.is_ok());
        for completion in failed {
            expect(&format!("request {}", completion.tag()), completion, Status::Flushed)?;
        }
    }
    Ok(of_sends.iter().filter(|completion| completion.is_ok()).count())
}

fn post_receives(side: &Side, count: u64) -> Result<()> {
    (RECEIVES..RECEIVES + count)
        .try_for_each(|tag| side.recv(RecvRequest::new(side.buffer(64)?).tag(tag)).map(drop))
}

/// Posts messages, of which every third is signaled.
fn send(side: &Side, count: u64) -> Result<()> {
    for tag in 0..count {
        let request = SendRequest::send(side.filled(64, tag)?).tag(tag);
        side.post(if tag % 3 == 2 { request } else { request.unsignaled() })?;
    }
    Ok(())
}

fn a_drain_returns_all_requests_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    post_receives(&pair.left, 20)?;
    // The peer has no receives, so no message is delivered.
    send(&pair.left, 20)?;
    let succeeded = check(&drain(&pair.left)?, 20, 20)?;
    ensure!(succeeded == 0, "{succeeded} messages succeeded without a receive");
    pair.left.expect_no_completion()
}

fn a_drain_returns_unsignaled_requests_that_succeeded(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let count = 12;
    (0..count).try_for_each(|_| pair.right.post_receive(64).map(drop))?;
    for tag in 0..count {
        pair.left.post(SendRequest::send(pair.left.filled(64, tag)?).tag(tag).unsignaled())?;
    }
    pair.right.take(count as usize)?;
    post_receives(&pair.left, 3)?;
    // Messages whose acknowledgement has not arrived are flushed.
    check(&drain(&pair.left)?, count, 3)?;
    pair.left.expect_no_completion()
}

fn a_drain_of_full_queues_returns_all_requests(fixture: &Fixture) -> Result<()> {
    // The completion queue has no entry beyond those of the requests.
    let pair = fixture.pair(Rc).depth(16, 16).connect()?;
    post_receives(&pair.left, 16)?;
    send(&pair.left, 16)?;
    check(&drain(&pair.left)?, 16, 16)?;
    pair.left.expect_no_completion()
}

fn a_drain_of_an_idle_queue_pair_ends(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    check(&drain(&pair.left)?, 0, 0)?;
    let unconnected = fixture.pair(Rc).side(None)?;
    ensure!(!unconnected.qp.poll_drain()?, "a queue pair is drained before the drain begins");
    post_receives(&unconnected, 3)?;
    check(&drain(&unconnected)?, 0, 3)?;
    // A second drain has nothing to do.
    unconnected.qp.begin_drain()?;
    ensure!(unconnected.qp.poll_drain()?, "a second drain of a queue pair did not end at once");
    pair.left.expect_no_completion()?;
    unconnected.expect_no_completion()
}

/// The device has flushed the requests before the drain begins.
fn a_drain_of_a_failed_queue_pair_ends(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_rnr_retries().connect()?;
    post_receives(&pair.left, 4)?;
    send(&pair.left, 4)?;
    let mut completions = Vec::new();
    pair.left.cq.poll_timeout(&mut completions, COMPLETION_TIMEOUT)?;
    ensure!(
        completions.iter().any(|completion| !completion.is_ok()),
        "a message succeeded without a receive"
    );
    completions.extend(drain(&pair.left)?);
    let (sends, receives): (Vec<_>, Vec<_>) =
        completions.into_iter().partition(|completion| completion.tag() < RECEIVES);
    ensure!(sends.iter().map(Completion::tag).eq(0..4), "the sends did not complete once each and in order");
    check(&receives, 0, 4)?;
    pair.left.expect_no_completion()
}

fn an_unreliable_connection_is_drained(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Transport::Uc).connect()?;
    post_receives(&pair.left, 10)?;
    send(&pair.left, 10)?;
    check(&drain(&pair.left)?, 10, 10)?;
    pair.left.expect_no_completion()
}

fn queue_pairs_of_one_completion_queue_are_drained_each(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc);
    let cq = fixture.device.completion_queue(3 * 128).create()?;
    let domain = fixture.device.create_protection_domain()?;
    let side = || builder.side_of(&domain, &cq, None);
    let (first, second, other) = (side()?, side()?, side()?);
    let peer = builder.side(None)?;
    other.qp.connect(&peer.qp.endpoint())?;
    peer.qp.connect(&other.qp.endpoint())?;
    post_receives(&first, 5)?;
    post_receives(&second, 7)?;
    let receiving = other.post_receive(64)?;
    first.qp.begin_drain()?;
    second.qp.begin_drain()?;
    let mut completions = Vec::new();
    poll_until_drained(&second, &mut completions)?;
    poll_until_drained(&first, &mut completions)?;
    let mut tags: Vec<u64> = completions.iter().map(Completion::tag).collect();
    tags.sort_unstable();
    let mut expected: Vec<u64> = (RECEIVES..RECEIVES + 5).chain(RECEIVES..RECEIVES + 7).collect();
    expected.sort_unstable();
    ensure!(tags == expected, "requests completed: {tags:?}");
    completions.iter().try_for_each(|completion| expect("a receive", completion, Status::Flushed))?;
    // The third queue pair still works.
    peer.execute(SendRequest::send(peer.filled(64, 3)?))?;
    crate::fixture::check(&other.wait(receiving)?.into_message()?, 3)
}

fn the_end_of_a_drain_raises_a_completion_event(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    let (side, mut completions) = (&pair.left, Vec::new());
    side.qp.begin_drain()?;
    let deadline = Instant::now() + COMPLETION_TIMEOUT;
    loop {
        side.cq.arm(ArmFor::Any)?;
        // A completion that arrived before arming raises no event.
        side.cq.poll(&mut completions)?;
        if side.qp.poll_drain()? {
            return side.expect_no_completion();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        ensure!(
            left > Duration::ZERO && side.cq.wait_event(left)?,
            "no event arrived within {COMPLETION_TIMEOUT:?}"
        );
    }
}

fn a_drained_queue_pair_can_be_connected_again(fixture: &Fixture) -> Result<()> {
    let pair: Pair = fixture.rc()?;
    for round in 0..3 {
        pair.ping()?;
        post_receives(&pair.left, 4)?;
        send(&pair.left, 4)?;
        check(&drain(&pair.left)?, 4, 4)?;
        check(&drain(&pair.right)?, 0, 0)?;
        for side in [&pair.left, &pair.right] {
            let left = side.qp.reset()?.len();
            ensure!(left == 0, "{left} requests were left after drain {round}");
            ensure!(!side.qp.poll_drain()?, "a queue pair is drained after a reset");
        }
        pair.connect()?;
    }
    pair.ping()
}

fn a_drain_leaves_a_shared_receive_queue_alone(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let shared = domain.shared_receive_queue(16).create()?;
    let cq = fixture.device.completion_queue(64).create()?;
    let queue_pair = || {
        let builder = domain.queue_pair(Rc).completion_queue(&cq).depth(8, 8);
        builder.shared_receive_queue(&shared).create()
    };
    let side = |qp| Side { qp, cq: cq.clone(), domain: domain.clone() };
    let (first, second) = (side(queue_pair()?), side(queue_pair()?));
    let receiving = shared.post_recv(crate::fixture::buffer(&domain, 64)?)?;
    first.qp.begin_drain()?;
    let mut completions = Vec::new();
    poll_until_drained(&first, &mut completions)?;
    ensure!(completions.is_empty(), "{} receives were flushed", completions.len());
    // Another queue pair can use the receive.
    let peer = fixture.pair(Rc).side(None)?;
    second.qp.connect(&peer.qp.endpoint())?;
    peer.qp.connect(&second.qp.endpoint())?;
    peer.execute(SendRequest::send(peer.filled(64, 9)?))?;
    crate::fixture::check(&second.wait(receiving)?.into_message()?, 9)
}
