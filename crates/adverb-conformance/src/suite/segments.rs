//! Scatter-gather lists.

use adverb::memory::{MemoryRegion, Payload, PayloadSegment};
use adverb::verbs::{Error, RecvRequest, SendRequest, Transport, Transport::Rc};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{Fixture, READ_WRITE, check, check_equal, fill, pattern, read};
use crate::registry::tests;

tests! { "segments";
    [Need::Segments(4)] messages_are_gathered_however_they_are_split,
    [Need::Segments(4)] messages_are_scattered_however_the_receive_is_split,
    [Need::Segments(4)] writes_are_gathered,
    [Need::Segments(4)] reads_are_scattered,
    [Need::Segments(4)] messages_of_an_unreliable_connection_are_gathered_and_scattered,
    [Need::Segments(4)] a_short_message_fills_only_the_first_segments,
    [Need::Segments(4)] segments_may_overlap_if_they_are_only_read,
    [Need::Segments(4)] buffers_and_regions_may_be_mixed,
    more_segments_than_the_limit_are_refused_and_their_buffers_returned,
    requests_with_the_maximum_segment_count_work,
    more_segments_than_the_device_supports_are_refused_at_creation,
}

/// Returns ways to split a message in four: evenly, unevenly, with segments of no bytes or one byte, and across
/// packets.
fn splits(size: usize, mtu: usize) -> Vec<[usize; 3]> {
    vec![
        [size / 4, size / 2, 3 * size / 4],
        [1, 2, 3],
        [0, 0, size],
        [0, 1, size - 1],
        [mtu - 1, mtu, mtu + 1],
        [mtu, 2 * mtu, 2 * mtu + 1],
    ]
}

/// Returns the pieces of a region between these offsets.
fn pieces(region: &MemoryRegion, at: [usize; 3]) -> Result<Payload> {
    let ends = [0, at[0], at[1], at[2], region.len()];
    let pieces = ends.windows(2).map(|ends| Ok(PayloadSegment::Region(region.slice(ends[0]..ends[1])?)));
    Ok(Payload::from(pieces.collect::<Result<Vec<_>>>()?))
}

fn messages_are_gathered_however_they_are_split(fixture: &Fixture) -> Result<()> {
    let (mtu, size) = (fixture.mtu(), 3 * fixture.mtu() + 100);
    let pair = fixture.pair(Rc).max_sge(4, 1).connect()?;
    let region = pair.left.region(size, READ_WRITE)?;
    region.write(0, &pattern(size, 1))?;
    for at in splits(size, mtu) {
        let message = pair.deliver(pieces(&region, at)?)?;
        ensure!(message.len() == size, "split at {at:?}: {} bytes arrived", message.len());
        check(&message, 1).with_context(|| format!("split at {at:?}"))?;
    }
    Ok(())
}

/// Sends messages into receives that are split in all ways.
fn check_scattered(fixture: &Fixture, transport: Transport) -> Result<()> {
    let (mtu, size) = (fixture.mtu(), 3 * fixture.mtu() + 100);
    let pair = fixture.pair(transport).max_sge(4, 4).connect()?;
    let (from, to) = (pair.left.region(size, READ_WRITE)?, pair.right.region(size, READ_WRITE)?);
    from.write(0, &pattern(size, 2))?;
    for at in splits(size, mtu) {
        to.write(0, &pattern(size, 99))?;
        let receiving = pair.right.recv(RecvRequest::new(pieces(&to, at)?))?;
        let received = fixture.retry_after_loss(|| {
            pair.left.execute(SendRequest::send(pieces(&from, [7, 77, 777])?))?;
            pair.right.wait(receiving)
        })?;
        let length = received.result()?.length as usize;
        ensure!(length == size, "split at {at:?}: {length} bytes arrived");
        check(&read(&to, 0, size)?, 2).with_context(|| format!("split at {at:?}"))?;
    }
    Ok(())
}

fn messages_are_scattered_however_the_receive_is_split(fixture: &Fixture) -> Result<()> {
    check_scattered(fixture, Rc)
}

fn messages_of_an_unreliable_connection_are_gathered_and_scattered(fixture: &Fixture) -> Result<()> {
    check_scattered(fixture, Transport::Uc)
}

fn writes_are_gathered(fixture: &Fixture) -> Result<()> {
    let (mtu, size) = (fixture.mtu(), 3 * fixture.mtu() + 100);
    let pair = fixture.pair(Rc).max_sge(4, 1).connect()?;
    let (from, to) = (pair.left.region(size, READ_WRITE)?, pair.right.region(size, READ_WRITE)?);
    from.write(0, &pattern(size, 3))?;
    for at in splits(size, mtu) {
        to.write(0, &pattern(size, 99))?;
        pair.left.execute(SendRequest::write(pieces(&from, at)?, to.remote().at(0)))?;
        check(&read(&to, 0, size)?, 3).with_context(|| format!("split at {at:?}"))?;
    }
    Ok(())
}

