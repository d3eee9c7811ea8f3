//! Pairs of processes that exchange messages without retransmission, while other processes join and leave the address.

use std::fmt;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::coordinator::{Random, Worker, check_remains};

/// The number of messages in each direction of a pair.
const MESSAGES: u32 = 50;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The number of pairs, one after the other.
    pub(crate) pairs: usize,
    /// The number of other processes at a time.
    pub(crate) visitors: usize,
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// The address of all devices.
    pub(crate) address: IpAddr,
}

/// A process of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A process that joins and leaves.
    Visitor,
    /// One of a pair with UC queue pairs.
    Uc,
    /// One of a pair with UD queue pairs.
    Ud,
}

/// The results of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) pairs: usize,
    /// Pairs that lost a message.
    pub(crate) failed: usize,
    /// Processes that joined and left.
    pub(crate) visitors: usize,
    /// Visitors that were killed.
    pub(crate) killed: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { pairs, failed, visitors, killed } = self;
        write!(
            f,
            "{failed} of {pairs} pairs lost a message while {visitors} processes joined and left, {killed} of them killed"
        )
    }
}

/// Runs the pairs. Returns an error if a process fails or hangs, or if a socket remains.
pub(crate) fn run(plan: &Plan, start: &(dyn Fn(Role) -> Command + Sync)) -> Result<Counts> {
    let (is_ending, visitors, killed) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let mut counts = Counts::default();
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..plan.visitors)
            .map(|index| {
                let mut random = Random::new(plan.seed.wrapping_add(1 + index as u64));
                let (is_ending, visitors, killed) = (&is_ending, &visitors, &killed);
                scope.spawn(move || -> Result<()> {
                    while !is_ending.load(Ordering::Relaxed) {
                        let is_killed = visit(start(Role::Visitor), &mut random)?;
                        visitors.fetch_add(1, Ordering::Relaxed);
                        killed.fetch_add(is_killed.into(), Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        let result = (0..plan.pairs).try_for_each(|number| {
            let role = if number % 2 == 0 { Role::Uc } else { Role::Ud };
            counts.pairs += 1;
            if let Err(error) = run_pair(&|| start(role))? {
                counts.failed += 1;
                println!("pair {number}: {error}");
            }
            Ok(())
        });
        is_ending.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        result
    })?;
    (counts.visitors, counts.killed) = (visitors.into_inner(), killed.into_inner());
    check_remains(plan.address)?;
    Ok(counts)
}

/// Starts a process that opens the device, and ends or kills it after a random time, perhaps while it joins. Returns
/// whether it was killed.
fn visit(mut command: Command, random: &mut Random) -> Result<bool> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    std::thread::sleep(Duration::from_micros(random.below(30_000) as u64));
    let is_killed = random.below(2) == 0;
    if is_killed {
        child.kill()?;
    }
    // A process that isn't killed ends when its input does.
    drop(child.stdin.take());
    let status = child.wait()?;
    ensure!(is_killed || status.success(), "a process that joined and left ended with {status}");
    Ok(is_killed)
}

/// Runs a pair, and returns the message of the process that failed, if one did.
fn run_pair(start: &dyn Fn() -> Command) -> Result<Result<(), String>> {
    let mut left = Worker::start(start())?;
    let mut right = Worker::start(start())?;
    left.command(&format!("connect {}", right.port))?;
    right.command(&format!("connect {}", left.port))?;
    for side in [&mut left, &mut right] {
        let line = side.line().context("connecting")?;
        ensure!(line == "done", "{line}");
    }
    right.command(&format!("echo {MESSAGES}"))?;
    left.command(&format!("ping {MESSAGES}"))?;
    let lines = [left.line()?, right.line()?];
    left.end()?;
    right.end()?;
    Ok(lines.into_iter().try_for_each(|line| if line == "done" { Ok(()) } else { Err(line) }))
}
