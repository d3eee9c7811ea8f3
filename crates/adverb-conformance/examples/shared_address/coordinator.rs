//! The process that starts the others, commands them, and kills some.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The prefix of the lines that are for the coordinator.
pub(crate) const MARK: &str = "for the coordinator: ";

/// The maximum time of a step of a process. It is longer than each timeout of a process.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// The number of processes to start.
    pub(crate) processes: usize,
    /// The maximum number of processes at a time, at least 3.
    pub(crate) at_once: usize,
    /// The seed of all random choices.
    pub(crate) seed: u64,
    /// The address of all devices.
    pub(crate) address: IpAddr,
}

/// The numbers of processes and message exchanges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) started: usize,
    pub(crate) killed: usize,
    /// Processes that ended by themselves.
    pub(crate) ended: usize,
    /// Exchanges of two processes that kept running, which must succeed.
    pub(crate) exchanges: usize,
    /// Exchanges during which one of the two processes was killed.
    pub(crate) disturbed: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { started, killed, ended, exchanges, disturbed } = self;
        write!(
            f,
            "{started} processes: {killed} killed, {ended} ended; {exchanges} exchanges succeeded, {disturbed} lost a process"
        )
    }
}

/// Random numbers that depend only on the seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a number below `limit`.
    pub(crate) const fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A process that has printed the address at which others reach it.
pub(crate) struct Worker {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The port, or the endpoint of the queue pair.
    pub(crate) port: String,
    /// The port of the process that it exchanges messages with.
    peer_port: Option<String>,
}

impl Worker {
    pub(crate) fn start(mut command: Command) -> Result<Worker> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let output = child.stdout.take().context("a pipe")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let is_unwanted =
                    line.strip_prefix(MARK).is_some_and(|line| sender.send(line.to_owned()).is_err());
                if is_unwanted {
                    break;
                }
            }
        });
        let mut worker = Worker { child, commands, lines, port: String::new(), peer_port: None };
        let line = worker.line().context("starting a process")?;
        worker.port =
            line.strip_prefix("ready ").with_context(|| format!("a process printed {line}"))?.to_owned();
        Ok(worker)
    }

    /// Waits for a line of the process.
    pub(crate) fn line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(STEP_DEADLINE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => bail!("a process does not respond"),
            Err(RecvTimeoutError::Disconnected) => bail!("a process has ended"),
        }
    }

    pub(crate) fn command(&mut self, line: &str) -> Result<()> {
        let commands = self.commands.as_mut().context("the input of the process is closed")?;
        writeln!(commands, "{line}").context("commanding a process")
    }

    fn exchange(&mut self, peer: &str, count: usize, bootstrap: &str) -> Result<()> {
        self.peer_port = Some(peer.to_owned());
        self.command(&format!("exchange {peer} {count} {bootstrap}"))
    }

    /// Waits until the exchange of the process ends, which must succeed unless it is `disturbed`.
    fn finish(&mut self, disturbed: bool) -> Result<()> {
        let line = self.line()?;
        let peer = self.peer_port.take().unwrap_or_default();
        ensure!(line == "done" || disturbed, "{} to {peer}: {line}", self.port);
        Ok(())
    }

    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Lets the process end by itself.
    pub(crate) fn end(mut self) -> Result<()> {
        self.commands = None;
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "a process ended with {status}");
                return Ok(());
            }
            if start.elapsed() > STEP_DEADLINE {
                self.kill()?;
                bail!("a process did not end");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Starts processes until the plan's number is reached, and ends them all. Returns an error if a process hangs, if an
/// exchange fails without a reason, or if a socket remains.
pub(crate) fn run(plan: &Plan, start: &dyn Fn() -> Command) -> Result<Counts> {
    let mut random = Random::new(plan.seed);
    let mut below = move |limit| random.below(limit);
    let (mut counts, mut workers) = (Counts::default(), Vec::<Worker>::new());
    while counts.started < plan.processes || workers.len() >= 3 {
        while counts.started < plan.processes && workers.len() < plan.at_once {
            workers.push(Worker::start(start())?);
            counts.started += 1;
        }
        // Each process exchanges messages with another one, at the same time.
        let ports: Vec<String> = workers.iter().map(|worker| worker.port.clone()).collect();
        for (index, worker) in workers.iter_mut().enumerate() {
            let peer = &ports[(index + 1 + below(ports.len() - 1)) % ports.len()];
            worker.exchange(peer, 1 + below(40), ["cm", "tcp"][below(2)])?;
        }
        // The first process is the oldest, which receives the messages to queue pair 1.
        let victim = if below(3) == 0 { 0 } else { below(workers.len()) };
        let victim = workers.remove(victim);
        let is_killed = below(3) > 0;
        let dead = victim.port.clone();
        if is_killed {
            std::thread::sleep(Duration::from_micros(below(20_000) as u64));
            victim.kill()?;
            counts.killed += 1;
            counts.disturbed += 1;
        } else {
            let mut victim = victim;
            victim.finish(false)?;
            counts.exchanges += 1;
            // Its peers still exchange messages with it, until they have finished.
            finish(&mut workers, None, &mut counts)?;
            victim.end()?;
            counts.ended += 1;
            continue;
        }
        finish(&mut workers, Some(&dead), &mut counts)?;
    }
    for worker in workers {
        worker.end()?;
        counts.ended += 1;
    }
    check_remains(plan.address)?;
    Ok(counts)
}

/// Waits until all exchanges have ended. Those with the process that was killed may fail.
fn finish(workers: &mut [Worker], dead: Option<&str>, counts: &mut Counts) -> Result<()> {
    for worker in workers {
        let disturbed = worker.peer_port.as_deref() == dead && dead.is_some();
        worker.finish(disturbed)?;
        *if disturbed { &mut counts.disturbed } else { &mut counts.exchanges } += 1;
    }
    Ok(())
}

/// Checks that no socket remains at the address.
pub(crate) fn check_remains(address: IpAddr) -> Result<()> {
    let names = std::fs::read_to_string("/proc/net/unix")?;
    let name = names.lines().find(|line| line.contains("@adverb/") && line.contains(&format!("/{address}:")));
    ensure!(name.is_none(), "a socket remains: {name:?}");
    let IpAddr::V4(v4) = address else { return Ok(()) };
    let place = format!("{:08X}:12B7", u32::from_ne_bytes(v4.octets()));
    let sockets = std::fs::read_to_string("/proc/net/udp")?;
    let socket = sockets.lines().find(|line| line.contains(&place));
    ensure!(socket.is_none(), "a socket remains: {socket:?}");
    Ok(())
}
