//! Inline data.

use adverb::memory::PayloadSegment;
use adverb::verbs::{Error, SendRequest, Transport, Transport::Rc};
use anyhow::{Result, ensure};

use crate::fixture::{ALL, Fixture, READ_WRITE, check, check_equal, pattern, read};
use crate::registry::tests;

/// The inline capacity of the queue pairs, which every device with inline support has.
const INLINE: u32 = 64;

tests! { "inline data";
    inline_messages_up_to_the_limit_arrive,
    inline_writes_arrive,
    inline_messages_of_several_segments_arrive,
    inline_data_beyond_the_limit_is_refused_and_returns_its_buffer,
    reads_and_atomics_can_not_be_inline,
    inline_data_is_copied_when_posted,
}

fn inline_messages_up_to_the_limit_arrive(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let pair = fixture.pair(transport).max_inline_data(INLINE).connect()?;
        for size in [0, 1, 3, 63, INLINE as usize] {
            let receiving = pair.right.post_receive(size)?;
            pair.left.execute(SendRequest::send(pair.left.filled(size, 7)?).inline())?;
            let message = pair.right.wait(receiving)?.into_message()?;
            ensure!(message.len() == size, "{size} bytes were sent, but {} arrived", message.len());
            check(&message, 7)?;
        }
    }
    Ok(())
}

fn inline_writes_arrive(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(INLINE).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    for size in [1, 17, 64] {
        pair.left.execute(SendRequest::write(pair.left.filled(size, 8)?, region.remote().at(0)).inline())?;
        check(&read(&region, 0, size)?, 8)?;
    }
    Ok(())
}

fn inline_messages_of_several_segments_arrive(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(INLINE).max_sge(4, 1).connect()?;
    let bytes = pattern(60, 4);
    let mut pieces = Vec::new();
    for range in [0..1, 1..30, 30..30, 30..60] {
        let mut buffer = pair.left.buffer(range.len())?;
        buffer.copy_from_slice(&bytes[range]);
        pieces.push(buffer);
    }
    let receiving = pair.right.post_receive(100)?;
    pair.left.execute(SendRequest::send(pieces).inline())?;
    check_equal(&pair.right.wait(receiving)?.into_message()?, &bytes)
}

fn inline_data_beyond_the_limit_is_refused_and_returns_its_buffer(fixture: &Fixture) -> Result<()> {
    // A device may round the limit up, but not to a page.
    let pair = fixture.pair(Rc).max_inline_data(INLINE).connect()?;
    let error = pair.left.expect_rejected(SendRequest::send(pair.left.buffer(4097)?).inline())?;
    ensure!(matches!(error, Error::MessageTooLong { len: 4097, .. }), "refused with another error: {error}");
    pair.ping()
}

fn reads_and_atomics_can_not_be_inline(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(INLINE).connect()?;
    let region =
        pair.right.region(64, if fixture.device.attributes().has_atomics { ALL } else { READ_WRITE })?;
    let remote = region.remote().at(0);
    let buffer = || pair.left.buffer(8);
    for request in [
        SendRequest::read(buffer()?, remote),
        SendRequest::fetch_add(buffer()?, remote, 1),
        SendRequest::compare_swap(buffer()?, remote, 0, 1),
    ] {
        let error = pair.left.expect_rejected(request.inline())?;
        ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    }
    pair.ping()
}

/// Shared memory may change while the message waits for a receive, but inlined data may not.
fn inline_data_is_copied_when_posted(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_inline_data(INLINE).connect()?;
    let region = pair.left.region(64, READ_WRITE)?;
    region.write(0, &pattern(64, 1))?;
    pair.left.post(SendRequest::send(PayloadSegment::Region(region.slice(0..64)?)).inline())?;
    region.write(0, &pattern(64, 2))?;
    let receiving = pair.right.post_receive(64)?;
    check(&pair.right.wait(receiving)?.into_message()?, 1)
}
