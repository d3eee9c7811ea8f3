//! `adverb mesh host` as a process, over loopback.
//!
//! The runs are shorter than the time after which any fault can be named, so that the load of the machine cannot change
//! their results. `cargo xtask mesh` has long runs, with faults.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Returns a loopback address of this process and test.
fn loopback(number: u8) -> String {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high & 0x7f, low, number).to_string()
}

fn mesh(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["mesh", "host"]).args(arguments).output().expect("the command runs")
}

#[test]
fn members_probe_each_other_in_all_classes() {
    let addresses = [101, 102, 103, 104].map(loopback);
    // The probers may be slow to start on a loaded machine.
    let is_complete = |duration: u32| {
        let duration = duration.to_string();
        let mut arguments = vec!["--json", "--rate", "100", "--dscp", "26,0", "--duration", &duration];
        arguments.extend(addresses.iter().map(String::as_str));
        let output = mesh(&arguments);
        let text = str::from_utf8(&output.stdout).expect("UTF-8");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let (Some(start), Some(summary)) = (lines.first(), lines.last()) else { panic!("{output:?}") };
        assert_eq!((&start["event"], &start["version"]), (&"start".into(), &1.into()));
        assert_eq!(start["classes"], serde_json::json!([0, 26]));
        let members = start["members"].as_array().expect("members");
        let members: Vec<&Value> = members.iter().map(|member| &member["address"]).collect();
        assert_eq!(members, addresses.iter().collect::<Vec<_>>());
        assert_eq!(summary["event"], "summary", "{output:?}");
        let expected = match summary["verdict"].as_str() {
            Some("healthy") => 0,
            Some("faulty") => 3,
            _ => 4,
        };
        assert_eq!(output.status.code(), Some(expected), "{output:?}");
        // A route is a source, another member and a class.
        let routes = summary["routes"].as_array().expect("routes");
        println!("{} routes, {}", routes.len(), summary["verdict"]);
        routes.len() == 4 * 3 * 2 && routes.iter().all(|route| route["probes"].as_u64() > Some(0))
    };
    assert!([2, 10, 60].into_iter().any(is_complete), "some members were not probed");
}

#[test]
fn a_short_run_is_not_enough_evidence() {
    let addresses = [105, 106].map(loopback);
    let mut arguments = vec!["--plain", "--duration", "1"];
    arguments.extend(addresses.iter().map(String::as_str));
    let text = |_| {
        let output = mesh(&arguments);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        for address in &addresses {
            assert!(text.contains(&format!("{address}: soft")), "{text}");
        }
        assert!(text.contains("10 probes/s from each member, DSCP 0") && text.contains("→2"), "{text}");
        (output.status.code(), text)
    };
    // A process that stalls for 2 s may end with more evidence.
    let reason = "not enough evidence: too few probes have been answered or lost";
    assert!((0..5).map(text).any(|(code, text)| code == Some(4) && text.contains(reason)));
}

#[test]
fn wrong_addresses_are_rejected() {
    // An address for documentation, which no host has.
    for (arguments, error) in [
        (&["203.0.113.1", "203.0.113.2"][..], "none of the addresses is an address of this host"),
        (&["127.0.0.1"], "a mesh needs at least 2 addresses"),
        (&["--file", "/nonexistent"], "could not read /nonexistent"),
    ] {
        let output = mesh(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert!(text.contains(error), "{text}");
    }
}

fn mesh_command(arguments: &[&str], addresses: &[String]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    command.args(["mesh", "host"]).args(arguments).args(addresses);
    command
}

fn pid(child: &std::process::Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

#[test]
fn a_signal_ends_a_run_with_its_summary() {
    for (format, signal, start, end) in [
        ("--plain", Signal::SIGINT, "probes/s from each member", "not enough evidence: "),
        ("--json", Signal::SIGTERM, "\"start\"", "\"summary\""),
        ("--json", Signal::SIGHUP, "\"start\"", "\"summary\""),
    ] {
        let mut command = mesh_command(&[format, "--duration", "600"], &[107, 108].map(loopback));
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command runs");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(start)), "{format}");
        kill(pid(&child), signal).expect("the command runs");
        let rest: Vec<String> = lines.collect();
        assert!(rest.iter().any(|line| line.contains(end)), "{format} {signal}: {rest:?}");
        // A run that starts slowly may have evidence of a stalled process.
        let code = child.wait().expect("it ends").code();
        assert!(matches!(code, Some(0 | 3 | 4)), "{format} {signal}: {code:?}");
    }
}

#[test]
fn a_signal_restores_the_terminal() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let terminal = openpty(&size, None).expect("a terminal");
        let stdio = || Stdio::from(terminal.slave.try_clone().expect("a descriptor"));
        let mut command = mesh_command(&[], &[109, 110].map(loopback));
        let mut child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().expect("it runs");
        drop((command, terminal.slave));
        let mut screen = std::fs::File::from(terminal.master);
        let mut output = Vec::new();
        let mut is_signaled = false;
        let mut buffer = [0; 4096];
        // Reading fails when the command has closed the terminal.
        while let Ok(length @ 1..) = screen.read(&mut buffer) {
            output.extend_from_slice(&buffer[..length]);
            if !is_signaled && String::from_utf8_lossy(&output).contains("members") {
                is_signaled = true;
                kill(pid(&child), signal).expect("the command runs");
            }
        }
        child.wait().expect("it ends");
        let output = String::from_utf8_lossy(&output);
        let [entered, left] = ["\x1b[?1049h", "\x1b[?1049l"].map(|code| output.find(code));
        assert!(entered.is_some() && left > entered, "{signal}: {output:?}");
        assert!(left.is_some_and(|left| output[left..].contains("not enough evidence")), "{output:?}");
    }
}
