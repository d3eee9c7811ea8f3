//! The choice of the process that receives the packets to queue pair 1: a pure state machine.
//!
//! A process becomes that process by claiming a name in the kernel. Only one process can have the name, and the kernel
//! frees it when that process ends. Every other process has a connection to the process with the name. The end of the
//! connection shows that the name is free.

use std::time::{Duration, Instant};

/// The state of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Election {
    /// The process has neither the name nor a connection. It tries to get the name at this time.
    Undecided { attempt: u32, retry_at: Instant },
    /// The process has a connection to the process with the name.
    Watching,
    /// The process has the name.
    Elected,
}

/// An input of [`Election::handle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// The time in [`Election::Undecided`] was reached.
    Timeout,
    /// The process got the name.
    Claimed,
    /// Another process has the name.
    NameTaken,
    /// The process is connected to the process with the name.
    Connected,
    /// No process of this user accepts connections at the name.
    NotConnected,
    /// The connection to the process with the name has ended.
    ConnectionLost,
}

/// A system call that the process makes next. Its result is the next input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Claim the name.
    Claim,
    /// Connect to the process with the name.
    Connect,
}

/// The delay before the second attempt. Each further delay is twice as long.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// The maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(1);

impl Election {
    /// Creates the initial state of a process, which tries to claim the name at once.
    pub(super) const fn new(now: Instant) -> Election {
        Election::Undecided { attempt: 0, retry_at: now }
    }

    /// Returns the time of the next [`Input::Timeout`].
    pub(super) const fn deadline(self) -> Option<Instant> {
        match self {
            Election::Undecided { retry_at, .. } => Some(retry_at),
            Election::Watching | Election::Elected => None,
        }
    }

    /// Handles an input, and returns the next action.
    pub(super) fn handle(&mut self, input: Input, now: Instant) -> Option<Action> {
        match (*self, input) {
            (Election::Undecided { .. }, Input::Timeout) => Some(Action::Claim),
            (Election::Undecided { .. }, Input::Claimed) => {
                *self = Election::Elected;
                None
            }
            (Election::Undecided { .. }, Input::NameTaken) => Some(Action::Connect),
            (Election::Undecided { .. }, Input::Connected) => {
                *self = Election::Watching;
                None
            }
            // The other process has just claimed the name, or has just ended, or belongs to another user.
            (Election::Undecided { attempt, .. }, Input::NotConnected) => {
                let delay = MIN_DELAY.saturating_mul(1 << attempt.min(16)).min(MAX_DELAY);
                *self = Election::Undecided { attempt: attempt + 1, retry_at: now + delay };
                None
            }
            (Election::Watching, Input::ConnectionLost) => {
                *self = Election::new(now);
                Some(Action::Claim)
            }
            // Inputs that belong to another state are ignored.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name in the kernel: its owner, and whether the owner accepts connections yet.
    type Name = Option<(usize, bool)>;

    /// Runs the actions of a process until it waits for an input.
    fn run_actions(
        process: usize,
        election: &mut Election,
        mut action: Option<Action>,
        name: &mut Name,
        now: Instant,
    ) {
        while let Some(next) = action {
            let input = match (next, *name) {
                (Action::Claim, None) => {
                    *name = Some((process, false));
                    Input::Claimed
                }
                (Action::Claim, Some(_)) => Input::NameTaken,
                (Action::Connect, Some((_, true))) => Input::Connected,
                (Action::Connect, _) => Input::NotConnected,
            };
            action = election.handle(input, now);
        }
    }

    #[test]
    fn one_process_is_elected_whichever_processes_end() {
        let mut random = 1u64;
        let mut below = move |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % limit
        };
        for _ in 0..2000 {
            let mut now = Instant::now();
            let count = 2 + below(5);
            let mut processes = vec![Some(Election::new(now)); count];
            let mut name: Name = None;
            let mut exits_left = below(count);
            for _ in 0..200 {
                let index = below(count);
                let Some(mut election) = processes[index] else { continue };
                if exits_left > 0 && below(8) == 0 {
                    exits_left -= 1;
                    processes[index] = None;
                    name = name.filter(|(owner, _)| *owner != index);
                    continue;
                }
                match election {
                    Election::Undecided { retry_at, .. } => {
                        now = now.max(retry_at);
                        let action = election.handle(Input::Timeout, now);
                        run_actions(index, &mut election, action, &mut name, now);
                    }
                    // The connection ends when the process that accepted it ends. Another process may have the name
                    // already.
                    Election::Watching if name.is_none() || below(4) == 0 => {
                        let action = election.handle(Input::ConnectionLost, now);
                        run_actions(index, &mut election, action, &mut name, now);
                    }
                    Election::Watching => {}
                    Election::Elected => name = Some((index, true)),
                }
                processes[index] = Some(election);
            }
            let elected = processes.iter().flatten().filter(|state| **state == Election::Elected).count();
            assert!(elected <= 1);
            // Without further exits, all other processes connect soon.
            for _ in 0..3 {
                for (index, process) in processes.iter_mut().enumerate() {
                    let Some(election) = process else { continue };
                    let input = match election {
                        Election::Undecided { .. } => Input::Timeout,
                        Election::Watching if name.is_none() => Input::ConnectionLost,
                        Election::Watching | Election::Elected => continue,
                    };
                    let action = election.handle(input, now);
                    run_actions(index, election, action, &mut name, now);
                    if *election == Election::Elected {
                        name = Some((index, true));
                    }
                }
                if let Some((owner, is_ready)) = &mut name {
                    assert!(processes[*owner].is_some(), "the name of an ended process is free");
                    *is_ready = true;
                }
            }
            let elected = processes.iter().flatten().filter(|state| **state == Election::Elected).count();
            let watching = processes.iter().flatten().filter(|state| **state == Election::Watching).count();
            assert_eq!((elected, elected + watching), (1, processes.iter().flatten().count()));
        }
    }

    #[test]
    fn a_name_that_another_user_has_is_tried_at_most_once_a_second() {
        let now = Instant::now();
        let mut election = Election::new(now);
        for _ in 0..100 {
            assert_eq!(election.handle(Input::Timeout, now), Some(Action::Claim));
            assert_eq!(election.handle(Input::NameTaken, now), Some(Action::Connect));
            assert_eq!(election.handle(Input::NotConnected, now), None);
            assert!(election.deadline().unwrap() > now);
        }
        assert_eq!(election.deadline(), Some(now + MAX_DELAY));
    }
}
