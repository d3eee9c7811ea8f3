//! Completion events.

use std::time::{Duration, Instant};

use adverb::verbs::{ArmFor, Error, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::deviations::is_soft_roce;
use crate::fixture::{COMPLETION_TIMEOUT, Fixture, Pair, QUIET_PERIOD, READ_WRITE, check, status};
use crate::registry::tests;

/// The number of completions that must be delivered by events without loss. Soft-RoCE, which is slow, must deliver a
/// tenth of this number.
const COMPLETION_COUNT: u64 = 1_000_000;

tests! { "events";
    only_a_queue_created_with_events_has_them,
    an_armed_queue_delivers_an_event,
    an_unarmed_queue_delivers_no_event,
    arming_delivers_one_event,
    completions_from_before_arming_are_found_by_polling_again,
    unsolicited_completions_do_not_end_a_wait_for_solicited_ones,
    a_failure_ends_a_wait_for_solicited_completions,
    waiting_sleeps_until_a_completion_arrives,
    waiting_without_a_timeout_ends_with_the_completion,
    a_wait_for_an_event_ends_with_the_event_or_the_timeout,
    waits_with_and_without_a_timeout_may_be_mixed,
    waiting_for_one_of_many_finds_it,
    unread_events_do_not_block_new_ones,
    [Need::QueueDepth(1024)] no_completion_is_lost_among_many_delivered_by_events,
}

/// Sends a message from left to right to a posted receive.
fn send(pair: &Pair, request: SendRequest) -> Result<()> {
    pair.right.post_receive(8)?;
    pair.left.execute(request)
}

/// Waits for an event. Returns whether one arrives within this time.
fn await_event(pair: &Pair, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        if pair.right.cq.try_event()? {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::yield_now();
    }
}

fn only_a_queue_created_with_events_has_them(fixture: &Fixture) -> Result<()> {
    let without = fixture.device.completion_queue(4).create()?;
    ensure!(without.event_fd().is_none(), "a queue without events has a file descriptor");
    let taken = without.try_event();
    ensure!(
        matches!(taken, Err(Error::InvalidRequest { .. })),
        "a queue without events returned an event: {taken:?}"
    );
    let with = fixture.device.completion_queue(4).events().create()?;
    ensure!(with.event_fd().is_some(), "a queue with events has no file descriptor");
    ensure!(!with.try_event()?, "a new queue has an event");
    Ok(())
}

fn an_armed_queue_delivers_an_event(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.cq.arm(ArmFor::Any)?;
    ensure!(!pair.right.cq.try_event()?, "an event was delivered without a completion");
    send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered");
    pair.right.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    Ok(())
}

fn an_unarmed_queue_delivers_no_event(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(!await_event(&pair, QUIET_PERIOD)?, "an event was delivered");
    pair.right.take(1).map(drop)
}

fn arming_delivers_one_event(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.cq.arm(ArmFor::Any)?;
    for _ in 0..5 {
        send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    }
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered");
    ensure!(!await_event(&pair, QUIET_PERIOD)?, "a second event was delivered");
    pair.right.take(5).map(drop)
}

/// Vol. 1, 11.4.2.2: arming is for the next completion. A caller that doesn't poll once more would miss an earlier one.
fn completions_from_before_arming_are_found_by_polling_again(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    std::thread::sleep(QUIET_PERIOD);
    pair.right.cq.arm(ArmFor::Any)?;
    let mut completions = Vec::new();
    ensure!(pair.right.cq.poll(&mut completions)? == 1, "the completion was not found");
    send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered for the next completion");
    Ok(())
}

fn unsolicited_completions_do_not_end_a_wait_for_solicited_ones(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.cq.arm(ArmFor::Solicited)?;
    send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(!await_event(&pair, QUIET_PERIOD)?, "an event was delivered for an unsolicited completion");
    send(&pair, SendRequest::send(pair.left.buffer(8)?).solicited())?;
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered for a solicited completion");
    // A WRITE with immediate data is marked in the same way.
    let region = pair.right.region(8, READ_WRITE)?;
    pair.right.cq.arm(ArmFor::Solicited)?;
    let write = SendRequest::write_with_imm(pair.left.buffer(8)?, region.remote().at(0), 1);
    send(&pair, write.solicited())?;
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered for a solicited WRITE");
    pair.right.take(3).map(drop)
}

/// Vol. 1, 11.4.2.2: a completion in error counts as solicited.
fn a_failure_ends_a_wait_for_solicited_completions(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.post_receive(8)?;
    pair.right.cq.arm(ArmFor::Solicited)?;
    pair.right.qp.move_to_error()?;
    ensure!(await_event(&pair, COMPLETION_TIMEOUT)?, "no event was delivered");
    pair.right.take(1).map(drop)
}

fn waiting_sleeps_until_a_completion_arrives(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    for seed in 0..20 {
        let receiving = pair.right.post_receive(8)?;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pair.right.wait(receiving));
            pair.left.execute(SendRequest::send(pair.left.filled(8, seed)?))?;
            let completion = waiting.join().ok().context("the thread panicked")??;
            check(&completion.into_message()?, seed)
        })?;
    }
    Ok(())
}

