//! The order of messages, completions and memory accesses.

use std::sync::atomic::Ordering;

use adverb::verbs::{ConnectOptions, SendRequest, Transport, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, Fixture, READ_WRITE, check, original, pattern, read};
use crate::registry::tests;

tests! { "ordering";
    messages_arrive_in_the_order_of_posting,
    messages_of_an_unreliable_connection_arrive_in_the_order_of_posting,
    requests_of_all_kinds_complete_in_the_order_of_posting,
    the_last_of_several_writes_wins,
    a_write_is_visible_when_the_following_message_arrives,
    a_read_sees_the_write_before_it,
    [Need::Atomics] an_atomic_sees_the_write_before_it,
    [Need::Atomics] a_read_sees_the_atomic_before_it,
    a_fenced_message_sends_the_result_of_the_read_before_it,
    [Need::Atomics] a_fenced_write_writes_the_result_of_the_atomic_before_it,
    a_write_after_a_read_does_not_change_its_result,
    reads_beyond_the_outstanding_limit_wait,
    one_read_at_a_time_is_enough,
}

/// Sends messages of all lengths, so that those of one packet could overtake those of many.
fn check_in_order(fixture: &Fixture, transport: Transport) -> Result<()> {
    check_in_order_from(fixture, transport, 0)
}

/// Runs the rounds from `first` on.
fn check_in_order_from(fixture: &Fixture, transport: Transport, first: u64) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let sizes = [5 * fixture.mtu(), 0, 1, 2 * fixture.mtu() + 1, 100];
    for round in first..10 {
        for _ in sizes {
            pair.right.post_receive(5 * fixture.mtu())?;
        }
        for (seed, size) in (5 * round..).zip(sizes) {
            pair.left.post(SendRequest::send(pair.left.filled(size, seed)?))?;
        }
        let mut next = 0;
        for completion in pair.right.take_up_to(5)? {
            let message = completion.into_message()?;
            let is_expected = |index: &usize| {
                message.len() == sizes[*index] && check(&message, 5 * round + *index as u64).is_ok()
            };
            let index = if pair.right.may_lose() {
                (next..5).find(is_expected)
            } else {
                Some(next).filter(is_expected)
            };
            let index = index.with_context(|| format!("message {next} of round {round} is wrong"))?;
            next = index + 1;
        }
        pair.left.take(5)?.iter().try_for_each(|completion| completion.result().map(drop))?;
        if pair.right.may_lose() {
            // The remaining receives could receive messages of another round.
            return if round == 9 { Ok(()) } else { check_in_order_from(fixture, transport, round + 1) };
        }
    }
    Ok(())
}

fn messages_arrive_in_the_order_of_posting(fixture: &Fixture) -> Result<()> {
    check_in_order(fixture, Rc)
}

fn messages_of_an_unreliable_connection_arrive_in_the_order_of_posting(fixture: &Fixture) -> Result<()> {
    check_in_order(fixture, Transport::Uc)
}

fn requests_of_all_kinds_complete_in_the_order_of_posting(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 4 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    let remote = region.remote().at(0);
    (0..8).try_for_each(|_| pair.right.post_receive(size).map(drop))?;
    for round in 0..8 {
        let buffer = |len| pair.left.buffer(len);
        pair.left.post(SendRequest::read(buffer(size)?, remote).tag(4 * round))?;
        pair.left.post(SendRequest::send(buffer(1)?).tag(4 * round + 1))?;
        pair.left.post(SendRequest::write(buffer(size)?, remote).tag(4 * round + 2))?;
        pair.left.post(SendRequest::read(buffer(1)?, remote).tag(4 * round + 3))?;
    }
    for (tag, completion) in (0..).zip(pair.left.take(32)?) {
        completion.result()?;
        ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
    }
    Ok(())
}

fn the_last_of_several_writes_wins(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 3 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    for round in 0..10 {
        for seed in 0..5 {
            pair.left.post(SendRequest::write(
                pair.left.filled(size, 10 * round + seed)?,
                region.remote().at(0),
            ))?;
        }
        pair.left.take(5)?.iter().try_for_each(|completion| completion.result().map(drop))?;
        check(&read(&region, 0, size)?, 10 * round + 4)?;
    }
    Ok(())
}

/// One-sided protocols signal completion this way: vol. 1, 9.5, and table 76.
fn a_write_is_visible_when_the_following_message_arrives(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 10 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    for seed in 0..10 {
        let receiving = pair.right.post_receive(0)?;
        pair.left
            .post(SendRequest::write(pair.left.filled(size, seed)?, region.remote().at(0)).unsignaled())?;
        pair.left.post(SendRequest::send(()))?;
        pair.right.wait(receiving)?.result()?;
        check(&read(&region, 0, size)?, seed)?;
        pair.left.take(2)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    Ok(())
}

fn a_read_sees_the_write_before_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 3 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    for seed in 0..10 {
        pair.left.post(SendRequest::write(pair.left.filled(size, seed)?, region.remote().at(0)))?;
        let reading = pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)))?;
        check(&pair.left.wait(reading)?.into_buffer().context("the completion returned no buffer")?, seed)?;
        pair.left.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    Ok(())
}

