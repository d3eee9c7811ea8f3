//! Loss of unacknowledged messages.

use std::time::Instant;

use adverb::memory::Buffer;
use adverb::verbs::{SendRequest, Transport};
use anyhow::{Context, Result, ensure};

use super::datagrams::destination_to;
use crate::fixture::{COMPLETION_TIMEOUT, Fixture, Pair, QUIET_PERIOD, check, fill};
use crate::registry::tests;

tests! { "loss";
    datagram_loss_is_close_to_the_networks_loss,
    unreliable_message_loss_is_close_to_the_networks_loss,
}

/// The number of messages with injected packet loss, sufficient for a small statistical error.
const LOSSY_COUNT: u64 = 20_000;

/// The number of messages without injected packet loss.
const LOSSLESS_COUNT: u64 = 500;

/// The number of messages in flight, and of posted receives.
const BATCH: u64 = 32;
const RECEIVES: u32 = 256;

fn datagram_loss_is_close_to_the_networks_loss(fixture: &Fixture) -> Result<()> {
    check_loss(fixture, Transport::Ud)
}

fn unreliable_message_loss_is_close_to_the_networks_loss(fixture: &Fixture) -> Result<()> {
    check_loss(fixture, Transport::Uc)
}

/// Sends messages of one packet each, and counts those that arrive. Each must be complete, none may be duplicated or
/// late, and at most twice the injected loss may be missing.
fn check_loss(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).depth(BATCH as u32, RECEIVES).connect()?;
    let max_len = fixture.max_datagram_len();
    (0..RECEIVES).try_for_each(|_| pair.right.post_receive(max_len).map(drop))?;
    let recipient =
        (transport == Transport::Ud).then(|| destination_to(&pair.left, &pair.right)).transpose()?;
    let scaled_count = if fixture.loss > 0 { LOSSY_COUNT } else { LOSSLESS_COUNT };
    let (mut next, mut received) = (0, 0);
    for first in (0..scaled_count).step_by(BATCH as usize) {
        let batch = first..scaled_count.min(first + BATCH);
        for number in batch.clone() {
            let mut message = pair.left.buffer(64)?;
            message[..8].copy_from_slice(&number.to_le_bytes());
            fill(&mut message[8..], number);
            let request = SendRequest::send(message);
            pair.left.post(match &recipient {
                Some(recipient) => request.destination(recipient),
                None => request,
            })?;
        }
        let sent = pair.left.take((batch.end - batch.start) as usize)?;
        sent.iter().try_for_each(|completion| completion.result().map(drop))?;
        received += receive_available(&pair, transport, max_len, &mut next)?;
    }
    // On a busy machine, the last messages may arrive late. Without injected loss, all arrive.
    let deadline = Instant::now() + COMPLETION_TIMEOUT;
    while fixture.loss == 0 && received < scaled_count && Instant::now() < deadline {
        received += receive_available(&pair, transport, max_len, &mut next)?;
        std::thread::yield_now();
    }
    std::thread::sleep(QUIET_PERIOD);
    loop {
        match receive_available(&pair, transport, max_len, &mut next)? {
            0 => break,
            late => received += late,
        }
    }
    let (lost, expected) = (scaled_count - received, scaled_count * u64::from(fixture.loss) / 1_000_000);
    ensure!(lost <= 2 * expected, "{lost} of {scaled_count} messages were lost, not {expected}");
    ensure!(
        fixture.loss == 0 || 2 * lost >= expected,
        "only {lost} of {scaled_count} messages were lost, not {expected}"
    );
    Ok(())
}

/// Takes the received messages, and returns their number. `next` is the first message that hasn't arrived yet.
fn receive_available(pair: &Pair, transport: Transport, max_len: usize, next: &mut u64) -> Result<u64> {
    let mut completions = Vec::new();
    pair.right.cq.poll(&mut completions)?;
    let count = completions.len() as u64;
    for completion in completions {
        let message: Buffer = match transport {
            Transport::Ud => completion.into_datagram()?.message,
            _ => completion.into_message()?,
        };
        let number =
            message.first_chunk().copied().map(u64::from_le_bytes).context("the message is too short")?;
        ensure!(message.len() == 64, "message {number} has {} bytes", message.len());
        check(&message[8..], number).with_context(|| format!("message {number}"))?;
        ensure!(number >= *next, "message {number} arrived after {}", next.saturating_sub(1));
        *next = number + 1;
        pair.right.post_receive(max_len)?;
    }
    Ok(count)
}
