//! `cargo xtask tsan`: what threads share, of the software NIC and of the API above it, under ThreadSanitizer.
//!
//! The standard library isn't built with the sanitizer, which therefore doesn't see what some of it does to keep threads
//! apart: `tsan.txt` names what of it would be reported. Everything else is built with it, our locks too, and any report is a
//! failure. First a program with a race shows that there would be one.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::sanitizer::Sanitizer;

const THREADS: Sanitizer = Sanitizer {
    directory: "tsan",
    flags: "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer -Copt-level=1 --cfg adverb_atomic_copies",
    called: "__tsan_init",
};

/// What there is to run.
const PROGRAMS: &[&str] = &["test --package adverb-soft --tests --no-run", "build --package adverb-cli"];

/// What of the conformance suite: where threads meet, and where objects end while the NIC is at work.
const FILTERS: &[&str] =
    &["thread", "poll", "event", "atomic", "drop", "flush", "window", "shared", "regist", "order"];

/// What of the standard library would be reported.
const NOT_SEEN: &str = include_str!("tsan.txt");

/// A program that must be reported.
const RACE: &str = "
    static mut SHARED: u64 = 0;
    fn main() {
        let add = || unsafe { (&raw mut SHARED).write((&raw const SHARED).read() + 1) };
        let thread = std::thread::spawn(move || (0..1000).for_each(|_| add()));
        (0..1000).for_each(|_| add());
        thread.join().unwrap();
    }
";

/// What a program ends with that had a race.
const REPORTED: i32 = 66;

/// Builds and runs it all.
pub(crate) fn run() -> Result<()> {
    let directory = paths::cache()?.join(THREADS.directory);
    fs::create_dir_all(&directory)?;
    let not_seen = directory.join("not-seen.txt");
    fs::write(&not_seen, NOT_SEEN)?;
    let options = format!("suppressions={} exitcode={REPORTED}", not_seen.display());

    let (source, race) = (directory.join("race.rs"), directory.join("race"));
    fs::write(&source, RACE)?;
    THREADS.build_file(&source, &race)?;
    let output = Command::new(&race).env("TSAN_OPTIONS", &options).output().context("it didn't start")?;
    ensure!(output.status.code() == Some(REPORTED), "a race wasn't reported, so that nothing would be");

    let programs = THREADS.build(PROGRAMS)?;
    for test in programs.tests() {
        process::run(
            Command::new(test).args(["--quiet", "--test-threads", "2"]).env("TSAN_OPTIONS", &options),
        )?;
    }
    let mut selftest = Command::new(programs.find("adverb", false)?);
    selftest.args(["selftest", "--device", "soft"]).env("TSAN_OPTIONS", &options);
    selftest.args(FILTERS.iter().flat_map(|filter| ["--filter", filter]));
    process::run(&mut selftest)
}
