//! Completion queues: size, completion vectors, moderation and solicited completions.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use adverb::verbs::{ArmFor, Error, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{COMPLETION_TIMEOUT, Fixture, QUIET_PERIOD, Sleeper, take};
use crate::registry::tests;

tests! { "completion queues";
    a_queue_grows_so_that_more_queue_pairs_can_use_it,
    a_queue_shrinks_to_what_its_queue_pairs_need_and_no_further,
    a_queue_is_resized_while_completions_wait_in_it,
    a_queue_is_resized_while_requests_are_in_flight,
    a_queue_of_depth_zero_or_beyond_the_limit_is_refused,
    a_resized_queue_still_has_events,
    every_completion_vector_delivers_events,
    an_unknown_completion_vector_is_refused,
    [Need::Moderation] a_moderated_queue_coalesces_events,
    moderation_beyond_the_devices_limit_is_refused_with_an_explanation,
    wait_solicited_sleeps_through_unsolicited_completions,
    wait_solicited_is_woken_by_a_failure,
    wait_solicited_returns_completions_that_are_already_queued,
    wait_solicited_needs_a_queue_with_events,
}

fn a_queue_grows_so_that_more_queue_pairs_can_use_it(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let cq = fixture.device.completion_queue(8).create()?;
    let builder = fixture.pair(Rc).depth(4, 4);
    let first = builder.side_of(&domain, &cq, None)?;
    ensure!(
        builder.side_of(&domain, &cq, None).is_err(),
        "the completion queue accepted a second queue pair"
    );
    cq.resize(16)?;
    ensure!(cq.depth() == 16, "the depth is {}", cq.depth());
    let second = builder.side_of(&domain, &cq, None)?;
    first.qp.connect(&second.qp.endpoint())?;
    second.qp.connect(&first.qp.endpoint())?;
    // Both sides fill their queues.
    for _ in 0..4 {
        first.post_receive(8)?;
        second.post_receive(8)?;
        first.post(SendRequest::send(first.buffer(8)?))?;
        second.post(SendRequest::send(second.buffer(8)?))?;
    }
    for completion in take(&cq, 16)? {
        completion.result()?;
    }
    Ok(())
}

fn a_queue_shrinks_to_what_its_queue_pairs_need_and_no_further(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(4, 4).connect()?;
    pair.right.cq.resize(64)?;
    pair.right.cq.resize(8)?;
    let refused = pair.right.cq.resize(7);
    ensure!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}");
    ensure!(pair.right.cq.depth() == 8, "the depth is {}", pair.right.cq.depth());
    pair.ping()
}

fn a_queue_is_resized_while_completions_wait_in_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(16, 16).connect()?;
    for _ in 0..16 {
        pair.right.post_receive(8)?;
    }
    let ids = (0..16)
        .map(|_| pair.left.post(SendRequest::send(pair.left.buffer(8)?)))
        .collect::<Result<Vec<_>>>()?;
    pair.left.wait(*ids.last().context("no request was posted")?)?.result()?;
    for depth in [100, 1000, 32] {
        pair.right.cq.resize(depth)?;
    }
    for completion in pair.right.take(16)? {
        completion.result()?;
    }
    Ok(())
}

fn a_queue_is_resized_while_requests_are_in_flight(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(32, 32).connect()?;
    for round in 0..20 {
        for _ in 0..16 {
            pair.right.post_receive(1000)?;
            pair.left.post(SendRequest::send(pair.left.buffer(1000)?))?;
        }
        let depth = 64 + 50 * (round % 3);
        pair.left.cq.resize(depth)?;
        pair.right.cq.resize(depth)?;
        for side in [&pair.left, &pair.right] {
            for completion in side.take(16)? {
                completion.result()?;
            }
        }
    }
    Ok(())
}

fn a_queue_of_depth_zero_or_beyond_the_limit_is_refused(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(8).create()?;
    for depth in [0, fixture.device.attributes().max_completion_queue_depth.saturating_add(1)] {
        let refused = cq.resize(depth);
        ensure!(matches!(refused, Err(Error::LimitExceeded { .. })), "{depth}: {refused:?}");
    }
    ensure!(cq.depth() == 8, "the depth is {}", cq.depth());
    Ok(())
}

fn a_resized_queue_still_has_events(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.cq.arm(ArmFor::Any)?;
    pair.right.cq.resize(1000)?;
    pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(pair.right.cq.wait_event(COMPLETION_TIMEOUT)?, "no event was delivered");
    pair.right.take(1).map(drop)
}

