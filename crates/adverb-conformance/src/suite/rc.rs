//! Reliable connections: every operation, at every size.

use adverb::verbs::{CompletedOperation, SendRequest, Transport::Rc};
use anyhow::{Context, Result, ensure};

use super::transfers;
use crate::fixture::{Fixture, READ_WRITE, check, check_equal, fill, pattern, read};
use crate::registry::tests;

tests! { "reliable connection";
    rc_messages_of_every_size_arrive_whole,
    rc_a_message_of_maximum_size_arrives_whole,
    rc_a_message_beyond_the_maximum_size_is_refused_and_returns_its_buffer,
    rc_empty_messages_arrive,
    rc_a_message_delivers_all_bits_of_its_immediate_data,
    rc_a_message_without_immediate_data_delivers_none,
    rc_a_message_shorter_than_its_receive_leaves_the_rest_untouched,
    rc_writes_of_every_size_arrive_whole,
    rc_a_write_of_maximum_size_arrives_whole,
    rc_a_write_touches_nothing_beside_its_range,
    rc_a_write_consumes_no_receive,
    rc_a_write_with_immediate_data_consumes_a_receive_and_leaves_its_buffer_unchanged,
    rc_both_directions_work_at_once,
    a_read_of_every_size_returns_the_peers_bytes,
    a_read_of_maximum_size_returns_the_peers_bytes,
    a_read_touches_nothing_beside_its_buffer,
    a_read_starts_at_its_remote_address,
    reads_and_messages_cross,
    every_completion_names_its_operation,
}

fn rc_messages_of_every_size_arrive_whole(fixture: &Fixture) -> Result<()> {
    transfers::messages_of_every_size(fixture, Rc)
}

fn rc_a_message_of_maximum_size_arrives_whole(fixture: &Fixture) -> Result<()> {
    transfers::max_size_message(fixture, Rc)
}

fn rc_a_message_beyond_the_maximum_size_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    transfers::message_beyond_max_size(fixture, Rc)
}

fn rc_empty_messages_arrive(fixture: &Fixture) -> Result<()> {
    transfers::empty_messages(fixture, Rc)
}

fn rc_a_message_delivers_all_bits_of_its_immediate_data(fixture: &Fixture) -> Result<()> {
    transfers::immediate_bits(fixture, Rc)
}

fn rc_a_message_without_immediate_data_delivers_none(fixture: &Fixture) -> Result<()> {
    transfers::no_immediate(fixture, Rc)
}

fn rc_a_message_shorter_than_its_receive_leaves_the_rest_untouched(fixture: &Fixture) -> Result<()> {
    transfers::shorter_than_receive(fixture, Rc)
}

fn rc_writes_of_every_size_arrive_whole(fixture: &Fixture) -> Result<()> {
    transfers::writes_of_every_size(fixture, Rc)
}

fn rc_a_write_of_maximum_size_arrives_whole(fixture: &Fixture) -> Result<()> {
    transfers::max_size_write(fixture, Rc)
}

fn rc_a_write_touches_nothing_beside_its_range(fixture: &Fixture) -> Result<()> {
    transfers::writes_only_its_range(fixture, Rc)
}

fn rc_a_write_consumes_no_receive(fixture: &Fixture) -> Result<()> {
    transfers::write_takes_no_receive(fixture, Rc)
}

fn rc_a_write_with_immediate_data_consumes_a_receive_and_leaves_its_buffer_unchanged(
    fixture: &Fixture,
) -> Result<()> {
    transfers::write_immediate(fixture, Rc)
}

fn rc_both_directions_work_at_once(fixture: &Fixture) -> Result<()> {
    transfers::both_directions(fixture, Rc)
}