fn waiting_without_a_timeout_ends_with_the_completion(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    let id = pair.right.post_receive(8)?;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pair.right.cq.wait(id, None));
        std::thread::sleep(QUIET_PERIOD);
        pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
        waiter.join().expect("the thread does not panic")?.result()?;
        Ok(())
    })
}

fn a_wait_for_an_event_ends_with_the_event_or_the_timeout(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    pair.right.cq.arm(ArmFor::Any)?;
    let start = Instant::now();
    ensure!(!pair.right.cq.wait_event(QUIET_PERIOD)?, "an event was delivered without a completion");
    let took = start.elapsed();
    ensure!(took >= QUIET_PERIOD && took < COMPLETION_TIMEOUT, "it took {took:?}");
    for timeout in [Some(COMPLETION_TIMEOUT), None] {
        send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
        ensure!(pair.right.cq.wait_event(timeout)?, "no event was delivered");
        pair.right.cq.arm(ArmFor::Any)?;
        pair.right.take(1)?;
    }
    let without = fixture.device.completion_queue(4).create()?;
    let waited = without.wait_event(QUIET_PERIOD);
    ensure!(matches!(waited, Err(Error::InvalidRequest { .. })), "it waited: {waited:?}");
    Ok(())
}

/// A wait without a timeout must not block others from polling, and must not consume another waiter's event.
fn waits_with_and_without_a_timeout_may_be_mixed(fixture: &Fixture) -> Result<()> {
    const ROUNDS: usize = 200;
    let pair = fixture.pair(Rc).events().connect()?;
    for round in 0..ROUNDS {
        let ids = [pair.right.post_receive(8)?, pair.right.post_receive(8)?];
        std::thread::scope(|scope| {
            let without_timeout = scope.spawn(|| pair.right.cq.wait(ids[round % 2], None));
            let with_timeout = scope.spawn(|| pair.right.cq.wait(ids[1 - round % 2], COMPLETION_TIMEOUT));
            for _ in ids {
                pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
            }
            for waiter in [without_timeout, with_timeout] {
                waiter.join().expect("the thread does not panic")?.result()?;
            }
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

fn waiting_for_one_of_many_finds_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    let ids = (0..32).map(|_| pair.right.post_receive(8)).collect::<Result<Vec<_>>>()?;
    for seed in 0..32 {
        pair.left.post(SendRequest::send(pair.left.filled(8, seed)?))?;
    }
    // Each completion is awaited after later ones have arrived.
    for (seed, id) in (0_u32..32).zip(ids).rev() {
        check(&pair.right.wait(id)?.into_message()?, seed.into())?;
    }
    pair.right.expect_no_completion()
}

fn unread_events_do_not_block_new_ones(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).events().connect()?;
    for _ in 0..3 {
        pair.right.cq.arm(ArmFor::Any)?;
        send(&pair, SendRequest::send(pair.left.buffer(8)?))?;
        pair.right.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    // Events may remain in the channel. They wake a waiter once, which finds no completion and waits again.
    let receiving = pair.right.post_receive(8)?;
    let waited = pair.right.cq.wait(receiving, QUIET_PERIOD);
    ensure!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    // The queue can be destroyed with unread events.
    Ok(())
}

/// One thread posts while the queue has space, another sleeps until a completion arrives. A lost completion would stop
/// both.
fn no_completion_is_lost_among_many_delivered_by_events(fixture: &Fixture) -> Result<()> {
    let scaled_count = if is_soft_roce(fixture.device.attributes()) {
        COMPLETION_COUNT / 10
    } else {
        fixture.scaled_count(COMPLETION_COUNT)
    };
    let pair = fixture.pair(Rc).depth(1024, 1).events().connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let source = pair.left.region(8, READ_WRITE)?;
    let write = |tag| -> Result<SendRequest> {
        Ok(SendRequest::write(source.slice(0..8)?, region.remote().at(0)).tag(tag))
    };
    let mut posted = 0;
    let mut completions = Vec::with_capacity(1024);
    let mut next = 0;
    while next < scaled_count {
        let free_entries = u64::from(1024 - pair.left.qp.outstanding_send_count()).min(scaled_count - posted);
        let batch = (posted..posted + free_entries).map(write).collect::<Result<Vec<_>>>()?;
        pair.left.qp.post_sends(batch).map_err(Error::from)?;
        posted += free_entries;
        let received = pair.left.cq.poll_timeout(&mut completions, COMPLETION_TIMEOUT)?;
        ensure!(received > 0, "completion {next} of {scaled_count} is missing");
        for completion in completions.drain(..) {
            ensure!(completion.is_ok(), "request {next}: {:?}", status(&completion));
            ensure!(completion.tag() == next, "request {} completed instead of {next}", completion.tag());
            next += 1;
        }
    }
    pair.left.expect_no_completion()
}
