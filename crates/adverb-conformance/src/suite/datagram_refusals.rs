//! Datagrams that are dropped or refused.

use adverb::verbs::{Error, QpState, SendRequest, Status, Transport::Ud, UdDestination};
use anyhow::{Result, ensure};

use super::datagrams::{destination_to, exchange, post_receive};
use crate::fixture::{Fixture, QKEY, READ_WRITE, check, expect};
use crate::registry::tests;

tests! { "refused datagrams";
    a_datagram_with_another_queue_key_is_dropped,
    a_datagram_without_a_receive_is_dropped,
    a_datagram_to_an_unknown_queue_pair_is_dropped,
    a_datagram_longer_than_a_packet_is_refused_and_returns_its_buffer,
    a_datagram_without_a_destination_is_refused_and_returns_its_buffer,
    a_connected_queue_pair_refuses_a_destination,
    a_receive_too_small_for_any_datagram_is_refused_and_returns_its_buffer,
    a_datagram_queue_pair_accepts_only_sends,
    datagrams_are_flushed_when_the_queue_pair_fails,
    a_datagram_queue_pair_recovers_by_a_reset,
    a_message_of_a_connection_does_not_convert_to_a_datagram,
}

/// Vol. 1, 9.6.1.4.2.2: the datagram is dropped without a response, and the receive stays posted.
fn a_datagram_with_another_queue_key_is_dropped(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let receiving = post_receive(fixture, &pair.right)?;
    for qkey in [0, QKEY ^ 1, QKEY ^ 0x4000_0000] {
        let wrong = UdDestination { qkey, ..destination_to(&pair.left, &pair.right)? };
        pair.left.execute(SendRequest::send(pair.left.filled(64, 1)?).destination(&wrong))?;
    }
    pair.right.expect_no_completion()?;
    pair.right.expect_state(QpState::ReadyToSend)?;
    pair.left.execute(
        SendRequest::send(pair.left.filled(64, 2)?).destination(&destination_to(&pair.left, &pair.right)?),
    )?;
    check(&pair.right.wait(receiving)?.into_datagram()?.message, 2)
}

fn a_datagram_without_a_receive_is_dropped(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    pair.left.execute(
        SendRequest::send(pair.left.filled(64, 1)?).destination(&destination_to(&pair.left, &pair.right)?),
    )?;
    // A software device drops the datagram at the latest when it is polled.
    pair.right.expect_no_completion()?;
    let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(64, 2)?))?;
    check(&received.message, 2)
}

fn a_datagram_to_an_unknown_queue_pair_is_dropped(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let destroyed = fixture.pair(Ud).side(None)?;
    let recipient = destination_to(&pair.left, &destroyed)?;
    drop(destroyed);
    for _ in 0..10 {
        pair.left.execute(SendRequest::send(pair.left.filled(64, 1)?).destination(&recipient))?;
    }
    let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(64, 2)?))?;
    check(&received.message, 2)
}

fn a_datagram_longer_than_a_packet_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let request = SendRequest::send(pair.left.buffer(fixture.mtu() + 1)?);
    let error = pair.left.expect_rejected(request.destination(&destination_to(&pair.left, &pair.right)?))?;
    ensure!(matches!(error, Error::MessageTooLong { .. }), "refused with another error: {error}");
    Ok(())
}

fn a_datagram_without_a_destination_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let error = pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?))?;
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    Ok(())
}

fn a_connected_queue_pair_refuses_a_destination(fixture: &Fixture) -> Result<()> {
    let datagrams = fixture.pair(Ud).connect()?;
    let recipient = destination_to(&datagrams.left, &datagrams.right)?;
    for transport in [adverb::verbs::Transport::Rc, adverb::verbs::Transport::Uc] {
        let pair = fixture.pair(transport).connect()?;
        let error =
            pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?).destination(&recipient))?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
        pair.ping()?;
    }
    Ok(())
}

fn a_receive_too_small_for_any_datagram_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let side = fixture.pair(Ud).side(None)?;
    for size in [0, 40, fixture.max_datagram_len() - 1] {
        let error = side.expect_recv_rejected(side.buffer(size)?)?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    }
    side.post_receive(fixture.max_datagram_len())?;
    Ok(())
}

fn a_datagram_queue_pair_accepts_only_sends(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let recipient = destination_to(&pair.left, &pair.right)?;
    let region = pair.right.region(64, READ_WRITE)?;
    let (remote, buffer) = (region.remote().at(0), || pair.left.buffer(8));
    for request in [
        SendRequest::write(buffer()?, remote),
        SendRequest::write_with_imm(buffer()?, remote, 1),
        SendRequest::read(buffer()?, remote),
        SendRequest::fetch_add(buffer()?, remote, 1),
        SendRequest::compare_swap(buffer()?, remote, 0, 1),
        SendRequest::send_invalidate(buffer()?, remote.rkey),
    ] {
        let error = pair.left.expect_rejected(request.destination(&recipient))?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    }
    Ok(())
}

fn datagrams_are_flushed_when_the_queue_pair_fails(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    (0..10).try_for_each(|_| post_receive(fixture, &pair.right).map(drop))?;
    pair.right.qp.move_to_error()?;
    for completion in pair.right.take(10)? {
        expect("a receive", &completion, Status::Flushed)?;
    }
    pair.right.expect_no_completion()?;
    // The failure of the receiver does not affect the sender.
    pair.left.execute(
        SendRequest::send(pair.left.filled(64, 1)?).destination(&destination_to(&pair.left, &pair.right)?),
    )
}

fn a_datagram_queue_pair_recovers_by_a_reset(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    post_receive(fixture, &pair.right)?;
    let left = pair.right.qp.reset()?;
    ensure!(left.len() == 1, "{} payloads were returned", left.len());
    pair.right.qp.move_to_rts()?;
    let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(64, 2)?))?;
    check(&received.message, 2)
}

fn a_message_of_a_connection_does_not_convert_to_a_datagram(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let receiving = pair.right.post_receive(100)?;
    pair.left.execute(SendRequest::send(pair.left.filled(100, 1)?))?;
    let received = pair.right.wait(receiving)?.into_datagram();
    ensure!(
        matches!(received, Err(Error::InvalidRequest { .. })),
        "the message was converted to a datagram: {received:?}"
    );
    Ok(())
}
