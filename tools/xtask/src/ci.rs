//! `cargo xtask ci`: the checks that a change must pass.
//!
//! All checks run in two lanes side by side: many tests only wait, for emulated CPUs or for timeouts, and the compilers use
//! the CPUs meanwhile. The builds have a low priority, so that they delay no test. Each step's output is printed when the
//! step ends. The steps of `--quick` and `--job` run one after the other.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use support::paths;

use crate::Cli;

/// A group of steps that a pull request runs on one machine: a row of the matrix in `.github/workflows/ci.yml`.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The lane in which `cargo xtask ci` runs the job.
    lane: Lane,
    /// The steps, as typed after `cargo xtask`.
    pub(crate) steps: &'static [&'static str],
}

/// One of the two sequences of jobs that run side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lane {
    /// Tests with time limits, and all tests that use the network: they would see each other's packets.
    Tests,
    /// Builds and computations, at low priority.
    Builds,
}

/// All checks. In each lane, cheap jobs run first, so that simple mistakes are reported early. The tests begin with guests,
/// whose programs are compiled with optimization: cargo compiles without optimization for one lane at a time.
pub(crate) const JOBS: &[Job] = &[
    Job {
        name: LINTS,
        lane: Lane::Builds,
        steps: &["fmt", "spelling", "workflows", "unsafe-inventory", "deny", "clippy", "doc", "site --check"],
    },
    Job { name: "msrv", lane: Lane::Builds, steps: &["msrv"] },
    Job {
        name: "vm",
        lane: Lane::Tests,
        steps: &["vm smoke", "device-tests", "conformance --backend ibv", "interop", "net --third"],
    },
    Job { name: "test", lane: Lane::Tests, steps: &["test", "examples"] },
    Job {
        name: "soft",
        lane: Lane::Tests,
        steps: &[
            "conformance --backend soft --loss 0",
            "conformance --backend soft --link udp --loss 1",
            "traffic",
            "attack --nic --seconds 20",
            "soak --seconds 20",
            "cluster --messages 100000 --kill-seconds 4 --ack-timeout 17",
        ],
    },
    Job { name: "sanitizers", lane: Lane::Tests, steps: &["tsan", "asan"] },
    Job {
        name: "package",
        lane: Lane::Builds,
        steps: &["hack", "wasm", "package", "dist --quick", "install-check --quick --releases 12"],
    },
    Job { name: "miri", lane: Lane::Builds, steps: &["miri"] },
    Job {
        name: "sim",
        lane: Lane::Builds,
        steps: &[
            "loom",
            "exhaustive",
            "wire-check",
            "sim --seeds 2000",
            "sim --net --exhaustive",
            "sim --mutants --seeds 10000",
            "attack --seconds 40",
            "overhead",
        ],
    },
    Job { name: "fuzz", lane: Lane::Builds, steps: &["fuzz --seconds 36", "fuzz --seconds 30 handshake"] },
];

/// The job that `--quick` includes.
const LINTS: &str = "lints";

/// The options of `cargo xtask ci`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the checks for a change in progress: a few minutes after an earlier build, and no virtual machine.
    #[arg(long)]
    quick: bool,
    /// Run only the steps of one job, without `setup`.
    #[arg(long, conflicts_with = "quick", value_parser = PossibleValuesParser::new(JOBS.iter().map(|job| job.name)))]
    job: Option<String>,
}

impl Args {
    /// Returns the steps that run one after the other, before the lanes.
    fn steps(&self) -> Vec<&'static str> {
        let job = if self.quick { Some(LINTS) } else { self.job.as_deref() };
        let Some(job) = job else { return vec!["setup"] };
        let jobs = JOBS.iter().filter(|Job { name, .. }| job == *name);
        let steps = jobs.flat_map(|job| job.steps).copied();
        steps.chain(self.quick.then_some("test --quick")).collect()
    }

    /// Whether the lanes run: all checks.
    fn is_all(&self) -> bool {
        !self.quick && self.job.is_none()
    }
}

