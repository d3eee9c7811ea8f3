//! Unsignaled requests.

use adverb::verbs::{Access, SendRequest, Status, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{Fixture, Pair, READ_WRITE, expect};
use crate::registry::tests;

tests! { "signaling";
    unsignaled_requests_are_returned_with_the_next_signaled_one,
    an_unsignaled_request_alone_has_no_completion,
    a_signal_is_forced_before_the_queue_is_full,
    a_queue_of_depth_one_signals_everything,
    batches_of_unsignaled_requests_are_returned,
    an_unsignaled_request_that_fails_completes,
    unsignaled_reads_return_their_bytes,
    unsignaled_completions_name_their_operation,
    waiting_for_an_unsignaled_request_finds_it,
}

fn write(pair: &Pair, region: &adverb::memory::MemoryRegion, tag: u64) -> Result<SendRequest> {
    Ok(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0)).tag(tag))
}

fn unsignaled_requests_are_returned_with_the_next_signaled_one(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for count in [1, 2, 10, 20] {
        for tag in 0..count {
            pair.left.post(write(&pair, &region, tag)?.unsignaled())?;
        }
        pair.left.expect_no_completion()?;
        pair.left.post(write(&pair, &region, count)?)?;
        for (tag, completion) in (0..).zip(pair.left.take(count as usize + 1)?) {
            completion.result()?;
            ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
            ensure!(completion.payload().len() == 8, "the completion did not return the buffer");
        }
    }
    Ok(())
}

fn an_unsignaled_request_alone_has_no_completion(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    pair.left.post(write(&pair, &region, 0)?.unsignaled())?;
    pair.left.expect_no_completion()?;
    ensure!(pair.left.qp.outstanding_send_count() == 1, "the request is no longer outstanding");
    Ok(())
}

/// The queue of a program that posts only unsignaled requests must not stay full.
fn a_signal_is_forced_before_the_queue_is_full(fixture: &Fixture) -> Result<()> {
    for depth in [2, 3, 4, 16] {
        let pair = fixture.pair(Rc).depth(depth, 1).connect()?;
        let region = pair.right.region(8, READ_WRITE)?;
        let (mut posted, mut received) = (0, 0);
        let mut completions = Vec::new();
        while received < 10 * u64::from(depth) {
            match pair.left.qp.post_send(write(&pair, &region, posted)?.unsignaled()) {
                Ok(_) => posted += 1,
                Err(_) => {
                    let count =
                        pair.left.cq.poll_timeout(&mut completions, crate::fixture::COMPLETION_TIMEOUT)?;
                    ensure!(count > 0, "a queue of depth {depth} is full, and no request completes");
                }
            }
            for completion in completions.drain(..) {
                completion.result()?;
                ensure!(
                    completion.tag() == received,
                    "request {} completed instead of {received}",
                    completion.tag()
                );
                received += 1;
            }
        }
    }
    Ok(())
}

fn a_queue_of_depth_one_signals_everything(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(1, 1).connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for tag in 0..10 {
        pair.left.execute(write(&pair, &region, tag)?.unsignaled())?;
    }
    Ok(())
}

fn batches_of_unsignaled_requests_are_returned(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(32, 1).connect()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for _ in 0..10 {
        let batch =
            (0..32).map(|tag| Ok(write(&pair, &region, tag)?.unsignaled())).collect::<Result<Vec<_>>>()?;
        pair.left.qp.post_sends(batch).map_err(adverb::verbs::Error::from)?;
        // Signals are forced, so that at least half of the requests complete. Another signaled request completes the
        // rest.
        let mut completions = Vec::new();
        while completions.len() < 16 {
            let count = pair.left.cq.poll_timeout(&mut completions, crate::fixture::COMPLETION_TIMEOUT)?;
            ensure!(count > 0, "only {} requests completed", completions.len());
        }
        pair.left.post(write(&pair, &region, 32)?)?;
        while completions.len() < 33 {
            let count = pair.left.cq.poll_timeout(&mut completions, crate::fixture::COMPLETION_TIMEOUT)?;
            ensure!(count > 0, "only {} requests completed", completions.len());
        }
        for (tag, completion) in (0..).zip(completions) {
            ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
        }
    }
    Ok(())
}

fn an_unsignaled_request_that_fails_completes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let (good, bad) = (pair.right.region(8, READ_WRITE)?, pair.right.region(8, Access::LOCAL_WRITE)?);
    pair.left.post(write(&pair, &good, 0)?.unsignaled())?;
    pair.left.post(write(&pair, &bad, 1)?.unsignaled())?;
    pair.left.post(write(&pair, &good, 2)?.unsignaled())?;
    let completions = pair.left.take(3)?;
    for (completion, status) in
        completions.iter().zip([Status::Success, Status::RemoteAccess, Status::Flushed])
    {
        expect(&format!("request {}", completion.tag()), completion, status)?;
    }
    Ok(())
}

fn unsignaled_reads_return_their_bytes(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let size = 2 * fixture.mtu();
    let region = pair.right.region(size, READ_WRITE)?;
    region.write(0, &crate::fixture::pattern(size, 5))?;
    for _ in 0..5 {
        pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)).unsignaled())?;
    }
    pair.left.post(SendRequest::read(pair.left.buffer(size)?, region.remote().at(0)))?;
    for completion in pair.left.take(6)? {
        completion.result()?;
        let buffer =
            completion.into_buffer().ok_or_else(|| anyhow::anyhow!("the completion returned no buffer"))?;
        crate::fixture::check(&buffer, 5)?;
    }
    Ok(())
}

fn unsignaled_completions_name_their_operation(fixture: &Fixture) -> Result<()> {
    use adverb::verbs::CompletedOperation::{Read, Send, Write};
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let remote = region.remote().at(0);
    pair.right.post_receive(8)?;
    pair.left.post(SendRequest::send(pair.left.buffer(8)?).unsignaled())?;
    pair.left.post(SendRequest::write(pair.left.buffer(8)?, remote).unsignaled())?;
    pair.left.post(SendRequest::read(pair.left.buffer(8)?, remote).unsignaled())?;
    pair.left.post(SendRequest::write(pair.left.buffer(8)?, remote))?;
    for (completion, expected) in pair.left.take(4)?.iter().zip([Send, Write, Read, Write]) {
        let operation = completion.result()?.operation;
        ensure!(operation == expected, "{operation:?}, not {expected:?}");
    }
    Ok(())
}

fn waiting_for_an_unsignaled_request_finds_it(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    let first = pair.left.post(write(&pair, &region, 1)?.unsignaled())?;
    let second = pair.left.post(write(&pair, &region, 2)?)?;
    ensure!(pair.left.wait(first)?.tag() == 1, "the completion of another request was returned");
    ensure!(pair.left.wait(second)?.tag() == 2, "the completion of another request was returned");
    pair.left.expect_no_completion()
}
