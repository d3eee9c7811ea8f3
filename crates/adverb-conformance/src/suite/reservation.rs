//! Reservation of completion queue capacity: a completion queue can't overflow.

use adverb::verbs::{Error, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::fixture::{Fixture, READ_WRITE, take};
use crate::registry::tests;

tests! { "reservation";
    a_queue_pair_deeper_than_its_completion_queue_is_refused,
    queue_pairs_share_the_capacity_of_a_completion_queue,
    a_dropped_queue_pair_releases_its_capacity,
    a_refused_queue_pair_reserves_no_capacity,
    a_completion_queue_is_at_least_as_deep_as_requested,
    a_completion_queue_depth_of_zero_or_beyond_the_limit_is_refused,
    a_full_completion_queue_loses_nothing,
}

/// Creates a queue pair of these depths on a completion queue.
fn make(
    fixture: &Fixture,
    cq: &adverb::verbs::CompletionQueue,
    send: u32,
    recv: u32,
) -> adverb::verbs::Result<adverb::verbs::QueuePair> {
    let domain = fixture.device.create_protection_domain()?;
    domain.queue_pair(Rc).completion_queue(cq).port(fixture.port.number).depth(send, recv).create()
}

fn a_queue_pair_deeper_than_its_completion_queue_is_refused(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(8).create()?;
    // A device may have created a deeper queue than requested.
    let depth = cq.depth();
    for (send, recv) in [(depth + 1, 1), (1, depth), (depth, 1)] {
        let made = make(fixture, &cq, send, recv);
        ensure!(matches!(made, Err(Error::LimitExceeded { .. })), "{send} and {recv} on {depth}: {made:?}");
    }
    make(fixture, &cq, depth - 1, 1).context("queue pairs that fill the completion queue")?;
    Ok(())
}

fn queue_pairs_share_the_capacity_of_a_completion_queue(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(64).create()?;
    let quarter = cq.depth() / 4;
    let first = make(fixture, &cq, quarter, quarter)?;
    let second = make(fixture, &cq, quarter, cq.depth() - 3 * quarter)?;
    let made = make(fixture, &cq, 1, 1);
    ensure!(
        matches!(made, Err(Error::LimitExceeded { .. })),
        "a queue pair beyond the capacity was created: {made:?}"
    );
    ensure!(made.err().is_some_and(|error| error.hint().is_some()), "the error has no hint");
    drop((first, second));
    Ok(())
}

fn a_dropped_queue_pair_releases_its_capacity(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(16).create()?;
    for round in 0..20 {
        make(fixture, &cq, cq.depth() - 8, 8).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

fn a_refused_queue_pair_reserves_no_capacity(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(16).create()?;
    for _ in 0..10 {
        // The sends fit, but the receives don't.
        let made = make(fixture, &cq, cq.depth() - 1, 2);
        ensure!(matches!(made, Err(Error::LimitExceeded { .. })), "{made:?}");
    }
    make(fixture, &cq, cq.depth() - 1, 1)?;
    Ok(())
}

fn a_completion_queue_is_at_least_as_deep_as_requested(fixture: &Fixture) -> Result<()> {
    for depth in [1, 2, 3, 100, 1000] {
        let cq = fixture.device.completion_queue(depth).create()?;
        ensure!(cq.depth() >= depth, "requested depth {depth}, but it is {}", cq.depth());
    }
    Ok(())
}

fn a_completion_queue_depth_of_zero_or_beyond_the_limit_is_refused(fixture: &Fixture) -> Result<()> {
    for depth in [0, fixture.device.attributes().max_completion_queue_depth + 1, u32::MAX] {
        let made = fixture.device.completion_queue(depth).create();
        ensure!(matches!(made, Err(Error::LimitExceeded { .. })), "{depth}: {made:?}");
    }
    Ok(())
}

fn a_full_completion_queue_loses_nothing(fixture: &Fixture) -> Result<()> {
    // The completions fill the queue of a device that creates the exact depth, because none is polled until all have
    // arrived.
    let pair = fixture.pair(Rc).depth(31, 32).connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for round in 0..5 {
        for tag in 0..31 {
            pair.left.post(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)).tag(tag))?;
        }
        (0..32).try_for_each(|_| pair.left.post_receive(8).map(drop))?;
        for _ in 0..32 {
            pair.right.execute(SendRequest::send(pair.right.buffer(8)?))?;
        }
        let completions = take(&pair.left.cq, 63).with_context(|| format!("round {round}"))?;
        ensure!(completions.iter().all(|completion| completion.is_ok()), "requests failed");
    }
    Ok(())
}
