//! Partitions.

use adverb::verbs::Error;
use adverb::verbs::{
    SendRequest, Status,
    Transport::{Rc, Ud},
};
use anyhow::{Context, Result, ensure};

use super::datagrams::{destination_to, post_receive};
use crate::Need;
use crate::fixture::{Fixture, Pair, PairBuilder, check, expect};
use crate::registry::{tests, two_partitions};

tests! { "partitions";
    a_pkey_index_beyond_the_table_is_refused,
    [Need::TwoPartitions] queue_pairs_of_one_partition_exchange_messages,
    [Need::TwoPartitions] a_message_of_another_partition_is_dropped_until_retries_are_exhausted,
    [Need::TwoPartitions] a_datagram_of_another_partition_is_dropped,
}

fn a_pkey_index_beyond_the_table_is_refused(fixture: &Fixture) -> Result<()> {
    let beyond = fixture.port.pkey_table_len;
    let made = fixture.pair(Rc).pkey_indices(beyond, beyond).create();
    let error = made.err().context("the call succeeded")?;
    ensure!(
        matches!(error.downcast_ref(), Some(Error::LimitExceeded { .. })),
        "refused with another error: {error}"
    );
    Ok(())
}

/// Returns the indexes of two partitions.
fn entries(fixture: &Fixture) -> Result<(u16, u16)> {
    two_partitions(&fixture.device)?.context("there are two, or the test is skipped")
}

fn queue_pairs_of_one_partition_exchange_messages(fixture: &Fixture) -> Result<()> {
    let (one, other) = entries(fixture)?;
    for index in [one, other] {
        fixture.pair(Rc).pkey_indices(index, index).connect()?.ping()?;
    }
    Ok(())
}

/// Returns a pair whose sides are in different partitions.
fn in_different_partitions(fixture: &Fixture, pair: PairBuilder) -> Result<Pair> {
    let (one, other) = entries(fixture)?;
    pair.pkey_indices(one, other).connect()
}

/// Vol. 1, 9.6.1.2.2: the packet is dropped, and the sender gets no response.
fn a_message_of_another_partition_is_dropped_until_retries_are_exhausted(fixture: &Fixture) -> Result<()> {
    let pair = in_different_partitions(fixture, fixture.pair(Rc).few_retries())?;
    pair.right.post_receive(64)?;
    let id = pair.left.post(SendRequest::send(pair.left.filled(64, 1)?))?;
    expect("the message", &pair.left.wait(id)?, Status::RetryExceeded)?;
    pair.right.expect_no_completion()
}

fn a_datagram_of_another_partition_is_dropped(fixture: &Fixture) -> Result<()> {
    let pair = in_different_partitions(fixture, fixture.pair(Ud))?;
    let receiving = post_receive(fixture, &pair.right)?;
    pair.left.execute(
        SendRequest::send(pair.left.filled(64, 1)?).destination(&destination_to(&pair.left, &pair.right)?),
    )?;
    pair.right.expect_no_completion()?;
    // A datagram of the same partition arrives.
    let (_, other) = entries(fixture)?;
    let same_partition = fixture.pair(Ud).pkey_indices(other, other).connect()?.left;
    same_partition.execute(
        SendRequest::send(same_partition.filled(64, 2)?)
            .destination(&destination_to(&same_partition, &pair.right)?),
    )?;
    check(&pair.right.wait(receiving)?.into_datagram()?.message, 2)
}
