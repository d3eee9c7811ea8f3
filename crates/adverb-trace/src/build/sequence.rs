//! The sequence numbers of a queue pair's send requests.

use std::collections::BTreeMap;

use adverb_proto::types::Psn;

use crate::model::RequestId;

/// The sequence numbers of the send requests of a queue pair. They are extended to 64 bits, so that they don't wrap.
#[derive(Debug, Default)]
pub(super) struct SendSequence {
    /// The newest sequence number, and its extended form.
    newest: Option<(Psn, u64)>,
    /// The first number of each request, with its last number.
    requests: BTreeMap<u64, (u64, RequestId)>,
    /// The oldest number that is not acknowledged.
    unacked: Option<u64>,
}

/// The extended form of the first sequence number. It is large, so that earlier numbers have an extended form, too.
const ORIGIN: u64 = 1 << 62;

impl SendSequence {
    /// Sets the first sequence number, if none is known.
    pub(super) fn start(&mut self, psn: Psn) {
        if self.newest.is_none() {
            let first = self.advance(psn);
            self.unacked = Some(first);
        }
    }

    /// Extends a sequence number to 64 bits: to the number that is nearest to the newest one.
    pub(super) fn extend(&self, psn: Psn) -> u64 {
        match self.newest {
            Some((newest, number)) => number.saturating_add_signed(i64::from(psn.since(newest))),
            None => ORIGIN,
        }
    }

    /// Extends the sequence number of a packet that was sent.
    pub(super) fn advance(&mut self, psn: Psn) -> u64 {
        let number = self.extend(psn);
        if self.newest.is_none_or(|(_, newest)| number > newest) {
            self.newest = Some((psn, number));
        }
        number
    }

    /// Returns the sequence number of an extended number.
    pub(super) fn psn(&self, number: u64) -> Psn {
        match self.newest {
            Some((psn, newest)) => {
                let offset = number.wrapping_sub(newest);
                Psn::wrapping(psn.get().wrapping_add((offset & u64::from(u32::MAX)) as u32))
            }
            None => Psn::ZERO,
        }
    }

    /// Sets the first and the last number of a request. `before` is its first number so far.
    pub(super) fn set(&mut self, id: RequestId, before: Option<u64>, first: u64, last: u64) {
        if let Some(before) = before
            && before != first
            && self.requests.get(&before).is_some_and(|(_, owner)| *owner == id)
        {
            self.requests.remove(&before);
        }
        self.requests.insert(first, (last, id));
    }

    /// Returns the last number of the request whose first number is `first`.
    pub(super) fn last(&self, first: u64) -> Option<u64> {
        self.requests.get(&first).map(|(last, _)| *last)
    }

    /// Returns the request that has this sequence number.
    pub(super) fn find(&self, psn: Psn) -> Option<RequestId> {
        let number = self.extend(psn);
        let (_, (last, id)) = self.requests.range(..=number).next_back()?;
        (number <= *last).then_some(*id)
    }

    /// Returns the requests that have numbers in this range.
    pub(super) fn find_all(&self, first: u64, last: u64) -> Vec<RequestId> {
        if first > last {
            return Vec::new();
        }
        let before = self.requests.range(..first).next_back().filter(|(_, (end, _))| *end >= first);
        let within = self.requests.range(first..=last);
        before.into_iter().chain(within).map(|(_, (_, id))| *id).collect()
    }

    /// Returns the requests that have sequence numbers in this range.
    pub(super) fn find_range(&self, first: Psn, last: Psn) -> Vec<RequestId> {
        let first_number = self.extend(first);
        self.find_all(first_number, first_number.saturating_add_signed(i64::from(last.since(first))))
    }

    /// Records that all packets before `psn` are acknowledged. Returns the first and the last number that were
    /// acknowledged for the first time. There is at least one, because devices report only new acknowledgements.
    pub(super) fn acknowledge(&mut self, psn: Psn) -> (u64, u64) {
        let end = self.extend(psn);
        if self.newest.is_none() {
            self.newest = Some((psn, end));
        }
        let last = end.saturating_sub(1);
        let oldest = self.unacked.or_else(|| self.requests.keys().next().copied());
        self.unacked = Some(self.unacked.map_or(end, |unacked| unacked.max(end)));
        // All acknowledged numbers can be before the first known one: those of requests that were posted before the
        // recording began.
        (oldest.map_or(last, |oldest| oldest.min(last)), last)
    }

    /// Whether all numbers of the request that begins with `first` are acknowledged.
    pub(super) fn is_acknowledged(&self, first: u64) -> bool {
        match (self.last(first), self.unacked) {
            (Some(last), Some(unacked)) => last < unacked,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_across_the_wrap() {
        let mut sequence = SendSequence::default();
        sequence.start(Psn::MAX - 1);
        for (id, packets) in [(0, 2), (1, 5), (2, 1)] {
            let psn = sequence.newest.map_or(Psn::ZERO, |(psn, _)| psn) + u32::from(id != 0);
            let first = sequence.advance(psn);
            sequence.set(RequestId(id), None, first, first + packets - 1);
            sequence.advance(psn + (packets as u32 - 1));
        }
        let found = |psn: u32| sequence.find(Psn::wrapping(psn)).map(|id| id.0);
        assert_eq!(found(0xff_fffd), None);
        assert_eq!([found(0xff_fffe), found(0xff_ffff)], [Some(0), Some(0)]);
        assert_eq!([found(0), found(4), found(5), found(6)], [Some(1), Some(1), Some(2), None]);
        let all = sequence.find_range(Psn::MAX, Psn::wrapping(0));
        assert_eq!(all, [RequestId(0), RequestId(1)]);
        let (first, last) = sequence.acknowledge(Psn::wrapping(3));
        assert_eq!((sequence.psn(first).get(), sequence.psn(last).get()), (0xff_fffe, 2));
        let (first, last) = sequence.acknowledge(Psn::wrapping(5));
        assert_eq!((sequence.psn(first).get(), sequence.psn(last).get()), (3, 4));
    }
}
