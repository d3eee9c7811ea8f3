//! `cargo xtask traffic`: DSCP and ECN marks and the source ports of flow labels, as the kernel sees them. dumpcap
//! captures the loopback interface while tests run (`congestion.rs` and `flow_labels.rs` in `crates/adverb/tests`; they
//! check only the devices' own captures).

use std::collections::{BTreeMap, BTreeSet};
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

/// The opcodes of the packets that carry their flow label as immediate data: UD and RC SENDs in one packet.
const LABELED: &[(&str, u32)] = &[("datagrams", 0x65), ("packets of connections", 0x05)];

/// The number of flow labels that `flow_labels.rs` uses for each opcode.
const LABEL_COUNT: usize = 64;

struct Kind {
    dscp: u32,
    ecn: u32,
    opcode: Option<u32>,
}

/// Runs the tests while capturing, and checks the capture.
pub(crate) fn run() -> Result<()> {
    packages::ensure(&["tshark"])?;
    // The same packages and features as in `cargo xtask test`, so that no library is compiled again.
    let tests = ["congestion", "flow_labels"]
        .map(|test| process::build(&format!("test --workspace --all-features --test {test} --no-run")));
    let tests = tests.into_iter().collect::<Result<Vec<_>>>()?;
    // One test at a time: a test that opens a device can delay the end of another test's capture.
    let arguments = ["--nocapture", "--test-threads=1"];
    let run_tests = || tests.iter().try_for_each(|test| process::run(Command::new(test).args(arguments)));
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
            return run_tests();
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "dumpcap did not start to capture within 60 s");
        std::thread::sleep(Duration::from_millis(20));
    }
    let passed = run_tests();
    // dumpcap reads the kernel's buffer every 250 ms, and discards the packets that it has not read when it is stopped.
    std::thread::sleep(Duration::from_secs(1));
    // This is the shell's builtin `kill`, because some machines have no such program.
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
    check_ports(&file)
}

/// Counts the captured packets by DSCP, ECN and opcode. A GSO batch counts once.
fn counts(file: &Path) -> Result<BTreeMap<(u32, u32, u32), u64>> {
    let mut counts = BTreeMap::new();
    let names = ["ip.dsfield.dscp", "ip.dsfield.ecn", "infiniband.bth.opcode"];
    for [dscp, ecn, opcode] in read(file, names, number)? {
        *counts.entry((dscp, ecn, opcode)).or_default() += 1;
    }
    Ok(counts)
}

/// Checks that each packet with a flow label has the source port of that label.
fn check_ports(file: &Path) -> Result<()> {
    let packets = read(file, ["infiniband.bth.opcode", "infiniband.immdt", "udp.srcport"], number_or_bytes)?;
    for (what, opcode) in LABELED {
        let labeled = packets.iter().filter(|[of, ..]| of == opcode);
        let ports: BTreeSet<_> = labeled.map(|[_, label, port]| (*label, *port)).collect();
        for (label, port) in &ports {
            let expected = source_port(*label);
            ensure!(*port == expected, "{what} with flow label {label:#x}: from {port}, not from {expected}");
        }
        println!("the kernel saw {what} with {} flow labels, each from the label's source port", ports.len());
        ensure!(ports.len() == LABEL_COUNT, "the capture has not {LABEL_COUNT} flow labels of {what}");
    }
    Ok(())
}

/// Returns the UDP source port of a flow label, as `rdma_flow_label_to_udp_sport` in Linux's `include/rdma/ib_verbs.h`
/// does.
fn source_port(label: u32) -> u32 {
    let (low, high) = (label & 0x0_3fff, label & 0xf_c000);
    (low ^ high >> 14) | 0xc000
}

/// Returns these fields of the captured packets that have all of them.
fn read<const N: usize>(
    file: &Path,
    names: [&str; N],
    value: impl Fn(&str) -> Option<u32>,
) -> Result<Vec<[u32; N]>> {
    let mut tshark = Command::new("tshark");
    // tshark names the immediate data's header like its value: the first occurrence has the value, too.
    tshark
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "occurrence=f"])
        .args(names.iter().flat_map(|name| ["-e", name]));
    Ok(process::text(&mut tshark)?.lines().filter_map(|line| fields(line, &value)).collect())
}

/// Parses a line of tshark's output.
fn fields<const N: usize>(line: &str, value: impl Fn(&str) -> Option<u32>) -> Option<[u32; N]> {
    let values: Option<Vec<u32>> = line.split('\t').map(value).collect();
    values?.try_into().ok()
}

/// Parses a number.
fn number(word: &str) -> Option<u32> {
    match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

/// Parses a number, or four bytes: tshark prints those as eight hexadecimal digits, some versions with colons.
fn number_or_bytes(word: &str) -> Option<u32> {
    let digits = word.replace(':', "");
    if digits.len() == 8 { u32::from_str_radix(&digits, 16).ok() } else { number(word) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_tsharks_lines() {
        assert_eq!(fields("26\t3\t0x81", number), Some([26, 3, 0x81]));
        assert_eq!(fields("5\t000f3abc\t49153", number_or_bytes), Some([5, 0xf_3abc, 49153]));
        assert_eq!(fields("5\t00:0f:3a:bc\t49153", number_or_bytes), Some([5, 0xf_3abc, 49153]));
        for line in ["26\t3\t", "26\t3", ""] {
            assert_eq!(fields::<3>(line, number), None);
        }
    }

    #[test]
    fn a_flow_label_has_the_source_port_of_linux() {
        assert_eq!(source_port(0x1_2345), 0xe341);
        assert_eq!(source_port(0xf_ffff), 0xffc0);
    }
}
