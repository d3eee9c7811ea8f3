//! Buffers: memory with one owner.

use adverb::verbs::{Error, RecvRequest, SendRequest};
use anyhow::{Context, Result, ensure};

use crate::fixture::{Fixture, READ_WRITE, check, check_equal, fill, pattern, read};
use crate::registry::tests;

tests! { "buffers";
    a_new_buffer_is_all_zeros,
    a_buffers_range_stays_within_its_capacity,
    a_buffer_sends_only_its_range,
    a_receive_writes_only_the_range_of_its_buffer,
    the_range_of_a_received_buffer_is_the_message,
    a_split_buffer_is_two,
    both_halves_of_a_split_buffer_are_in_flight_at_once,
    a_received_buffer_can_be_sent,
    a_buffer_created_on_another_thread_works,
}

fn a_new_buffer_is_all_zeros(fixture: &Fixture) -> Result<()> {
    let side = fixture.pair(adverb::verbs::Transport::Rc).side(None)?;
    for len in [1, 4096, 10_001] {
        let buffer = side.domain.allocate_buffer(len)?;
        ensure!(buffer.capacity() == len && buffer.range() == (0..len), "the buffer is {buffer:?}");
        check_equal(&buffer, &vec![0; len])?;
    }
    Ok(())
}

fn a_buffers_range_stays_within_its_capacity(fixture: &Fixture) -> Result<()> {
    let mut buffer = fixture.device.create_protection_domain()?.allocate_buffer(100)?;
    fill(&mut buffer, 1);
    buffer.set_range(10..20)?;
    check_equal(&buffer, &pattern(100, 1)[10..20])?;
    // A range is relative to the whole buffer, and an invalid range changes nothing.
    #[expect(clippy::reversed_empty_ranges, reason = "the ranges must be invalid")]
    for range in [0..101, 101..101, 50..40, 0..usize::MAX] {
        let narrowed = buffer.set_range(range.clone());
        ensure!(matches!(narrowed, Err(Error::OutOfBounds { .. })), "{range:?}: {narrowed:?}");
    }
    ensure!(buffer.range() == (10..20), "the range is {:?}", buffer.range());
    buffer.set_range(90..100)?;
    buffer.set_range(100..100)?;
    ensure!(buffer.is_empty(), "its length is {} bytes", buffer.len());
    buffer.reset_range();
    check(&buffer, 1)
}

fn a_buffer_sends_only_its_range(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut buffer = pair.left.filled(1000, 1)?;
    buffer.set_range(100..350)?;
    let message = pair.deliver(buffer)?;
    check_equal(&message, &pattern(1000, 1)[100..350])
}

fn a_receive_writes_only_the_range_of_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut buffer = pair.right.filled(1000, 1)?;
    buffer.set_range(100..350)?;
    let receiving = pair.right.recv(RecvRequest::new(buffer))?;
    pair.left.execute(SendRequest::send(pair.left.filled(250, 2)?))?;
    let mut buffer = pair.right.wait(receiving)?.into_message()?;
    ensure!(buffer.range() == (100..350), "the range is {:?}", buffer.range());
    check(&buffer, 2)?;
    buffer.reset_range();
    let mut expected = pattern(1000, 1);
    fill(&mut expected[100..350], 2);
    check_equal(&buffer, &expected)
}

fn the_range_of_a_received_buffer_is_the_message(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut buffer = pair.right.buffer(1000)?;
    buffer.set_range(500..1000)?;
    let receiving = pair.right.recv(RecvRequest::new(buffer))?;
    pair.left.execute(SendRequest::send(pair.left.filled(123, 2)?))?;
    let message = pair.right.wait(receiving)?.into_message()?;
    ensure!(message.range() == (500..623) && message.capacity() == 1000, "the message is {message:?}");
    check(&message, 2)
}

fn a_split_buffer_is_two(fixture: &Fixture) -> Result<()> {
    let mut first = fixture.device.create_protection_domain()?.allocate_buffer(100)?;
    fill(&mut first, 1);
    ensure!(
        matches!(first.split_off(101), Err(Error::OutOfBounds { .. })),
        "a split beyond the end succeeded"
    );
    let mut rest = first.split_off(30)?;
    ensure!((first.len(), rest.len()) == (30, 70), "the parts have {} and {} bytes", first.len(), rest.len());
    check_equal(&first, &pattern(100, 1)[..30])?;
    check_equal(&rest, &pattern(100, 1)[30..])?;
    rest.fill(9);
    check_equal(&first, &pattern(100, 1)[..30])?;
    drop(first);
    check_equal(&rest, &[9; 70])
}

fn both_halves_of_a_split_buffer_are_in_flight_at_once(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut first = pair.right.buffer(200)?;
    let rest = first.split_off(100)?;
    let receiving = [pair.right.recv(first)?, pair.right.recv(rest)?];
    for seed in [1, 2] {
        pair.left.execute(SendRequest::send(pair.left.filled(100, seed)?))?;
    }
    for (seed, id) in [1, 2].into_iter().zip(receiving) {
        check(&pair.right.wait(id)?.into_message()?, seed)?;
    }
    Ok(())
}

fn a_received_buffer_can_be_sent(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut message = pair.deliver(pair.left.filled(777, 3)?)?;
    for _ in 0..10 {
        let receiving = pair.left.post_receive(1000)?;
        message = pair
            .right
            .completed(SendRequest::send(message))?
            .into_buffer()
            .context("the completion returned no buffer")?;
        check(&pair.left.wait(receiving)?.into_message()?, 3)?;
    }
    Ok(())
}

/// Two handles of one protection domain are the same domain on all threads.
fn a_buffer_created_on_another_thread_works(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let domain = pair.left.domain.clone();
    let region = pair.right.region(64, READ_WRITE)?;
    let mut buffer = std::thread::spawn(move || domain.allocate_buffer(64))
        .join()
        .ok()
        .context("the thread panicked")??;
    fill(&mut buffer, 4);
    pair.left.execute(SendRequest::write(buffer, region.remote().at(0)))?;
    check(&read(&region, 0, 64)?, 4)
}