fn every_completion_vector_delivers_events(fixture: &Fixture) -> Result<()> {
    let vectors = fixture.device.attributes().completion_vector_count;
    ensure!(vectors > 0, "the device has no completion vector");
    for vector in 0..vectors.min(16) {
        let cq = fixture.device.completion_queue(128).events().completion_vector(vector).create()?;
        let domain = fixture.device.create_protection_domain()?;
        let (left, right) = (fixture.pair(Rc).side(None)?, fixture.pair(Rc).side_of(&domain, &cq, None)?);
        left.qp.connect(&right.qp.endpoint())?;
        right.qp.connect(&left.qp.endpoint())?;
        let id = right.post_receive(8)?;
        left.execute(SendRequest::send(left.buffer(8)?))?;
        right.wait(id).with_context(|| format!("vector {vector}"))?.result()?;
    }
    Ok(())
}

fn an_unknown_completion_vector_is_refused(fixture: &Fixture) -> Result<()> {
    let vectors = fixture.device.attributes().completion_vector_count;
    for vector in [vectors, u32::MAX] {
        let created = fixture.device.completion_queue(8).completion_vector(vector).create();
        ensure!(matches!(created, Err(Error::LimitExceeded { .. })), "vector {vector}: {created:?}");
    }
    Ok(())
}

fn a_moderated_queue_coalesces_events(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    let limits = fixture.device.attributes().moderation.context("moderation failed")?;
    let (count, period) = (limits.max_count.min(8), limits.max_period);
    pair.right.cq.moderate(count, period)?;
    for _ in 0..count {
        pair.right.post_receive(8)?;
        pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    }
    let mut completions = Vec::new();
    while completions.len() < count.into() {
        ensure!(
            pair.right.cq.poll_timeout(&mut completions, COMPLETION_TIMEOUT)? > 0,
            "completions are missing"
        );
    }
    pair.right.cq.moderate(0, Duration::ZERO)?;
    pair.ping()
}

fn moderation_beyond_the_devices_limit_is_refused_with_an_explanation(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(8).events().create()?;
    let refused = cq.moderate(u16::MAX, Duration::from_secs(1));
    match fixture.device.attributes().moderation {
        None => {
            let error =
                refused.err().context("the call succeeded although the device does not support it")?;
            ensure!(matches!(error, Error::Unsupported { .. }) && error.hint().is_some(), "{error}");
        }
        Some(_) => ensure!(matches!(refused, Err(Error::LimitExceeded { .. })), "{refused:?}"),
    }
    Ok(())
}

fn wait_solicited_sleeps_through_unsolicited_completions(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    for _ in 0..4 {
        pair.right.post_receive(8)?;
    }
    std::thread::scope(|scope| {
        let (sender, sleepers) = mpsc::channel();
        let waiting = scope.spawn(|| {
            drop(sender.send(Sleeper::this_thread()?));
            drop(sender);
            let mut completions = Vec::new();
            pair.right.cq.wait_solicited(&mut completions, COMPLETION_TIMEOUT)?;
            anyhow::Ok((completions.len(), Instant::now()))
        });
        // A completion that is already queued would end the wait.
        sleepers.recv()?.wait()?;
        for _ in 0..3 {
            pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
        }
        std::thread::sleep(QUIET_PERIOD);
        let marked = Instant::now();
        pair.left.execute(SendRequest::send(pair.left.buffer(8)?).solicited())?;
        let (count, woken) = waiting.join().ok().context("the thread panicked")??;
        ensure!(woken >= marked, "an unsolicited completion ended the wait");
        ensure!(count == 4, "{count} of 4 completions were returned");
        Ok(())
    })
}

fn wait_solicited_is_woken_by_a_failure(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.post_receive(8)?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut completions = Vec::new();
            pair.right.cq.wait_solicited(&mut completions, COMPLETION_TIMEOUT).map(|_| completions.len())
        });
        std::thread::sleep(QUIET_PERIOD);
        pair.right.qp.move_to_error()?;
        let count = waiting.join().ok().context("the thread panicked")??;
        ensure!(count == 1, "{count} completions were returned");
        Ok(())
    })
}

fn wait_solicited_returns_completions_that_are_already_queued(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    let mut completions = Vec::new();
    ensure!(pair.right.cq.wait_solicited(&mut completions, QUIET_PERIOD)? == 0, "a completion was returned");
    pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    let count = pair.right.cq.wait_solicited(&mut completions, QUIET_PERIOD)?;
    ensure!(count == 1 && completions.len() == 1, "{count} completions were returned");
    Ok(())
}

fn wait_solicited_needs_a_queue_with_events(fixture: &Fixture) -> Result<()> {
    let cq = fixture.device.completion_queue(8).create()?;
    let polled = cq.wait_solicited(&mut Vec::new(), QUIET_PERIOD);
    ensure!(matches!(polled, Err(Error::InvalidRequest { .. })), "{polled:?}");
    Ok(())
}
