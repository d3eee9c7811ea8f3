//! Posting and polling from many threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::{Error, RecvRequest, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, COMPLETION_TIMEOUT, Fixture, READ_WRITE, Side, check, original};
use crate::registry::tests;

/// The maximum time until a completion that nothing delays.
const WAKE_TIMEOUT: Duration = Duration::from_secs(10);

tests! { "threads";
    one_thread_posts_and_another_polls,
    many_threads_post_to_one_queue_pair,
    many_threads_poll_one_completion_queue,
    two_threads_wait_for_different_requests,
    two_threads_wait_for_different_requests_with_events,
    many_threads_wait_on_one_queue_with_events,
    [Need::Atomics] atomics_of_many_threads_all_count,
    [Need::Atomics] a_lock_of_compare_and_swap_excludes_other_threads,
    buffers_move_between_threads,
    queue_pairs_are_created_and_dropped_while_others_work,
    posting_and_failing_at_once_loses_no_request,
}

/// Joins the threads. Returns the first error.
fn join(threads: Vec<thread::ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    threads.into_iter().try_for_each(|thread| thread.join().ok().context("a thread panicked")?)
}

fn one_thread_posts_and_another_polls(fixture: &Fixture) -> Result<()> {
    const COUNT: u64 = 1000;
    let pair = fixture.rc()?;
    let (source, region) = (pair.left.region(8, READ_WRITE)?, pair.right.region(8, READ_WRITE)?);
    thread::scope(|scope| {
        let poller = scope.spawn(|| -> Result<()> {
            let mut next = 0;
            let mut completions = Vec::new();
            while next < COUNT {
                ensure!(
                    pair.left.cq.poll_timeout(&mut completions, COMPLETION_TIMEOUT)? > 0,
                    "only {next} completions were returned"
                );
                for completion in completions.drain(..) {
                    completion.result()?;
                    ensure!(
                        completion.tag() == next,
                        "request {} completed instead of {next}",
                        completion.tag()
                    );
                    next += 1;
                }
            }
            Ok(())
        });
        for tag in 0..COUNT {
            let mut request = SendRequest::write(source.slice(0..8)?, region.remote().at(0)).tag(tag);
            // A full queue returns the request, which is posted again when the queue has space.
            while let Err(refused) = pair.left.qp.post_send(request) {
                ensure!(matches!(refused.error, Error::QueueFull { .. }), "{}", refused.error);
                request =
                    refused.requests.into_iter().next().context("the error did not return the request")?;
                thread::yield_now();
            }
        }
        join(vec![poller])
    })
}

fn many_threads_post_to_one_queue_pair(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(256, 256).connect()?;
    (0..256).try_for_each(|_| pair.right.post_receive(16).map(drop))?;
    thread::scope(|scope| {
        let post = |thread: u64| {
            let side = &pair.left;
            move || {
                (0..64).try_for_each(|n| {
                    side.post(SendRequest::send(side.filled(16, 1000 * thread + n)?)).map(drop)
                })
            }
        };
        join((0..4).map(|thread| scope.spawn(post(thread))).collect())
    })?;
    pair.left.take(256)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    // The completions of each thread are in its order.
    let mut next = [0_u64; 4];
    for completion in pair.right.take(256)? {
        let message = completion.into_message()?;
        let from = (0..4).find(|thread| check(&message, 1000 * thread + next[*thread as usize]).is_ok());
        next[from.context("a message arrived out of order")? as usize] += 1;
    }
    ensure!(next == [64; 4], "messages per thread: {next:?}");
    Ok(())
}

fn many_threads_poll_one_completion_queue(fixture: &Fixture) -> Result<()> {
    const COUNT: u64 = 500;
    let pair = fixture.rc()?;
    let (source, region) = (pair.left.region(8, READ_WRITE)?, pair.right.region(8, READ_WRITE)?);
    let (count, sum) = (AtomicU64::new(0), AtomicU64::new(0));
    let given_up = AtomicBool::new(false);
    thread::scope(|scope| {
        let poll = || -> Result<()> {
            let mut completions = Vec::new();
            while count.load(Ordering::Relaxed) < COUNT && !given_up.load(Ordering::Relaxed) {
                pair.left.cq.poll(&mut completions)?;
                for completion in completions.drain(..) {
                    completion.result()?;
                    count.fetch_add(1, Ordering::Relaxed);
                    sum.fetch_add(completion.tag(), Ordering::Relaxed);
                }
                thread::yield_now();
            }
            Ok(())
        };
        let pollers = (0..3).map(|_| scope.spawn(poll)).collect();
        let start = Instant::now();
        let mut posted = 0;
        while posted < COUNT && start.elapsed() < COMPLETION_TIMEOUT {
            let request = SendRequest::write(source.slice(0..8)?, region.remote().at(0)).tag(posted);
            match pair.left.qp.post_send(request) {
                Ok(_) => posted += 1,
                Err(_) => thread::yield_now(),
            }
        }
        while count.load(Ordering::Relaxed) < posted && start.elapsed() < COMPLETION_TIMEOUT {
            thread::yield_now();
        }
        given_up.store(true, Ordering::Relaxed);
        join(pollers)
    })?;
    let (count, sum) = (count.into_inner(), sum.into_inner());
    ensure!(
        (count, sum) == (COUNT, COUNT * (COUNT - 1) / 2),
        "{count} completions were returned, and the sum of their tags is {sum}"
    );
    Ok(())
}

