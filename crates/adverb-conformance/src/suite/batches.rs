//! Several requests with one doorbell.

use adverb::verbs::{Error, RecvRequest, SendRequest, Transport::Rc};
use anyhow::{Result, ensure};

use crate::Need;
use crate::fixture::{Fixture, READ_WRITE, check, check_rejected, read};
use crate::registry::tests;

tests! { "batches";
    a_batch_is_done_in_order,
    a_batch_of_receives_is_filled_in_order,
    an_empty_batch_posts_nothing,
    a_batch_of_one_is_a_request,
    a_batch_may_fill_the_queue,
    a_batch_that_does_not_fit_is_refused_whole,
    a_batch_of_receives_that_does_not_fit_is_refused_whole,
    a_batch_with_an_invalid_request_is_refused_whole,
    a_batch_may_mix_operations,
    [Need::Segments(3)] a_batch_may_mix_segment_counts,
    ids_of_a_batch_are_those_of_its_completions,
    batches_and_single_requests_keep_their_order,
}

fn a_batch_is_done_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    for round in 0..5 {
        (0..32).try_for_each(|_| pair.right.post_receive(100).map(drop))?;
        let requests = (0..32).map(|n| Ok(SendRequest::send(pair.left.filled(100, 100 * round + n)?).tag(n)));
        pair.left.qp.post_sends(requests.collect::<Result<Vec<_>>>()?).map_err(Error::from)?;
        for (tag, completion) in (0..).zip(pair.left.take(32)?) {
            completion.result()?;
            ensure!(completion.tag() == tag, "request {} completed instead of {tag}", completion.tag());
        }
        for (n, completion) in (0..).zip(pair.right.take(32)?) {
            check(&completion.into_message()?, 100 * round + n)?;
        }
    }
    Ok(())
}

fn a_batch_of_receives_is_filled_in_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let receives = (0..32).map(|tag| Ok(RecvRequest::new(pair.right.buffer(100)?).tag(tag)));
    pair.right.qp.post_recvs(receives.collect::<Result<Vec<_>>>()?).map_err(Error::from)?;
    for seed in 0..32 {
        pair.left.execute(SendRequest::send(pair.left.filled(100, seed)?))?;
    }
    for (seed, completion) in (0..).zip(pair.right.take(32)?) {
        ensure!(completion.tag() == seed, "receive {} was filled instead of {seed}", completion.tag());
        check(&completion.into_message()?, seed)?;
    }
    Ok(())
}

fn an_empty_batch_posts_nothing(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    ensure!(
        pair.left.qp.post_sends([]).map_err(Error::from)?.len() == 0,
        "an empty batch returned request ids"
    );
    let none: [RecvRequest; 0] = [];
    ensure!(
        pair.left.qp.post_recvs(none).map_err(Error::from)?.len() == 0,
        "an empty batch returned request ids"
    );
    ensure!(pair.left.qp.outstanding_send_count() == 0, "a request is outstanding");
    pair.left.expect_no_completion()?;
    pair.ping()
}

fn a_batch_of_one_is_a_request(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let receiving = pair.right.qp.post_recvs([pair.right.buffer(8)?]).map_err(Error::from)?;
    let sending =
        pair.left.qp.post_sends([SendRequest::send(pair.left.filled(8, 1)?)]).map_err(Error::from)?;
    for id in sending {
        pair.left.wait(id)?.result()?;
    }
    for id in receiving {
        check(&pair.right.wait(id)?.into_message()?, 1)?;
    }
    Ok(())
}

fn a_batch_may_fill_the_queue(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(100, 100).connect()?;
    let receives = (0..100).map(|_| pair.right.buffer(8)).collect::<Result<Vec<_>>>()?;
    pair.right.qp.post_recvs(receives).map_err(Error::from)?;
    pair.right.expect_recv_rejected(pair.right.buffer(8)?)?;
    let sends = (0..100).map(|seed| Ok(SendRequest::send(pair.left.filled(8, seed)?)));
    pair.left.qp.post_sends(sends.collect::<Result<Vec<_>>>()?).map_err(Error::from)?;
    pair.left.take(100)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    for (seed, completion) in (0..).zip(pair.right.take(100)?) {
        check(&completion.into_message()?, seed)?;
    }
    Ok(())
}

fn a_batch_that_does_not_fit_is_refused_whole(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(8, 8).connect()?;
    (0..3).try_for_each(|_| pair.left.post(SendRequest::send(pair.left.buffer(8)?)).map(drop))?;
    let batch = (0..6).map(|_| Ok(SendRequest::send(pair.left.buffer(8)?))).collect::<Result<Vec<_>>>()?;
    let posted = pair.left.qp.post_sends(batch);
    let error = check_rejected(posted.map(drop), 6, 3, pair.left.qp.outstanding_send_count())?;
    ensure!(matches!(error, Error::QueueFull { depth: 8, .. }), "refused with another error: {error}");
    Ok(())
}

