//! What the compiler must refuse: memory in flight that is freed, moved or touched, and what else is unsound.
//!
//! Each file in `compile_fail/` is a program that does one such thing, and beside it is what the compiler says. The
//! wording is the compiler's own and changes with it, so that it is compared on one version only; elsewhere the test says
//! that it was skipped. After a change, `TRYBUILD=overwrite cargo test -p adverb --test compile_fail -- --ignored` writes the answers
//! anew: read what changed before you keep it.

use std::process::Command;

/// The compiler that the answers are of.
const COMPILER: &str = "rustc 1.95.0 ";

#[test]
#[ignore = "compiles Adverb anew and 32 programs: run `cargo xtask test`"]
fn unsound_programs_are_rejected() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output().expect("there is a compiler").stdout;
    let version = String::from_utf8_lossy(&output);
    if !version.starts_with(COMPILER) {
        println!("SKIPPED: the answers are those of {COMPILER}, and this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
