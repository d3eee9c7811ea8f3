//! The choice of the process that receives the packets to queue pair 1, the dispatcher: a pure state machine.
//!
//! The process with the lowest share is the dispatcher. It attaches the program that makes the kernel deliver the packets to
//! its socket. Each other process has a connection to a process with a lower share, and looks for the lowest one again
//! when the connection ends. A process that becomes the dispatcher may have joined later than others, of which one was the
//! dispatcher until then, so it connects to all processes with higher shares first. These connections end with their
//! processes, too, and the dispatcher then attaches the program anew.
//!
//! So whichever process has attached its program last, a living process has a connection to it and attaches another program
//! when it ends. Any process can dispatch, so it does no harm if several regard themselves as the dispatcher for a while.

use std::time::{Duration, Instant};

/// The state of one process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Election {
    /// The process knows no process with a lower share. It looks for one at this time.
    Undecided { attempt: u32, retry_at: Instant },
    /// The process has had a connection to a process with a lower share since this time.
    Watching { since: Instant },
    /// The process is the dispatcher. It looks again for a process with a lower share at this time, if it could not connect
    /// to each name.
    Elected { retry_at: Option<Instant> },
}

/// An input of [`Election::handle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// The time of [`Election::deadline`] was reached.
    Timeout,
    /// The process is connected to the lowest process with a lower share, or such a process has connected to this one.
    Connected,
    /// No process of this user has a lower share, and the connections to the processes with higher shares are open.
    Lowest,
    /// No process with a lower share was found, but some names accept no connection now: they are another user's, or the
    /// process has too many connections that it has not accepted.
    Unknown,
    /// The connection to the process with the lower share has ended.
    ConnectionLost,
    /// A connection with a process with a higher share has begun or ended.
    HigherChanged,
}

/// An action of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Connect to the lowest process with a lower share, or else to all processes with higher shares. The result is the next
    /// input.
    Connect,
    /// Attach the program.
    Attach,
}

/// The delay before the second attempt. Each further delay is twice as long.
const MIN_DELAY: Duration = Duration::from_millis(1);

/// The maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The time for which a connection must last so that its end starts another attempt at once.
const MIN_WATCH_TIME: Duration = Duration::from_millis(100);

/// The number of attempts to connect to each name. They take about half a second.
const MAX_ATTEMPTS: u32 = 9;

impl Election {
    /// Creates the initial state of a process, which looks for another process at once.
    pub(super) const fn new(now: Instant) -> Election {
        Election::Undecided { attempt: 0, retry_at: now }
    }

    /// Returns the time of the next [`Input::Timeout`].
    pub(super) const fn deadline(self) -> Option<Instant> {
        match self {
            Election::Undecided { retry_at, .. } => Some(retry_at),
            Election::Watching { .. } => None,
            Election::Elected { retry_at } => retry_at,
        }
    }

