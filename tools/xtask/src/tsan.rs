//! `cargo xtask tsan`: multi-threaded tests of the software NIC and of the API above it, under ThreadSanitizer.
//!
//! The standard library is not instrumented, so the sanitizer misses some of its synchronization; `tsan.txt` suppresses
//! the resulting false reports. Everything else, including Adverb's locks, is instrumented, and every report is a
//! failure. A program with a data race runs first, to show that the sanitizer reports races.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::sanitizer::Sanitizer;

const THREADS: Sanitizer = Sanitizer {
    directory: "tsan",
    flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Copt-level=1 --cfg adverb_atomic_copies",
    symbol: "__tsan_init",
};

/// The cargo commands that build the programs.
const PROGRAMS: &[&str] = &["test --package adverb-soft --tests --no-run", "build --package adverb-cli"];

/// The tests of adverb-soft that are not run: they start processes as other users or with few descriptors and little
/// memory, where the sanitizer can't work. Their devices are those of `shared_address.rs`.
const UNSUITABLE: &[&str] = &["receiver_limits", "shared_address_users"];

/// Filters for the conformance tests that use several threads, or drop objects while the NIC works.
const FILTERS: &[&str] =
    &["thread", "poll", "event", "atomic", "drop", "flush", "window", "shared", "regist", "order"];

/// Suppressions of false reports.
const SUPPRESSIONS: &str = include_str!("tsan.txt");

/// A program with a data race.
const RACE: &str = "
    static mut SHARED: u64 = 0;
    fn main() {
        let add = || unsafe { (&raw mut SHARED).write((&raw const SHARED).read() + 1) };
        let thread = std::thread::spawn(move || (0..1000).for_each(|_| add()));
        (0..1000).for_each(|_| add());
        thread.join().unwrap();
    }
";

/// Exit status of a program in which the sanitizer reported a race.
const REPORTED: i32 = 66;

/// Builds and runs the programs.
pub(crate) fn run() -> Result<()> {
    let directory = paths::cache()?.join(THREADS.directory);
    fs::create_dir_all(&directory)?;
    let suppressions = directory.join("not-seen.txt");
    fs::write(&suppressions, SUPPRESSIONS)?;
    let options = format!("suppressions={} exitcode={REPORTED}", suppressions.display());

    let (source, race) = (directory.join("race.rs"), directory.join("race"));
    fs::write(&source, RACE)?;
    THREADS.build_file(&source, &race)?;
    let output = Command::new(&race)
        .env("TSAN_OPTIONS", &options)
        .output()
        .context("could not start the program with a data race")?;
    ensure!(
        output.status.code() == Some(REPORTED),
        "ThreadSanitizer did not report the race in the test program"
    );

    let programs = THREADS.build(PROGRAMS)?;
    for (_, test) in programs.tests().filter(|(name, _)| !UNSUITABLE.contains(name)) {
        process::run(
            Command::new(test).args(["--quiet", "--test-threads", "2"]).env("TSAN_OPTIONS", &options),
        )?;
    }
    let mut selftest = Command::new(programs.find("adverb", false)?);
    selftest.args(["selftest", "--device", "soft"]).env("TSAN_OPTIONS", &options);
    // The sanitizer makes the tests many times slower.
    selftest.args(["--time-limit", "600"]);
    selftest.args(FILTERS.iter().flat_map(|filter| ["--filter", filter]));
    process::run(&mut selftest)
}