impl Lane {
    /// Returns the steps of the lane's jobs.
    fn steps(self) -> Vec<&'static str> {
        JOBS.iter().filter(|job| job.lane == self).flat_map(|job| job.steps).copied().collect()
    }

    /// Returns the command that runs a step in a process of its own.
    fn command(self, step: &str) -> Command {
        // A step can compile this program again: this is the running program, also if its file was replaced.
        let program = format!("/proc/{}/exe", std::process::id());
        let mut command = match self {
            Self::Tests => Command::new(program),
            Self::Builds => {
                let mut nice = Command::new("nice");
                nice.args(["-n", "10", &program]);
                nice
            }
        };
        command.args(step.split_whitespace());
        command
    }
}

/// Runs the steps until one fails, then prints the duration of each.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let run = Run { start: Instant::now(), failed: AtomicBool::new(false) };
    let mut rows = run.steps(&args.steps(), run_here);
    if args.is_all() {
        let outputs = paths::cache()?.join("ci");
        fs::create_dir_all(&outputs).with_context(|| format!("could not create {}", outputs.display()))?;
        println!("the outputs of running steps are in {}\n", outputs.display());
        let lane = |lane: Lane| run.steps(&lane.steps(), |step| run_beside(lane, step, &outputs));
        let (tests, builds) = thread::scope(|scope| {
            let builds = scope.spawn(|| lane(Lane::Builds));
            (lane(Lane::Tests), builds.join().expect("the thread does not panic"))
        });
        rows.extend(tests.into_iter().chain(builds));
    }
    print!("{}", table(&rows));
    let passed = !run.failed.load(Ordering::Relaxed);
    let verdict = if passed { "passed" } else { "FAILED" };
    println!("ci {verdict} in {:.1} s", run.start.elapsed().as_secs_f64());
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The state that the lanes share.
struct Run {
    start: Instant,
    /// Whether a step failed. Then no step starts, but the other lane's current step runs to its end.
    failed: AtomicBool,
}

impl Run {
    /// Runs steps one after the other. `run_step` returns whether the step passed, and the output that was not printed.
    fn steps(&self, steps: &[&'static str], run_step: impl Fn(&str) -> (bool, Vec<u8>)) -> Vec<Row> {
        let mut rows = Vec::new();
        for &step in steps {
            if self.failed.load(Ordering::Relaxed) {
                rows.push(Row { step, ran: None, result: "not run" });
                continue;
            }
            println!("==> {step}");
            let started = self.start.elapsed();
            let (passed, output) = run_step(step);
            let took = self.start.elapsed() - started;
            self.failed.fetch_or(!passed, Ordering::Relaxed);
            let result = if passed { "ok" } else { "FAILED" };
            // The other lane prints nothing in between.
            let mut out = io::stdout().lock();
            if !output.is_empty() {
                _ = writeln!(out, "\n==> {step}: output").and_then(|()| out.write_all(&output));
            }
            _ = writeln!(out, "==> {step}: {result} in {:.1} s\n", took.as_secs_f64());
            rows.push(Row { step, ran: Some((started, took)), result });
        }
        rows
    }
}

/// Runs one step in this process, which prints its output.
fn run_here(step: &str) -> (bool, Vec<u8>) {
    (run_step(step), Vec::new())
}

/// Runs one step in a process of its own, and returns its output, which is in a file of the directory meanwhile.
fn run_beside(lane: Lane, step: &str, outputs: &Path) -> (bool, Vec<u8>) {
    let path = outputs.join(step.replace(' ', "_")).with_extension("txt");
    let status = File::create(&path).and_then(|file| {
        let mut command = lane.command(step);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status()
    });
    let output = status.and_then(|status| Ok((status.success(), fs::read(&path)?)));
    output.unwrap_or_else(|error| (false, format!("error: {}: {error}\n", path.display()).into_bytes()))
}

/// Runs one step through the command-line parser, so every step is a command that a developer can type.
fn run_step(step: &str) -> bool {
    match parse(step).map_err(anyhow::Error::from).and_then(|cli| cli.command.run()) {
        Ok(code) => code == ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            false
        }
    }
}

