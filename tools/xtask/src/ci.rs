//! `cargo xtask ci`: the checks that a change must pass, in order.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;

use crate::Cli;

/// The steps, as typed after `cargo xtask`; cheap ones first, so that simple mistakes are reported early.
const STEPS: &[&str] = &[
    "setup",
    "fmt",
    "spelling",
    "workflows",
    "clippy",
    "unsafe-inventory",
    "hack",
    "wasm",
    "package",
    "doc",
    "test",
    "examples",
    "newcomer",
    "loom",
    "miri",
    "exhaustive",
    "sim --seeds 2000",
    "sim --net --exhaustive",
    "sim --mutants",
    "attack --seconds 40",
    "attack --nic --seconds 20",
    "wire-check",
    "overhead",
    "deny",
    "fuzz --seconds 60",
    "fuzz --seconds 60 handshake",
    "vm smoke",
    "device-tests",
    "conformance --backend soft --loss 0",
    "conformance --backend soft --link udp --loss 1",
    "traffic",
    "tsan",
    "soak --seconds 20",
    "cluster --messages 100000 --kill-seconds 4 --ack-timeout 17",
    "conformance --backend ibv",
    "interop",
    "net",
    "asan",
];

/// The steps of `cargo xtask ci --quick`: those that need neither a virtual machine nor a build with other options.
const QUICK_STEPS: &[&str] =
    &["fmt", "spelling", "workflows", "unsafe-inventory", "deny", "clippy", "doc", "test --quick"];

/// The options of `cargo xtask ci`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the checks for a change in progress: a few minutes after an earlier build, and no virtual machine.
    #[arg(long)]
    quick: bool,
}

/// Runs the steps until one fails, then prints the duration of each.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let steps = if args.quick { QUICK_STEPS } else { STEPS };
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
        for step in STEPS.iter().chain(QUICK_STEPS) {
            parse(step).unwrap_or_else(|error| panic!("{step}: {error}"));
        }
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
