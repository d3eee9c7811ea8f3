//! Atomic operations.

use std::sync::atomic::Ordering;

use adverb::verbs::SendRequest;
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, Fixture, check_equal, original, pattern, read};
use crate::registry::tests;

tests! { "atomics";
    [Need::Atomics] fetch_add_returns_the_old_word_and_adds,
    [Need::Atomics] fetch_add_wraps,
    [Need::Atomics] compare_swap_swaps_an_equal_word,
    [Need::Atomics] compare_swap_keeps_a_different_word,
    [Need::Atomics] atomics_touch_only_their_word,
    [Need::Atomics] words_are_in_the_machines_byte_order,
    [Need::Atomics] many_atomics_in_flight_are_executed_once_each_and_in_order,
    [Need::Atomics] an_atomic_whose_result_buffer_is_not_eight_bytes_is_refused,
    [Need::Atomics] atomics_of_two_queue_pairs_on_one_word_all_count,
}

fn fetch_add_returns_the_old_word_and_adds(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, ALL)?;
    let mut expected: u64 = 0;
    for add in [1, 0, 41, 1 << 32, 1 << 63, 0x0102_0304_0506_0708] {
        let request = SendRequest::fetch_add(pair.left.buffer(8)?, region.remote().at(8), add);
        let old = original(pair.left.completed(request)?)?;
        ensure!(old == expected, "the atomic returned {old:#x}, not {expected:#x}");
        expected = expected.wrapping_add(add);
        let now = region.word(8)?.load(Ordering::Relaxed);
        ensure!(now == expected, "the word is {now:#x}, not {expected:#x}");
    }
    Ok(())
}

fn fetch_add_wraps(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    region.word(0)?.store(u64::MAX, Ordering::Relaxed);
    let request = SendRequest::fetch_add(pair.left.buffer(8)?, region.remote().at(0), 2);
    let old = original(pair.left.completed(request)?)?;
    ensure!(old == u64::MAX, "the atomic returned {old:#x}");
    let now = region.word(0)?.load(Ordering::Relaxed);
    ensure!(now == 1, "the word is {now:#x}, not 1");
    Ok(())
}

fn compare_swap_swaps_an_equal_word(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    let mut word = 0;
    for next in [1, u64::MAX, 0x0102_0304_0506_0708, 0] {
        let request = SendRequest::compare_swap(pair.left.buffer(8)?, region.remote().at(0), word, next);
        let old = original(pair.left.completed(request)?)?;
        ensure!(old == word, "the atomic returned {old:#x}, not {word:#x}");
        word = next;
        let now = region.word(0)?.load(Ordering::Relaxed);
        ensure!(now == word, "the word is {now:#x}, not {word:#x}");
    }
    Ok(())
}

fn compare_swap_keeps_a_different_word(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    region.word(0)?.store(5, Ordering::Relaxed);
    for compare in [0, 4, 5 | 1 << 32, 5 | 1 << 63, u64::MAX] {
        let request = SendRequest::compare_swap(pair.left.buffer(8)?, region.remote().at(0), compare, 9);
        let old = original(pair.left.completed(request)?)?;
        let now = region.word(0)?.load(Ordering::Relaxed);
        ensure!(
            (old, now) == (5, 5),
            "compared with {compare:#x}: the atomic returned {old:#x}, and the word is {now:#x}"
        );
    }
    Ok(())
}

fn atomics_touch_only_their_word(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(24, ALL)?;
    let mut expected = pattern(24, 1);
    region.write(0, &expected)?;
    let word = u64::from_ne_bytes(expected[8..16].try_into()?);
    let remote = region.remote().at(8);
    pair.left.execute(SendRequest::fetch_add(pair.left.buffer(8)?, remote, 7))?;
    pair.left.execute(SendRequest::compare_swap(pair.left.buffer(8)?, remote, word.wrapping_add(7), 99))?;
    expected[8..16].copy_from_slice(&99_u64.to_ne_bytes());
    check_equal(&read(&region, 0, 24)?, &expected)
}

/// A READ and an atomic of the same word return the same value.
fn words_are_in_the_machines_byte_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    region.write(0, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    let remote = region.remote().at(0);
    let read = pair.left.completed(SendRequest::read(pair.left.buffer(8)?, remote))?;
    let fetched = pair.left.completed(SendRequest::fetch_add(pair.left.buffer(8)?, remote, 0))?;
    let (read, fetched) = (read.into_buffer(), fetched.into_buffer());
    check_equal(
        &fetched.context("the completion returned no buffer")?,
        &read.context("the completion returned no buffer")?,
    )
}

fn many_atomics_in_flight_are_executed_once_each_and_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, ALL)?;
    let remote = region.remote().at(0);
    for round in 0..4 {
        for _ in 0..64 {
            pair.left.post(SendRequest::fetch_add(pair.left.buffer(8)?, remote, 1))?;
        }
        for (expected, completion) in (64 * round..).zip(pair.left.take(64)?) {
            let old = original(completion)?;
            ensure!(old == expected, "the atomic returned {old}, not {expected}");
        }
    }
    Ok(())
}

fn an_atomic_whose_result_buffer_is_not_eight_bytes_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, ALL)?;
    for len in [0, 4, 7, 9, 16] {
        let request = SendRequest::fetch_add(pair.left.buffer(len)?, region.remote().at(0), 1);
        let refused = pair.left.qp.post_send(request).err();
        let refused = refused.with_context(|| format!("a result of {len} bytes was accepted"))?;
        ensure!(refused.requests.len() == 1, "the error did not return the request");
    }
    let word = region.word(0)?.load(Ordering::Relaxed);
    ensure!(word == 0, "the word is {word}");
    Ok(())
}

fn atomics_of_two_queue_pairs_on_one_word_all_count(fixture: &Fixture) -> Result<()> {
    let first = fixture.rc()?;
    // A region belongs to one domain, so both right sides must use that domain.
    let builder = fixture.pair(adverb::verbs::Transport::Rc);
    let cq = fixture.device.completion_queue(128).create()?;
    let beside = builder.side_of(&first.right.domain, &cq, None)?;
    let other = builder.side(None)?;
    other.qp.connect(&beside.qp.endpoint())?;
    beside.qp.connect(&other.qp.endpoint())?;
    let region = first.right.region(8, ALL)?;
    let remote = region.remote().at(0);
    for _ in 0..64 {
        first.left.post(SendRequest::fetch_add(first.left.buffer(8)?, remote, 1))?;
        other.post(SendRequest::fetch_add(other.buffer(8)?, remote, 1 << 32))?;
    }
    for side in [&first.left, &other] {
        side.take(64)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    }
    let word = region.word(0)?.load(Ordering::Relaxed);
    ensure!(word == 64 | 64 << 32, "the word is {word:#x}");
    Ok(())
}
