//! `cargo xtask vm smoke`: is the guest good for something?

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use support::process;

use super::guest::{Observer, Stream};
use super::{Options, explain, prepare};

/// The shell functions that the checks call.
const FUNCTIONS: &str = include_str!("smoke.sh");

/// A check: what it shows, and the line of shell that shows it.
struct Check {
    name: &'static str,
    line: String,
}

/// Runs every check in one boot, those after a failing one too, and says of each whether it passed.
pub(super) fn run(options: &Options) -> Result<ExitCode> {
    let ud_pingpong = process::build("build --release -p adverb-wire --example ud_pingpong")?;
    let adverb = process::build("build --release -p adverb-cli")?;
    let connect = process::build("build --release -p adverb-proto --example connect")?;
    let checks = checks(&ud_pingpong, &adverb, &connect);
    let lines: Vec<String> = checks.iter().map(|check| format!("{FUNCTIONS}\n{}", check.line)).collect();
    let mut guest = prepare(options)?;
    guest.keep_going();
    let report = guest.run(&lines, &mut Results { checks: &checks, said: Vec::new() })?;
    let well = report.trouble.is_none();
    match report.trouble {
        Some(trouble) => println!("FAILED  the kernel is well: {trouble}"),
        None => println!("ok      the kernel is well: no oops, no warning"),
    }
    if let Some(boot) = report.boot {
        println!("        (ready after {:.1} s)", boot.as_secs_f64());
    }
    let passed = explain(&report, options) == 0 && well;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn checks(ud_pingpong: &str, adverb: &str, connect: &str) -> Vec<Check> {
    let [program, adverb, connect] = [ud_pingpong, adverb, connect].map(process::quote);
    vec![
        Check { name: "verbs on rxe0: ibv_rc_pingpong with itself", line: "rc_pingpong".into() },
        Check {
            name: "adverb-wire without privileges and rxe0: 1,000 UD messages over IPv4",
            line: format!("ud_pingpong {program} 1 10.77.0.2 10.77.0.1"),
        },
        Check {
            name: "adverb-wire without privileges and rxe0: 1,000 UD messages over IPv6",
            line: format!("ud_pingpong {program} 2 fd77::2 fd77::1"),
        },
        Check {
            name: "adverb-proto's connection manager and Linux's",
            line: format!("connection_manager {connect}"),
        },
        Check { name: "adverb stat of rxe0 under traffic", line: format!("stat {adverb}") },
    ]
}

/// Prints a line for each check: that it passed and the last thing that it said, or that it failed and all of it.
struct Results<'a> {
    checks: &'a [Check],
    said: Vec<u8>,
}

impl Observer for Results<'_> {
    fn started(&mut self, _index: usize) {
        self.said.clear();
    }

    fn output(&mut self, _stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.said.extend_from_slice(bytes);
        Ok(())
    }

    fn finished(&mut self, index: usize, status: u8) {
        let name = self.checks[index].name;
        let said = String::from_utf8_lossy(&self.said);
        if status == 0 {
            println!("ok      {name}: {}", said.lines().last().unwrap_or_default().trim());
        } else {
            println!("FAILED  {name} (status {status})");
            said.lines().for_each(|line| println!("        | {line}"));
        }
    }
}
