//! `cargo xtask asan`: what works on memory that a device has, under AddressSanitizer.
//!
//! The library's own tests run here, and those of pools, on the software NIC; what else needs a device runs on soft-RoCE in
//! the guest. The sanitizer also reports what is never freed, and any report is a failure.

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Parser;
use support::process;

use crate::Cli;
use crate::sanitizer::Sanitizer;

const ADDRESSES: Sanitizer =
    Sanitizer { directory: "asan", flags: "-Zsanitizer=address", called: "__asan_init" };

/// What there is to run.
const PROGRAMS: &[&str] = &[
    "build --package adverb --package adverb-cli --lib --bins --examples --test misuse --test windows --test tiers",
    "test --package adverb-verbs --package adverb-net --lib --no-run",
    // What needs a device but no hardware.
    "build --package adverb --test pool --test net --test net_async --test net_stream",
];

/// The tests of the conformance suite in which requests are cut off, by what their groups or names contain.
const CUT_OFF: &str = "--filter flush --filter dropping";

/// Builds and runs it all.
pub(crate) fn run() -> Result<ExitCode> {
    let programs = ADDRESSES.build(PROGRAMS)?;
    let find = |name: &str, is_test: bool| programs.find(name, is_test);
    // What takes a million rounds is loom's to check (`cargo xtask loom`).
    // Memory that stays because the device was not made to let go of it (`…_is_not_destroyed…`) is a leak to the sanitizer.
    for library in ["adverb_verbs", "adverb_net"] {
        let skipped = ["--skip", "a_million", "--skip", "is_not_de"];
        process::run(Command::new(find(library, true)?).arg("--quiet").args(skipped))?;
    }

    for test in ["pool", "net", "net_async", "net_stream"] {
        process::run(Command::new(find(test, true)?).arg("--quiet").env("ADVERB_CANCELLED", "100000"))?;
    }

    let selftest = find("adverb", false)?;
    let mut words = ["xtask", "vm", "--timeout", "300"].map(str::to_owned).to_vec();
    for (program, arguments) in [
        (find("misuse", true)?, "--test-threads 1"),
        // What a test forgets on purpose is never freed.
        (find("windows", true)?, "--test-threads 1 --skip forgotten"),
        (find("tiers", true)?, "--test-threads 1"),
        (find("rc_pingpong", false)?, "rxe0"),
        (find("datagrams", false)?, "rxe0"),
        (selftest, &format!("selftest --device rxe0 {CUT_OFF}")),
    ] {
        let program = process::quote(&program.to_string_lossy());
        words.extend(["--run".to_owned(), format!("ADVERB_DEVICE=rxe0 {program} {arguments}")]);
    }
    // Through the command line's own parser, so that this is something a person can type.
    Cli::try_parse_from(words)?.command.run()
}
