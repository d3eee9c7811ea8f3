//! Rules for SEND and WRITE that both reliable and unreliable connections must follow.

use adverb::memory::{Payload, PayloadSegment};
use adverb::verbs::{CompletedOperation, RecvRequest, SendRequest, Transport};
use anyhow::{Context, Result, ensure};

use crate::fixture::{
    Fixture, MessageLost, Pair, READ_WRITE, check, check_equal, check_in_order, immediate, is_message_loss,
    pattern, read, whole,
};

/// Immediate data that shows that every bit is transferred.
const IMMEDIATES: [u32; 6] = [0, 1, 0x8000_0000, 0x0102_0304, 0xdead_beef, u32::MAX];

pub(super) fn messages_of_every_size(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    for (seed, size) in (1..).zip(fixture.sizes()) {
        let received = match pair.deliver(pair.left.filled(size, seed)?) {
            // With so many packets, one is always lost, and the message must not arrive.
            Err(error) if is_message_loss(&error) && size > 16 * fixture.mtu() => continue,
            received => received.with_context(|| format!("{size} bytes"))?,
        };
        ensure!(received.len() == size, "{size} bytes were sent, but {} arrived", received.len());
        check(&received, seed).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

/// All segments use the same memory, so that a message of a gibibyte needs far less.
pub(super) fn max_size_message(fixture: &Fixture, transport: Transport) -> Result<()> {
    let max_message_len = fixture.max_message_len();
    let count = fixture.device.attributes().max_sge.clamp(1, 16);
    let pair = fixture.pair(transport).max_sge(count, count).connect()?;
    let chunk = max_message_len.div_ceil(count as usize);
    let split = |region: &adverb::memory::MemoryRegion| -> Result<Payload> {
        let starts = (0..max_message_len).step_by(chunk);
        let pieces =
            starts.map(|at| Ok(PayloadSegment::Region(region.slice(0..chunk.min(max_message_len - at))?)));
        Ok(Payload::from(pieces.collect::<Result<Vec<_>>>()?))
    };
    let from = pair.left.region(chunk, READ_WRITE)?;
    let to = pair.right.region(chunk, READ_WRITE)?;
    from.write(0, &pattern(chunk, 3))?;
    let receiving = pair.right.recv(RecvRequest::new(split(&to)?))?;
    pair.left.execute(SendRequest::send(split(&from)?))?;
    let completion = match pair.right.wait(receiving) {
        // With so many packets, one is always lost.
        Err(error) if is_message_loss(&error) => return Ok(()),
        completion => completion?,
    };
    let length = completion.result()?.length as usize;
    ensure!(length == max_message_len, "{max_message_len} bytes were sent, but {length} arrived");
    check(&read(&to, 0, chunk)?, 3)
}

pub(super) fn message_beyond_max_size(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).max_sge(2, 1).connect()?;
    let max_message_len = fixture.port.max_message_size as usize;
    let half = max_message_len / 2 + 1;
    let region = pair.left.region(half, READ_WRITE)?;
    let payload = vec![
        PayloadSegment::Region(whole(&region)?),
        PayloadSegment::Region(region.slice(0..max_message_len + 1 - half)?),
    ];
    let refused = pair.left.qp.post_send(SendRequest::send(payload));
    let refused = refused.err().context("a message beyond the maximum size was posted")?;
    ensure!(
        matches!(refused.error, adverb::verbs::Error::MessageTooLong { .. }),
        "refused with another error: {}",
        refused.error
    );
    ensure!(refused.requests.len() == 1, "the error did not return the request");
    ensure!(pair.left.qp.outstanding_send_count() == 0, "a request was posted");
    pair.ping()
}

pub(super) fn empty_messages(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    // The messages have no segment, or one without bytes; the receives have a buffer, or none.
    let receiving =
        [pair.right.post_receive(10)?, pair.right.recv(RecvRequest::new(()))?, pair.right.post_receive(10)?];
    pair.left.execute(SendRequest::send(()))?;
    pair.left.execute(SendRequest::send(pair.left.buffer(0)?))?;
    pair.left.execute(SendRequest::send(()))?;
    for id in receiving {
        let completion = pair.right.wait(id)?;
        ensure!(completion.result()?.length == 0, "an empty message has bytes: {completion}");
    }
    Ok(())
}

pub(super) fn immediate_bits(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    for bits in IMMEDIATES {
        for size in [0, 40] {
            let receiving = pair.right.post_receive(40)?;
            pair.left.execute(SendRequest::send_with_imm(pair.left.filled(size, 5)?, bits))?;
            let completion = pair.right.wait(receiving)?;
            let got = immediate(&completion)?;
            ensure!(got == Some(bits), "{bits:#x} was sent, but {got:x?} arrived");
            check(&completion.into_message()?, 5)?;
        }
    }
    Ok(())
}

pub(super) fn no_immediate(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let receiving = pair.right.post_receive(8)?;
    pair.left.execute(SendRequest::send(pair.left.filled(8, 5)?))?;
    let completion = pair.right.wait(receiving)?;
    let got = immediate(&completion)?;
    ensure!(got.is_none(), "immediate data arrived that was not sent: {got:x?}");
    Ok(())
}

pub(super) fn shorter_than_receive(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let receiving = pair.right.recv(pair.right.filled(1000, 8)?)?;
    pair.left.execute(SendRequest::send(pair.left.filled(333, 9)?))?;
    let completion = pair.right.wait(receiving)?;
    ensure!(completion.result()?.length == 333, "not 333 bytes: {completion}");
    let buffer = completion.into_buffer().context("the completion returned no buffer")?;
    check(&buffer[..333], 9)?;
    check_equal(&buffer[333..], &pattern(1000, 8)[333..])
}

pub(super) fn writes_of_every_size(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let most = fixture.sizes().into_iter().max().unwrap_or(1);
    let region = pair.right.region(most, READ_WRITE)?;
    for (seed, size) in (1..).zip(fixture.sizes()) {
        region.write(0, &vec![0; size])?;
        fixture.retry_after_loss(|| {
            pair.left.execute(SendRequest::write(pair.left.filled(size, seed)?, region.remote().at(0)))?;
            send_following_message(&pair)?;
            check_written(&pair, &read(&region, 0, size)?, seed, size > 16 * fixture.mtu())
                .with_context(|| format!("{size} bytes"))
        })?;
    }
    Ok(())
}

/// Checks that a WRITE to zeros has arrived. If it may be lost, checks that the bytes that arrived are at their
/// offsets; a WRITE with few packets must arrive completely.
fn check_written(pair: &Pair, bytes: &[u8], seed: u64, is_long: bool) -> Result<()> {
    let expected = pattern(bytes.len(), seed);
    if !pair.left.may_lose() || bytes == expected {
        return check_equal(bytes, &expected);
    }
    let stray = bytes.iter().zip(&expected).position(|(byte, expected)| byte != expected && *byte != 0);
    ensure!(stray.is_none(), "byte {stray:?} is neither the written nor the original one");
    ensure!(is_long, MessageLost);
    Ok(())
}

/// Sends another message, so that the previous ones have arrived even without acknowledgements.
fn send_following_message(pair: &Pair) -> Result<()> {
    pair.deliver(()).map(drop)
}

pub(super) fn max_size_write(fixture: &Fixture, transport: Transport) -> Result<()> {
    let max_message_len = fixture.max_message_len().min(64 << 20);
    let pair = fixture.pair(transport).connect()?;
    let region = pair.right.region(max_message_len, READ_WRITE)?;
    pair.left.execute(SendRequest::write(pair.left.filled(max_message_len, 4)?, region.remote().at(0)))?;
    send_following_message(&pair)?;
    check_written(&pair, &read(&region, 0, max_message_len)?, 4, true)
}

pub(super) fn writes_only_its_range(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let mtu = fixture.mtu();
    let region = pair.right.region(4 * mtu, READ_WRITE)?;
    for (offset, len) in [(0, 1), (1, 7), (mtu - 1, 2), (13, mtu), (mtu + 3, 2 * mtu), (4 * mtu - 1, 1)] {
        fixture.retry_after_loss(|| {
            region.write(0, &pattern(4 * mtu, 1))?;
            // The memory is cleared, so that the written bytes are visible.
            region.write(offset, &vec![0; len])?;
            let request = SendRequest::write(pair.left.filled(len, 2)?, region.remote().at(offset as u64));
            pair.left.execute(request)?;
            send_following_message(&pair)?;
            let mut bytes = read(&region, 0, 4 * mtu)?;
            check_written(&pair, &bytes[offset..offset + len], 2, false)
                .with_context(|| format!("{len} bytes at {offset}"))?;
            bytes[offset..offset + len].copy_from_slice(&pattern(4 * mtu, 1)[offset..offset + len]);
            check(&bytes, 1).with_context(|| format!("beside {len} bytes at {offset}"))
        })?;
    }
    Ok(())
}

pub(super) fn write_takes_no_receive(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let receiving = pair.right.post_receive(64)?;
    for _ in 0..10 {
        pair.left.execute(SendRequest::write(pair.left.filled(64, 1)?, region.remote().at(0)))?;
    }
    pair.right.expect_no_completion()?;
    pair.left.execute(SendRequest::send(pair.left.filled(20, 6)?))?;
    check(&pair.right.wait(receiving)?.into_message()?, 6)
}

pub(super) fn write_immediate(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).connect()?;
    let size = 3 * fixture.mtu() + 5;
    let region = pair.right.region(size, READ_WRITE)?;
    for (seed, bits) in (1..).zip(IMMEDIATES) {
        for size in [0, 1, size] {
            let receiving = pair.right.recv(pair.right.filled(16, 99)?)?;
            let bytes = pair.left.filled(size, seed)?;
            pair.left.execute(SendRequest::write_with_imm(bytes, region.remote().at(0), bits))?;
            let completion = pair.right.wait(receiving)?;
            let success = completion.result()?;
            ensure!(
                success.operation == CompletedOperation::RecvWrite { immediate: bits },
                "{bits:#x} was sent, but {:x?} arrived",
                success.operation
            );
            let length = success.length as usize;
            ensure!(length == size, "{size} bytes were written, but the completion reports {length}");
            check(&read(&region, 0, size)?, seed)?;
            let buffer = completion.into_buffer().context("the completion returned no buffer")?;
            check(&buffer, 99).context("the receive's buffer was written")?;
        }
    }
    Ok(())
}

/// Sends messages of several packets in both directions at once.
pub(super) fn both_directions(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).depth(32, 32).connect()?;
    let size = 2 * fixture.mtu() + 17;
    for side in [&pair.left, &pair.right] {
        (0..32).try_for_each(|_| side.post_receive(size).map(drop))?;
    }
    for seed in 0..32 {
        pair.left.post(SendRequest::send(pair.left.filled(size, seed)?).tag(1000 + seed))?;
        pair.right.post(SendRequest::send(pair.right.filled(size, 100 + seed)?).tag(1000 + seed))?;
    }
    for (side, base) in [(&pair.left, 100), (&pair.right, 0)] {
        let mut messages = Vec::new();
        for completion in side.take_up_to(64)? {
            completion.result()?;
            if completion.tag() == 0 {
                messages.push(completion.into_message()?);
            }
        }
        check_in_order(messages, base..base + 32)?;
    }
    Ok(())
}
