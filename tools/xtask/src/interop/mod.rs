//! `cargo xtask interop`: the software NIC against Linux soft-RoCE.
//!
//! In the guest, the software NIC runs in the namespace `peer` as an unprivileged user. Soft-RoCE, at the other end of
//! the virtual link, is used through Adverb's API (`adverb peertest`) and by C programs, whose peers are examples of
//! Adverb or the same programs on adverb-preload. The link is clean, or loses, delays and reorders packets. Except
//! those on adverb-preload, the two ends exchange their parameters over a second, clean link.

mod matrix;
mod pingpong;
mod preload;
mod rping;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;
use support::{process, programs};
use vm::{Observer, Options, Stream};

use crate::sample;
use matrix::{Group, Mtu};

/// The options of `cargo xtask interop`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A cell is an MTU, an address family, a network and an operation with its direction:
`1024 ipv6 loss5 rc-write:reverse`. The direction `forward` is from the software NIC to
soft-RoCE. Each cell sends messages of several lengths.")]
pub(crate) struct Args {
    /// Run all cells instead of a tenth.
    #[arg(long)]
    whole: bool,
    /// Tenth of the cells to run; chosen by the commit hash if omitted.
    #[arg(long, value_name = "0–9", value_parser = clap::value_parser!(u8).range(0..=9), conflicts_with = "whole")]
    tenth: Option<u8>,
    /// Run only cells whose name contains this text; repeatable, and all must match.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// File for the results, one line of JSON per cell.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The shell functions that the jobs call.
pub(crate) const FUNCTIONS: &str = include_str!("guest.sh");

/// Time limit of one guest in seconds, including boot.
const GUEST_TIMEOUT_SECONDS: u64 = 1500;

/// The work of one shell command in the guest.
enum Job {
    /// A group of cells, run by two processes of `adverb peertest`.
    Cells(Group),
    /// A C program, against an example of Adverb or itself on adverb-preload.
    Program(Program),
}

/// A C program, and the shell command that runs it against an example of Adverb or itself on adverb-preload.
#[derive(Clone)]
struct Program {
    name: String,
    line: String,
}

/// The operations that the guest's soft-RoCE lacks: it has ATOMIC WRITE and FLUSH since Linux 6.2. (Its FLUSH works only
/// between soft-RoCE devices: `rxe_opcode` has no payload offset for it, so the ICRC covers the headers twice.)
const UNSUPPORTED_CASES: &[&str] = &["rc-atomic-write:", "rc-flush:"];

/// Builds the programs, runs the jobs in one guest per MTU, and prints the results.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let adverb = programs::adverb()?;
    let [pingpong, rping] = programs::examples(["pingpong", "rping"])?;
    let libraries = crate::preload::build(None, "release")?;
    let cases = process::text(Command::new(&adverb).args(["peertest", "--list"]))?;
    let is_unsupported = |case: &&str| UNSUPPORTED_CASES.iter().any(|operation| case.starts_with(operation));
    let cases: Vec<&str> = cases.lines().filter(|case| !is_unsupported(case)).collect();
    let tenth = tenth(args);
    let mut cells = matrix::cells(&cases);
    if let Some(tenth) = tenth {
        cells = matrix::tenth(&cells, tenth);
    }
    cells.retain(|cell| args.filter.iter().all(|words| cell.name().contains(words)));

