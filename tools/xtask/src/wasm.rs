//! `cargo xtask wasm`: the crates that need no operating system, checked for WebAssembly.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use support::process;

const TARGET: &str = "wasm32-unknown-unknown";

/// Checks adverb-wire, adverb-proto, adverb-cluster-proto, adverb-net-proto and adverb-trace for WebAssembly, or prints
/// that the target is not installed.
pub(crate) fn run() -> Result<()> {
    let mut rustc = Command::new("rustc");
    let library = process::text(rustc.args(["--print", "target-libdir", "--target", TARGET]))?;
    if !Path::new(library.trim()).is_dir() {
        println!("wasm: SKIPPED, because {TARGET} is not installed (`rustup target add {TARGET}`)");
        return Ok(());
    }
    let mut check = process::cargo(
        "check -p adverb-wire -p adverb-proto -p adverb-cluster-proto -p adverb-net-proto -p adverb-trace --target",
    );
    process::run(check.arg(TARGET))
}
