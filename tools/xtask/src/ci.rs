//! `cargo xtask ci`: the checks that a change must pass, in order.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use clap::builder::PossibleValuesParser;

use crate::Cli;

/// A group of steps that a pull request runs on one machine: a row of the matrix in `.github/workflows/ci.yml`.
pub(crate) struct Job {
    pub(crate) name: &'static str,
    /// The steps, as typed after `cargo xtask`.
    pub(crate) steps: &'static [&'static str],
}

/// All checks; cheap jobs first, so that simple mistakes are reported early.
pub(crate) const JOBS: &[Job] = &[
    Job {
        name: LINTS,
        steps: &["fmt", "spelling", "workflows", "unsafe-inventory", "deny", "clippy", "doc", "site --check"],
    },
    Job { name: "msrv", steps: &["msrv"] },
    Job { name: "test", steps: &["test", "examples", "loom", "exhaustive", "wire-check", "overhead"] },
    Job {
        name: "package",
        steps: &["hack", "wasm", "package", "dist --quick", "install-check --quick --releases 12"],
    },
    Job { name: "miri", steps: &["miri"] },
    Job {
        name: "sim",
        steps: &[
            "sim --seeds 2000",
            "sim --net --exhaustive",
            "sim --mutants --seeds 10000",
            "attack --seconds 40",
            "attack --nic --seconds 20",
        ],
    },
    Job { name: "fuzz", steps: &["fuzz --seconds 36", "fuzz --seconds 30 handshake"] },
    Job {
        name: "soft",
        steps: &[
            "conformance --backend soft --loss 0",
            "conformance --backend soft --link udp --loss 1",
            "traffic",
            "soak --seconds 20",
            "cluster --messages 100000 --kill-seconds 4 --ack-timeout 17",
        ],
    },
    Job {
        name: "vm",
        steps: &["vm smoke", "device-tests", "conformance --backend ibv", "interop", "net --third"],
    },
    Job { name: "sanitizers", steps: &["tsan", "asan"] },
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
    fn steps(&self) -> Vec<&'static str> {
        let job = if self.quick { Some(LINTS) } else { self.job.as_deref() };
        let before = (job.is_none()).then_some("setup");
        let jobs = JOBS.iter().filter(|Job { name, .. }| job.is_none_or(|job| job == *name));
        let steps = jobs.flat_map(|job| job.steps).copied();
        before.into_iter().chain(steps).chain(self.quick.then_some("test --quick")).collect()
    }
}

/// Runs the steps until one fails, then prints the duration of each.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let steps = args.steps();
    let start = Instant::now();
    let mut rows = Vec::new();
    let mut passed = true;
    for step in steps {
        if !passed {
            rows.push(Row { step, took: None, result: "not run" });
            continue;
        }
        println!("==> {step}");
        let start = Instant::now();
        passed = run_step(step);
        let took = start.elapsed();
        let result = if passed { "ok" } else { "FAILED" };
        println!("==> {step}: {result} in {:.1} s\n", took.as_secs_f64());
        rows.push(Row { step, took: Some(took), result });
    }
    print!("{}", table(&rows));
    let verdict = if passed { "passed" } else { "FAILED" };
    println!("ci {verdict} in {:.1} s", start.elapsed().as_secs_f64());
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    took: Option<Duration>,
    result: &'static str,
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.step.len()).max().unwrap_or(0).max("step".len());
    let mut text = format!("{:width$}  {:>8}  result\n", "step", "seconds");
    for Row { step, took, result } in rows {
        let took = took.map_or("-".to_owned(), |took| format!("{:.1}", took.as_secs_f64()));
        text += &format!("{step:width$}  {took:>8}  {result}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_a_command_that_can_be_typed() {
        for quick in [false, true] {
            for step in (Args { quick, job: None }).steps() {
                parse(step).unwrap_or_else(|error| panic!("{step}: {error}"));
            }
        }
    }

    #[test]
    fn a_job_has_its_own_steps_and_all_jobs_follow_setup() {
        let steps = |quick, job: Option<&str>| Args { quick, job: job.map(str::to_owned) }.steps();
        assert_eq!(steps(false, Some("sanitizers")), ["tsan", "asan"]);
        let all = steps(false, None);
        assert_eq!((all[0], all.len()), ("setup", 1 + JOBS.iter().map(|job| job.steps.len()).sum::<usize>()));
        assert_eq!(steps(true, None).last(), Some(&"test --quick"));
    }

    #[test]
    fn columns_of_the_table_are_aligned() {
        let rows = [
            Row { step: "fmt", took: Some(Duration::from_millis(1234)), result: "ok" },
            Row { step: "vm smoke", took: None, result: "not run" },
        ];
        assert_eq!(
            table(&rows),
            "step       seconds  result\n\
             fmt            1.2  ok\n\
             vm smoke         -  not run\n"
        );
    }
}