fn reads_are_scattered(fixture: &Fixture) -> Result<()> {
    let (mtu, size) = (fixture.mtu(), 3 * fixture.mtu() + 100);
    let pair = fixture.pair(Rc).max_sge(4, 1).connect()?;
    let (to, from) = (pair.left.region(size, READ_WRITE)?, pair.right.region(size, READ_WRITE)?);
    from.write(0, &pattern(size, 4))?;
    for at in splits(size, mtu) {
        to.write(0, &pattern(size, 99))?;
        pair.left.execute(SendRequest::read(pieces(&to, at)?, from.remote().at(0)))?;
        check(&read(&to, 0, size)?, 4).with_context(|| format!("split at {at:?}"))?;
    }
    Ok(())
}

fn a_short_message_fills_only_the_first_segments(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_sge(1, 4).connect()?;
    let to = pair.right.region(100, READ_WRITE)?;
    to.write(0, &pattern(100, 99))?;
    let receiving = pair.right.recv(RecvRequest::new(pieces(&to, [10, 20, 30])?))?;
    pair.left.execute(SendRequest::send(pair.left.filled(25, 5)?))?;
    ensure!(pair.right.wait(receiving)?.result()?.length == 25, "the message does not have 25 bytes");
    let mut expected = pattern(100, 99);
    fill(&mut expected[..25], 5);
    check_equal(&read(&to, 0, 100)?, &expected)
}

fn segments_may_overlap_if_they_are_only_read(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_sge(4, 1).connect()?;
    let region = pair.left.region(100, READ_WRITE)?;
    let bytes = pattern(100, 6);
    region.write(0, &bytes)?;
    let ranges = [0..100, 50..60, 0..100, 99..100];
    let pieces = ranges.iter().map(|range| Ok(PayloadSegment::Region(region.slice(range.clone())?)));
    let message = pair.deliver(pieces.collect::<Result<Vec<_>>>()?)?;
    let expected: Vec<u8> = ranges.into_iter().flat_map(|range| bytes[range].to_vec()).collect();
    check_equal(&message, &expected)
}

fn buffers_and_regions_may_be_mixed(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).max_sge(3, 1).connect()?;
    let region = pair.left.region(50, READ_WRITE)?;
    region.write(0, &pattern(50, 7))?;
    let (first, last) = (pair.left.filled(30, 8)?, pair.left.filled(40, 9)?);
    let pieces = vec![
        PayloadSegment::Buffer(first),
        PayloadSegment::Region(region.slice(0..50)?),
        PayloadSegment::Buffer(last),
    ];
    let message = pair.deliver(pieces)?;
    check(&message[..30], 8)?;
    check(&message[30..80], 7)?;
    check(&message[80..], 9)
}

fn more_segments_than_the_limit_are_refused_and_their_buffers_returned(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).connect()?;
    // A device may grant more segments than requested, but not more than its limit.
    let count = fixture.device.attributes().max_sge + 1;
    let region = pair.left.region(count as usize, READ_WRITE)?;
    let excess_segments = || {
        (0..count as usize)
            .map(|at| Ok(PayloadSegment::Region(region.slice(at..at + 1)?)))
            .collect::<Result<Vec<_>>>()
    };
    let error = pair.left.expect_rejected(SendRequest::send(excess_segments()?))?;
    ensure!(matches!(error, Error::LimitExceeded { .. }), "refused with another error: {error}");
    let error = pair.left.expect_recv_rejected(RecvRequest::new(excess_segments()?))?;
    ensure!(matches!(error, Error::LimitExceeded { .. }), "refused with another error: {error}");
    pair.ping()
}

fn requests_with_the_maximum_segment_count_work(fixture: &Fixture) -> Result<()> {
    let count = fixture.device.attributes().max_sge;
    // Some devices report the larger limit of the two queues.
    let counts = [count, count / 2, 4, 2, 1];
    let pair = counts.into_iter().find_map(|count| {
        let pair = fixture.pair(Rc).depth(4, 4).max_sge(count, count).connect().ok()?;
        Some((pair, count as usize))
    });
    let (pair, count) = pair.context("requests with one segment are refused")?;
    let size = 7 * count;
    let (from, to) = (pair.left.region(size, READ_WRITE)?, pair.right.region(size, READ_WRITE)?);
    from.write(0, &pattern(size, 1))?;
    let split = |region: &MemoryRegion| {
        (0..count)
            .map(|at| Ok(PayloadSegment::Region(region.slice(7 * at..7 * at + 7)?)))
            .collect::<Result<Vec<_>>>()
    };
    let receiving = pair.right.recv(RecvRequest::new(split(&to)?))?;
    pair.left.execute(SendRequest::send(split(&from)?))?;
    pair.right.wait(receiving)?.result()?;
    check(&read(&to, 0, size)?, 1)
}

fn more_segments_than_the_device_supports_are_refused_at_creation(fixture: &Fixture) -> Result<()> {
    let more = fixture.device.attributes().max_sge + 1;
    let cq = fixture.device.completion_queue(16).create()?;
    let domain = fixture.device.create_protection_domain()?;
    for (send, recv) in [(0, 1), (1, 0), (more, 1), (1, more)] {
        let made = domain.queue_pair(Rc).completion_queue(&cq).depth(4, 4).max_sge(send, recv).create();
        ensure!(matches!(made, Err(Error::LimitExceeded { .. })), "{send} and {recv}: {made:?}");
    }
    Ok(())
}
