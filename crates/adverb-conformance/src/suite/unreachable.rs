//! Peers that don't respond.

use std::time::{Duration, Instant};

use adverb::verbs::{ConnectOptions, QpState, SendRequest, Status, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{Fixture, READ_WRITE, expect};
use crate::registry::tests;

tests! { "unreachable peers";
    a_message_to_an_unknown_queue_pair_fails_after_all_retries,
    a_write_and_a_read_to_an_unknown_queue_pair_fail,
    a_peer_that_is_not_connected_does_not_answer,
    a_peer_that_has_failed_does_not_answer,
    a_peer_that_was_destroyed_in_flight_does_not_answer,
    more_retries_take_longer,
    requests_after_a_failure_are_flushed_in_order,
}

fn a_message_to_an_unknown_queue_pair_fails_after_all_retries(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_retries().connect()?;
    drop(pair.right);
    pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RetryExceeded)?;
    pair.left.expect_state(QpState::Error)
}

fn a_write_and_a_read_to_an_unknown_queue_pair_fail(fixture: &Fixture) -> Result<()> {
    for reads in [false, true] {
        let pair = fixture.pair(Rc).few_retries().connect()?;
        let region = pair.right.region(500, READ_WRITE)?;
        drop(pair.right);
        let (buffer, remote) = (pair.left.filled(500, 1)?, region.remote().at(0));
        let request =
            if reads { SendRequest::read(buffer, remote) } else { SendRequest::write(buffer, remote) };
        pair.left.expect_failure(request, Status::RetryExceeded)?;
    }
    Ok(())
}

/// Vol. 1, 10.3.1.2: a queue pair in Init drops received packets.
fn a_peer_that_is_not_connected_does_not_answer(fixture: &Fixture) -> Result<()> {
    let options = ConnectOptions::new().ack_timeout(12).retry_count(1);
    let pair = fixture.pair(Rc).create()?;
    pair.right.post_receive(500)?;
    pair.left.qp.connect_with(&pair.right.qp.endpoint(), &options)?;
    pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RetryExceeded)?;
    pair.right.expect_no_completion()?;
    pair.right.expect_state(QpState::Init)
}

fn a_peer_that_has_failed_does_not_answer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_retries().connect()?;
    pair.right.qp.move_to_error()?;
    pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RetryExceeded)
}

fn a_peer_that_was_destroyed_in_flight_does_not_answer(fixture: &Fixture) -> Result<()> {
    // The timeout is long enough for a slow peer to send an RNR NAK.
    let options = ConnectOptions::new().ack_timeout(16).retry_count(1);
    let pair = fixture.pair(Rc).options(options).connect()?;
    // The message waits, because no receive is posted.
    let sending = pair.left.post(SendRequest::send(pair.left.filled(500, 1)?))?;
    pair.left.expect_no_completion()?;
    drop(pair.right);
    expect("the message", &pair.left.wait(sending)?, Status::RetryExceeded)
}

/// Vol. 1, 9.7.6.1.3: a timeout of code t is at least 4.096 µs × 2^t, and applies to each attempt.
///
/// A software device counts whole ticks of the kernel's clock, 4 ms apart, and starts within one (rxe drops the elapsed
/// part of a tick): each attempt may be two ticks shorter.
fn more_retries_take_longer(fixture: &Fixture) -> Result<()> {
    const TWO_TICKS: Duration = Duration::from_millis(8);
    for (retries, tries) in [(0_u8, 1_u32), (3, 4)] {
        let options = ConnectOptions::new().ack_timeout(15).retry_count(retries);
        let pair = fixture.pair(Rc).options(options).connect()?;
        drop(pair.right);
        let start = Instant::now();
        pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RetryExceeded)?;
        let (took, min) = (start.elapsed(), (Duration::from_nanos(4096 << 15) - TWO_TICKS) * tries);
        ensure!(took >= min, "{retries} retries took {took:?}, which is less than {min:?}");
    }
    Ok(())
}

fn requests_after_a_failure_are_flushed_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_retries().connect()?;
    drop(pair.right);
    for tag in 0..20 {
        pair.left.post(SendRequest::send(pair.left.filled(100, 1)?).tag(tag))?;
    }
    for (tag, completion) in (0..).zip(pair.left.take(20)?) {
        ensure!(completion.tag() == tag, "request {} completed before {tag}", completion.tag());
        let expected = if tag == 0 { Status::RetryExceeded } else { Status::Flushed };
        expect(&format!("request {tag}"), &completion, expected)?;
    }
    pair.left.expect_no_completion()
}
