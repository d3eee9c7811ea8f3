//! `cargo xtask traffic`: DSCP and ECN marks, as the kernel sees them. dumpcap captures the loopback interface while
//! the congestion tests run (`crates/adverb/tests/congestion.rs`; they check only the devices' own captures).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use support::{packages, paths, process};

/// Capture filter for the addresses of the tests' devices.
const FILTER: &str = "udp port 4791 and net 127.128.0.0/10";

/// The kinds of packets that the capture must contain.
const SEEN: &[(&str, Kind)] = &[
    (
        "WRITEs with DSCP 26, from a sender without congestion control",
        Kind { dscp: 26, ecn: 0, opcode: Some(6) },
    ),
    ("packets with DSCP 26, from a sender with congestion control", Kind { dscp: 26, ecn: 2, opcode: None }),
    ("packets with DSCP 26 and the mark CE", Kind { dscp: 26, ecn: 3, opcode: None }),
    ("congestion notifications", Kind { dscp: 0, ecn: 0, opcode: Some(0x81) }),
];

struct Kind {
    dscp: u32,
    ecn: u32,
    opcode: Option<u32>,
}

/// Runs the tests while capturing, and checks the capture.
pub(crate) fn run() -> Result<()> {
    packages::ensure(&["tshark"])?;
    let tests = process::build("test -p adverb --test congestion --no-run")?;
    let file = paths::cache()?.join("traffic.pcapng");
    _ = std::fs::remove_file(&file);
    let mut dumpcap = Command::new("dumpcap");
    dumpcap.args(["-q", "-i", "lo", "-B", "64", "-f", FILTER, "-w"]).arg(&file);
    let mut watching = dumpcap.stderr(Stdio::null()).spawn().context("could not start dumpcap")?;
    let start = Instant::now();
    // dumpcap creates the file when the capture starts, and exits at once if it lacks permission.
    while std::fs::metadata(&file).map_or(0, |metadata| metadata.len()) == 0 {
        if let Some(status) = watching.try_wait()? {
            println!("capture: SKIPPED, because dumpcap lacks permission ({status}); running only the tests");
            return process::run(Command::new(&tests).arg("--nocapture"));
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "dumpcap did not start to capture within 60 s");
        std::thread::sleep(Duration::from_millis(20));
    }
    let passed = process::run(Command::new(&tests).arg("--nocapture"));
    // The shell's builtin `kill`: some machines have no such program.
    process::run(Command::new("sh").args(["-c", &format!("kill -INT {}", watching.id())]))?;
    watching.wait()?;
    passed?;
    let counts = counts(&file)?;
    for (what, kind) in SEEN {
        let fits = |&(dscp, ecn, opcode): &(u32, u32, u32)| {
            (dscp, ecn) == (kind.dscp, kind.ecn) && kind.opcode.is_none_or(|wanted| wanted == opcode)
        };
        let count: u64 = counts.iter().filter(|(key, _)| fits(key)).map(|(_, count)| count).sum();
        println!("the kernel saw {count} {what}");
        ensure!(count > 0, "the capture has no {what}");
    }
    Ok(())
}

/// Counts the captured packets by DSCP, ECN and opcode. A GSO batch counts once.
fn counts(file: &Path) -> Result<BTreeMap<(u32, u32, u32), u64>> {
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(file).args(["-T", "fields"]);
    tshark
        .args(["ip.dsfield.dscp", "ip.dsfield.ecn", "infiniband.bth.opcode"].iter().flat_map(|f| ["-e", f]));
    let text = process::text(&mut tshark)?;
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        if let Some(key) = fields(line) {
            *counts.entry(key).or_default() += 1;
        }
    }
    Ok(counts)
}

/// Parses a line of tshark's output.
fn fields(line: &str) -> Option<(u32, u32, u32)> {
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    };
    let mut words = line.split('\t').map(number);
    Some((words.next()??, words.next()??, words.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_tsharks_lines() {
        assert_eq!(fields("26\t3\t0x81"), Some((26, 3, 0x81)));
        assert_eq!(fields("26\t3\t"), None);
        assert_eq!(fields(""), None);
    }
}
