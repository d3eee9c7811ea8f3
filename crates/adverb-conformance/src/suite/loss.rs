//! Loss of unacknowledged messages.

use adverb::memory::Buffer;
use adverb::verbs::{SendRequest, Transport};
use anyhow::{Context, Result, ensure};

use super::datagrams::way;
use crate::fixture::{Fixture, MOMENT, Pair, check, fill};
use crate::registry::tests;

tests! { "loss";
    datagram_loss_is_close_to_the_networks_loss,
    unreliable_message_loss_is_close_to_the_networks_loss,
}

/// How many messages are sent where packets are lost on purpose: enough for chance to be small beside what is expected.
const ENOUGH: u64 = 20_000;

/// How many messages are sent where none are.
const FEW: u64 = 500;

/// How many messages are under way at once, and how many receives wait for them.
const BATCH: u64 = 32;
const RECEIVES: u32 = 256;

fn datagram_loss_is_close_to_the_networks_loss(fixture: &Fixture) -> Result<()> {
    hardly_more_are_lost(fixture, Transport::Ud)
}

fn unreliable_message_loss_is_close_to_the_networks_loss(fixture: &Fixture) -> Result<()> {
    hardly_more_are_lost(fixture, Transport::Uc)
}

/// Sends messages of a packet each, and counts those that come: each is whole, none comes twice or too late, and no more
/// than twice those are missing that the network loses.
fn hardly_more_are_lost(fixture: &Fixture, transport: Transport) -> Result<()> {
    let pair = fixture.pair(transport).depth(BATCH as u32, RECEIVES).connect()?;
    let room = fixture.datagram_room();
    (0..RECEIVES).try_for_each(|_| pair.right.offer(room).map(drop))?;
    let recipient = (transport == Transport::Ud).then(|| way(&pair.left, &pair.right)).transpose()?;
    let many = if fixture.loss > 0 { ENOUGH } else { FEW };
    let (mut next, mut came) = (0, 0);
    for first in (0..many).step_by(BATCH as usize) {
        let batch = first..many.min(first + BATCH);
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
        came += take_in(&pair, transport, room, &mut next)?;
    }
    std::thread::sleep(MOMENT);
    loop {
        match take_in(&pair, transport, room, &mut next)? {
            0 => break,
            late => came += late,
        }
    }
    let (lost, expected) = (many - came, many * u64::from(fixture.loss) / 1_000_000);
    ensure!(lost <= 2 * expected, "{lost} of {many} messages were lost, not {expected}");
    ensure!(
        fixture.loss == 0 || 2 * lost >= expected,
        "only {lost} of {many} messages were lost, not {expected}"
    );
    Ok(())
}

/// Takes what has come, and says how many messages that were; `next` is the first that hasn't come yet.
fn take_in(pair: &Pair, transport: Transport, room: usize, next: &mut u64) -> Result<u64> {
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
        pair.right.offer(room)?;
    }
    Ok(count)
}
