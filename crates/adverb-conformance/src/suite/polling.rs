//! Completion queues that are polled.

use std::time::{Duration, Instant};

use adverb::verbs::{RecvRequest, SendRequest, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{Fixture, QUIET_PERIOD, READ_WRITE, check, check_duration, take};
use crate::registry::tests;

tests! { "polling";
    an_idle_queue_has_no_completions,
    waiting_on_an_idle_queue_times_out,
    every_request_completes_once,
    waiting_for_one_request_keeps_other_completions,
    waiting_twice_for_a_request_finds_it_once,
    completions_have_the_tags_of_their_requests,
    completions_return_the_buffers_of_their_requests,
    sends_and_receives_may_complete_on_different_queues,
    many_queue_pairs_share_a_completion_queue,
    completions_of_destroyed_queue_pairs_are_counted_and_not_delivered,
    a_new_queue_pair_never_gets_the_completions_of_an_old_one,
}

fn an_idle_queue_has_no_completions(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let mut completions = Vec::new();
    ensure!(pair.left.cq.poll(&mut completions)? == 0, "the queue returned a completion");
    pair.left.expect_no_completion()?;
    ensure!(pair.left.cq.stale_completion_count() == 0, "there are stale completions");
    Ok(())
}

fn waiting_on_an_idle_queue_times_out(fixture: &Fixture) -> Result<()> {
    for events in [false, true] {
        let builder = fixture.pair(Rc);
        let pair = if events { builder.events() } else { builder }.connect()?;
        let receiving = pair.left.post_receive(8)?;
        check_duration(20 * QUIET_PERIOD, || {
            let start = Instant::now();
            let waited = pair.left.cq.wait(receiving, QUIET_PERIOD);
            let took = start.elapsed();
            ensure!(matches!(waited, Err(adverb::verbs::Error::TimedOut { .. })), "{waited:?}");
            ensure!(took >= QUIET_PERIOD, "the wait took only {took:?}");
            Ok(took)
        })?;
    }
    Ok(())
}

fn every_request_completes_once(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for round in 0..10 {
        for tag in 0..50 {
            pair.right.recv(RecvRequest::new(pair.right.buffer(8)?).tag(100 * round + tag))?;
        }
        for tag in 0..50 {
            pair.left.post(SendRequest::send(pair.left.buffer(8)?).tag(100 * round + tag))?;
        }
        for side in [&pair.left, &pair.right] {
            for (tag, completion) in (100 * round..).zip(side.take(50)?) {
                completion.result()?;
                ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
            }
        }
    }
    pair.left.expect_no_completion()?;
    pair.right.expect_no_completion()
}

fn waiting_for_one_request_keeps_other_completions(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let write = |tag| {
        Ok::<_, anyhow::Error>(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)).tag(tag))
    };
    let ids = (0..10).map(|tag| pair.left.post(write(tag)?)).collect::<Result<Vec<_>>>()?;
    for tag in [9, 4] {
        let completion = pair.left.wait(ids[tag])?;
        ensure!(completion.tag() == tag as u64, "request {} completed instead of {tag}", completion.tag());
    }
    let tags: Vec<u64> = pair.left.take(8)?.iter().map(|completion| completion.tag()).collect();
    ensure!(tags == [0, 1, 2, 3, 5, 6, 7, 8], "completions with these tags are left: {tags:?}");
    pair.left.expect_no_completion()
}

fn waiting_twice_for_a_request_finds_it_once(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let id = pair.left.post(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)))?;
    pair.left.wait(id)?.result()?;
    let again = pair.left.cq.wait(id, QUIET_PERIOD);
    ensure!(matches!(again, Err(adverb::verbs::Error::TimedOut { .. })), "{again:?}");
    Ok(())
}

fn completions_have_the_tags_of_their_requests(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for tag in [0, 1, 1 << 32, u64::MAX] {
        let receiving = pair.right.recv(RecvRequest::new(pair.right.buffer(8)?).tag(!tag))?;
        let sent = pair.left.completed(SendRequest::send(pair.left.buffer(8)?).tag(tag))?;
        let received = pair.right.wait(receiving)?;
        ensure!((sent.tag(), received.tag()) == (tag, !tag), "tags changed: {sent:?}, {received:?}");
        ensure!(received.id() == receiving, "the completion has another request id");
    }
    Ok(())
}

fn completions_return_the_buffers_of_their_requests(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_sge(3, 3).connect()?;
    pair.right.post_receive(1000)?;
    let mut buffers = Vec::new();
    for (seed, len) in [(1, 100), (2, 200), (3, 300)] {
        let mut buffer = pair.left.filled(2 * len, seed)?;
        buffer.set_range(len / 2..len)?;
        buffers.push(buffer);
    }
    let completion = pair.left.completed(SendRequest::send(buffers))?;
    let pieces = completion.into_payload().into_segments();
    ensure!(pieces.len() == 3, "{} segments were returned", pieces.len());
    for ((seed, len), piece) in [(1, 100), (2, 200), (3, 300)].into_iter().zip(pieces) {
        let adverb::memory::PayloadSegment::Buffer(mut buffer) = piece else {
            anyhow::bail!("the segment is not a buffer")
        };
        ensure!(buffer.range() == (len / 2..len), "the range is {:?}", buffer.range());
        buffer.reset_range();
        check(&buffer, seed)?;
    }
    Ok(())
}

