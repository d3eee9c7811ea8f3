//! `cargo xtask device-tests`: the tests of `adverb` that need a device, where there is one.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use support::process;

use crate::Cli;

/// The test programs. Elsewhere their tests say that there is no device, and pass.
const PROGRAMS: &[&str] = &["cm", "poller", "windows", "misuse", "tiers", "net_strangers"];

/// Where programs written in C are that talk to the software NIC, which is in the namespace `peer`: their addresses and its
/// own, and what leads to them.
const C_PROGRAMS: &str = "10.77.0.1/10.77.0.2 fd77::1/fd77::2 nsenter --net=/proc/1/ns/net";

/// Makes a second soft-RoCE device in the guest, `rxe1`, on a cable of its own that leads nowhere.
const SECOND_DEVICE: &str = "ip link add w0 type veth peer name w1 && ip link set w0 up && \
                             rdma link add rxe1 type rxe netdev w0";

/// Builds the programs, and runs them one after the other in one guest with soft-RoCE; and those tests of the connection
/// manager on the software NIC that have a program in C at the other side.
pub(crate) fn run() -> Result<ExitCode> {
    let mut words: Vec<String> = ["xtask", "vm", "--timeout", "400"].map(str::to_owned).into();
    for program in PROGRAMS {
        let path = process::build(&format!("test -p adverb --release --no-run --test {program}"))?;
        // Tests of connections are on the software NIC unless another device is named.
        let device = if program.starts_with("net") { "env ADVERB_DEVICE=rxe0 " } else { "" };
        words.extend(["--run".to_owned(), format!("{device}{}", process::quote(&path))]);
        if *program == "cm" {
            let test = format!("{} --test-threads 1 written_in_c", process::quote(&path));
            let line = format!("ip netns exec peer env ADVERB_C_PROGRAMS='{C_PROGRAMS}' {test}");
            words.extend(["--run".to_owned(), line]);
        }
    }
    // Memory of one device that is posted to another.
    let path = process::build("test -p adverb --release --no-run --test domains")?;
    let devices = "env ADVERB_DEVICE=rxe0 ADVERB_SECOND_DEVICE=rxe1";
    words.extend(["--run".to_owned(), SECOND_DEVICE.to_owned()]);
    words.extend(["--run".to_owned(), format!("{devices} {} --nocapture", process::quote(&path))]);
    words.extend(["--run".to_owned(), "rdma link delete rxe1".to_owned()]);
    // Connections whose queue pairs break: they do that on purpose, where only the library can.
    let path = process::build("test -p adverb-net --release --no-run --lib")?;
    let line = format!("env ADVERB_DEVICE=rxe0 {} --test-threads 1 link::", process::quote(&path));
    words.extend(["--run".to_owned(), line]);
    // And programs that are killed.
    let path = process::build("test -p adverb --release --no-run --test net_life")?;
    let line = format!("env ADVERB_DEVICE=rxe0 {} --nocapture who_is_killed", process::quote(&path));
    words.extend(["--run".to_owned(), line]);
    // Through the command line's own parser, so that this is something a person can type.
    Cli::try_parse_from(words)?.command.run()
}
