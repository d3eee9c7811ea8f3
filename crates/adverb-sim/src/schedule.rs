//! The schedule of tasks, and the log.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use adverb_proto::Time;

/// Tasks ordered by time. Tasks of the same time run in the order of planning.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    tasks: BinaryHeap<Reverse<(Time, u64, T)>>,
    planned: u64,
}

impl<T: Ord> Schedule<T> {
    pub(crate) fn new() -> Schedule<T> {
        Schedule { tasks: BinaryHeap::new(), planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Time, task: T) {
        self.planned += 1;
        self.tasks.push(Reverse((at, self.planned, task)));
    }

    /// Returns the time of the next task.
    pub(crate) fn next(&self) -> Option<Time> {
        self.tasks.peek().map(|Reverse((at, ..))| *at)
    }

    /// Takes the next task, if it is due.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<T> {
        let is_due = self.next().is_some_and(|at| at <= now);
        is_due.then(|| self.tasks.pop()).flatten().map(|Reverse((.., task))| task)
    }
}

/// The log of a run: the first violation, and the trace if requested.
#[derive(Debug)]
pub(crate) struct Log {
    /// The first violation.
    pub(crate) violation: Option<String>,
    /// The trace, if requested.
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

    /// Adds lines to the trace, if there is one.
    pub(crate) fn add_lines(&mut self, lines: impl Iterator<Item = String>) {
        if let Some(trace) = &mut self.trace {
            trace.extend(lines);
        }
    }

    /// Records a violation. Only the first is kept.
    pub(crate) fn report_violation(&mut self, now: Time, what: &str) {
        self.note(now, || format!("VIOLATION: {what}"));
        if self.violation.is_none() {
            self.violation = Some(format!("at {now}: {what}"));
        }
    }
}
