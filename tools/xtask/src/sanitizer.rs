//! Builds with a sanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use support::{paths, process};

/// The target triple. With an explicit target, RUSTFLAGS don't apply to build scripts and proc macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A sanitizer.
pub(crate) struct Sanitizer {
    /// Target directory in the cache.
    pub(crate) directory: &'static str,
    /// Compiler flags.
    pub(crate) flags: &'static str,
    /// A symbol that every instrumented program contains.
    pub(crate) symbol: &'static str,
}

/// The programs of a build.
pub(crate) struct Programs(Vec<Program>);

/// A program of a build.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    /// Whether it is a test. A test and a program can have the same name.
    is_test: bool,
    path: PathBuf,
}

impl Sanitizer {
    /// Runs cargo with each of these arguments, and returns the programs that it built.
    pub(crate) fn build(&self, commands: &[&str]) -> Result<Programs> {
        let mut programs = Vec::new();
        for command in commands {
            let mut cargo = process::cargo(command);
            cargo.args(["--message-format", "json", "--target", TARGET, "--target-dir"]);
            cargo.arg(paths::cache()?.join(self.directory));
            self.enable(&mut cargo).env("RUSTFLAGS", self.flags);
            let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
            let output = output.context("could not start cargo")?;
            ensure!(output.status.success(), "building with {} failed; cargo's output is above", self.flags);
            programs.extend(String::from_utf8_lossy(&output.stdout).lines().filter_map(program));
        }
        for Program { name, path, .. } in &programs {
            ensure!(self.has_symbol(path)?, "{name} was built without the sanitizer");
        }
        Ok(Programs(programs))
    }

    /// Builds a program from one source file.
    pub(crate) fn build_file(&self, source: &Path, program: &Path) -> Result<()> {
        let mut rustc = Command::new("rustc");
        rustc.args(self.flags.split(' ')).args(["-o".as_ref(), program, source]);
        process::run(self.enable(&mut rustc))
    }

    /// Enables sanitizers, which are unstable options, on the stable toolchain.
    fn enable<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("RUSTC_BOOTSTRAP", "1")
    }

    /// Whether a program contains the sanitizer's symbol.
    fn has_symbol(&self, path: &Path) -> Result<bool> {
        // xtask isn't optimized, and programs are large.
        let mut grep = Command::new("grep");
        let status = grep.args(["--quiet", "--text", "--fixed-strings", self.symbol]).arg(path).status()?;
        Ok(status.success())
    }
}

impl Programs {
    /// Returns the path of the program or the test with this name.
    pub(crate) fn find(&self, name: &str, is_test: bool) -> Result<&Path> {
        let program = self.0.iter().find(|program| program.name == name && program.is_test == is_test);
        program.map(|program| &*program.path).with_context(|| format!("cargo built no program {name}"))
    }

    /// Returns the names and the paths of all tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = (&str, &Path)> {
        let tests = self.0.iter().filter(|program| program.is_test);
        tests.map(|program| (&*program.name, &*program.path))
    }
}

/// Parses a cargo message; `None` if it announces no program.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    Some(Program {
        name: message["target"]["name"].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        path: message["executable"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let message = |executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"a"}},"profile":{{"test":true}},"executable":{executable}}}"#
            )
        };
        let a = Program { name: "a".into(), is_test: true, path: "/x/a-1".into() };
        assert_eq!(program(&message(r#""/x/a-1""#)), Some(a));
        assert_eq!(program(&message("null")), None);
        assert_eq!(program("{}"), None);
    }
}
