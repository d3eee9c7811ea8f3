//! Statistics of queue pairs.

use adverb::verbs::{QueueStats, SendRequest, Status, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{Fixture, READ_WRITE, status};
use crate::registry::tests;

tests! { "statistics";
    a_new_queue_pair_has_counted_nothing,
    successes_and_bytes_are_counted,
    failures_and_flushes_are_counted,
    refused_requests_are_not_counted,
    unsignaled_requests_are_counted,
    the_maximum_of_outstanding_requests_is_counted,
    outstanding_requests_are_counted,
}

/// Returns the numbers of posted, succeeded, flushed and failed requests, and of bytes.
fn counts(stats: QueueStats) -> [u64; 5] {
    [
        stats.posted_count,
        stats.succeeded_count,
        stats.flushed_count,
        stats.failed_count,
        stats.completed_bytes,
    ]
}

fn check_equal(what: &str, stats: QueueStats, expected: [u64; 5]) -> Result<()> {
    let counted = counts(stats);
    ensure!(
        counted == expected,
        "{what}: posted, succeeded, flushed, failed, bytes: {counted:?}, not {expected:?}"
    );
    Ok(())
}

fn a_new_queue_pair_has_counted_nothing(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    ensure!(pair.left.qp.stats() == Default::default(), "{:?}", pair.left.qp.stats());
    Ok(())
}

fn successes_and_bytes_are_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(1000, READ_WRITE)?;
    let mut bytes = 0;
    for len in [0, 1, 100, 999] {
        pair.deliver(pair.left.buffer(len)?)?;
        bytes += len as u64;
    }
    check_equal("the receiver", pair.right.qp.stats().recv, [4, 4, 0, 0, bytes])?;
    let before = counts(pair.left.qp.stats().send)[4];
    pair.left.execute(SendRequest::read(pair.left.buffer(700)?, region.remote().at(0)))?;
    let stats = pair.left.qp.stats().send;
    check_equal("the sender", stats, [5, 5, 0, 0, before + 700])?;
    check_equal("its receives", pair.left.qp.stats().recv, [0; 5])
}

fn failures_and_flushes_are_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_rnr_retries().connect()?;
    // All receives are posted before the failure, because other rules determine the result of later ones.
    (0..5).try_for_each(|_| pair.left.post_receive(8).map(drop))?;
    for _ in 0..5 {
        pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    }
    let completions = pair.left.take(10)?;
    let exhausted = completions.iter().filter(|completion| status(completion) == Status::RnrRetryExceeded);
    ensure!(exhausted.count() == 1, "the request failed with another status");
    check_equal("sends", pair.left.qp.stats().send, [5, 0, 4, 1, 0])?;
    check_equal("receives", pair.left.qp.stats().recv, [5, 0, 5, 0, 0])
}

fn refused_requests_are_not_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(1, 1).connect()?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.post_receive(8)?;
    pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.expect_recv_rejected(pair.left.buffer(8)?)?;
    check_equal("sends", pair.left.qp.stats().send, [1, 0, 0, 0, 0])?;
    check_equal("receives", pair.left.qp.stats().recv, [1, 0, 0, 0, 0])
}

fn unsignaled_requests_are_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let write = || Ok::<_, anyhow::Error>(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)));
    for _ in 0..9 {
        pair.left.post(write()?.unsignaled())?;
    }
    pair.left.post(write()?)?;
    pair.left.take(10)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    let stats = counts(pair.left.qp.stats().send);
    ensure!(stats[..4] == [10, 10, 0, 0], "posted, succeeded, flushed, failed, bytes: {stats:?}");
    Ok(())
}

fn the_maximum_of_outstanding_requests_is_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for count in [3, 17, 5] {
        (0..count).try_for_each(|_| pair.right.post_receive(8).map(drop))?;
        for _ in 0..count {
            pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
        }
        pair.right.take(count)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    let stats = pair.right.qp.stats().recv;
    ensure!(stats.max_outstanding == 17, "the maximum is {}, not 17", stats.max_outstanding);
    ensure!(pair.left.qp.stats().send.max_outstanding == 1, "the sender had more than one outstanding");
    Ok(())
}

fn outstanding_requests_are_counted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for count in 1..=10 {
        pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
        pair.left.post_receive(8)?;
        pair.left.post_receive(8)?;
        let outstanding = (pair.left.qp.outstanding_send_count(), pair.left.qp.outstanding_recv_count());
        ensure!(outstanding == (count, 2 * count), "outstanding sends and receives: {outstanding:?}");
    }
    for _ in 0..10 {
        pair.right.post_receive(8)?;
    }
    pair.left.take(10)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    ensure!(pair.left.qp.outstanding_send_count() == 0, "requests are still outstanding");
    Ok(())
}
