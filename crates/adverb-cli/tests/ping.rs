//! `adverb ping` and `adverb respond` as two processes, over loopback.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

/// Returns a loopback address of this process and test.
fn loopback(number: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high & 0x7f, low, number).to_string()
}

fn adverb() -> Command {
    Command::new(env!("CARGO_BIN_EXE_adverb"))
}

/// A responder, which ends with the test.
struct Responder(Child);

impl Responder {
    fn start(address: &str, options: &[&str]) -> Responder {
        let mut command = adverb();
        command.args(["respond", "--json", "--device", &format!("soft:{address}")]).args(options);
        let child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        // Below, a failure ends the process.
        let mut responder = Responder(child);
        let mut line = String::new();
        let out = responder.0.stdout.as_mut().expect("its output");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let started: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&started["event"], &started["address"]),
            (&"listening".into(), &format!("{address}:18516").into())
        );
        responder
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn ping(from: &str, to: &str, options: &[&str]) -> Output {
    let device = format!("soft:{from}");
    // A loaded machine may be slow.
    let timeout = if options.contains(&"--timeout") { vec![] } else { vec!["--timeout", "20"] };
    adverb().args(["ping", to, "--device", &device]).args(timeout).args(options).output().expect("it runs")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = str::from_utf8(&output.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn all_probes_are_answered_and_the_figures_printed() {
    let [here, there] = [1, 2].map(loopback);
    let _responder = Responder::start(&there, &[]);
    let options = ["--json", "--count", "20", "--interval", "0.005", "--paths", "4", "--dscp", "0,26"];
    let output = ping(&here, &there, &options);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines = lines(&output);
    assert_eq!(lines.len(), 22);
    assert_eq!((&lines[0]["event"], &lines[0]["size"]), (&"start".into(), &96.into()));
    for probe in &lines[1..21] {
        assert_eq!(probe["event"], "probe");
        if probe["result"] == "answered" {
            let [trip, prober, responder] =
                ["round_trip_ns", "prober_ns", "responder_ns"].map(|name| probe[name].as_u64());
            assert!(trip.is_some() && prober.is_some() && responder.is_some(), "{probe}");
            // Stamps of the process include its delays, so the network's round-trip time is unknown.
            assert_eq!(probe["network_ns"].is_null(), probe["stamps"] == "process");
        }
    }
    let summary = &lines[21];
    assert_eq!((&summary["probes"], &summary["loss"]), (&20.into(), &0.0.into()));
    assert_eq!((&summary["unmatched_acks"], &summary["duplicate_acks"]), (&0.into(), &0.into()));
    let paths = summary["per_path"].as_array().expect("paths");
    assert_eq!(paths.len(), 8);
    assert_eq!(paths.iter().map(|path| path["probes"].as_u64().unwrap_or(0)).sum::<u64>(), 20);
}

#[test]
fn a_flood_is_bounded_and_prints_a_summary_with_a_histogram() {
    let [here, there] = [3, 4].map(loopback);
    let _responder = Responder::start(&there, &[]);
    let output = ping(&here, &there, &["--flood", "--count", "500", "--size", "1024"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(
        text.starts_with(&format!("PING {there} ({there}:18516) from soft:{here}, GID ::ffff:{here}")),
        "{text}"
    );
    assert!(text.contains("1024-byte probes, DSCP 0, 1 path"), "{text}");
    assert!(text.contains("500 probes, 500 answered") && text.contains("loss 0.00 %"), "{text}");
    assert!(text.contains("responder ") && text.contains('█'), "{text}");
    // The output has no line for each probe.
    assert!(text.lines().count() < 40, "{text}");
}

#[test]
fn a_key_is_required_if_the_responder_has_one() {
    let [here, there] = [5, 6].map(loopback);
    let directory = std::env::temp_dir().join(format!("adverb-ping-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("key");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("a file");
    let key = ["--key-file", file.to_str().expect("UTF-8")];
    let _responder = Responder::start(&there, &key);
    let with = ping(&here, &there, &["--count", "2", "--interval", "0.01", key[0], key[1]]);
    assert_eq!(with.status.code(), Some(0), "{with:?}");
    let without = ping(&here, &there, &["--count", "2", "--interval", "0.01", "--timeout", "0.2"]);
    assert_eq!(without.status.code(), Some(4), "{without:?}");
    assert!(
        String::from_utf8_lossy(&without.stdout).contains("check --key-file at both ends"),
        "{without:?}"
    );
    std::fs::remove_dir_all(&directory).expect("the directory is removed");
}

/// `adverb ping --json`, which ends with the test.
struct Prober {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Prober {
    fn start(from: &str, to: &str) -> Prober {
        let mut command = adverb();
        command.args(["ping", to, "--device", &format!("soft:{from}"), "--json", "--timeout", "2"]);
        command.args(["--count", "1000000", "--interval", "0.02"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Prober { child, output }
    }

    /// Reads results until a probe of an epoch other than `ended` is answered. Returns its epoch, and the number of
    /// probes that ended with their responder.
    fn read_until_answered(&mut self, ended: Option<u64>) -> (u64, u64) {
        let mut ended_count = 0;
        loop {
            let mut line = String::new();
            self.output.read_line(&mut line).expect("a line");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            match line["result"].as_str() {
                Some("lost" | "return_lost" | "unreachable") => panic!("a false loss: {line}"),
                Some("ended") => ended_count += 1,
                Some("answered" | "late") if line["epoch"].as_u64() != ended => {
                    return (line["epoch"].as_u64().expect("an epoch"), ended_count);
                }
                _ => {}
            }
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// `cargo xtask probe restarts` kills more processes.
#[test]
fn killed_responders_and_probers_cause_no_loss() {
    let [here, there] = [9, 10].map(loopback);
    let mut responder = Responder::start(&there, &[]);
    let mut prober = Prober::start(&here, &there);
    let (mut epoch, _) = prober.read_until_answered(None);
    for turn in 0..3 {
        if turn % 2 == 0 {
            drop(responder);
            responder = Responder::start(&there, &[]);
            let (next, ended_count) = prober.read_until_answered(Some(epoch));
            assert!(ended_count > 0);
            epoch = next;
        } else {
            drop(prober);
            prober = Prober::start(&here, &there);
            (epoch, _) = prober.read_until_answered(None);
        }
    }
    drop(responder);
}

#[test]
fn a_responder_at_another_udp_port_says_why_and_how_it_is_reached() {
    let there = loopback(51);
    let _other = UdpSocket::bind((there.as_str(), 4791)).expect("a free port");
    let mut command = adverb();
    command.args(["respond", "--json", "--duration", "20", "--device", &format!("soft:{there}")]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut responder = Responder(child);
    let mut note = String::new();
    let err = responder.0.stderr.as_mut().expect("its output");
    BufReader::new(err).read_line(&mut note).expect("a line");
    let expected = format!(
        "note: UDP port 4791 of {there} is used by another program, so the device is at UDP port 4792."
    );
    assert!(note.starts_with(&expected), "{note}");
    let address = note.trim_end().trim_end_matches('`').rsplit_once(' ').expect("an address").1;
    // The command is the one that the note has.
    let output = adverb().args(["ping", address, "-c", "3", "--timeout", "20"]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn without_a_responder_the_error_names_the_cause() {
    let [here, there] = [7, 8].map(loopback);
    let output = ping(&here, &there, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: "), "{output:?}");
}

#[test]
fn a_signal_ends_the_command_with_the_summary() {
    let [here, there] = [21, 22].map(loopback);
    let mut responder = Responder::start(&there, &[]);
    let mut command = adverb();
    command.args(["ping", &there, "--device", &format!("soft:{here}"), "--json", "--timeout", "20"]);
    command.args(["--count", "1000000", "--interval", "0.02"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("a line").expect("a line");
        serde_json::from_str(&line).expect("JSON")
    };
    assert_eq!(next()["event"], "start");
    for _ in 0..3 {
        assert_eq!(next()["event"], "probe");
    }
    interrupt(&child);
    let mut last = next();
    while last["event"] == "probe" {
        last = next();
    }
    assert_eq!((&last["event"], &last["lost"]), (&"summary".into(), &0.into()), "{last}");
    assert!(last["probes"].as_u64() >= Some(3), "{last}");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));

    interrupt(&responder.0);
    let mut line = String::new();
    BufReader::new(responder.0.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    let stopped: Value = serde_json::from_str(&line).expect("JSON");
    assert!(stopped["event"] == "stopped" && stopped["answered"].as_u64() >= Some(3), "{stopped}");
    assert_eq!(responder.0.wait().expect("it ends").code(), Some(0));
}

/// Sends SIGINT.
fn interrupt(child: &Child) {
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
}

#[test]
fn a_locale_without_utf8_gets_ascii() {
    let [here, there] = [31, 32].map(loopback);
    let _responder = Responder::start(&there, &[]);
    let device = format!("soft:{here}");
    for (locale, is_ascii) in [("C", true), ("C.UTF-8", false)] {
        let arguments = ["ping", &there, "--device", &device, "--count", "3", "--timeout", "20"];
        let output = adverb().args(arguments).env("LC_ALL", locale).output().expect("it runs");
        let text = str::from_utf8(&output.stdout).expect("UTF-8");
        assert_eq!(text.is_ascii(), is_ascii, "{locale}: {text}");
    }
}

#[test]
fn a_count_of_zero_is_an_error() {
    let output = adverb().args(["ping", "127.0.0.1", "-c", "0"]).output().expect("it runs");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("the number of probes must be from 1 to 10000000"), "{text}");
}

#[test]
fn a_lack_of_file_descriptors_is_an_error_that_names_the_limit() {
    let here = loopback(41);
    let mut failed_count = 0;
    for limit in 5..100 {
        let line = format!("ulimit -n {limit} && exec \"$0\" ping {here} --device soft:{here} -c 1");
        let output = Command::new("sh").args(["-c", &line, env!("CARGO_BIN_EXE_adverb")]).output();
        let errors = String::from_utf8(output.expect("it runs").stderr).expect("UTF-8");
        // Long lines are wrapped.
        let errors = errors.split_whitespace().collect::<Vec<_>>().join(" ");
        if !errors.contains("Too many open files") {
            // The device is open, and has no responder.
            assert!(errors.contains("no responder was found"), "{limit}: {errors}");
            break;
        }
        assert!(errors.contains("ulimit -n"), "{limit}: {errors}");
        failed_count += 1;
    }
    assert!((10..90).contains(&failed_count), "{failed_count}");
}
