//! The first steps of a new user, with a local registry in place of crates.io.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::registry::Registry;

/// The comment in the example before its expected output.
const EXPECTED_OUTPUT_COMMENT: &str = "// prints ";

/// Runs the README's first example in a new package, and installs the command.
pub(crate) fn run(home: &Path, target: &Path, registry: &Registry) -> Result<()> {
    run_example(home, target, registry)?;
    install_command(home, target, registry)
}

/// Creates a package outside the workspace, adds the dependencies that the README names, pastes its first example, runs
/// it as an unprivileged user, and compares the output with the comment in the example.
fn run_example(home: &Path, target: &Path, registry: &Registry) -> Result<()> {
    let readme = fs::read_to_string(paths::root().join("README.md")).context("could not read README.md")?;
    let program = first_example(&readme).context("README.md has no block of Rust code")?;
    let expected_output =
        expected_output(program).context("README.md's first example has no comment `// prints …`")?;

    let package = home.join("hello");
    if package.exists() {
        fs::remove_dir_all(&package)?;
    }
    process::run(process::cargo("new hello --quiet --vcs none").current_dir(home))?;
    for dependency in ["add adverb --quiet", "add tokio --quiet --features full"] {
        let mut cargo = process::cargo(dependency);
        registry.replace_crates_io(&mut cargo);
        process::run(cargo.current_dir(&package))?;
    }
    fs::write(package.join("src/main.rs"), program)?;

    let mut build = process::cargo("build --quiet");
    registry.replace_crates_io(&mut build);
    build.arg("--target-dir").arg(target).current_dir(&package);
    let hello = process::build_with(build)?;
    let printed = process::text(&mut process::as_nobody(Path::new(&hello)))?;
    ensure!(
        printed.trim() == expected_output,
        "README.md's first example printed {printed:?}, not {expected_output:?}"
    );
    println!("README.md's first example builds, runs, and prints {expected_output}");
    Ok(())
}

/// Installs the command and runs it as an unprivileged user.
fn install_command(home: &Path, target: &Path, registry: &Registry) -> Result<()> {
    let root = home.join("installed");
    let mut install = process::cargo("install adverb-cli --debug --force --quiet");
    registry.replace_crates_io(&mut install);
    // Outside the checkout, whose `.cargo/config.toml` a user does not have.
    install.arg("--target-dir").arg(target).arg("--root").arg(&root).current_dir(home);
    process::run(&mut install)?;
    let adverb = root.join("bin/adverb");
    let version = process::text(process::as_nobody(&adverb).arg("--version"))?;
    ensure!(version.starts_with("adverb "), "`adverb --version` printed {version:?}");
    process::output(process::as_nobody(&adverb).args(["explain", "IBV_WC_RETRY_EXC_ERR"]))?;
    println!("`cargo install adverb-cli` installs {}", version.trim());
    Ok(())
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
