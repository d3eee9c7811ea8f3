//! `cargo xtask traffic`: are DSCP and ECN marks in the packets that the kernel sees? The tests of adverb that set them run
//! (`crates/adverb/tests/congestion.rs`, which look at the devices' own captures) while dumpcap watches the loopback interface.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use support::{packages, paths, process};

/// Where the tests' devices are.
const FILTER: &str = "udp port 4791 and net 127.128.0.0/10";

/// What must have been seen: how many packets of this DSCP, with these ECN bits and of this operation.
const SEEN: &[(&str, Kind)] = &[
    (
        "WRITEs with DSCP 26, of a sender that doesn't heed congestion",
        Kind { dscp: 26, ecn: 0, opcode: Some(6) },
    ),
    ("packets with DSCP 26, of a sender that heeds it", Kind { dscp: 26, ecn: 2, opcode: None }),
    ("packets with DSCP 26, marked as by a congested switch", Kind { dscp: 26, ecn: 3, opcode: None }),
    ("congestion notifications", Kind { dscp: 0, ecn: 0, opcode: Some(0x81) }),
];

struct Kind {
    dscp: u32,
    ecn: u32,
    opcode: Option<u32>,
}

/// Runs the tests, and looks at what was captured meanwhile.
pub(crate) fn run() -> Result<()> {
    packages::ensure(&["tshark"])?;
    let tests = process::build("test -p adverb --test congestion --no-run")?;
    let file = paths::cache()?.join("traffic.pcapng");
    _ = std::fs::remove_file(&file);
    let mut dumpcap = Command::new("dumpcap");
    dumpcap.args(["-q", "-i", "lo", "-B", "64", "-f", FILTER, "-w"]).arg(&file);
    let mut watching = dumpcap.stderr(Stdio::null()).spawn().context("dumpcap didn't start")?;
    let start = Instant::now();
    // It makes the file when it sees packets; where it may not, it ends at once.
    while std::fs::metadata(&file).map_or(0, |metadata| metadata.len()) == 0 {
        if let Some(status) = watching.try_wait()? {
            println!(
                "the kernel's view is left out: dumpcap may not capture here ({status}); the tests alone:"
            );
            return process::run(Command::new(&tests).arg("--nocapture"));
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "dumpcap doesn't begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let passed = process::run(Command::new(&tests).arg("--nocapture"));
    // The shell's own: a machine may have no program of that name.
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
        ensure!(count > 0, "none were seen");
    }
    Ok(())
}

/// How many packets were captured of each DSCP, ECN and opcode. Several that travel as one count once.
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

/// The numbers of a line of tshark's.
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