    /// Handles an input, and returns the next action.
    pub(super) fn handle(&mut self, input: Input, now: Instant) -> Option<Action> {
        match (*self, input) {
            (Election::Undecided { .. } | Election::Elected { .. }, Input::Timeout) => Some(Action::Connect),
            (_, Input::Connected) => {
                *self = Election::Watching { since: now };
                None
            }
            (Election::Undecided { .. } | Election::Elected { .. }, Input::Lowest) => {
                *self = Election::Elected { retry_at: None };
                Some(Action::Attach)
            }
            (Election::Undecided { attempt, .. }, Input::Unknown) if attempt + 1 < MAX_ATTEMPTS => {
                let retry_at = now + MIN_DELAY.saturating_mul(1 << attempt);
                *self = Election::Undecided { attempt: attempt + 1, retry_at };
                None
            }
            (Election::Undecided { .. } | Election::Elected { .. }, Input::Unknown) => {
                *self = Election::Elected { retry_at: Some(now + MAX_DELAY) };
                Some(Action::Attach)
            }
            (Election::Watching { since }, Input::ConnectionLost) => {
                // The other process may close each connection at once, for example because it has too many.
                if now < since + MIN_WATCH_TIME {
                    *self = Election::Undecided { attempt: 0, retry_at: now + MIN_WATCH_TIME };
                    return None;
                }
                *self = Election::new(now);
                Some(Action::Connect)
            }
            (Election::Elected { .. }, Input::HigherChanged) => Some(Action::Attach),
            // Inputs that belong to another state are ignored.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The processes at an address, by their shares, and the kernel's state.
    struct World {
        processes: Vec<Option<Process>>,
        /// The share of the last process that has attached its program.
        program: Option<usize>,
        now: Instant,
        random: u64,
    }

    #[derive(Clone, Debug)]
    struct Process {
        election: Election,
        action: Option<Action>,
        /// The process with the lower share to which this one has a connection.
        lower: Option<Incarnation>,
        /// The processes with higher shares that have a connection with this one.
        higher: Vec<Incarnation>,
        /// The messages that the process has not read.
        inbox: VecDeque<Mail>,
        number: u32,
        /// Whether another user sends so many connections that none can be accepted.
        is_flooded: bool,
    }

    /// The first message of a connection, with its sender.
    #[derive(Clone, Copy, Debug)]
    enum Mail {
        FromLower(Incarnation),
        FromHigher(Incarnation),
    }

    /// A share, and the number of the process that has it, because a share may have several processes in turn.
    type Incarnation = (usize, u32);

    impl World {
        fn below(&mut self, limit: usize) -> usize {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.random >> 33) as usize % limit
        }

        fn is_alive(&self, (share, number): Incarnation) -> bool {
            self.processes[share].as_ref().is_some_and(|process| process.number == number)
        }

        fn start(&mut self, share: usize, number: u32) {
            let (election, is_flooded) = (Election::new(self.now), false);
            let (lower, higher, inbox) = (None, Vec::new(), VecDeque::new());
            self.processes[share] =
                Some(Process { election, action: None, lower, higher, inbox, number, is_flooded });
        }

        /// Passes an input to a process, which runs the action later, before it reads other messages.
        fn input(&mut self, share: usize, input: Input) {
            let now = self.now;
            let Some(process) = &mut self.processes[share] else { return };
            assert_eq!(process.action, None);
            process.action = process.election.handle(input, now);
        }

        fn change(&mut self, share: usize, change: impl FnOnce(&mut Process)) {
            self.processes[share].as_mut().map(change);
        }

        /// Runs the next step of a process, and returns whether there was one.
        fn step(&mut self, share: usize) -> bool {
            let Some(process) = self.processes[share].clone() else { return false };
            if let Some(action) = process.action {
                self.change(share, |process| process.action = None);
                match action {
                    Action::Attach => self.program = Some(share),
                    Action::Connect => self.run_connect(share),
                }
            } else if let Some(mail) = process.inbox.front() {
                self.change(share, |process| {
                    process.inbox.pop_front();
                    match *mail {
                        Mail::FromLower(sender) => process.lower = Some(sender),
                        Mail::FromHigher(sender) => process.higher.push(sender),
                    }
                });
                let is_lower = matches!(mail, Mail::FromLower(_));
                self.input(share, if is_lower { Input::Connected } else { Input::HigherChanged });
            } else if process.lower.is_some_and(|lower| !self.is_alive(lower)) {
                self.change(share, |process| process.lower = None);
                self.input(share, Input::ConnectionLost);
            } else if let Some(index) = process.higher.iter().position(|higher| !self.is_alive(*higher)) {
                self.change(share, |process| _ = process.higher.remove(index));
                self.input(share, Input::HigherChanged);
            } else if let Election::Undecided { retry_at, .. } = process.election {
                self.now = self.now.max(retry_at);
                self.input(share, Input::Timeout);
            } else {
                return false;
            }
            true
        }

        fn run_connect(&mut self, share: usize) {
            let number = self.processes[share].as_ref().unwrap().number;
            let mut is_unknown = false;
            for other in (0..self.processes.len()).filter(|other| *other != share) {
                let Some(process) = &mut self.processes[other] else { continue };
                if process.is_flooded {
                    is_unknown = true;
                    continue;
                }
                let id = (other, process.number);
                if other < share {
                    process.inbox.push_back(Mail::FromHigher((share, number)));
                    self.change(share, |process| process.lower = Some(id));
                    return self.input(share, Input::Connected);
                }
                process.inbox.push_back(Mail::FromLower((share, number)));
                self.change(share, |process| process.higher.push(id));
            }
            self.input(share, if is_unknown { Input::Unknown } else { Input::Lowest });
        }

        /// Runs all processes until none has a next step.
        fn settle(&mut self) {
            for _ in 0..10_000 {
                let step_count = (0..self.processes.len()).filter(|share| self.step(*share)).count();
                if step_count == 0 {
                    return;
                }
            }
            panic!("the processes don't settle");
        }

        fn check(&self, seed: u64) {
            let mut living = self.processes.iter().flatten();
            if living.next().is_some() {
                let program = self.program.unwrap();
                assert!(self.processes[program].is_some(), "seed {seed}: the dispatcher {program} has ended");
            }
        }
    }

    #[test]
    fn the_program_is_that_of_a_living_process_whichever_processes_join_and_end() {
        for seed in 0..3000 {
            let now = Instant::now();
            let processes = vec![None; 6];
            let mut world = World { processes, program: None, now, random: seed * 7919 + 1 };
            for number in 0..60 {
                let share = world.below(6);
                match world.below(5) {
                    0 if world.processes[share].is_none() => world.start(share, number),
                    1 if world.below(2) == 0 => world.processes[share] = None,
                    _ => _ = world.step(share),
                }
            }
            world.settle();
            world.check(seed);
            // The processes end in any order.
            while world.processes.iter().any(Option::is_some) {
                let share = world.below(6);
                world.processes[share] = None;
                world.settle();
                world.check(seed);
            }
        }
    }

    #[test]
    fn a_process_that_cannot_be_reached_delays_the_choice_for_a_bounded_time() {
        let now = Instant::now();
        let mut world = World { processes: vec![None; 3], program: None, now, random: 1 };
        world.start(0, 0);
        world.settle();
        assert_eq!(world.program, Some(0));
        world.processes[0].as_mut().unwrap().is_flooded = true;
        world.start(1, 1);
        world.settle();
        assert_eq!(world.program, Some(1));
        let delay = world.now - now;
        assert!(delay < MAX_DELAY, "{delay:?}");
        // It looks again once a second, and finds the other process.
        let deadline = world.processes[1].as_ref().unwrap().election.deadline();
        assert_eq!(deadline, Some(world.now + MAX_DELAY));
        world.processes[0].as_mut().unwrap().is_flooded = false;
        world.input(1, Input::Timeout);
        world.settle();
        assert!(matches!(world.processes[1].as_ref().unwrap().election, Election::Watching { .. }));
        assert_eq!(world.program, Some(0));
        world.processes[0] = None;
        world.settle();
        assert_eq!(world.program, Some(1));
    }
}
