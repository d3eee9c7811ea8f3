//! Programs that the compiler must reject: they free, move or access memory in flight, or are unsound in another way.
//!
//! Each file in `compile_fail/` is such a program, with the compiler's expected output beside it. The output changes
//! between compiler versions, so the test runs with one version only, and is skipped with others. After a change,
//! `TRYBUILD=overwrite cargo test -p adverb --test compile_fail -- --ignored` updates the expected output: review the
//! differences.

use std::process::Command;

/// The compiler version of the expected output.
const COMPILER: &str = "rustc 1.95.0 ";

#[test]
#[ignore = "compiles Adverb and 32 programs: run `cargo xtask test`"]
fn unsound_programs_are_rejected() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(compiler).arg("--version").output().expect("the compiler can be started").stdout;
    let version = String::from_utf8_lossy(&output);
    if !version.starts_with(COMPILER) {
        println!("SKIPPED: the expected output is that of {COMPILER}, but this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
