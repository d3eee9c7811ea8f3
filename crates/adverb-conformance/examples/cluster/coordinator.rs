//! The coordinator, which starts the members, kills some, and checks their reports.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use adverb_wire::random::SplitMix64;
use anyhow::{Context, Result, bail, ensure};

use crate::Options;
use crate::lines::{Counts, Line, SessionReport, Settings, ThreadProgress};

/// The TCP port of the first member. The system doesn't choose it for clients, so it stays free while a member is
/// restarted.
const PORT: u16 = 7471;
/// The interval between the lines that the coordinator prints.
const PRINT_INTERVAL: Duration = Duration::from_secs(10);
/// The time after an unexpected end of a session in which a member can report the cause.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs both parts.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { members, threads, messages, kill_seconds, seed, ack_timeout, .. } = *options;
    // A request is transmitted seven times.
    let limit = Duration::from_nanos(4096 << ack_timeout) * 7;
    println!(
        "{members} members, {threads} threads each, seed {seed}; sessions end if a member doesn't respond for {:.1} s",
        limit.as_secs_f64()
    );
    if messages > 0 {
        let sessions = u64::from(members) * u64::from(members - 1) * u64::from(threads);
        let mut run = Run::new(options, Some(messages.div_ceil(sessions)))?;
        run.exchange()?;
        let count = run.total().all_messages();
        ensure!(count >= messages, "the members exchanged {count} messages, which are fewer than {messages}");
        println!("{messages} messages: nothing lost, duplicated, reordered or altered; no session ended");
    }
    if kill_seconds > 0 {
        let mut run = Run::new(options, None)?;
        run.kill_members(Duration::from_secs(kill_seconds))?;
        println!("{kill_seconds} s with killed members: no errors, no hangs");
    }
    Ok(())
}

/// A part of the test: the members, and the state that they printed.
struct Run<'a> {
    options: &'a Options,
    quota: Option<u64>,
    random: SplitMix64,
    addrs: Vec<SocketAddr>,
    start: Instant,
    printed_at: Instant,
    processes: Vec<MemberProcess>,
    sender: Sender<(u16, u64, Option<String>)>,
    lines: Receiver<(u16, u64, Option<String>)>,
    /// The member that is being killed, until the end of its output.
    dying: Option<u16>,
    /// The epochs of members that were killed.
    killed: HashSet<Epoch>,
    /// The counts of members that were killed.
    lost_counts: Counts,
    /// The number of times that a session was closed by a member, by its thread and its two sides.
    closings: HashMap<(u16, (Epoch, Epoch)), usize>,
    /// The first end of a session in the part in which none may end.
    unexpected_end: Option<(Instant, String)>,
    /// The reasons of the ends of sessions, by their thread, this side, and the peer.
    ended: HashMap<(u16, Epoch, Epoch), Vec<String>>,
}

/// A run of a member: its number and its epoch.
type Epoch = (u16, u64);

/// Returns the two sides of a session in order.
fn pair(a: Epoch, b: Epoch) -> (Epoch, Epoch) {
    if a < b { (a, b) } else { (b, a) }
}

/// A member and its restarts.
struct MemberProcess {
    child: Option<Child>,
    /// The number of restarts.
    restart_count: u64,
    epoch: Option<u64>,
    device: String,
    /// The newest epoch of the peer from which each thread has received messages, by thread and peer.
    flows: HashMap<(u16, u16), u64>,
    threads: Vec<ThreadProgress>,
    /// The time of the last progress of each thread, by the number of its events.
    progress_at: Vec<Instant>,
    report: Option<Vec<SessionReport>>,
}

