//! `cargo xtask test`, `cargo xtask exhaustive` and `cargo xtask loom`.

use anyhow::Result;
use support::{paths, process};

use crate::tools;

/// The options of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the tests of nextest's profile `quick`: no doctests, and no test program that takes long.
    #[arg(long)]
    quick: bool,
}

/// Runs the tests with nextest, except the ignored ones, which take minutes; then the doctests, which nextest doesn't
/// run; then rdma-core's own programs on adverb-preload.
pub(crate) fn run(args: &Args) -> Result<()> {
    tools::require("cargo-nextest")?;
    if args.quick {
        return process::run(&mut process::cargo("nextest run --workspace --all-features --profile quick"));
    }
    let mut nextest = process::cargo("nextest run --workspace --all-features");
    // In CI, missing rdma-core headers fail the comparison with them instead of skipping it; so does a missing
    // Prometheus.
    if std::env::var_os("CI").is_some() {
        nextest.env("ADVERB_REQUIRE_HEADERS", "1").env("ADVERB_REQUIRE_PROMETHEUS", "1");
    }
    process::run(&mut nextest)?;
    // The same packages and features as above, so that nothing is compiled again.
    let mut compile_fail = process::cargo("nextest run --workspace --all-features --run-ignored only");
    process::run(compile_fail.args(["--filterset", "binary(compile_fail)"]))?;
    process::run(&mut process::cargo("test --workspace --doc --all-features"))?;
    crate::preload::run_check()
}

/// Runs the slow tests in release mode, because they try millions of packets, and shows their output: the number of
/// packets.
pub(crate) fn run_exhaustive() -> Result<()> {
    tools::require("cargo-nextest")?;
    process::run(&mut process::cargo(
        "nextest run -p adverb-wire --all-features --release --test exhaustive --test properties \
         --run-ignored all --success-output immediate",
    ))
}

/// Runs the tests of the lock-free rings and of the wait protocol under loom, which tries every thread interleaving.
pub(crate) fn run_loom() -> Result<()> {
    tools::require("cargo-nextest")?;
    let mut nextest = process::cargo(
        "nextest run --release --no-default-features -p adverb-verbs -p adverb-soft -p adverb-net --lib --filterset",
    );
    nextest.arg(
        "package(adverb-verbs) & test(ring) | package(adverb-soft) & test(ring::loom_tests) \
         | package(adverb-net) & test(wait)",
    );
    // A target directory of its own, because other RUSTFLAGS would invalidate the usual build.
    nextest.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", paths::cache()?.join("target-loom"));
    process::run(&mut nextest)
}
