//! ATOMIC WRITE: eight bytes that are written as a whole (Annex A19.5).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use adverb::memory::MemoryRegion;
use adverb::verbs::Error;
use adverb::verbs::{
    Access, CompletedOperation, RemoteAddress, SendRequest, Status,
    Transport::{Rc, Uc},
};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{ALL, Fixture, Pair, READ_WRITE, check_equal, pattern, read};
use crate::registry::tests;

tests! { "atomic writes";
    an_atomic_write_is_refused_with_a_hint_unless_the_device_has_it,
    [Need::AtomicWrite] an_atomic_write_places_its_bytes_in_their_order,
    [Need::AtomicWrite] an_atomic_write_touches_only_its_word,
    [Need::AtomicWrite] no_reader_sees_a_part_of_an_atomic_write,
    [Need::AtomicWrite] atomic_writes_and_writes_are_executed_in_order,
    [Need::AtomicWrite] an_unsignaled_atomic_write_completes_with_the_next_request,
    [Need::AtomicWrite] an_unaligned_atomic_write_is_refused,
    [Need::AtomicWrite] an_inline_atomic_write_is_refused,
    [Need::AtomicWrite] an_unreliable_connection_refuses_atomic_writes,
    [Need::AtomicWrite] an_atomic_write_needs_the_regions_right,
    [Need::AtomicWrite] an_atomic_write_needs_the_queue_pairs_right,
    [Need::AtomicWrite] an_atomic_write_beyond_the_end_is_refused_by_the_peer,
    [Need::AtomicWrite] an_atomic_write_with_a_wrong_key_is_refused_by_the_peer,
}

const BYTES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn an_atomic_write_is_refused_with_a_hint_unless_the_device_has_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let request = SendRequest::atomic_write(BYTES, region.remote().at(0));
    if fixture.device.attributes().has_atomic_write {
        return pair.left.execute(request);
    }
    let error = pair.left.expect_rejected(request)?;
    ensure!(matches!(error, Error::Unsupported { .. }), "refused with another error: {error}");
    ensure!(error.hint().is_some(), "the error has no hint: {error}");
    check_equal(&read(&region, 0, 64)?, &[0; 64])?;
    pair.ping()
}

fn an_atomic_write_places_its_bytes_in_their_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let completion = pair.left.completed(SendRequest::atomic_write(BYTES, region.remote().at(8)))?;
    let operation = completion.result()?.operation;
    ensure!(operation == CompletedOperation::AtomicWrite, "{operation:?} completed");
    check_equal(&read(&region, 8, 8)?, &BYTES)?;
    let word = region.word(8)?.load(Ordering::Acquire);
    ensure!(word == u64::from_ne_bytes(BYTES), "the word is {word:#x}");
    Ok(())
}

fn an_atomic_write_touches_only_its_word(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(24, READ_WRITE)?;
    let mut expected = pattern(24, 1);
    region.write(0, &expected)?;
    pair.left.execute(SendRequest::atomic_write(BYTES, region.remote().at(8)))?;
    expected[8..16].copy_from_slice(&BYTES);
    check_equal(&read(&region, 0, 24)?, &expected)
}

fn no_reader_sees_a_part_of_an_atomic_write(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            let word = region.word(0)?;
            while !is_done.load(Ordering::Relaxed) {
                let value = word.load(Ordering::Acquire);
                ensure!(value == 0 || value == u64::MAX, "the word was {value:#x} for a time");
            }
            Ok(())
        });
        let written = write_alternately(fixture, &pair, &region);
        is_done.store(true, Ordering::Relaxed);
        reader.join().expect("the reader doesn't panic").and(written)
    })
}

/// Writes words of ones and words of zeros, alternately.
fn write_alternately(fixture: &Fixture, pair: &Pair, region: &MemoryRegion) -> Result<()> {
    for _ in 0..fixture.scaled_count(100) {
        for n in 0..8 {
            let bytes = if n % 2 == 0 { [0xff; 8] } else { [0; 8] };
            pair.left.post(SendRequest::atomic_write(bytes, region.remote().at(0)))?;
        }
        for completion in pair.left.take(8)? {
            completion.result()?;
        }
    }
    Ok(())
}