impl Drop for MemberProcess {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The process may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl<'a> Run<'a> {
    fn new(options: &'a Options, quota: Option<u64>) -> Result<Run<'a>> {
        let (sender, lines) = channel();
        let now = Instant::now();
        let process = |_| MemberProcess {
            child: None,
            restart_count: 0,
            epoch: None,
            device: String::new(),
            flows: HashMap::new(),
            threads: Vec::new(),
            progress_at: vec![now; options.threads.into()],
            report: None,
        };
        let mut run = Run {
            options,
            quota,
            random: SplitMix64(options.seed),
            addrs: addrs(options),
            start: now,
            printed_at: now,
            processes: (0..options.members).map(process).collect(),
            sender,
            lines,
            dying: None,
            killed: HashSet::new(),
            lost_counts: Counts::default(),
            closings: HashMap::new(),
            unexpected_end: None,
            ended: HashMap::new(),
        };
        for member in 0..options.members {
            run.start_member(member)?;
        }
        Ok(run)
    }

    fn start_member(&mut self, member: u16) -> Result<()> {
        let &Options { threads, seed, ack_timeout, fault, .. } = self.options;
        let (addrs, quota) = (self.addrs.clone(), self.quota);
        let settings = Settings { member, addrs, threads, quota, seed, ack_timeout, fault };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["member", &serde_json::to_string(&settings)?]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("the output of a member")?);
        let process = &mut self.processes[usize::from(member)];
        process.child = Some(child);
        process.progress_at.fill(Instant::now());
        let (sender, restart_count) = (self.sender.clone(), process.restart_count);
        std::thread::spawn(move || {
            for text in output.lines().map_while(std::result::Result::ok) {
                _ = sender.send((member, restart_count, Some(text)));
            }
            _ = sender.send((member, restart_count, None));
        });
        Ok(())
    }

    /// Exchanges messages until all members have reached their quota.
    fn exchange(&mut self) -> Result<()> {
        self.wait_until_flowing(0..self.options.members)?;
        let start = self.start;
        self.print(&format!("all sessions open after {:.2} s", start.elapsed().as_secs_f64()));
        self.finish()?;
        let seconds = start.elapsed().as_secs_f64();
        let total = self.total();
        self.print_counts(&total);
        println!("{:.1} s, {:.0} messages/s", seconds, total.all_messages() as f64 / seconds);
        Ok(())
    }

    /// Kills and restarts members for some time.
    fn kill_members(&mut self, duration: Duration) -> Result<()> {
        self.wait_until_flowing(0..self.options.members)?;
        let (start, mut recoveries) = (Instant::now(), Vec::new());
        self.print("killing members");
        let mut kills = 0;
        while start.elapsed() < duration {
            let pause = self.pause(0.1, 2.0);
            self.read_for(pause)?;
            let victim = self.random.below(self.options.members.into()) as u16;
            self.kill(victim)?;
            kills += 1;
            // Some members are restarted at once, and some are killed again before their sessions are open.
            let pause = if self.random.below(4) == 0 { Duration::ZERO } else { self.pause(0.0, 2.0) };
            self.read_for(pause)?;
            self.start_member(victim)?;
            if self.random.below(8) == 0 {
                let pause = self.pause(0.0, 0.5);
                self.read_for(pause)?;
                self.kill(victim)?;
                kills += 1;
                self.start_member(victim)?;
            }
            let restarted = Instant::now();
            self.wait_until_flowing(victim..victim + 1)?;
            recoveries.push(restarted.elapsed());
        }
        self.command("finish")?;
        self.finish()?;
        recoveries.sort();
        let (Some(min), Some(max)) = (recoveries.first(), recoveries.last()) else {
            bail!("no member was killed")
        };
        let total = self.total();
        self.print_counts(&total);
        self.check_ended()?;
        println!(
            "{kills} members killed; from the restart until messages have arrived in all sessions of all threads: {:.2} s \
             at least, {:.2} s in the median, {:.2} s at most, of {}",
            min.as_secs_f64(),
            recoveries[recoveries.len() / 2].as_secs_f64(),
            max.as_secs_f64(),
            recoveries.len()
        );
        Ok(())
    }

    /// Checks that only sessions ended that a member had closed, or whose member was killed, and prints the reasons.
    fn check_ended(&self) -> Result<()> {
        let mut reasons = BTreeMap::<_, u64>::new();
        for (&(thread, side, peer), ended) in &self.ended {
            let is_killed = self.killed.contains(&side) || self.killed.contains(&peer);
            let closings = self.closings.get(&(thread, pair(side, peer))).copied().unwrap_or(0);
            ensure!(
                is_killed || ended.len() <= closings,
                "{} sessions of thread {thread} of member {} with member {} ended, of which {closings} were closed: {}",
                ended.len(),
                side.0,
                peer.0,
                ended.join("; ")
            );
            let of = if is_killed { "of killed members" } else { "that were closed" };
            ended.iter().for_each(|reason| *reasons.entry((of, reason)).or_default() += 1);
        }
        for ((of, reason), count) in reasons {
            println!("{count} ends of sessions {of}: {reason}");
        }
        Ok(())
    }