/// Runs threads that each wait for a message on their own queue pair and on a shared completion queue. All start each
/// round together, so that no later thread wakes one that was missed.
fn check_waiters(fixture: &Fixture, events: bool, threads: u32, rounds: u64) -> Result<()> {
    let builder = fixture.pair(Rc).depth(2, 2);
    let cq = fixture.device.completion_queue(4 * threads);
    let cq = if events { cq.events() } else { cq }.create()?;
    let domain = fixture.device.create_protection_domain()?;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..threads {
        let (one, other) = (builder.side(None)?, builder.side_of(&domain, &cq, None)?);
        one.qp.connect(&other.qp.endpoint())?;
        other.qp.connect(&one.qp.endpoint())?;
        senders.push(one);
        receivers.push(other);
    }
    let together = &Barrier::new(threads as usize + 1);
    thread::scope(|scope| {
        let receive = move |side: &Side| -> Result<()> {
            let region = side.region(8, READ_WRITE)?;
            let mut result = Ok(());
            for round in 0..rounds {
                let id = side.recv(RecvRequest::new(region.slice(0..8)?));
                together.wait();
                let wait = || -> Result<()> {
                    let id = id?;
                    let start = Instant::now();
                    let completion = side.cq.wait(id, WAKE_TIMEOUT)?;
                    // A thread that was not woken polls at the timeout.
                    let took = start.elapsed();
                    ensure!(
                        took < WAKE_TIMEOUT / 2,
                        "the waiting thread was not woken, and polled after {took:?}"
                    );
                    ensure!(completion.id() == id, "the completion of another request was returned");
                    completion.result()?;
                    Ok(())
                };
                // A thread that fails continues, so that the others don't wait for it.
                if result.is_ok() {
                    result = wait().with_context(|| format!("round {round}"));
                }
            }
            result
        };
        let waiting = receivers.iter().map(|side| scope.spawn(move || receive(side))).collect();
        let send = || -> Result<()> {
            for side in &senders {
                side.post(SendRequest::send(()))?;
            }
            for side in &senders {
                side.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
            }
            Ok(())
        };
        let mut sent = Ok(());
        for _ in 0..rounds {
            together.wait();
            sent = sent.and_then(|()| send());
        }
        join(waiting).and(sent)
    })
}

fn two_threads_wait_for_different_requests(fixture: &Fixture) -> Result<()> {
    check_waiters(fixture, false, 2, 300)
}

fn two_threads_wait_for_different_requests_with_events(fixture: &Fixture) -> Result<()> {
    check_waiters(fixture, true, 2, 1000)
}

fn many_threads_wait_on_one_queue_with_events(fixture: &Fixture) -> Result<()> {
    check_waiters(fixture, true, 5, 500)
}

fn atomics_of_many_threads_all_count(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc).depth(4, 1);
    let target = fixture.device.create_protection_domain()?;
    let region = target.allocate_region(8, ALL)?;
    let cq = fixture.device.completion_queue(64).create()?;
    let mut pairs = Vec::new();
    for _ in 0..4 {
        let (one, other) = (builder.side(None)?, builder.side_of(&target, &cq, None)?);
        one.qp.connect(&other.qp.endpoint())?;
        other.qp.connect(&one.qp.endpoint())?;
        pairs.push((one, other));
    }
    let remote = region.remote().at(0);
    thread::scope(|scope| {
        let count = |side: &Side| -> Result<()> {
            let mut last = None;
            for _ in 0..100 {
                let old = original(side.completed(SendRequest::fetch_add(side.buffer(8)?, remote, 1))?)?;
                ensure!(last.is_none_or(|last| old > last), "the word decreased from {last:?} to {old}");
                last = Some(old);
            }
            Ok(())
        };
        join(pairs.iter().map(|(side, _)| scope.spawn(move || count(side))).collect())
    })?;
    let word = region.word(0)?.load(Ordering::Relaxed);
    ensure!(word == 400, "the sum of all additions is 400, but the word is {word}");
    Ok(())
}