fn an_atomic_sees_the_write_before_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    for value in 1..20_u64 {
        let mut word = pair.left.buffer(8)?;
        word.copy_from_slice(&(100 * value).to_ne_bytes());
        pair.left.post(SendRequest::write(word, region.remote().at(0)).unsignaled())?;
        let adding =
            pair.left.post(SendRequest::fetch_add(pair.left.buffer(8)?, region.remote().at(0), 1))?;
        let old = original(pair.left.wait(adding)?)?;
        ensure!(old == 100 * value, "the atomic returned {old}, not {}", 100 * value);
        pair.left.take(1)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    Ok(())
}

fn a_read_sees_the_atomic_before_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    for value in 1..20_u64 {
        let adding =
            pair.left.post(SendRequest::fetch_add(pair.left.buffer(8)?, region.remote().at(0), 1))?;
        let reading = pair.left.post(SendRequest::read(pair.left.buffer(8)?, region.remote().at(0)))?;
        let seen = original(pair.left.wait(reading)?)?;
        ensure!(seen == value, "the READ returned {seen}, not {value}");
        pair.left.wait(adding)?.result()?;
    }
    Ok(())
}

/// Vol. 1, 10.8.3.3: without the fence, the message may be sent before the READ's response has arrived.
fn a_fenced_message_sends_the_result_of_the_read_before_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 4 * fixture.mtu();
    let theirs = pair.right.region(size, READ_WRITE)?;
    let ours = pair.left.region(size, READ_WRITE)?;
    for seed in 0..10 {
        theirs.write(0, &pattern(size, seed))?;
        let receiving = pair.right.post_receive(size)?;
        pair.left.post(SendRequest::read(ours.slice(0..size)?, theirs.remote().at(0)))?;
        pair.left.post(SendRequest::send(ours.slice(0..size)?).fence())?;
        check(&pair.right.wait(receiving)?.into_message()?, seed)?;
        pair.left.take(2)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    Ok(())
}

fn a_fenced_write_writes_the_result_of_the_atomic_before_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let theirs = pair.right.region(16, ALL)?;
    let ours = pair.left.region(8, READ_WRITE)?;
    for value in 0..20 {
        pair.left.post(SendRequest::fetch_add(ours.slice(0..8)?, theirs.remote().at(0), 1))?;
        pair.left.post(SendRequest::write(ours.slice(0..8)?, theirs.remote().at(8)).fence())?;
        pair.left.take(2)?.iter().try_for_each(|completion| completion.result().map(drop))?;
        let copied = theirs.word(8)?.load(Ordering::Relaxed);
        ensure!(copied == value, "{copied} was written, not {value}");
    }
    Ok(())
}

fn a_write_after_a_read_does_not_change_its_result(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for round in 0..20 {
        region.write(0, &pattern(8, round))?;
        let reading = pair.left.post(SendRequest::read(pair.left.buffer(8)?, region.remote().at(0)))?;
        let write = SendRequest::write(pair.left.filled(8, 1000)?, region.remote().at(0));
        let writing = pair.left.post(write.fence())?;
        check(&pair.left.wait(reading)?.into_buffer().context("the completion returned no buffer")?, round)?;
        pair.left.wait(writing)?.result()?;
        check(&read(&region, 0, 8)?, 1000)?;
    }
    Ok(())
}

/// Vol. 1, 9.4.4: at most the agreed number is outstanding, and further READs wait.
fn reads_beyond_the_outstanding_limit_wait(fixture: &Fixture) -> Result<()> {
    check_reads_at_once(fixture, ConnectOptions::new())
}

fn one_read_at_a_time_is_enough(fixture: &Fixture) -> Result<()> {
    check_reads_at_once(fixture, ConnectOptions::new().max_rd_atomic(1))
}

fn check_reads_at_once(fixture: &Fixture, options: ConnectOptions) -> Result<()> {
    let pair = fixture.pair(Rc).options(options).connect()?;
    let size = fixture.mtu() + 1;
    let region = pair.right.region(64 + size, READ_WRITE)?;
    let bytes = pattern(64 + size, 1);
    region.write(0, &bytes)?;
    for offset in 0..64 {
        pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(offset)))?;
    }
    for (offset, completion) in pair.left.take(64)?.into_iter().enumerate() {
        completion.result()?;
        let buffer = completion.into_buffer().context("the completion returned no buffer")?;
        crate::fixture::check_equal(&buffer, &bytes[offset..offset + size])?;
    }
    Ok(())
}
