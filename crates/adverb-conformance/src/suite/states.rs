//! The states of a queue pair.

use adverb::verbs::{Error, PathMtu, QpState, SendRequest, Status, Transport, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{COMPLETION_TIMEOUT, Fixture, READ_WRITE, check};
use crate::registry::tests;

tests! { "states";
    a_queue_pair_goes_from_init_to_ready_to_error,
    receives_may_be_posted_before_connecting,
    sending_before_connecting_is_refused_and_returns_its_buffer,
    posting_after_failing_is_refused_and_returns_its_buffer,
    connecting_twice_is_refused_with_a_hint,
    datagram_queue_pairs_refuse_connect_and_others_refuse_move_to_rts,
    a_reset_queue_pair_is_as_new_and_connects_again,
    a_failed_queue_pair_recovers_by_a_reset,
    a_reset_gives_back_the_memory_of_all_requests,
    a_reset_queue_pair_connects_to_another_peer,
    completions_from_before_a_reset_are_not_delivered,
    queue_pairs_have_their_own_numbers,
    an_mtu_larger_than_the_ports_is_refused,
    queue_pairs_need_a_completion_queue,
}

fn a_queue_pair_goes_from_init_to_ready_to_error(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let pair = fixture.pair(transport).create()?;
        pair.left.expect_state(QpState::Init)?;
        pair.connect()?;
        pair.left.expect_state(QpState::ReadyToSend)?;
        pair.left.qp.move_to_error()?;
        pair.left.expect_state(QpState::Error)?;
        pair.right.expect_state(QpState::ReadyToSend)?;
    }
    Ok(())
}

fn receives_may_be_posted_before_connecting(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).create()?;
    let receiving = pair.right.post_receive(64)?;
    pair.connect()?;
    pair.left.execute(SendRequest::send(pair.left.filled(64, 1)?))?;
    check(&pair.right.wait(receiving)?.into_message()?, 1)
}

fn sending_before_connecting_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        let side = fixture.pair(transport).side(None)?;
        let error = side.expect_rejected(SendRequest::send(side.buffer(8)?))?;
        ensure!(
            matches!(error, Error::WrongState { state: QpState::Init, .. }),
            "refused with another error: {error}"
        );
    }
    Ok(())
}

fn posting_after_failing_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    pair.left.qp.move_to_error()?;
    let send = pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?))?;
    let recv = pair.left.expect_recv_rejected(pair.left.buffer(8)?)?;
    for error in [send, recv] {
        ensure!(
            matches!(error, Error::WrongState { state: QpState::Error, .. }),
            "refused with another error: {error}"
        );
        ensure!(error.hint().is_some(), "the error has no hint: {error}");
    }
    Ok(())
}

fn connecting_twice_is_refused_with_a_hint(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let error = pair.left.qp.connect(&pair.right.qp.endpoint()).expect_err("a second connect succeeded");
    ensure!(matches!(error, Error::WrongState { .. }), "refused with another error: {error}");
    ensure!(
        error.hint().is_some_and(|hint| hint.contains("reset")),
        "the hint does not name the action: {error}"
    );
    pair.ping()
}

fn datagram_queue_pairs_refuse_connect_and_others_refuse_move_to_rts(fixture: &Fixture) -> Result<()> {
    let datagrams = fixture.pair(Transport::Ud).side(None)?;
    let connection = fixture.pair(Rc).side(None)?;
    let connect = datagrams.qp.connect(&connection.qp.endpoint());
    ensure!(matches!(connect, Err(Error::InvalidRequest { .. })), "connecting a UD queue pair: {connect:?}");
    let activate = connection.qp.move_to_rts();
    ensure!(
        matches!(activate, Err(Error::InvalidRequest { .. })),
        "moving a connected queue pair to RTS: {activate:?}"
    );
    datagrams.qp.move_to_rts()?;
    let again = datagrams.qp.move_to_rts();
    ensure!(matches!(again, Err(Error::WrongState { .. })), "moving to RTS twice: {again:?}");
    Ok(())
}

fn a_reset_queue_pair_is_as_new_and_connects_again(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for _ in 0..5 {
        pair.ping()?;
        let before = pair.left.qp.endpoint();
        for side in [&pair.left, &pair.right] {
            let left = side.qp.reset()?;
            ensure!(left.is_empty(), "{} requests are left", left.len());
            side.expect_state(QpState::Init)?;
        }
        let after = pair.left.qp.endpoint();
        ensure!(after.qpn == before.qpn, "the queue pair's number has changed");
        pair.connect()?;
    }
    pair.ping()
}

