//! Send and receive queues: depth and overflow.

use adverb::verbs::{Error, RecvRequest, SendRequest, Transport::Rc};
use anyhow::{Result, ensure};

use crate::Need;
use crate::fixture::{Fixture, READ_WRITE, check};
use crate::registry::tests;

tests! { "queues";
    queues_of_depth_one_work,
    [Need::QueueDepth(1024)] queues_of_depth_1024_fill_and_drain,
    a_full_send_queue_refuses_and_returns_the_buffer,
    a_full_receive_queue_refuses_and_returns_the_buffer,
    a_refused_buffer_is_unchanged,
    a_completion_frees_a_send_queue_entry,
    a_completion_frees_a_receive_queue_entry,
    queues_wrap_around,
    a_queue_depth_of_zero_or_beyond_the_limit_is_refused,
    queues_of_the_devices_maximum_depth_can_be_created,
}

fn queues_of_depth_one_work(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(1, 1).connect()?;
    (0..20).try_for_each(|_| pair.ping())
}

fn queues_of_depth_1024_fill_and_drain(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(1024, 1024).connect()?;
    (0..1024).try_for_each(|_| pair.right.post_receive(16).map(drop))?;
    for seed in 0..1024 {
        pair.left.post(SendRequest::send(pair.left.filled(16, seed)?).tag(seed))?;
    }
    for (tag, completion) in (0..).zip(pair.left.take(1024)?) {
        completion.result()?;
        ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
    }
    for (seed, completion) in (0..).zip(pair.right.take(1024)?) {
        check(&completion.into_message()?, seed)?;
    }
    Ok(())
}

fn a_full_send_queue_refuses_and_returns_the_buffer(fixture: &Fixture) -> Result<()> {
    for depth in [1, 7, 64] {
        let pair = fixture.pair(Rc).depth(depth, 1).connect()?;
        for _ in 0..depth {
            pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
        }
        let error = pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?))?;
        ensure!(matches!(error, Error::QueueFull { depth: most, .. } if most == depth), "{error}");
    }
    Ok(())
}

fn a_full_receive_queue_refuses_and_returns_the_buffer(fixture: &Fixture) -> Result<()> {
    for depth in [1, 7, 64] {
        let pair = fixture.pair(Rc).depth(1, depth).connect()?;
        (0..depth).try_for_each(|_| pair.left.post_receive(8).map(drop))?;
        let error = pair.left.expect_recv_rejected(pair.left.buffer(8)?)?;
        ensure!(matches!(error, Error::QueueFull { depth: most, .. } if most == depth), "{error}");
    }
    Ok(())
}

fn a_refused_buffer_is_unchanged(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(1, 1).connect()?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.post_receive(8)?;
    let sent = pair.left.qp.post_send(SendRequest::send(pair.left.filled(100, 1)?));
    let offered = pair.left.qp.post_recv(RecvRequest::new(pair.left.filled(100, 2)?));
    let sent = sent.err().and_then(|error| error.requests.into_iter().next());
    let offered = offered.err().and_then(|error| error.requests.into_iter().next());
    let sent = sent.and_then(|request| request.into_payload().into_buffer());
    let offered = offered.and_then(|request| request.into_payload().into_buffer());
    let (Some(sent), Some(offered)) = (sent, offered) else {
        anyhow::bail!("the error did not return the requests")
    };
    check(&sent, 1)?;
    check(&offered, 2)
}

fn a_completion_frees_a_send_queue_entry(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(2, 8).connect()?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    let second = pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?))?;
    pair.right.post_receive(8)?;
    pair.right.post_receive(8)?;
    pair.left.wait(second)?.result()?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?))?;
    pair.left.expect_rejected(SendRequest::send(pair.left.buffer(8)?)).map(drop)
}

fn a_completion_frees_a_receive_queue_entry(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(2, 2).connect()?;
    let first = pair.right.post_receive(8)?;
    pair.right.post_receive(8)?;
    pair.right.expect_recv_rejected(pair.right.buffer(8)?)?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    pair.right.wait(first)?.result()?;
    pair.right.post_receive(8)?;
    pair.right.expect_recv_rejected(pair.right.buffer(8)?).map(drop)
}

/// The depths aren't powers of two, and many more requests are posted than fit.
fn queues_wrap_around(fixture: &Fixture) -> Result<()> {
    for depth in [1, 2, 3, 5, 13] {
        let pair = fixture.pair(Rc).depth(depth, depth).connect()?;
        let mut seed = 0;
        for round in 0..40 {
            let count = u64::from(round % depth + 1);
            (0..count).try_for_each(|_| pair.right.post_receive(8).map(drop))?;
            for n in 0..count {
                pair.left.post(SendRequest::send(pair.left.filled(8, seed + n)?))?;
            }
            pair.left
                .take(count as usize)?
                .iter()
                .try_for_each(|completion| completion.result().map(drop))?;
            for completion in pair.right.take(count as usize)? {
                check(&completion.into_message()?, seed)?;
                seed += 1;
            }
        }
    }
    Ok(())
}

fn a_queue_depth_of_zero_or_beyond_the_limit_is_refused(fixture: &Fixture) -> Result<()> {
    let most = fixture.device.attributes().max_queue_depth;
    let cq = fixture.device.completion_queue(16).create()?;
    let domain = fixture.device.create_protection_domain()?;
    for (send, recv) in [(0, 1), (1, 0), (most + 1, 1), (1, most + 1), (u32::MAX, 1)] {
        let made = domain.queue_pair(Rc).completion_queue(&cq).depth(send, recv).create();
        ensure!(matches!(made, Err(Error::LimitExceeded { .. })), "{send} and {recv}: {made:?}");
    }
    Ok(())
}

fn queues_of_the_devices_maximum_depth_can_be_created(fixture: &Fixture) -> Result<()> {
    let depth = fixture.device.attributes().max_queue_depth.min(16_384);
    let room = fixture.device.attributes().max_completion_queue_depth.min(depth);
    let pair = fixture.pair(Rc).depth(room - 1, 1).connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    pair.left.execute(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)))
}
