//! What is to happen when, and what has happened.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use adverb_proto::Time;

/// Tasks, each with its time. Those of one time come in the order in which they were planned.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    tasks: BinaryHeap<Reverse<(Time, u64, T)>>,
    planned: u64,
}

impl<T: Ord> Schedule<T> {
    pub(crate) fn new() -> Schedule<T> {
        Schedule { tasks: BinaryHeap::new(), planned: 0 }
    }

    /// Plans a task.
    pub(crate) fn plan(&mut self, at: Time, task: T) {
        self.planned += 1;
        self.tasks.push(Reverse((at, self.planned, task)));
    }

    /// When the next task is due.
    pub(crate) fn next(&self) -> Option<Time> {
        self.tasks.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next task, if it is due.
    pub(crate) fn due(&mut self, now: Time) -> Option<T> {
        let is_due = self.next().is_some_and(|at| at <= now);
        is_due.then(|| self.tasks.pop()).flatten().map(|Reverse((.., task))| task)
    }
}

/// What is told of a run: what must not have happened, and everything else if somebody wants to know.
#[derive(Debug)]
pub(crate) struct Log {
    /// What must not have happened: the first of it.
    pub(crate) violation: Option<String>,
    /// A line for all that happened, if somebody wants to know.
    pub(crate) trace: Option<Vec<String>>,
}

impl Log {
    pub(crate) fn new(trace: bool) -> Log {
        Log { violation: None, trace: trace.then(Vec::new) }
    }

    pub(crate) fn note(&mut self, now: Time, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now} {}", what()));
        }
    }

    /// Notes what must not happen. The first is what counts.
    pub(crate) fn violate(&mut self, now: Time, what: &str) {
        self.note(now, || format!("VIOLATION: {what}"));
        if self.violation.is_none() {
            self.violation = Some(format!("at {now}: {what}"));
        }
    }
}