    fn kill(&mut self, member: u16) -> Result<()> {
        let process = &mut self.processes[usize::from(member)];
        let mut child = process.child.take().context("a member that runs")?;
        self.dying = Some(member);
        child.kill()?;
        child.wait()?;
        // The member may have printed its epoch, which others have seen by now.
        while self.dying.is_some() {
            let (member, restart_count, text) = self.lines.recv()?;
            self.handle_line(member, restart_count, text)?;
        }
        let process = &mut self.processes[usize::from(member)];
        process.restart_count += 1;
        for thread in process.threads.drain(..) {
            self.lost_counts.add(&thread.counts);
        }
        process.flows.clear();
        self.killed.extend(process.epoch.take().map(|epoch| (member, epoch)));
        Ok(())
    }

    fn pause(&mut self, min: f64, max: f64) -> Duration {
        let share = self.random.below(1 << 20) as f64 / f64::from(1 << 20);
        Duration::from_secs_f64(min + (max - min) * share)
    }

    /// Waits until messages have arrived in both directions between all threads of these members and their peers. Members
    /// close sessions at random, so not all sessions need to be open at the same time.
    fn wait_until_flowing(&mut self, members: std::ops::Range<u16>) -> Result<()> {
        let start = Instant::now();
        let limit = Duration::from_secs(self.options.hang_seconds);
        loop {
            let missing = members.clone().flat_map(|member| self.missing_flows(member)).collect::<Vec<_>>();
            if missing.is_empty() {
                return Ok(());
            }
            ensure!(start.elapsed() < limit, "no messages after {limit:?}: {}", missing.join(", "));
            self.read_for(Duration::from_millis(5))?;
        }
    }

    /// Returns the sessions of a member in which no messages have arrived.
    fn missing_flows(&self, member: u16) -> Vec<String> {
        let mut missing = Vec::new();
        for peer in (0..self.options.members).filter(|peer| *peer != member) {
            for (from, to) in [(member, peer), (peer, member)] {
                let (from_epoch, to_process) =
                    (self.processes[usize::from(from)].epoch, &self.processes[usize::from(to)]);
                for thread in 0..self.options.threads {
                    let flow = to_process.flows.get(&(thread, from)).copied();
                    if flow.is_none() || flow != from_epoch {
                        missing.push(format!("from member {from} to member {to} in thread {thread}"));
                    }
                }
            }
        }
        missing
    }