    let mut results = Results::default();
    for mtu in Mtu::ALL {
        let groups = matrix::groups(cells.iter().filter(|cell| cell.mtu == mtu));
        let mut jobs: Vec<Job> = groups.into_iter().map(Job::Cells).collect();
        if mtu == Mtu::Mtu1024 {
            let own = [pingpong::programs(&pingpong), rping::programs(&rping)];
            let mut programs = [own.concat(), preload::programs(&adverb, &libraries)].concat();
            if let Some(tenth) = tenth {
                // There are few programs, so a fifth of them runs: every fifth varies in kind, role and address family.
                programs = programs.into_iter().skip(usize::from(tenth) % 5).step_by(5).collect();
            }
            let is_chosen = |program: &Program| args.filter.iter().all(|words| program.name.contains(words));
            jobs.extend(programs.into_iter().filter(is_chosen).map(Job::Program));
        }
        results.boot(mtu, &jobs, &adverb)?;
    }
    print!("{}", table::table(&cells, &results.cells));
    for (name, failure) in &results.programs {
        match failure {
            None => println!("ok      {name}"),
            Some(printed) => {
                println!("FAILED  {name}");
                printed.lines().for_each(|line| println!("        | {line}"));
            }
        }
    }
    if let Some(out) = &args.out {
        let lines: Vec<String> = results.cells.values().map(|cell| cell.to_string() + "\n").collect();
        fs::write(out, lines.concat()).with_context(|| format!("could not write {}", out.display()))?;
    }
    let failed = table::failures(&cells, &results.cells);
    failed.iter().for_each(|failure| println!("FAILED  {failure}"));
    results.problems.iter().for_each(|problem| println!("FAILED  {problem}"));
    let programs_failed = results.programs.iter().filter(|(_, failure)| failure.is_some()).count();
    println!(
        "{} cells, {} failed; {} programs, {programs_failed} failed; {} packets dropped by the link; {:.0} s",
        cells.len(),
        failed.len(),
        results.programs.len(),
        results.dropped,
        start.elapsed().as_secs_f64()
    );
    let passed = failed.is_empty() && programs_failed == 0 && results.problems.is_empty();
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the tenth to run; `None` for all cells or for a filter.
fn tenth(args: &Args) -> Option<u8> {
    if args.whole || !args.filter.is_empty() {
        return None;
    }
    Some(args.tenth.unwrap_or_else(|| {
        let (tenth, commit) = sample::of_this_commit(10);
        println!("running a tenth of the cells, chosen by the commit {commit}: --tenth {tenth}");
        tenth as u8
    }))
}

/// The results of all jobs.
#[derive(Default)]
struct Results {
    /// Results by cell name.
    cells: BTreeMap<String, Value>,
    /// Names of the programs, and their output if they failed.
    programs: Vec<(String, Option<String>)>,
    /// Failures of the guests themselves.
    problems: Vec<String>,
    /// Number of packets that the link dropped.
    dropped: u64,
}

impl Results {
    /// Boots a guest and runs the jobs in it.
    fn boot(&mut self, mtu: Mtu, jobs: &[Job], adverb: &str) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> =
            jobs.iter().map(|job| format!("{FUNCTIONS}\n{}", job.line(adverb))).collect();
        let options = Options {
            timeout: GUEST_TIMEOUT_SECONDS,
            mtu: mtu.of_link(),
            cpus: 2,
            icount: false,
            out: None,
            verbose: false,
        };
        let mut guest = vm::prepare(&options)?;
        guest.keep_going();
        let report = guest.run(
            &lines,
            &mut Collector { jobs, results: self, out: String::new(), printed: String::new() },
        )?;
        let status = vm::explain(&report, &options);
        if report.statuses.len() < jobs.len() {
            self.problems.push(format!("the guest with MTU {} exited early: status {status}", mtu.of_link()));
        }
        if let Some(problem) = report.kernel_problem {
            self.problems.push(format!("{problem} in the kernel of the guest with MTU {}", mtu.of_link()));
        }
        Ok(())
    }
}

impl Job {
    fn line(&self, adverb: &str) -> String {
        match self {
            Job::Cells(group) => group.line(adverb),
            Job::Program(program) => program.line.clone(),
        }
    }
}

/// Collects the jobs' output.
struct Collector<'a> {
    jobs: &'a [Job],
    results: &'a mut Results,
    out: String,
    /// Standard output and standard error together.
    printed: String,
}

impl Observer for Collector<'_> {
    fn started(&mut self, _index: usize) {
        self.out.clear();
        self.printed.clear();
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        self.printed += &text;
        if stream == Stream::Out {
            self.out += &text;
        }
        Ok(())
    }

    fn finished(&mut self, index: usize, status: u8) {
        match &self.jobs[index] {
            Job::Program(program) => {
                let failure = (status != 0).then(|| self.printed.clone());
                let last = self.printed.lines().last().unwrap_or_default().trim().to_owned();
                println!("{}  {}: {last}", if failure.is_none() { "ok    " } else { "FAILED" }, program.name);
                self.results.programs.push((program.name.clone(), failure));
            }
            Job::Cells(group) => {
                let outcomes = group.outcomes(&self.out);
                println!("{}: {} of {} cells reported", group.name(), outcomes.len(), group.cells.len());
                if status != 0 {
                    self.printed.lines().for_each(|line| println!("        | {line}"));
                }
                self.results.dropped += matrix::dropped(&self.out);
                self.results.cells.extend(outcomes);
            }
        }
    }
}
