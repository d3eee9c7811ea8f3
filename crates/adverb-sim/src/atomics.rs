//! A check that atomics on one word are linearizable.

use adverb_proto::Time;

/// An atomic on a shared word, from the requester's view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Atomic {
    pub(crate) kind: Kind,
    /// The original value from the response. Without a response, the atomic may or may not have been executed.
    pub(crate) old: Option<u64>,
    /// The times of posting and completion.
    pub(crate) start: Time,
    pub(crate) end: Time,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

impl Kind {
    /// Returns the new value, if it differs.
    fn apply(self, value: u64) -> Option<u64> {
        match self {
            Kind::Add(add) => (add != 0).then(|| value.wrapping_add(add)),
            Kind::Swap { compare, swap } => (value == compare && swap != value).then_some(swap),
        }
    }
}

/// Checks that the atomics are linearizable (Herlihy and Wing, 1990): there is an order in which they change the word
/// from `first` to `last`, and in which each atomic finds the old value of its response. The order respects real time:
/// an atomic that completed before another one was posted precedes it.
///
/// Added and swapped-in numbers are random, so that no value occurs twice and each old value has one successor.
pub(crate) fn check(first: u64, last: u64, atomics: &[Atomic]) -> Result<(), String> {
    let mut changing: Vec<&Atomic> = Vec::new();
    let mut observing: Vec<&Atomic> = Vec::new();
    let mut unanswered: Vec<&Atomic> = Vec::new();
    for atomic in atomics {
        match atomic.old {
            None => unanswered.push(atomic),
            Some(old) if atomic.kind.apply(old).is_some() => changing.push(atomic),
            Some(_) => observing.push(atomic),
        }
    }
    let mut search = Search {
        changing: &changing,
        unanswered: &unanswered,
        last,
        used: vec![false; unanswered.len()],
        steps: 0,
    };
    let found = search.find_order(first, changing.len(), unanswered.len());
    if search.steps > MAX_STEPS {
        // The search is too long, because too many atomics have no response.
        return Ok(());
    }
    let Some(order) = found else {
        return Err(format!(
            "no order of {} atomics leads from {first:#x} to {last:#x} with the returned original values",
            atomics.len()
        ));
    };
    // No atomic precedes another that had completed before it was posted.
    let mut latest_start = Time::ZERO;
    for (atomic, _) in &order {
        if atomic.old.is_some() && atomic.end < latest_start {
            return Err(
                "an atomic took effect after another one that was posted after its completion".to_owned()
            );
        }
        latest_start = latest_start.max(atomic.start);
    }
    for atomic in observing {
        let seen = atomic.old.unwrap_or_default();
        if seen != first && !order.iter().any(|(_, value)| *value == seen) {
            return Err(format!("a compare-and-swap returned {seen:#x}, which the word never contained"));
        }
    }
    Ok(())
}

/// The maximum number of steps of the search.
const MAX_STEPS: u32 = 100_000;

struct Search<'a> {
    changing: &'a [&'a Atomic],
    unanswered: &'a [&'a Atomic],
    last: u64,
    used: Vec<bool>,
    steps: u32,
}

impl<'a> Search<'a> {
    /// Finds an order, and returns each atomic with the value after it. Atomics without a response fill gaps.
    fn find_order(
        &mut self,
        value: u64,
        left: usize,
        unanswered_left: usize,
    ) -> Option<Vec<(&'a Atomic, u64)>> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return None;
        }
        if left == 0 && value == self.last {
            return Some(Vec::new());
        }
        if let Some(next) = self.changing.iter().find(|atomic| atomic.old == Some(value)) {
            let new_value = next.kind.apply(value)?;
            let mut rest = self.find_order(new_value, left.checked_sub(1)?, unanswered_left)?;
            rest.insert(0, (next, new_value));
            return Some(rest);
        }
        if unanswered_left == 0 {
            return None;
        }
        for index in 0..self.unanswered.len() {
            if self.used[index] {
                continue;
            }
            let Some(new_value) = self.unanswered[index].kind.apply(value) else { continue };
            self.used[index] = true;
            if let Some(mut rest) = self.find_order(new_value, left, unanswered_left - 1) {
                rest.insert(0, (self.unanswered[index], new_value));
                return Some(rest);
            }
            self.used[index] = false;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(add: u64, old: Option<u64>, start: u64, end: u64) -> Atomic {
        Atomic { kind: Kind::Add(add), old, start: Time::from_nanos(start), end: Time::from_nanos(end) }
    }

    #[test]
    fn adds_in_order_are_accepted_and_an_add_executed_twice_is_rejected() {
        let atomics = [add(10, Some(0), 0, 5), add(3, Some(10), 0, 5)];
        assert!(check(0, 13, &atomics).is_ok());
        assert!(check(0, 23, &atomics).is_err());
        assert!(check(0, 10, &atomics).is_err());
    }

    #[test]
    fn two_atomics_that_returned_the_same_value_are_rejected() {
        assert!(check(0, 13, &[add(10, Some(0), 0, 5), add(3, Some(0), 0, 5)]).is_err());
    }

    #[test]
    fn an_atomic_without_a_response_may_have_executed_once_or_not() {
        let atomics = [add(10, Some(0), 0, 5), add(3, None, 0, 5)];
        assert!(check(0, 10, &atomics).is_ok());
        assert!(check(0, 13, &atomics).is_ok());
        assert!(check(0, 16, &atomics).is_err());
    }

    #[test]
    fn an_order_that_contradicts_real_time_is_rejected() {
        assert!(check(0, 13, &[add(10, Some(3), 0, 5), add(3, Some(0), 6, 9)]).is_err());
        assert!(check(0, 13, &[add(10, Some(3), 0, 7), add(3, Some(0), 6, 9)]).is_ok());
    }

    #[test]
    fn a_compare_and_swap_that_returned_a_value_the_word_never_had_is_rejected() {
        let swap = |old| Atomic {
            kind: Kind::Swap { compare: 99, swap: 1 },
            old: Some(old),
            start: Time::ZERO,
            end: Time::ZERO,
        };
        assert!(check(5, 5, &[swap(5)]).is_ok());
        assert!(check(5, 5, &[swap(6)]).is_err());
    }
}
