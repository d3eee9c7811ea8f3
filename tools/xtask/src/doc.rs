//! `cargo xtask doc`: documentation, as docs.rs builds it.

use anyhow::Result;
use support::{paths, process};

/// Builds the documentation of every crate; a broken link or a missing doc comment is an error.
pub(crate) fn run() -> Result<()> {
    let mut cargo = process::cargo("doc --workspace --no-deps --all-features");
    process::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    // docs.rs sets `docsrs`, which enables an unstable rustdoc feature: items are marked with the cargo features they
    // need.
    let mut cargo = process::cargo("doc -p adverb -p adverb-net -p adverb-verbs --no-deps --all-features");
    cargo.env("RUSTDOCFLAGS", "-D warnings --cfg docsrs").env("RUSTC_BOOTSTRAP", "1");
    process::run(cargo.env("CARGO_TARGET_DIR", paths::cache()?.join("target-docsrs")))
}