fn parse(step: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["xtask"].into_iter().chain(step.split_whitespace()))
}

/// A row of the final table.
struct Row {
    step: &'static str,
    /// The time since the start of the run, and the duration.
    ran: Option<(Duration, Duration)>,
    result: &'static str,
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.step.len()).max().unwrap_or(0).max("step".len());
    let mut text = format!("{:width$}  {:>8}  {:>8}  result\n", "step", "start", "seconds");
    for Row { step, ran, result } in rows {
        let [start, took] = match ran {
            Some((start, took)) => [start, took].map(|time| format!("{:.1}", time.as_secs_f64())),
            None => ["-", "-"].map(str::to_owned),
        };
        text += &format!("{step:width$}  {start:>8}  {took:>8}  {result}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_a_command_that_can_be_typed() {
        let quick = Args { quick: true, job: None }.steps();
        for step in [&["setup"][..], &quick, &Lane::Tests.steps(), &Lane::Builds.steps()].concat() {
            parse(step).unwrap_or_else(|error| panic!("{step}: {error}"));
        }
    }

    #[test]
    fn a_job_has_its_own_steps_and_all_jobs_follow_setup() {
        let args = |quick, job: Option<&str>| Args { quick, job: job.map(str::to_owned) };
        let job = args(false, Some("sanitizers"));
        assert_eq!((job.steps(), job.is_all()), (vec!["tsan", "asan"], false));
        let all = args(false, None);
        assert_eq!((all.steps(), all.is_all()), (vec!["setup"], true));
        let quick = args(true, None);
        assert_eq!((quick.steps().last(), quick.is_all()), (Some(&"test --quick"), false));
    }

    #[test]
    fn each_step_is_in_one_lane() {
        let mut lanes = [Lane::Tests, Lane::Builds].map(Lane::steps).concat();
        let mut all: Vec<&str> = JOBS.iter().flat_map(|job| job.steps).copied().collect();
        lanes.sort_unstable();
        all.sort_unstable();
        assert_eq!(lanes, all);
    }

    #[test]
    fn no_step_starts_after_a_failure() {
        let run = Run { start: Instant::now(), failed: AtomicBool::new(false) };
        let rows = run.steps(&["a", "b", "c"], |step| (step != "b", Vec::new()));
        assert_eq!(rows.iter().map(|row| row.result).collect::<Vec<_>>(), ["ok", "FAILED", "not run"]);
        let other_lane = run.steps(&["d"], |step| panic!("{step} starts"));
        assert_eq!(other_lane[0].result, "not run");
    }

    #[test]
    fn a_step_beside_another_returns_its_output() {
        let outputs = std::env::temp_dir().join(format!("adverb-ci-{}", std::process::id()));
        fs::create_dir(&outputs).unwrap();
        for lane in [Lane::Tests, Lane::Builds] {
            // This program is a test harness, which has these options.
            let (passed, output) = run_beside(lane, "--list --format terse", &outputs);
            let output = String::from_utf8(output).unwrap();
            assert!(passed && output.contains("a_step_beside_another_returns_its_output"), "{output}");
            let (passed, output) = run_beside(lane, "--no-such-option", &outputs);
            let output = String::from_utf8(output).unwrap();
            assert!(!passed && output.contains("no-such-option"), "{output}");
        }
        fs::remove_dir_all(&outputs).unwrap();
    }

    #[test]
    fn columns_of_the_table_are_aligned() {
        let ran = Some((Duration::from_secs(60), Duration::from_millis(1234)));
        let rows =
            [Row { step: "fmt", ran, result: "ok" }, Row { step: "vm smoke", ran: None, result: "not run" }];
        assert_eq!(
            table(&rows),
            "step         start   seconds  result\n\
             fmt           60.0       1.2  ok\n\
             vm smoke         -         -  not run\n"
        );
    }
}
