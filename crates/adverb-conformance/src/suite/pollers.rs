//! Threads that poll completion queues.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use adverb::memory::RemoteMemory;
use adverb::verbs::{Completion, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::fixture::{COMPLETION_TIMEOUT, Fixture, Pair, QUIET_PERIOD, READ_WRITE, check_duration};
use crate::registry::tests;

tests! { "pollers";
    a_poller_delivers_a_hundred_thousand_completions,
    a_poller_works_without_events,
    a_poller_stops_at_once,
    a_stopping_poller_delivers_finished_completions,
    a_handler_that_panics_loses_no_other_completion,
    drained_completions_go_to_the_poller,
}

fn pair(fixture: &Fixture, events: bool) -> Result<Pair> {
    let builder = fixture.pair(Rc);
    if events { builder.events() } else { builder }.connect()
}

/// Posts `count` requests in bursts of different lengths, and checks that the handler gets each once and in order.
fn check_all_delivered(fixture: &Fixture, events: bool, count: u64) -> Result<()> {
    let pair = pair(fixture, events)?;
    let region = pair.right.region(8, READ_WRITE)?;
    let (sender, tags) = mpsc::channel();
    let handler = move |completion: Completion| {
        let _ = sender.send(completion.is_ok().then_some(completion.tag()));
    };
    let poller = pair.left.cq.start_poller(handler)?;
    let (mut posted, mut completed) = (0, 0);
    while completed < count {
        let burst = (posted % 61 + 1).min(count - posted).min(64 - (posted - completed));
        let request = |tag| SendRequest::write((), region.remote().at(0)).tag(tag);
        pair.left.qp.post_sends((posted..posted + burst).map(request)).map_err(adverb::verbs::Error::from)?;
        posted += burst;
        // Sometimes all requests are awaited, so that the poller has time to sleep.
        let max_outstanding = if posted % 7 == 0 || posted == count { 0 } else { 32 };
        while posted - completed > max_outstanding {
            let tag = tags.recv_timeout(COMPLETION_TIMEOUT).context("a completion is lost")?;
            ensure!(tag == Some(completed), "request {tag:?} completed instead of {completed}");
            completed += 1;
        }
    }
    let stopped = poller.stop()?;
    ensure!(stopped.error.is_none(), "{:?}", stopped.error);
    ensure!(stopped.stats.completion_count == count, "{:?}", stopped.stats);
    let stats = pair.left.cq.stats();
    ensure!(stats.polled_completion_count == count && stats.stale_completion_count == 0, "{stats:?}");
    ensure!((1..=64).contains(&stats.max_poll_batch), "{stats:?}");
    Ok(())
}

fn a_poller_delivers_a_hundred_thousand_completions(fixture: &Fixture) -> Result<()> {
    check_all_delivered(fixture, true, fixture.scaled_count(100_000))
}

fn a_poller_works_without_events(fixture: &Fixture) -> Result<()> {
    check_all_delivered(fixture, false, fixture.scaled_count(10_000))
}

fn a_poller_stops_at_once(fixture: &Fixture) -> Result<()> {
    for events in [true, false] {
        let pair = pair(fixture, events)?;
        for pause in [Duration::ZERO, QUIET_PERIOD] {
            let stop = || {
                let poller = pair.left.cq.start_poller(drop)?;
                std::thread::sleep(pause);
                let start = Instant::now();
                poller.stop()?;
                Ok(start.elapsed())
            };
            check_duration(10 * QUIET_PERIOD, stop).with_context(|| format!("events: {events}"))?;
        }
    }
    Ok(())
}

fn a_stopping_poller_delivers_finished_completions(fixture: &Fixture) -> Result<()> {
    for events in [true, false] {
        let pair = pair(fixture, events)?;
        (0..20).try_for_each(|_| pair.right.post_receive(8).map(drop))?;
        let poller = pair.right.cq.start_poller(drop)?;
        for _ in 0..20 {
            // A message that is acknowledged has completed at the other end.
            pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
        }
        let stats = poller.stop()?.stats;
        ensure!(stats.completion_count == 20, "{stats:?}");
    }
    Ok(())
}

fn a_handler_that_panics_loses_no_other_completion(fixture: &Fixture) -> Result<()> {
    let pair = pair(fixture, true)?;
    let (sender, tags) = mpsc::channel();
    let handler = move |completion: Completion| {
        // This panic prints no message, which would appear in a report.
        if completion.tag().is_multiple_of(3) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
        let _ = sender.send(completion.tag());
    };
    let poller = pair.left.cq.start_poller(handler)?;
    let nowhere = RemoteMemory { addr: 0, rkey: 0, len: 0 };
    let requests = (0..60).map(|tag| SendRequest::write((), nowhere.at(0)).tag(tag));
    pair.left.qp.post_sends(requests).map_err(adverb::verbs::Error::from)?;
    for expected in (0..60).filter(|tag| tag % 3 != 0) {
        let tag = tags.recv_timeout(COMPLETION_TIMEOUT).context("a completion is lost")?;
        ensure!(tag == expected, "request {tag} completed instead of {expected}");
    }
    let stopped = poller.stop()?;
    ensure!(stopped.stats.completion_count == 60 && stopped.stats.panic_count == 20, "{:?}", stopped.stats);
    ensure!(stopped.last_panic.as_deref() == Some("on purpose"), "{:?}", stopped.last_panic);
    ensure!(pair.left.qp.outstanding_send_count() == 0, "requests are still outstanding");
    Ok(())
}

fn drained_completions_go_to_the_poller(fixture: &Fixture) -> Result<()> {
    for _ in 0..10 {
        let pair = pair(fixture, true)?;
        let (sender, received) = mpsc::channel();
        let poller = pair.left.cq.start_poller(move |completion| drop(sender.send(completion)))?;
        (0..20).try_for_each(|_| pair.left.post_receive(8).map(drop))?;
        pair.left.qp.drain(COMPLETION_TIMEOUT)?;
        for _ in 0..20 {
            let completion =
                received.recv_timeout(COMPLETION_TIMEOUT).context("a completion is left in the queue")?;
            ensure!(!completion.is_ok(), "a drained request succeeded");
        }
        ensure!(
            poller.stop()?.stats.completion_count == 20,
            "the poller delivered another number of completions"
        );
    }
    Ok(())
}