fn a_lock_of_compare_and_swap_excludes_other_threads(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc).depth(4, 1);
    let target = fixture.device.create_protection_domain()?;
    let region = target.allocate_region(16, ALL)?;
    let cq = fixture.device.completion_queue(64).create()?;
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let (one, other) = (builder.side(None)?, builder.side_of(&target, &cq, None)?);
        one.qp.connect(&other.qp.endpoint())?;
        other.qp.connect(&one.qp.endpoint())?;
        pairs.push((one, other));
    }
    let (lock, counter) = (region.remote().at(0), region.remote().at(8));
    thread::scope(|scope| {
        let work = |side: &Side| -> Result<()> {
            for _ in 0..30 {
                let take =
                    || original(side.completed(SendRequest::compare_swap(side.buffer(8)?, lock, 0, 1))?);
                while take()? != 0 {
                    thread::yield_now();
                }
                // Read, add and write back: only correct under a lock.
                let mut word = side
                    .completed(SendRequest::read(side.buffer(8)?, counter))?
                    .into_buffer()
                    .context("none")?;
                let value = u64::from_ne_bytes(word[..].try_into()?) + 1;
                word.copy_from_slice(&value.to_ne_bytes());
                side.execute(SendRequest::write(word, counter))?;
                let old =
                    original(side.completed(SendRequest::compare_swap(side.buffer(8)?, lock, 1, 0))?)?;
                ensure!(old == 1, "another thread released the lock");
            }
            Ok(())
        };
        join(pairs.iter().map(|(side, _)| scope.spawn(move || work(side))).collect())
    })?;
    let word = region.word(8)?.load(Ordering::Relaxed);
    ensure!(word == 60, "the sum of all additions is 60, but the word is {word}");
    Ok(())
}

fn buffers_move_between_threads(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let side = &pair.left;
    let mut buffer = side.filled(64, 1)?;
    for _ in 0..10 {
        let receiving = pair.right.post_receive(64)?;
        // In each round, one thread posts the buffer, and another takes its completion.
        let completion = thread::scope(|scope| {
            let posted = scope.spawn(move || side.post(SendRequest::send(buffer))).join();
            let id = posted.ok().context("a thread panicked")??;
            scope.spawn(move || side.wait(id)).join().ok().context("a thread panicked")?
        })?;
        completion.result()?;
        buffer = completion.into_buffer().context("the completion returned no buffer")?;
        check(&pair.right.wait(receiving)?.into_message()?, 1)?;
    }
    Ok(())
}

fn queue_pairs_are_created_and_dropped_while_others_work(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc).depth(8, 8);
    let cq = fixture.device.completion_queue(256).create()?;
    let domain = fixture.device.create_protection_domain()?;
    let (one, other) = (builder.side_of(&domain, &cq, None)?, builder.side(None)?);
    one.qp.connect(&other.qp.endpoint())?;
    other.qp.connect(&one.qp.endpoint())?;
    let region = other.region(8, READ_WRITE)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let create_and_drop = || -> Result<()> {
            while !done.load(Ordering::Relaxed) {
                let side = builder.side_of(&domain, &cq, None)?;
                (0..8).try_for_each(|_| side.post_receive(8).map(drop))?;
            }
            Ok(())
        };
        let threads = (0..2).map(|_| scope.spawn(create_and_drop)).collect();
        let worked = (0..200).try_for_each(|seed| {
            one.execute(SendRequest::write(one.filled(8, seed)?, region.remote().at(0)))
        });
        done.store(true, Ordering::Relaxed);
        join(threads)?;
        worked
    })
}

fn posting_and_failing_at_once_loses_no_request(fixture: &Fixture) -> Result<()> {
    for _ in 0..5 {
        let pair = fixture.rc()?;
        let region = pair.right.region(8, READ_WRITE)?;
        let posted = thread::scope(|scope| {
            let poster = scope.spawn(|| -> Result<usize> {
                for count in 0..64 {
                    let request = SendRequest::write(pair.left.buffer(8)?, region.remote().at(0));
                    if let Err(refused) = pair.left.qp.post_send(request) {
                        ensure!(refused.requests.len() == 1, "the error did not return a refused request");
                        return Ok(count);
                    }
                }
                Ok(64)
            });
            pair.left.qp.move_to_error()?;
            poster.join().ok().context("a thread panicked")?
        })?;
        let completions = pair.left.take(posted)?;
        ensure!(
            completions.len() == posted,
            "{posted} requests were posted, but {} completed",
            completions.len()
        );
        pair.left.expect_no_completion()?;
    }
    Ok(())
}
