//! `cargo xtask test`, `cargo xtask exhaustive` and `cargo xtask loom`.

use anyhow::Result;
use support::{paths, process};

use crate::tools;

/// Runs all tests but the ignored ones, which take minutes, and the doctests, which nextest doesn't run.
pub(crate) fn run() -> Result<()> {
    tools::require("cargo-nextest")?;
    let mut nextest = process::cargo("nextest run --workspace --all-features");
    // In CI a comparison with rdma-core's headers that can't be made is a failure, not a skip.
    if std::env::var_os("CI").is_some() {
        nextest.env("ADVERB_REQUIRE_HEADERS", "1");
    }
    process::run(&mut nextest)?;
    let mut compile_fail = process::cargo("nextest run -p adverb --all-features --test compile_fail");
    process::run(compile_fail.args(["--run-ignored", "only"]))?;
    process::run(&mut process::cargo("test --workspace --doc --all-features"))
}

/// Runs the long tests: optimised, because they try millions of packets, and showing what they print, because
/// they print how many.
pub(crate) fn run_exhaustive() -> Result<()> {
    tools::require("cargo-nextest")?;
    process::run(&mut process::cargo(
        "nextest run -p adverb-wire --all-features --release --test exhaustive --test properties \
         --run-ignored all --success-output immediate",
    ))
}

/// Runs what is shared between threads without locks under loom, which tries every order of events.
pub(crate) fn run_loom() -> Result<()> {
    let mut cargo = process::cargo("test -p adverb-verbs --release --no-default-features --lib ring");
    // Another configuration of everything: kept apart, so that the usual one isn't built again after it.
    cargo.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", paths::cache()?.join("target-loom"));
    process::run(&mut cargo)
}
