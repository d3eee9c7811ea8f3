//! Unreliable connections: SEND and WRITE, including messages that can't be delivered.

use adverb::verbs::{QpState, SendRequest, Transport::Uc};
use anyhow::{Context, Result, ensure};

use super::transfers;
use crate::Need;
use crate::fixture::{Fixture, QUIET_PERIOD, READ_WRITE, check, check_equal, pattern, read};
use crate::registry::tests;

tests! { "unreliable connection";
    uc_messages_of_every_size_arrive_whole,
    uc_a_message_of_maximum_size_arrives_whole,
    uc_a_message_beyond_the_maximum_size_is_refused_and_returns_its_buffer,
    uc_empty_messages_arrive,
    uc_a_message_delivers_all_bits_of_its_immediate_data,
    uc_a_message_without_immediate_data_delivers_none,
    uc_a_message_shorter_than_its_receive_leaves_the_rest_untouched,
    uc_writes_of_every_size_arrive_whole,
    uc_a_write_of_maximum_size_arrives_whole,
    uc_a_write_touches_nothing_beside_its_range,
    uc_a_write_consumes_no_receive,
    uc_a_write_with_immediate_data_consumes_a_receive_and_leaves_its_buffer_unchanged,
    uc_both_directions_work_at_once,
    uc_a_message_without_a_receive_is_lost_and_a_later_one_arrives,
    uc_a_message_to_an_unknown_queue_pair_succeeds,
    uc_a_write_that_the_peer_does_not_allow_is_lost,
    uc_a_read_is_refused_and_returns_its_buffer,
    [Need::Atomics] uc_an_atomic_is_refused_and_returns_its_buffer,
}

fn uc_messages_of_every_size_arrive_whole(fixture: &Fixture) -> Result<()> {
    transfers::messages_of_every_size(fixture, Uc)
}

fn uc_a_message_of_maximum_size_arrives_whole(fixture: &Fixture) -> Result<()> {
    transfers::max_size_message(fixture, Uc)
}

fn uc_a_message_beyond_the_maximum_size_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    transfers::message_beyond_max_size(fixture, Uc)
}

fn uc_empty_messages_arrive(fixture: &Fixture) -> Result<()> {
    transfers::empty_messages(fixture, Uc)
}

fn uc_a_message_delivers_all_bits_of_its_immediate_data(fixture: &Fixture) -> Result<()> {
    transfers::immediate_bits(fixture, Uc)
}

fn uc_a_message_without_immediate_data_delivers_none(fixture: &Fixture) -> Result<()> {
    transfers::no_immediate(fixture, Uc)
}

fn uc_a_message_shorter_than_its_receive_leaves_the_rest_untouched(fixture: &Fixture) -> Result<()> {
    transfers::shorter_than_receive(fixture, Uc)
}

fn uc_writes_of_every_size_arrive_whole(fixture: &Fixture) -> Result<()> {
    transfers::writes_of_every_size(fixture, Uc)
}

fn uc_a_write_of_maximum_size_arrives_whole(fixture: &Fixture) -> Result<()> {
    transfers::max_size_write(fixture, Uc)
}

fn uc_a_write_touches_nothing_beside_its_range(fixture: &Fixture) -> Result<()> {
    transfers::writes_only_its_range(fixture, Uc)
}

fn uc_a_write_consumes_no_receive(fixture: &Fixture) -> Result<()> {
    transfers::write_takes_no_receive(fixture, Uc)
}

fn uc_a_write_with_immediate_data_consumes_a_receive_and_leaves_its_buffer_unchanged(
    fixture: &Fixture,
) -> Result<()> {
    transfers::write_immediate(fixture, Uc)
}

fn uc_both_directions_work_at_once(fixture: &Fixture) -> Result<()> {
    transfers::both_directions(fixture, Uc)
}

/// Vol. 1, 9.8.2: a responder that can't receive a message of an unreliable connection drops it, and continues.
fn uc_a_message_without_a_receive_is_lost_and_a_later_one_arrives(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    pair.left.execute(SendRequest::send(pair.left.filled(100, 1)?))?;
    // A software device drops the message at the latest when it is polled.
    pair.right.expect_no_completion()?;
    let receiving = pair.right.post_receive(100)?;
    pair.right.expect_no_completion().context("a message that was lost arrived")?;
    pair.left.execute(SendRequest::send(pair.left.filled(100, 2)?))?;
    check(&pair.right.wait(receiving)?.into_message()?, 2)
}

fn uc_a_message_to_an_unknown_queue_pair_succeeds(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).create()?;
    let unknown = pair.right.qp.endpoint();
    drop(pair.right);
    pair.left.qp.connect(&unknown)?;
    for _ in 0..10 {
        pair.left.execute(SendRequest::send(pair.left.filled(100, 1)?))?;
    }
    let state = pair.left.qp.state()?;
    ensure!(state == QpState::ReadyToSend, "the queue pair is in state {state}");
    Ok(())
}

fn uc_a_write_that_the_peer_does_not_allow_is_lost(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    let region = pair.right.region(100, adverb::verbs::Access::LOCAL_WRITE)?;
    region.write(0, &pattern(100, 4))?;
    pair.left.execute(SendRequest::write(pair.left.filled(100, 5)?, region.remote().at(0)))?;
    std::thread::sleep(QUIET_PERIOD);
    check_equal(&read(&region, 0, 100)?, &pattern(100, 4))?;
    pair.ping()
}

fn uc_a_read_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    let region = pair.right.region(100, READ_WRITE)?;
    pair.left.expect_rejected(SendRequest::read(pair.left.buffer(100)?, region.remote().at(0)))?;
    pair.ping()
}

fn uc_an_atomic_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Uc).connect()?;
    let region = pair.right.region(100, READ_WRITE)?;
    let remote = region.remote().at(0);
    pair.left.expect_rejected(SendRequest::fetch_add(pair.left.buffer(8)?, remote, 1))?;
    pair.left.expect_rejected(SendRequest::compare_swap(pair.left.buffer(8)?, remote, 0, 1))?;
    pair.ping()
}
