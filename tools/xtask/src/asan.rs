//! `cargo xtask asan`: tests of memory that devices access, under AddressSanitizer.
//!
//! Unit tests, and tests of pools and connections, run on this machine with the software NIC; the other tests run on
//! soft-RoCE in the guest. The sanitizer also reports leaks. Every report is a failure.

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Parser;
use support::process;

use crate::Cli;
use crate::sanitizer::Sanitizer;

const ADDRESSES: Sanitizer =
    Sanitizer { directory: "asan", flags: "-Zsanitizer=address", symbol: "__asan_init" };

/// The cargo commands that build the programs. Cargo compiles the libraries again for each selection of packages.
const PROGRAMS: &[&str] = &[
    "build --package adverb --package adverb-cli --bins --example rc_pingpong --example datagrams \
     --test misuse --test windows --test tiers --test pool --test net --test net_async --test net_stream",
    "test --package adverb-verbs --package adverb-net --package adverb-preload --lib --no-run",
];

/// Filters for the conformance tests that flush outstanding requests or drop objects.
const CUT_OFF: &str = "--filter flush --filter dropping";

/// Builds and runs the programs.
pub(crate) fn run() -> Result<ExitCode> {
    let programs = ADDRESSES.build(PROGRAMS)?;
    let find = |name: &str, is_test: bool| programs.find(name, is_test);
    // The tests with a million rounds are too slow here, and loom covers the ring. The tests `…_is_not_destroyed…` leak
    // on purpose: memory that the device still holds is never freed.
    for library in ["adverb_verbs", "adverb_net"] {
        let skipped = ["--skip", "a_million", "--skip", "is_not_de"];
        process::run(Command::new(find(library, true)?).arg("--quiet").args(skipped))?;
    }

    // Contexts that are closed with live objects, forks and exits. If a signal interrupts the sanitizer's `malloc`, which
    // holds a lock, and the handler exits, then glibc's `exit` waits for that lock in `free`.
    let mut preload = Command::new(find("adverb_preload", true)?);
    preload.args(["--quiet", "--skip", "exit_in_a_signal_handler_allocates_nothing"]);
    process::run(preload.env("ASAN_OPTIONS", "detect_leaks=0"))?;

    // These run on the software NIC.
    for test in ["pool", "net", "net_async", "net_stream"] {
        process::run(Command::new(find(test, true)?).arg("--quiet").env("ADVERB_CANCELLED", "100000"))?;
    }

    let selftest = find("adverb", false)?;
    let mut words = ["xtask", "vm", "--timeout", "300"].map(str::to_owned).to_vec();
    for (program, arguments) in [
        (find("misuse", true)?, "--test-threads 1"),
        // The tests `…forgotten…` leak on purpose.
        (find("windows", true)?, "--test-threads 1 --skip forgotten"),
        (find("tiers", true)?, "--test-threads 1"),
        (find("rc_pingpong", false)?, "rxe0"),
        (find("datagrams", false)?, "rxe0"),
        (selftest, &format!("selftest --device rxe0 {CUT_OFF}")),
    ] {
        let program = process::quote(&program.to_string_lossy());
        words.extend(["--run".to_owned(), format!("ADVERB_DEVICE=rxe0 {program} {arguments}")]);
    }
    // Run it through the command-line parser, so that a developer can type the same command.
    Cli::try_parse_from(words)?.command.run()
}