fn atomic_writes_and_writes_are_executed_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let remote = region.remote().at(0);
    for seed in 0..20 {
        let write = SendRequest::write(pair.left.filled(64, seed)?, remote);
        let mut requests = vec![write];
        requests.extend((0..8).map(|n: u8| SendRequest::atomic_write([n; 8], remote)));
        requests.push(SendRequest::read(pair.left.buffer(64)?, remote));
        let count = requests.len();
        let posted = pair.left.qp.post_sends(requests).map_err(Error::from)?;
        ensure!(posted.len() == count, "{} of {count} requests were posted", posted.len());
        let mut completions = pair.left.take(count)?;
        for completion in &completions {
            completion.result()?;
        }
        let mut expected = pattern(64, seed);
        expected[..8].copy_from_slice(&[7; 8]);
        let read_back = completions.pop().and_then(adverb::verbs::Completion::into_buffer);
        check_equal(&read_back.context("the READ returned no buffer")?, &expected)?;
    }
    Ok(())
}

fn an_unsignaled_atomic_write_completes_with_the_next_request(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let first =
        pair.left.post(SendRequest::atomic_write(BYTES, region.remote().at(0)).unsignaled().tag(1))?;
    let second = pair.left.post(SendRequest::atomic_write(BYTES, region.remote().at(8)).tag(2))?;
    let completions = pair.left.take(2)?;
    let ids: Vec<_> = completions.iter().map(|completion| (completion.id(), completion.tag())).collect();
    ensure!(ids == [(first, 1), (second, 2)], "these completed: {ids:?}");
    for completion in completions {
        let operation = completion.result()?.operation;
        ensure!(operation == CompletedOperation::AtomicWrite, "{operation:?} completed");
    }
    check_equal(&read(&region, 0, 16)?, &[BYTES, BYTES].concat())
}

fn an_unaligned_atomic_write_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    for offset in 1..8 {
        let error =
            pair.left.expect_rejected(SendRequest::atomic_write(BYTES, region.remote().at(offset)))?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    }
    check_equal(&read(&region, 0, 64)?, &[0; 64])?;
    pair.ping()
}

fn an_inline_atomic_write_is_refused(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(16).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    pair.left.expect_rejected(SendRequest::atomic_write(BYTES, region.remote().at(0)).inline())?;
    pair.ping()
}

fn an_unreliable_connection_refuses_atomic_writes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let error = pair.left.expect_rejected(SendRequest::atomic_write(BYTES, region.remote().at(0)))?;
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    Ok(())
}

/// Checks that the peer rejects an ATOMIC WRITE, and that its memory doesn't change.
fn check_rejected(pair: &Pair, region: &MemoryRegion, remote: RemoteAddress, status: Status) -> Result<()> {
    pair.left.expect_failure(SendRequest::atomic_write(BYTES, remote), status)?;
    check_equal(&read(region, 0, region.len())?, &vec![0; region.len()]).context("the peer's memory")
}

/// The access right is that of a WRITE, not that of an atomic.
fn an_atomic_write_needs_the_regions_right(fixture: &Fixture) -> Result<()> {
    let mut rights = vec![Access::LOCAL_WRITE | Access::REMOTE_READ];
    if fixture.device.attributes().has_atomics {
        rights.push(Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    }
    for access in rights {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, access)?;
        check_rejected(&pair, &region, region.remote().at(0), Status::RemoteAccess)?;
    }
    Ok(())
}

fn an_atomic_write_needs_the_queue_pairs_right(fixture: &Fixture) -> Result<()> {
    let access = Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let pair = fixture.pair(Rc).right_access(access).connect()?;
    let region =
        pair.right.region(64, if fixture.device.attributes().has_atomics { ALL } else { READ_WRITE })?;
    check_rejected(&pair, &region, region.remote().at(0), Status::RemoteInvalidRequest)
}

fn an_atomic_write_beyond_the_end_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for offset in [64, 128, 0u64.wrapping_sub(8)] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        check_rejected(&pair, &region, region.remote().at(offset), Status::RemoteAccess)
            .with_context(|| format!("at offset {offset:#x}"))?;
    }
    Ok(())
}

fn an_atomic_write_with_a_wrong_key_is_refused_by_the_peer(fixture: &Fixture) -> Result<()> {
    for bits in [0x1, 0x8000_0000] {
        let pair = fixture.rc()?;
        let region = pair.right.region(64, READ_WRITE)?;
        let mut remote = region.remote().at(0);
        remote.rkey ^= bits;
        check_rejected(&pair, &region, remote, Status::RemoteAccess)?;
    }
    Ok(())
}
