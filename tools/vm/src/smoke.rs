//! `cargo xtask vm smoke`: basic checks of the guest, and of Adverb's packets against rxe0.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use support::{process, programs};

use super::guest::{Observer, Stream};
use super::{Options, explain, prepare};

/// The shell functions that the checks call.
const FUNCTIONS: &str = include_str!("smoke.sh");

/// A check: its name and its shell command.
struct Check {
    name: &'static str,
    line: String,
}

/// Runs all checks in one guest, also after a failure, and prints the result of each.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let ud_pingpong = process::build("build --release -p adverb-wire --example ud_pingpong")?;
    let adverb = programs::adverb()?;
    let connect = process::build("build --release -p adverb-proto --example connect")?;
    let checks = checks(&ud_pingpong, &adverb, &connect);
    let lines: Vec<String> = checks.iter().map(|check| format!("{FUNCTIONS}\n{}", check.line)).collect();
    let mut guest = prepare(options)?;
    guest.keep_going();
    let report = guest.run(&lines, &mut Results { checks: &checks, printed: Vec::new() })?;
    let kernel_ok = report.kernel_problem.is_none();
    match report.kernel_problem {
        Some(kernel_problem) => println!("FAILED  no kernel warning or oops: {kernel_problem}"),
        None => println!("ok      no kernel warning or oops"),
    }
    if let Some(boot) = report.boot {
        println!("        (booted in {:.1} s)", boot.as_secs_f64());
    }
    let passed = explain(&report, options) == 0 && kernel_ok;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checks(ud_pingpong: &str, adverb: &str, connect: &str) -> Vec<Check> {
    let [program, adverb, connect] = [ud_pingpong, adverb, connect].map(process::quote);
    vec![
        Check { name: "verbs on rxe0: ibv_rc_pingpong over loopback", line: "rc_pingpong".into() },
        Check {
            name: "unprivileged adverb-wire against rxe0: 1,000 UD messages over IPv4",
            line: format!("ud_pingpong {program} 1 10.77.0.2 10.77.0.1"),
        },
        Check {
            name: "unprivileged adverb-wire against rxe0: 1,000 UD messages over IPv6",
            line: format!("ud_pingpong {program} 2 fd77::2 fd77::1"),
        },
        Check {
            name: "adverb-proto's connection manager against Linux's",
            line: format!("connection_manager {connect}"),
        },
        Check { name: "adverb stat on rxe0 under traffic", line: format!("stat {adverb}") },
    ]
}

/// An observer that prints each check's result: the last line of its output if it passed, all of its output if it
/// failed.
struct Results<'a> {
    checks: &'a [Check],
    printed: Vec<u8>,
}

impl Observer for Results<'_> {
    fn started(&mut self, _index: usize) {
        self.printed.clear();
    }

    fn output(&mut self, _stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.printed.extend_from_slice(bytes);
        Ok(())
    }

    fn finished(&mut self, index: usize, status: u8) {
        let name = self.checks[index].name;
        let printed = String::from_utf8_lossy(&self.printed);
        if status == 0 {
            println!("ok      {name}: {}", printed.lines().last().unwrap_or_default().trim());
        } else {
            println!("FAILED  {name} (status {status})");
            printed.lines().for_each(|line| println!("        | {line}"));
        }
    }
}