fn a_batch_of_receives_that_does_not_fit_is_refused_whole(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).depth(8, 8).connect()?;
    (0..3).try_for_each(|_| pair.left.post_receive(8).map(drop))?;
    let batch = (0..6).map(|_| pair.left.buffer(8)).collect::<Result<Vec<_>>>()?;
    let posted = pair.left.qp.post_recvs(batch);
    let error = check_rejected(posted.map(drop), 6, 3, pair.left.qp.outstanding_recv_count())?;
    ensure!(matches!(error, Error::QueueFull { depth: 8, .. }), "refused with another error: {error}");
    Ok(())
}

fn a_batch_with_an_invalid_request_is_refused_whole(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let write =
        |seed| Ok::<_, anyhow::Error>(SendRequest::write(pair.left.filled(8, seed)?, region.remote().at(0)));
    // The buffer for the last request's result has only seven bytes.
    let wrong = SendRequest::fetch_add(pair.left.buffer(7)?, region.remote().at(0), 1);
    let posted = pair.left.qp.post_sends([write(1)?, write(2)?, wrong]);
    let error = check_rejected(posted.map(drop), 3, 0, pair.left.qp.outstanding_send_count())?;
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    pair.ping()?;
    ensure!(read(&region, 0, 8)? == [0; 8], "the other requests of the batch were posted");
    Ok(())
}

fn a_batch_may_mix_operations(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let remote = region.remote().at(0);
    pair.right.post_receive(64)?;
    pair.right.post_receive(64)?;
    let batch = [
        SendRequest::write(pair.left.filled(64, 1)?, remote),
        SendRequest::read(pair.left.buffer(64)?, remote),
        SendRequest::send(pair.left.filled(64, 2)?).fence(),
        SendRequest::write_with_imm(pair.left.filled(64, 3)?, remote, 9),
        SendRequest::read(pair.left.buffer(64)?, remote),
    ];
    pair.left.qp.post_sends(batch).map_err(Error::from)?;
    let buffers = pair.left.take(5)?.into_iter().map(|completion| {
        completion.result()?;
        completion.into_buffer().ok_or_else(|| anyhow::anyhow!("the completion returned no buffer"))
    });
    for (buffer, seed) in buffers.zip([1, 1, 2, 3, 3]) {
        check(&buffer?, seed)?;
    }
    pair.right.take(2)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    Ok(())
}

fn a_batch_may_mix_segment_counts(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_sge(3, 3).connect()?;
    (0..4).try_for_each(|_| pair.right.post_receive(300).map(drop))?;
    let buffers = |count: u64| (0..count).map(|seed| pair.left.filled(100, seed)).collect::<Result<Vec<_>>>();
    let batch = [
        SendRequest::send(buffers(3)?),
        SendRequest::send(()),
        SendRequest::send(buffers(1)?),
        SendRequest::send(buffers(2)?),
    ];
    pair.left.qp.post_sends(batch).map_err(Error::from)?;
    pair.left.take(4)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    for (count, completion) in [3, 0, 1, 2].into_iter().zip(pair.right.take(4)?) {
        let message = completion.into_message()?;
        ensure!(message.len() == 100 * count, "{} bytes of {count} segments arrived", message.len());
        for (seed, piece) in (0..).zip(message.chunks(100)) {
            check(piece, seed)?;
        }
    }
    Ok(())
}

fn ids_of_a_batch_are_those_of_its_completions(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(8, READ_WRITE)?;
    for _ in 0..5 {
        let batch = (0..20).map(|_| Ok(SendRequest::write(pair.left.buffer(8)?, region.remote().at(0))));
        let batch = batch.collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = pair.left.qp.post_sends(batch).map_err(Error::from)?.collect();
        let completed: Vec<_> = pair.left.take(20)?.iter().map(|completion| completion.id()).collect();
        ensure!(ids == completed, "posted {ids:?}, but {completed:?} completed");
    }
    Ok(())
}

fn batches_and_single_requests_keep_their_order(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    (0..30).try_for_each(|_| pair.right.post_receive(8).map(drop))?;
    let request = |seed| Ok::<_, anyhow::Error>(SendRequest::send(pair.left.filled(8, seed)?));
    for first in [0, 10, 20] {
        pair.left.post(request(first)?)?;
        let batch = (first + 1..first + 10).map(request).collect::<Result<Vec<_>>>()?;
        pair.left.qp.post_sends(batch).map_err(Error::from)?;
    }
    for (seed, completion) in (0..).zip(pair.right.take(30)?) {
        check(&completion.into_message()?, seed)?;
    }
    pair.left.take(30).map(drop)
}