    /// Waits until all threads have finished, and checks the reports of both ends of every session.
    fn finish(&mut self) -> Result<()> {
        let is_finished = |process: &MemberProcess| {
            !process.threads.is_empty() && process.threads.iter().all(|thread| thread.is_finished)
        };
        while !self.processes.iter().all(is_finished) {
            self.read_for(Duration::from_millis(20))?;
        }
        self.command("report")?;
        while self.processes.iter().any(|process| process.report.is_none()) {
            self.read_for(Duration::from_millis(20))?;
        }
        if let Some((_, error)) = &self.unexpected_end {
            bail!("{error}");
        }
        self.check_reports()?;
        // The members exit when their standard input is closed.
        for process in &mut self.processes {
            process.child.as_mut().and_then(|child| child.stdin.take());
        }
        let (start, limit) = (Instant::now(), Duration::from_secs(self.options.hang_seconds));
        for member in 0..self.options.members {
            loop {
                self.read_lines()?;
                let child =
                    self.processes[usize::from(member)].child.as_mut().context("a member that runs")?;
                if let Some(status) = child.try_wait()? {
                    ensure!(status.success(), "member {member} exited: {status}");
                    break;
                }
                ensure!(start.elapsed() < limit, "member {member} did not exit within {limit:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.read_lines()
    }

    fn check_reports(&self) -> Result<()> {
        let reports = self.processes.iter().flat_map(|process| process.report.iter().flatten());
        let mut count = 0;
        for report in reports {
            let SessionReport { thread, peer, epoch, peer_epoch, .. } = *report;
            let of_peer = self.processes[usize::from(peer)].report.iter().flatten();
            let other = of_peer.clone().find(|other| (other.thread, other.peer_epoch) == (thread, epoch));
            let other = other.with_context(|| format!("member {peer} has no session for {report:?}"))?;
            ensure!(
                other.epoch == peer_epoch && other.received == report.sent && other.sent == report.received,
                "the two ends of a session differ: {report:?}, {other:?}"
            );
            count += 1;
        }
        let members = usize::from(self.options.members);
        let expected = members * (members - 1) * usize::from(self.options.threads);
        ensure!(count == expected, "there are reports of {count} ends of sessions instead of {expected}");
        let total = self.total();
        let ended = total.completed_tickets + total.failed_tickets;
        // The last counts of killed members are older than the members' end.
        let is_exact = self.killed.is_empty();
        ensure!(
            !is_exact || total.tickets == ended && total.failed_tickets == 0,
            "{} tickets were posted, and {ended} ended",
            total.tickets
        );
        for (member, process) in self.processes.iter().enumerate() {
            for Counts { tickets, completed_tickets, failed_tickets, .. } in
                process.threads.iter().map(|thread| thread.counts)
            {
                let ended = completed_tickets + failed_tickets;
                ensure!(tickets == ended, "member {member} posted {tickets} tickets, of which {ended} ended");
            }
        }
        Ok(())
    }

    fn command(&mut self, command: &str) -> Result<()> {
        for (member, process) in self.processes.iter_mut().enumerate() {
            let stdin = process.child.as_mut().and_then(|child| child.stdin.as_mut());
            let written = writeln!(stdin.context("a member that runs")?, "{command}");
            // The member's last line has the cause.
            if written.is_err() {
                std::thread::sleep(Duration::from_millis(200));
                self.read_lines()?;
                bail!("member {member} does not run");
            }
        }
        Ok(())
    }

    fn read_for(&mut self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        loop {
            self.read_lines()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if let Ok((member, restart_count, text)) = self.lines.recv_timeout(left) {
                self.handle_line(member, restart_count, text)?;
            }
        }
        if self.printed_at.elapsed() >= PRINT_INTERVAL {
            let total = self.total();
            self.print(&format!(
                "{} messages, {} tickets, {} MiB checked, {} members killed",
                total.all_messages(),
                total.tickets,
                total.bytes >> 20,
                self.killed.len()
            ));
        }
        self.check_progress()
    }

    fn read_lines(&mut self) -> Result<()> {
        while let Ok((member, restart_count, text)) = self.lines.try_recv() {
            self.handle_line(member, restart_count, text)?;
        }
        Ok(())
    }

    fn handle_line(&mut self, member: u16, restart_count: u64, text: Option<String>) -> Result<()> {
        let process = &mut self.processes[usize::from(member)];
        if restart_count != process.restart_count {
            return Ok(());
        }
        let Some(text) = text else {
            // A member that was killed has no child, and one that has reported may exit.
            let has_failed = self.unexpected_end.is_some();
            ensure!(
                process.child.is_none() || process.report.is_some() || has_failed,
                "member {member} exited"
            );
            self.dying = self.dying.filter(|dying| *dying != member);
            return Ok(());
        };
        // A member can be killed while it prints a line.
        let line = match serde_json::from_str::<Line>(&text) {
            Ok(line) => line,
            Err(_) if process.child.is_none() => return Ok(()),
            Err(error) => return Err(error).context(format!("a line of member {member}: {text}")),
        };
        match line {
            Line::Started { epoch, device } => (process.epoch, process.device) = (Some(epoch), device),
            Line::Flowing { thread, peer, peer_epoch } => {
                process.flows.insert((thread, peer), peer_epoch);
            }
            Line::Closing { thread, peer, peer_epoch } => {
                let epoch = process.epoch.context("a session before the start")?;
                *self.closings.entry((thread, pair((member, epoch), (peer, peer_epoch)))).or_default() += 1;
            }
            Line::Ended { thread, peer, peer_epoch, reason } => {
                if self.quota.is_some() {
                    let error = format!(
                        "member {member}: the session of thread {thread} with member {peer} ended: {reason}"
                    );
                    self.unexpected_end.get_or_insert((Instant::now(), error));
                    return Ok(());
                }
                let epoch = process.epoch.context("a session before the start")?;
                let reasons = self.ended.entry((thread, (member, epoch), (peer, peer_epoch))).or_default();
                reasons.push(reason);
            }
            Line::Progress { threads } => {
                for (index, thread) in threads.iter().enumerate() {
                    let last = process.threads.get(index);
                    let events = |thread: &ThreadProgress| {
                        let counts = &thread.counts;
                        (counts.all_messages(), counts.tickets, counts.completed_tickets)
                    };
                    let is_changed = last.is_none_or(|last| events(last) != events(thread));
                    if is_changed || thread.is_finished {
                        process.progress_at[index] = Instant::now();
                    }
                }
                process.threads = threads;
            }
            Line::Report { sessions } => process.report = Some(sessions),
            Line::Failed { error } => {
                bail!(
                    "member {member}, {:.1} s after the start: {error}",
                    self.start.elapsed().as_secs_f64()
                );
            }
        }
        Ok(())
    }

    /// Checks that no session ended unexpectedly, and that no thread hangs.
    fn check_progress(&self) -> Result<()> {
        // A member that finds an error exits, so the sessions of its peers end. Its own report may arrive later.
        if let Some((_, error)) = self.unexpected_end.as_ref().filter(|(at, _)| at.elapsed() > CAUSE_TIMEOUT)
        {
            bail!("{error}");
        }
        let limit = Duration::from_secs(self.options.hang_seconds);
        for (member, process) in
            self.processes.iter().enumerate().filter(|(_, process)| process.child.is_some())
        {
            for (thread, at) in process.progress_at.iter().enumerate() {
                if at.elapsed() < limit {
                    continue;
                }
                let state = process.threads.get(thread).cloned().unwrap_or_default();
                bail!(
                    "member {member}, thread {thread} made no progress for {limit:?}, after {} iterations; {}",
                    state.iterations,
                    if state.unfinished.is_empty() { "no state is known" } else { &state.unfinished }
                );
            }
        }
        Ok(())
    }

    /// Returns the counts of all members, including those that were killed, until their last lines.
    fn total(&self) -> Counts {
        let mut total = self.lost_counts;
        let threads = self.processes.iter().flat_map(|process| &process.threads);
        threads.for_each(|thread| total.add(&thread.counts));
        total
    }

    fn print(&mut self, text: &str) {
        self.printed_at = Instant::now();
        println!("{:6.1} s: {text}", self.start.elapsed().as_secs_f64());
    }

    fn print_counts(&self, total: &Counts) {
        println!(
            "device {}: {} messages, {} requests, {} replies, {} calls without a reply, {} WRITEs, {} WRITEs with \
             immediate, {} READs, {} fetch-and-adds, {} compare-and-swaps, {} batches; {} MiB checked; {} tickets \
             ended, {} of them with their session",
            self.processes[0].device,
            total.messages,
            total.requests,
            total.replies,
            total.unanswered_calls,
            total.writes,
            total.immediates,
            total.reads,
            total.adds,
            total.swaps,
            total.batches,
            total.bytes >> 20,
            total.completed_tickets + total.failed_tickets,
            total.failed_tickets
        );
    }
}

/// Returns the addresses of the members.
fn addrs(options: &Options) -> Vec<SocketAddr> {
    // Other tests may run on this machine.
    let [a, b, ..] = std::process::id().wrapping_mul(0x9e37_79b1).to_be_bytes();
    let addr = |member: u16| match options.addr {
        Some(addr) => SocketAddr::new(addr, PORT + member),
        None => SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 128 | a & 63, b, member as u8 + 1)), PORT),
    };
    (0..options.members).map(addr).collect()
}