fn a_read_of_every_size_returns_the_peers_bytes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let most = fixture.sizes().into_iter().max().unwrap_or(1);
    let region = pair.right.region(most, READ_WRITE)?;
    region.write(0, &pattern(most, 7))?;
    for size in fixture.sizes() {
        let read = pair.left.completed(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)))?;
        let length = read.result()?.length as usize;
        ensure!(length == size, "requested {size} bytes, but {length} arrived");
        let buffer = read.into_buffer().context("the completion returned no buffer")?;
        check(&buffer, 7).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

fn a_read_of_maximum_size_returns_the_peers_bytes(fixture: &Fixture) -> Result<()> {
    let max_message_len = fixture.max_message_len().min(64 << 20);
    let pair = fixture.rc()?;
    let region = pair.right.region(max_message_len, READ_WRITE)?;
    region.write(0, &pattern(max_message_len, 6))?;
    let read =
        pair.left.completed(SendRequest::read(pair.left.buffer(max_message_len)?, region.remote().at(0)))?;
    check(&read.into_buffer().context("the completion returned no buffer")?, 6)
}

fn a_read_touches_nothing_beside_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mtu = fixture.mtu();
    let region = pair.right.region(4 * mtu, READ_WRITE)?;
    region.write(0, &pattern(4 * mtu, 7))?;
    for (start, len) in [(0, 1), (3, mtu), (mtu - 1, 2 * mtu + 2), (7, 0)] {
        let mut buffer = pair.left.filled(4 * mtu, 8)?;
        buffer.set_range(start..start + len)?;
        let read = pair.left.completed(SendRequest::read(buffer, region.remote().at(0)))?;
        let mut buffer = read.into_buffer().context("the completion returned no buffer")?;
        buffer.reset_range();
        let mut expected = pattern(4 * mtu, 8);
        fill(&mut expected[start..start + len], 7);
        check_equal(&buffer, &expected).with_context(|| format!("{len} bytes to {start}"))?;
    }
    Ok(())
}

fn a_read_starts_at_its_remote_address(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(10_000, READ_WRITE)?;
    let bytes = pattern(10_000, 7);
    region.write(0, &bytes)?;
    for (offset, len) in [(0, 10), (1, 1), (4095, 2), (4096, 4096), (9999, 1), (10_000, 0)] {
        let request = SendRequest::read(pair.left.buffer(len)?, region.remote().at(offset as u64));
        let buffer =
            pair.left.completed(request)?.into_buffer().context("the completion returned no buffer")?;
        check_equal(&buffer, &bytes[offset..offset + len])
            .with_context(|| format!("{len} bytes at {offset}"))?;
    }
    Ok(())
}

/// READ responses and messages of the other direction share the connection.
fn reads_and_messages_cross(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 5 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    region.write(0, &pattern(size, 3))?;
    for round in 0..10 {
        let receiving = pair.left.post_receive(size)?;
        let reading = pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)))?;
        pair.right.execute(SendRequest::send(pair.right.filled(size, round)?))?;
        check(&pair.left.wait(receiving)?.into_message()?, round)?;
        let read = pair.left.wait(reading)?;
        read.result()?;
        check(&read.into_buffer().context("the completion returned no buffer")?, 3)?;
    }
    Ok(())
}

fn every_completion_names_its_operation(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let remote = region.remote().at(0);
    let buffer = || pair.left.filled(8, 1);
    let requests = [
        (SendRequest::send(buffer()?), CompletedOperation::Send),
        (SendRequest::send_with_imm(buffer()?, 1), CompletedOperation::Send),
        (SendRequest::write(buffer()?, remote), CompletedOperation::Write),
        (SendRequest::write_with_imm(buffer()?, remote, 1), CompletedOperation::Write),
        (SendRequest::read(buffer()?, remote), CompletedOperation::Read),
    ];
    for (request, expected) in requests {
        pair.right.post_receive(8)?;
        let operation = pair.left.completed(request)?.result()?.operation;
        ensure!(operation == expected, "{operation:?}, not {expected:?}");
    }
    check(&read(&region, 0, 8)?, 1)
}
