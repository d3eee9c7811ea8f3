//! The long form of the tests: the programs of perftest and UCX with many options, without loss and with 1 % loss.

use std::path::Path;

use anyhow::{Result, ensure};

use super::programs::pair;

/// Programs of perftest that run with the same options.
struct Perftest {
    programs: &'static [&'static str],
    options: &'static str,
    /// Whether lost packets are retransmitted. Programs wait forever for messages that are lost.
    is_reliable: bool,
}

impl Perftest {
    const fn reliable(programs: &'static [&'static str], options: &'static str) -> Perftest {
        Perftest { programs, options, is_reliable: true }
    }

    const fn unreliable(programs: &'static [&'static str], options: &'static str) -> Perftest {
        Perftest { programs, options, is_reliable: false }
    }
}

const BANDWIDTH: &[&str] = &["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"];
const LATENCY: &[&str] = &["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat"];

/// The options of perftest. It has no events for WRITEs and refuses `-R` with UC.
const PERFTEST: &[Perftest] = &[
    Perftest::reliable(BANDWIDTH, "-n 500"),
    Perftest::reliable(LATENCY, "-n 500"),
    Perftest::reliable(BANDWIDTH, "-n 200 -R"),
    Perftest::reliable(LATENCY, "-n 200 -R"),
    Perftest::reliable(BANDWIDTH, "-n 100 -q 16"),
    Perftest::reliable(BANDWIDTH, "-n 200 -b"),
    Perftest::reliable(&["ib_send_bw", "ib_write_bw", "ib_read_bw"], "-n 10 -a"),
    Perftest::reliable(&["ib_send_lat", "ib_write_lat", "ib_read_lat"], "-n 10 -a"),
    Perftest::reliable(&["ib_send_bw", "ib_read_bw", "ib_atomic_bw"], "-n 200 -e"),
    Perftest::reliable(&["ib_send_lat", "ib_read_lat", "ib_atomic_lat"], "-n 200 -e"),
    Perftest::reliable(&["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"], "-n 200 -s 64 -I 64"),
    Perftest::reliable(&["ib_send_bw"], "-n 200 --use-srq -q 4"),
    Perftest::reliable(&["ib_send_lat"], "-n 200 --use-srq"),
    Perftest::unreliable(&["ib_send_bw", "ib_write_bw"], "-n 200 -c UC -t 4"),
    Perftest::unreliable(&["ib_send_lat", "ib_write_lat"], "-n 200 -c UC"),
    Perftest::unreliable(&["ib_send_bw"], "-n 200 -c UD -t 4"),
    Perftest::unreliable(&["ib_send_lat"], "-n 200 -c UD"),
    Perftest::unreliable(&["ib_send_lat"], "-n 200 -c UD -e"),
    Perftest::unreliable(&["ib_send_lat"], "-n 200 -c UD -R"),
];

/// The tests of `ucx_perftest`, over each of [`UCX_TRANSPORTS`].
const UCX_TESTS: &[&str] = &[
    "tag_lat",
    "tag_bw",
    "stream_lat",
    "ucp_am_lat",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "ucp_fadd",
    "ucp_cswap",
];

const UCX_TRANSPORTS: &[&str] = &["ud_verbs", "rc_verbs,ud_verbs"];

/// Runs all programs, with the command `adverb` and the libraries in this directory, and prints their results. Reports
/// failures at the end.
pub(super) fn run(directory: &Path) -> Result<()> {
    let (mut count, mut failures) = (0, Vec::new());
    let mut record = |name: &str, loss: &str, result: Result<String>| {
        count += 1;
        match result {
            Ok(line) => println!("{name}, {loss} % loss: {line}"),
            Err(error) => {
                println!("{name}, {loss} % loss: FAILED: {error:#}");
                failures.push(format!("{name}, {loss} % loss"));
            }
        }
    };
    for Perftest { programs, options, is_reliable } in PERFTEST {
        for program in *programs {
            for loss in if *is_reliable { &["0", "1"][..] } else { &["0"] } {
                let words: Vec<&str> = options.split_whitespace().collect();
                let result = attempt(directory, loss, &[], program, &words, "#bytes");
                record(&format!("{program} {options}"), loss, result);
            }
        }
    }
    for transports in UCX_TRANSPORTS {
        for test in UCX_TESTS {
            for loss in ["0", "1"] {
                let environment = [("UCX_TLS", *transports), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
                // Atomics are of 4 or 8 bytes.
                let len = if matches!(*test, "ucp_fadd" | "ucp_cswap") { "8" } else { "64" };
                let options = ["-t", test, "-n", "500", "-w", "20", "-s", len];
                let result = attempt(directory, loss, &environment, "ucx_perftest", &options, "Final:");
                record(&format!("ucx_perftest -t {test} over {transports}"), loss, result);
            }
        }
    }
    println!("{count} runs, {} failed", failures.len());
    ensure!(failures.is_empty(), "failed: {}", failures.join("; "));
    Ok(())
}

/// Runs a pair of programs, up to five times if packets are lost, with different seeds: the last acknowledgement of a
/// process that has exited isn't repeated. Returns the client's result: the line with the heading, or the line after it if
/// the heading is that of a table.
fn attempt(
    directory: &Path,
    loss: &str,
    environment: &[(&str, &str)],
    program: &str,
    options: &[&str],
    heading: &str,
) -> Result<String> {
    let attempts = if loss == "0" { 1 } else { 5 };
    let mut result = Ok(String::new());
    for seed in 1..=attempts {
        let run_options = ["--quiet", "--loss", loss, "--seed", &seed.to_string()];
        result = pair(directory, &run_options, environment, program, options).and_then(|(errors, text)| {
            let mut lines = text.lines().skip_while(|line| !line.contains(heading));
            let line = if heading.starts_with('#') { lines.nth(1) } else { lines.next() };
            ensure!(line.is_some(), "it measured nothing:\n{text}{errors}");
            let words: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
            let attempt = if seed > 1 { format!(" (attempt {seed})") } else { String::new() };
            Ok(words.join(" ") + &attempt)
        });
        if result.is_ok() {
            break;
        }
    }
    result
}
