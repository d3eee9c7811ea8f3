//! `cargo xtask newcomer`: the README's first example, in a new package.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

/// The comment in the example before its expected output.
const EXPECTED_OUTPUT_COMMENT: &str = "// prints ";

/// Creates a package outside the workspace, adds the dependencies that the README names, pastes its first example, runs
/// it as an unprivileged user, and compares the output with the comment in the example.
pub(crate) fn run() -> Result<()> {
    let readme = fs::read_to_string(paths::root().join("README.md")).context("could not read README.md")?;
    let program = first_example(&readme).context("README.md has no block of Rust code")?;
    let expected_output =
        expected_output(program).context("README.md's first example has no comment `// prints …`")?;

    let home = paths::cache()?.join("newcomer");
    let package = home.join("hello");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    fs::create_dir_all(&home)?;
    let adverb = paths::root().join("crates/adverb");
    cargo("new hello --quiet --vcs none", &home)?;
    process::run(process::cargo("add adverb --quiet --path").arg(adverb).current_dir(&package))?;
    cargo("add tokio --quiet --features full", &package)?;
    fs::write(package.join("src/main.rs"), program)?;

    let mut build = process::cargo("build --quiet --target-dir");
    build.arg(home.join("target")).current_dir(&package);
    let hello = process::build_with(build)?;
    let printed = process::text(&mut process::as_nobody(Path::new(&hello)))?;
    ensure!(
        printed.trim() == expected_output,
        "README.md's first example printed {printed:?}, not {expected_output:?}"
    );
    println!("README.md's first example builds, runs, and prints {expected_output}");
    Ok(())
}

fn cargo(arguments: &str, directory: &Path) -> Result<()> {
    process::run(process::cargo(arguments).current_dir(directory))
}

/// Returns the first Rust code block.
fn first_example(readme: &str) -> Option<&str> {
    let code = readme.split_once("```rust\n")?.1;
    Some(code.split_once("```")?.0)
}

/// Returns the expected output, from the comment in the program.
fn expected_output(program: &str) -> Option<&str> {
    Some(program.split_once(EXPECTED_OUTPUT_COMMENT)?.1.lines().next()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_block_of_rust_is_the_example() {
        let readme =
            "# A\n```console\n$ a\n```\n```rust\nfn main() {} // prints b\"x\"\n```\n```rust\nother\n```\n";
        let program = first_example(readme).unwrap();
        assert_eq!(program, "fn main() {} // prints b\"x\"\n");
        assert_eq!(expected_output(program), Some("b\"x\""));
        assert_eq!(first_example("# A\n"), None);
        assert_eq!(expected_output("fn main() {}"), None);
    }
}
