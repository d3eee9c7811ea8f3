//! The responder's state machine: checks probes, and answers each with ACK1 and ACK2.

use std::hash::{DefaultHasher, Hash, Hasher};

use adverb_verbs::Gid;

use crate::figures::ResponderStamps;
use crate::format::{ACK_LEN, Ack, AckKind, Message, ParseError, Probe, TagKey};
use crate::paths::ack_flow_label;
use crate::stamp::Stamp;
use crate::ud_queue::Destination;

#[cfg(test)]
mod tests;

/// The options of an [`AnswerState`].
#[derive(Clone, Debug)]
pub struct AnswerConfig {
    /// The key of the responder. A responder with a key answers only probes with a valid tag.
    pub key: Option<TagKey>,
    /// Maximum rate of answered probes from one address.
    pub source_rate: Rate,
    /// Maximum rate of answered probes in total.
    pub total_rate: Rate,
    /// Maximum number of probes whose ACK1 has not completed.
    pub max_outstanding: usize,
}

impl Default for AnswerConfig {
    fn default() -> AnswerConfig {
        AnswerConfig {
            key: None,
            source_rate: Rate { per_second: 50_000, burst: 5_000 },
            total_rate: Rate { per_second: 200_000, burst: 20_000 },
            max_outstanding: 256,
        }
    }
}

/// The random numbers of an [`AnswerState`], which the caller draws for each.
#[derive(Clone, Copy, Debug)]
pub struct RandomNumbers {
    /// The responder's epoch, which tells probers that the responder has restarted.
    pub epoch: u32,
    /// The seed of the table of sources. It prevents senders from choosing addresses that share a place in the table.
    pub seed: u64,
}

/// A maximum rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Probes per second.
    pub per_second: u32,
    /// Number of probes that may arrive at once after a pause.
    pub burst: u32,
}

/// The reason why a responder doesn't answer a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The datagram is no valid probe, or has no valid tag.
    Invalid(ParseError),
    /// The datagram is an acknowledgement.
    NotAProbe,
    /// The source, or all sources together, send more probes than allowed.
    RateLimit,
    /// Too many acknowledgements have not been sent.
    Busy,
}

/// The number of datagrams by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AnswerCounts {
    /// Probes that were answered with ACK1.
    pub answered: u64,
    /// Probes that were also answered with ACK2.
    pub completed: u64,
    /// Acknowledgements that the device did not send.
    pub not_sent: u64,
    /// Datagrams that are no probes.
    pub invalid: u64,
    /// Probes whose tag is invalid.
    pub bad_tags: u64,
    /// Probes that were dropped because of a rate limit.
    pub rate_limited: u64,
    /// Probes that were dropped because too many acknowledgements had not been sent.
    pub busy: u64,
}

/// An acknowledgement to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// The number of the answer, for [`AnswerState::handle_ack1_sent`].
    pub id: usize,
    /// The prober.
    pub destination: Destination,
    /// The bytes to send.
    pub bytes: [u8; ACK_LEN],
    /// The differentiated services code point of the acknowledgement, which is that of the probe.
    pub dscp: u8,
    /// The flow label of the acknowledgement.
    pub flow_label: u32,
}

/// The state of a responder. Times are nanoseconds of the monotonic clock.
///
/// The state is bounded: a table of sources for the rate limit, and the probes whose ACK1 is in flight. All
/// acknowledgements of a probe together are not longer than the probe.
#[derive(Debug)]
pub struct AnswerState {
    config: AnswerConfig,
    epoch: u32,
    /// The probes whose ACK1 is in flight, with their senders and T3.
    outstanding: Vec<Option<(Probe, Destination, Stamp)>>,
    free: Vec<usize>,
    total: Bucket,
    sources: Sources,
    counts: AnswerCounts,
}

impl AnswerState {
    /// Creates the state.
    pub fn new(config: AnswerConfig, numbers: RandomNumbers) -> AnswerState {
        let RandomNumbers { epoch, seed } = numbers;
        AnswerState {
            epoch,
            outstanding: vec![None; config.max_outstanding],
            free: (0..config.max_outstanding).rev().collect(),
            total: Bucket::full(config.total_rate),
            sources: Sources { seed, buckets: vec![None; SOURCE_SETS * SOURCE_WAYS] },
            counts: AnswerCounts::default(),
            config,
        }
    }

    /// Returns the responder's epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the counts.
    pub fn counts(&self) -> &AnswerCounts {
        &self.counts
    }

    /// Handles a datagram that was received from `source`. `received` is T3, and `now` is the current time. Returns
    /// ACK1.
    ///
    /// # Errors
    ///
    /// Returns the reason if the datagram must not be answered.
    pub fn handle_datagram(
        &mut self,
        bytes: &[u8],
        source: Destination,
        received: Stamp,
        now: u64,
    ) -> Result<Answer, Refusal> {
        let answer = self.answer(bytes, source, received, now);
        *match &answer {
            Ok(_) => &mut self.counts.answered,
            Err(Refusal::Invalid(ParseError::Tag)) => &mut self.counts.bad_tags,
            Err(Refusal::Invalid(_) | Refusal::NotAProbe) => &mut self.counts.invalid,
            Err(Refusal::RateLimit) => &mut self.counts.rate_limited,
            Err(Refusal::Busy) => &mut self.counts.busy,
        } += 1;
        answer
    }

