//! `cargo xtask net`: connections between all pairs of devices.
//!
//! Two processes of Adverb's example `net_pair` run every case: on this machine with the software NIC, as an
//! unprivileged user, without and with packet loss; and in a guest, on soft-RoCE and between soft-RoCE and the software
//! NIC, each as the connector.

mod here;
mod table;

use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, bail};
use support::{process, programs};
use vm::{Observer, Options, Stream};

use crate::{interop, sample};
use table::{Column, Results};

/// The options of `cargo xtask net`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only pairs whose name contains this text, such as soft-soft or ibv-soft; repeatable.
    #[arg(long, value_name = "WORDS")]
    pair: Vec<String>,
    /// Run only cases whose name contains this text; repeatable.
    #[arg(long, value_name = "WORDS")]
    case: Vec<String>,
    /// In the guest, run only every third case; the commit hash chooses the first one.
    #[arg(long)]
    third: bool,
}

/// The devices of the connector and of the listener, and the machine on which they run.
#[derive(Debug)]
struct Pair {
    name: &'static str,
    place: Place,
    /// Combinations of threads and tasks to run, as the program's option names them; all if empty.
    apis: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On this machine, as an unprivileged user, with packet loss in percent.
    Here { loss: u32 },
    /// In the guest, by this function of its script.
    Guest(&'static str),
}

/// The pairs. The guest is slow, so only two combinations run there; they cover threads and tasks at each end.
const PAIRS: &[Pair] = &[
    Pair { name: "soft-soft", place: Place::Here { loss: 0 }, apis: &[] },
    Pair {
        name: "soft-soft, 2 % loss",
        place: Place::Here { loss: 2 },
        apis: &["threads-threads", "tasks-tasks"],
    },
    Pair { name: "ibv-ibv", place: Place::Guest("ibv_ibv"), apis: &["threads-threads", "tasks-tasks"] },
    Pair { name: "soft-ibv", place: Place::Guest("soft_ibv"), apis: &["threads-tasks", "tasks-threads"] },
    Pair { name: "ibv-soft", place: Place::Guest("ibv_soft"), apis: &["threads-tasks", "tasks-threads"] },
];

/// The shell functions for pairs in the guest.
const FUNCTIONS: &str = include_str!("guest.sh");

/// Time limit of the guest in seconds, including boot.
const SECONDS: u64 = 700;

/// Builds the program, runs every pair, and prints the results.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let start = Instant::now();
    let program = programs::example("net_pair")?;
    let cases = process::text(Command::new(&program).arg("list"))?;
    let is_chosen =
        |name: &str, words: &[String]| words.is_empty() || words.iter().any(|word| name.contains(word));
    let cases: Vec<&str> = cases.lines().filter(|name| is_chosen(name, &args.case)).collect();
    let pairs: Vec<&Pair> = PAIRS.iter().filter(|pair| is_chosen(pair.name, &args.pair)).collect();
    if cases.is_empty() || pairs.is_empty() {
        let names: Vec<&str> = PAIRS.iter().map(|pair| pair.name).collect();
        bail!("no pair or no case matches; the pairs are: {}", names.join("; "));
    }
    let mut results = Results::default();
    for pair in &pairs {
        if let Place::Here { loss } = pair.place {
            println!("{}:", pair.name);
            let printed = here::run(&program, loss, &arguments(pair, &cases))?;
            results.add(pair.name, &printed.out, printed.is_ok, &printed.errors);
        }
    }
    let guests: Vec<&Pair> =
        pairs.iter().copied().filter(|pair| matches!(pair.place, Place::Guest(_))).collect();
    let (first, commit) = sample::of_this_commit(3);
    let step = if args.third { 3 } else { 1 };
    let guest_cases: Vec<&str> = cases.iter().copied().skip(first as usize % step).step_by(step).collect();
    if !guests.is_empty() {
        if args.third {
            println!(
                "in the guest: {} of {} cases, chosen by the commit {commit}",
                guest_cases.len(),
                cases.len()
            );
        }
        run_in_guest(&program, &guests, &guest_cases, &mut results)?;
    }
    let columns: Vec<Column<'_>> = pairs
        .iter()
        .map(|pair| match pair.place {
            Place::Here { .. } => Column { pair: pair.name, cases: &cases },
            Place::Guest(_) => Column { pair: pair.name, cases: &guest_cases },
        })
        .collect();
    print!("{}", table::table(&cases, &columns, &results));
    let failures = table::failures(&columns, &results);
    failures.iter().for_each(|failure| println!("FAILED  {failure}"));
    println!(
        "{} runs, {} failed; {:.0} s",
        results.runs.len(),
        failures.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the program's arguments for a pair and the cases.
fn arguments(pair: &Pair, cases: &[&str]) -> Vec<String> {
    let apis = pair.apis.iter().flat_map(|apis| ["--apis", apis]);
    apis.chain(cases.iter().flat_map(|case| ["--only", case])).map(str::to_owned).collect()
}

/// Boots a guest and runs the pairs in it.
fn run_in_guest(program: &str, pairs: &[&Pair], cases: &[&str], results: &mut Results) -> Result<()> {
    let lines: Vec<String> = pairs
        .iter()
        .map(|pair| {
            let Place::Guest(function) = pair.place else {
                unreachable!("only pairs in the guest are passed")
            };
            let (functions, words) = (interop::FUNCTIONS, arguments(pair, cases).join(" "));
            format!("{functions}\n{FUNCTIONS}\n{function} {} {words}", process::quote(program))
        })
        .collect();
    let options = Options { timeout: SECONDS, mtu: 1500, cpus: 2, icount: false, out: None, verbose: false };
    let mut guest = vm::prepare(&options)?;
    guest.keep_going();
    let mut collector = Collector { pairs, results, out: String::new(), errors: String::new() };
    let report = guest.run(&lines, &mut collector)?;
    vm::explain(&report, &options);
    if let Some(problem) = report.kernel_problem {
        results.problems.push(format!("{problem} in the guest's kernel"));
    }
    if report.statuses.len() < pairs.len() {
        results.problems.push("the guest exited early".to_owned());
    }
    Ok(())
}

/// Collects the output of the pairs in the guest.
struct Collector<'a> {
    pairs: &'a [&'a Pair],
    results: &'a mut Results,
    out: String,
    errors: String,
}

impl Observer for Collector<'_> {
    fn started(&mut self, index: usize) {
        println!("{}:", self.pairs[index].name);
        self.out.clear();
        self.errors.clear();
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        match stream {
            Stream::Out => {
                print!("{text}");
                self.out += &text;
            }
            Stream::Err => self.errors += &text,
        }
        Ok(())
    }

    fn finished(&mut self, index: usize, status: u8) {
        self.results.add(self.pairs[index].name, &self.out, status == 0, &self.errors);
    }
}