fn sends_and_receives_may_complete_on_different_queues(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let (send_cq, recv_cq) =
        (fixture.device.completion_queue(16).create()?, fixture.device.completion_queue(16).create()?);
    let queue_pair = pair.right.domain.queue_pair(Rc).port(fixture.port.number).depth(16, 16);
    let queue_pair = queue_pair.send_completion_queue(&send_cq).recv_completion_queue(&recv_cq).create()?;
    pair.left.qp.reset()?;
    pair.left.qp.connect(&queue_pair.endpoint())?;
    queue_pair.connect(&pair.left.qp.endpoint())?;
    queue_pair.post_recv(pair.right.buffer(8)?)?;
    pair.left.post_receive(8)?;
    pair.left.execute(SendRequest::send(pair.left.buffer(8)?))?;
    queue_pair.post_send(SendRequest::send(pair.right.buffer(8)?).tag(1))?;
    let (sent, received) = (take(&send_cq, 1)?, take(&recv_cq, 1)?);
    ensure!(
        (sent[0].tag(), received[0].tag()) == (1, 0),
        "the completion queues were mixed up: {sent:?}, {received:?}"
    );
    Ok(())
}

fn many_queue_pairs_share_a_completion_queue(fixture: &Fixture) -> Result<()> {
    const COUNT: u64 = 32;
    let builder = fixture.pair(Rc).depth(4, 4);
    let cq = fixture.device.completion_queue(8 * 32).create()?;
    let domain = fixture.device.create_protection_domain()?;
    let ours = (0..COUNT).map(|_| builder.side_of(&domain, &cq, None)).collect::<Result<Vec<_>>>()?;
    let theirs = (0..COUNT).map(|_| builder.side(None)).collect::<Result<Vec<_>>>()?;
    for (one, other) in ours.iter().zip(&theirs) {
        one.qp.connect(&other.qp.endpoint())?;
        other.qp.connect(&one.qp.endpoint())?;
        (0..4).try_for_each(|_| other.post_receive(64).map(drop))?;
    }
    for message in 0..4 {
        for (number, side) in (0..).zip(&ours) {
            let seed = 10 * number + message;
            side.post(SendRequest::send(side.filled(64, seed)?).tag(seed))?;
        }
    }
    let mut next = [0; COUNT as usize];
    for completion in take(&cq, 4 * COUNT as usize)? {
        completion.result()?;
        let (number, message) = (completion.tag() / 10, completion.tag() % 10);
        ensure!(next[number as usize] == message, "the completions of queue pair {number} are out of order");
        next[number as usize] += 1;
    }
    for (number, side) in (0..).zip(theirs) {
        for (message, completion) in (0..).zip(side.take(4)?) {
            check(&completion.into_message()?, 10 * number + message)?;
        }
    }
    Ok(())
}

fn completions_of_destroyed_queue_pairs_are_counted_and_not_delivered(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for _ in 0..10 {
        pair.left.post(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)))?;
    }
    std::thread::sleep(Duration::from_millis(200));
    drop(pair.left.qp);
    let mut completions = Vec::new();
    pair.left.cq.poll_timeout(&mut completions, QUIET_PERIOD)?;
    ensure!(
        completions.is_empty(),
        "{} completions of a dropped queue pair were delivered",
        completions.len()
    );
    // A device may remove these completions with the queue pair, or leave them. There are never more than ten.
    ensure!(
        pair.left.cq.stale_completion_count() <= 10,
        "{} stale completions were counted",
        pair.left.cq.stale_completion_count()
    );
    Ok(())
}

fn a_new_queue_pair_never_gets_the_completions_of_an_old_one(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Rc).depth(8, 8);
    let cq = fixture.device.completion_queue(16).create()?;
    let domain = fixture.device.create_protection_domain()?;
    let peer_domain = fixture.device.create_protection_domain()?;
    let region = peer_domain.allocate_region(8, READ_WRITE)?;
    for round in 0..5 {
        // Each queue pair uses the completion queue after its predecessor.
        let side = builder.side_of(&domain, &cq, None)?;
        let peer_cq = fixture.device.completion_queue(16).create()?;
        let peer = builder.side_of(&peer_domain, &peer_cq, None)?;
        side.qp.connect(&peer.qp.endpoint())?;
        peer.qp.connect(&side.qp.endpoint())?;
        let write =
            |tag| Ok::<_, anyhow::Error>(SendRequest::write(side.buffer(8)?, region.remote().at(0)).tag(tag));
        let first = side.post(write(100 * round)?)?;
        ensure!(side.wait(first)?.tag() == 100 * round, "the completion of another request was returned");
        for tag in 1..8 {
            side.post(write(100 * round + tag)?)?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut completions = Vec::new();
    cq.poll_timeout(&mut completions, QUIET_PERIOD)?;
    ensure!(completions.is_empty(), "completions of dropped queue pairs were delivered");
    Ok(())
}
