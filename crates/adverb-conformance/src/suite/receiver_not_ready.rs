//! Messages that arrive before a receive is posted (RNR).

use std::time::{Duration, Instant};

use adverb::verbs::{ConnectOptions, QpState, SendRequest, Status, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{Fixture, QUIET_PERIOD, READ_WRITE, check, check_duration, expect, immediate, read};
use crate::registry::tests;

tests! { "receiver not ready";
    a_message_waits_for_a_receive,
    a_write_with_immediate_data_waits_for_a_receive,
    messages_that_waited_arrive_in_order_and_once,
    a_write_does_not_wait_for_a_receive,
    without_a_receive_a_sender_fails_after_its_rnr_retries,
    a_sender_without_rnr_retries_fails_at_once,
    after_rnr_retries_the_sender_has_failed_and_the_receiver_has_not,
}

fn a_message_waits_for_a_receive(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let sending = pair.left.post(SendRequest::send(pair.left.filled(500, 1)?))?;
    pair.left.expect_no_completion()?;
    let receiving = pair.right.post_receive(500)?;
    check(&pair.right.wait(receiving)?.into_message()?, 1)?;
    pair.left.wait(sending)?.result()?;
    Ok(())
}

fn a_write_with_immediate_data_waits_for_a_receive(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(500, READ_WRITE)?;
    let request = SendRequest::write_with_imm(pair.left.filled(500, 1)?, region.remote().at(0), 5);
    let writing = pair.left.post(request)?;
    pair.left.expect_no_completion()?;
    let receiving = pair.right.post_receive(0)?;
    ensure!(immediate(&pair.right.wait(receiving)?)? == Some(5), "the immediate data differs");
    check(&read(&region, 0, 500)?, 1)?;
    pair.left.wait(writing)?.result()?;
    Ok(())
}

fn messages_that_waited_arrive_in_order_and_once(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = fixture.mtu() + 1;
    for seed in 0..16 {
        pair.left.post(SendRequest::send(pair.left.filled(size, seed)?))?;
    }
    // Each message arrives before the next receive is posted.
    for seed in 0..16 {
        let receiving = pair.right.post_receive(size)?;
        check(&pair.right.wait(receiving)?.into_message()?, seed)?;
    }
    for completion in pair.left.take(16)? {
        completion.result()?;
    }
    pair.right.expect_no_completion()
}

fn a_write_does_not_wait_for_a_receive(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(500, READ_WRITE)?;
    pair.left.execute(SendRequest::write(pair.left.filled(500, 1)?, region.remote().at(0)))?;
    check(&read(&region, 0, 500)?, 1)
}

fn without_a_receive_a_sender_fails_after_its_rnr_retries(fixture: &Fixture) -> Result<()> {
    // Code 12 is 0.64 ms.
    let pair = fixture.pair(Rc).options(ConnectOptions::new().rnr_retry(3).min_rnr_timer(12)).connect()?;
    let start = Instant::now();
    pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RnrRetryExceeded)?;
    let min = 3 * Duration::from_micros(640);
    ensure!(
        start.elapsed() >= min,
        "the sender failed after {:?}, which is less than {min:?}",
        start.elapsed()
    );
    Ok(())
}

fn a_sender_without_rnr_retries_fails_at_once(fixture: &Fixture) -> Result<()> {
    // Code 0 is 655.36 ms, the maximum.
    check_duration(Duration::from_millis(600), || {
        let pair = fixture.pair(Rc).options(ConnectOptions::new().rnr_retry(0).min_rnr_timer(0)).connect()?;
        let start = Instant::now();
        pair.left.expect_failure(SendRequest::send(pair.left.filled(500, 1)?), Status::RnrRetryExceeded)?;
        Ok(start.elapsed())
    })
}

fn after_rnr_retries_the_sender_has_failed_and_the_receiver_has_not(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_rnr_retries().connect()?;
    let sending = pair.left.post(SendRequest::send(pair.left.filled(500, 1)?))?;
    let following = pair.left.post(SendRequest::send(pair.left.filled(500, 2)?))?;
    expect("the message", &pair.left.wait(sending)?, Status::RnrRetryExceeded)?;
    expect("the request after it", &pair.left.wait(following)?, Status::Flushed)?;
    pair.left.expect_state(QpState::Error)?;
    std::thread::sleep(QUIET_PERIOD);
    pair.right.expect_state(QpState::ReadyToSend)
}