    fn answer(
        &mut self,
        bytes: &[u8],
        source: Destination,
        received: Stamp,
        now: u64,
    ) -> Result<Answer, Refusal> {
        let key = self.config.key.as_ref();
        let Message::Probe(probe) = Message::parse(bytes, &source, key).map_err(Refusal::Invalid)? else {
            return Err(Refusal::NotAProbe);
        };
        // A source over its own limit doesn't use up the total.
        if !self.sources.take(source.gid, self.config.source_rate, now)
            || !self.total.take(self.config.total_rate, now)
        {
            return Err(Refusal::RateLimit);
        }
        let id = self.free.pop().ok_or(Refusal::Busy)?;
        self.outstanding[id] = Some((probe, source, received));
        Ok(self.acknowledge(id, &probe, source, AckKind::First))
    }

    /// Handles the send completion of ACK1. `sent` is T4. Returns ACK2, or `None` if ACK1 was not sent: `sent` is then
    /// `None`.
    pub fn handle_ack1_sent(&mut self, id: usize, sent: Option<Stamp>) -> Option<Answer> {
        let (probe, source, received) = self.outstanding.get_mut(id)?.take()?;
        self.free.push(id);
        let Some(sent) = sent else {
            self.counts.not_sent += 1;
            return None;
        };
        let stamps = sent.nanos_since(received).map(|_| ResponderStamps {
            received: received.nanos,
            received_kind: received.kind,
            acked: sent.nanos,
            acked_kind: sent.kind,
        });
        self.counts.completed += 1;
        Some(self.acknowledge(id, &probe, source, AckKind::Second(stamps)))
    }

    /// Counts an ACK2 that the device did not send.
    pub fn handle_ack2_not_sent(&mut self) {
        self.counts.completed -= 1;
        self.counts.not_sent += 1;
    }

    /// Drops the probes whose ACK1 is in flight, because the device has failed.
    pub fn reset_outstanding(&mut self) {
        for id in 0..self.outstanding.len() {
            self.handle_ack1_sent(id, None);
        }
    }

    fn acknowledge(&self, id: usize, probe: &Probe, destination: Destination, kind: AckKind) -> Answer {
        let ack = Ack { sequence: probe.sequence, responder_epoch: self.epoch, kind };
        let bytes = ack.to_bytes(&destination, self.config.key.as_ref());
        Answer { id, destination, bytes, dscp: probe.dscp, flow_label: ack_flow_label(probe.flow_label) }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Available probes, in billionths.
    tokens: u64,
    updated: u64,
}

/// The tokens of one probe.
const TOKEN: u64 = 1_000_000_000;

impl Bucket {
    fn full(rate: Rate) -> Bucket {
        Bucket { tokens: Bucket::capacity(rate), updated: 0 }
    }

    fn capacity(rate: Rate) -> u64 {
        u64::from(rate.burst) * TOKEN
    }

    fn refill(&mut self, rate: Rate, now: u64) {
        let elapsed = now.saturating_sub(self.updated);
        let added = elapsed.saturating_mul(u64::from(rate.per_second));
        self.tokens = self.tokens.saturating_add(added).min(Bucket::capacity(rate));
        self.updated = self.updated.max(now);
    }

    fn take(&mut self, rate: Rate, now: u64) -> bool {
        self.refill(rate, now);
        let taken = self.tokens.checked_sub(TOKEN);
        self.tokens = taken.unwrap_or(self.tokens);
        taken.is_some()
    }
}

/// The buckets of sources: a table with a fixed number of places. A source can use [`SOURCE_WAYS`] of them.
#[derive(Debug)]
struct Sources {
    seed: u64,
    buckets: Vec<Option<(Gid, Bucket)>>,
}

const SOURCE_SETS: usize = 512;
const SOURCE_WAYS: usize = 8;

impl Sources {
    fn take(&mut self, source: Gid, rate: Rate, now: u64) -> bool {
        let mut hasher = DefaultHasher::new();
        (self.seed, source).hash(&mut hasher);
        let set = hasher.finish() as usize % SOURCE_SETS;
        let ways = &mut self.buckets[set * SOURCE_WAYS..][..SOURCE_WAYS];
        if let Some((_, bucket)) = ways.iter_mut().flatten().find(|(known, _)| *known == source) {
            return bucket.take(rate, now);
        }
        // A full bucket can be forgotten: a new one would be the same. If all sources are active, the new source is
        // refused until one of them pauses.
        let is_replaceable = |way: &mut Option<(Gid, Bucket)>| match way {
            None => true,
            Some((_, bucket)) => {
                bucket.refill(rate, now);
                bucket.tokens == Bucket::capacity(rate)
            }
        };
        let Some(way) = ways.iter_mut().find_map(|way| is_replaceable(way).then_some(way)) else {
            return false;
        };
        let (_, bucket) = way.insert((source, Bucket { updated: now, ..Bucket::full(rate) }));
        bucket.take(rate, now)
    }
}