fn a_failed_queue_pair_recovers_by_a_reset(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).few_rnr_retries().connect()?;
    pair.left.expect_failure(SendRequest::send(pair.left.filled(8, 1)?), Status::RnrRetryExceeded)?;
    pair.left.expect_state(QpState::Error)?;
    for side in [&pair.left, &pair.right] {
        side.qp.reset()?;
    }
    pair.connect()?;
    pair.ping()
}

fn a_reset_gives_back_the_memory_of_all_requests(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for len in 1..=10 {
        pair.left.post(SendRequest::send(pair.left.buffer(len)?))?;
        pair.left.post_receive(100 + len)?;
    }
    let lengths: Vec<usize> = pair.left.qp.reset()?.iter().map(|request| request.payload.len()).collect();
    let expected: Vec<usize> = (1..=10).chain(101..=110).collect();
    ensure!(lengths == expected, "payloads of these lengths were returned: {lengths:?}");
    ensure!(
        pair.left.qp.outstanding_send_count() + pair.left.qp.outstanding_recv_count() == 0,
        "requests are still outstanding"
    );
    pair.left.expect_no_completion()
}

fn a_reset_queue_pair_connects_to_another_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    pair.ping()?;
    let other = fixture.pair(Rc).side(None)?;
    pair.left.qp.reset()?;
    pair.left.qp.connect(&other.qp.endpoint())?;
    other.qp.connect(&pair.left.qp.endpoint())?;
    let receiving = other.post_receive(64)?;
    pair.left.execute(SendRequest::send(pair.left.filled(64, 4)?))?;
    check(&other.wait(receiving)?.into_message()?, 4)?;
    pair.right.expect_no_completion()
}

/// Completions that were generated before the reset, and not polled, belong to requests whose memory was released.
fn completions_from_before_a_reset_are_not_delivered(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    for _ in 0..8 {
        pair.left.post(SendRequest::write(pair.left.filled(64, 1)?, region.remote().at(0)))?;
    }
    // Meanwhile, all requests complete.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let left = pair.left.qp.reset()?;
    ensure!(left.len() == 8, "{} of 8 payloads were returned", left.len());
    pair.left.expect_no_completion()?;
    pair.right.qp.reset()?;
    pair.connect()?;
    let writing = pair.left.post(SendRequest::write(pair.left.filled(64, 2)?, region.remote().at(0)))?;
    pair.left.cq.wait(writing, COMPLETION_TIMEOUT)?.result()?;
    pair.left.expect_no_completion()?;
    pair.ping()
}

fn queue_pairs_have_their_own_numbers(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc);
    let sides = (0..32).map(|_| builder.side(None)).collect::<Result<Vec<_>>>()?;
    let mut numbers: Vec<u32> = sides.iter().map(|side| side.qp.qpn().get()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    ensure!(numbers.len() == 32, "32 queue pairs have {} numbers", numbers.len());
    ensure!(numbers[0] > 1, "queue pair numbers 0 and 1 are reserved for management");
    let mut psns: Vec<u32> = sides.iter().map(|side| side.qp.endpoint().psn.get()).collect();
    psns.dedup();
    ensure!(psns.len() > 16, "the initial PSNs are equal: {psns:?}");
    Ok(())
}

fn an_mtu_larger_than_the_ports_is_refused(fixture: &Fixture) -> Result<()> {
    let larger = PathMtu::ALL.into_iter().find(|mtu| *mtu > fixture.port.active_mtu);
    let pair = fixture.pair(Rc).create()?;
    let mut remote = pair.right.qp.endpoint();
    let options = adverb::verbs::ConnectOptions::new();
    if let Some(larger) = larger {
        remote.mtu = larger.bytes();
        let refused = pair.left.qp.connect_with(&remote, &options.mtu(larger));
        ensure!(
            matches!(refused, Err(Error::LimitExceeded { .. })),
            "an MTU larger than the port's: {refused:?}"
        );
    }
    remote.mtu = 256;
    let refused = pair.left.qp.connect_with(&remote, &options.mtu(PathMtu::Mtu512));
    ensure!(
        matches!(refused, Err(Error::LimitExceeded { requested: 512, max: 256, .. })),
        "an MTU larger than the peer's: {refused:?}"
    );
    // Nothing has changed: the queue pair can still be connected.
    pair.connect()?;
    pair.ping()
}

fn queue_pairs_need_a_completion_queue(fixture: &Fixture) -> Result<()> {
    let domain = fixture.device.create_protection_domain()?;
    let refused = domain.queue_pair(Rc).create();
    ensure!(matches!(refused, Err(Error::InvalidRequest { .. })), "{refused:?}");
    Ok(())
}
