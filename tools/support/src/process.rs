//! Child processes.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{packages, paths};

/// Returns the command `cargo ARGUMENTS…` (split at spaces) in the root of the clone. Its PATH includes the tools that
/// `cargo xtask setup` installed.
pub fn cargo(arguments: &str) -> Command {
    // This is the cargo that started this process, so that `cargo +toolchain xtask …` stays on its toolchain.
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments.split_whitespace()).current_dir(paths::root());
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// Returns the directories to search for programs: the installed tools, whose versions are pinned, then PATH.
pub fn search_path() -> Vec<PathBuf> {
    let tools = paths::tools().map(|tools| tools.join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    tools.into_iter().chain(env::split_paths(&path)).collect()
}

/// Returns the path of a program, if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    search_path().into_iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Returns a command that runs a program as an unprivileged user, without capabilities and without a way to gain any.
pub fn as_nobody(program: &Path) -> Command {
    if !packages::is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["--bounding-set=-all", "--no-new-privs"]).arg(program);
    command
}

/// Prints and runs a command. Its output goes to this process's output.
///
/// # Errors
///
/// Returns an error if the command doesn't start or fails.
pub fn run(command: &mut Command) -> Result<()> {
    let line = line(command);
    eprintln!("$ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| not_started(command))?;
    if !status.success() {
        bail!("`{line}` failed ({status}); its output is above");
    }
    Ok(())
}

/// Runs a command and returns its standard output.
///
/// # Errors
///
/// Returns an error if the command doesn't start or fails; a failure's error contains its standard error.
pub fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().with_context(|| not_started(command))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", line(command), output.status, stderr.trim());
    }
    Ok(output.stdout)
}

/// Runs a command and returns its standard output as text.
///
/// # Errors
///
/// Returns the errors of [`output`].
pub fn text(command: &mut Command) -> Result<String> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Builds one executable with `cargo ARGUMENTS…` and returns its path.
///
/// # Errors
///
/// Returns an error if the build fails or builds no executable.
pub fn build(arguments: &str) -> Result<String> {
    build_with(cargo(arguments))
}

/// Builds one executable with a cargo command and returns its path.
///
/// # Errors
///
/// Returns an error if the build fails or builds no executable.
pub fn build_with(mut command: Command) -> Result<String> {
    command.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let messages = text(&mut command)?;
    executable(&messages).map(str::to_owned).context("cargo built no executable")
}

/// Returns the path of the executable in cargo's messages. Building a test or a benchmark also builds the package's
/// program, in either order; the test or benchmark takes precedence. This avoids a JSON parser, so paths with quotes or
/// backslashes are not supported.
fn executable(messages: &str) -> Option<&str> {
    let is_program = |line: &&str| line.contains(r#""target":{"kind":["bin"]"#);
    let requested = messages.lines().filter(|line| !is_program(line)).find_map(executable_of);
    requested.or_else(|| executables(messages).next())
}

/// Returns the paths of all executables in cargo's messages.
pub fn executables(messages: &str) -> impl Iterator<Item = &str> {
    messages.lines().filter_map(executable_of)
}

/// Returns the path of the executable in one of cargo's messages.
pub(crate) fn executable_of(message: &str) -> Option<&str> {
    message.split_once(r#""executable":""#)?.1.split('"').next()
}

fn not_started(command: &Command) -> String {
    format!("could not start `{}`: is it installed and in PATH?", command.get_program().to_string_lossy())
}

/// Returns the command line in shell notation, with the program's name instead of its path.
fn line(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let program = program.file_name().map_or_else(OsString::new, OsString::from);
    let words = [program].into_iter().chain(command.get_args().map(OsString::from));
    words.map(|word| quote(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// Quotes a word for a POSIX shell.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_in_cargos_messages() {
        let messages = "{\"executable\":null}\n{\"a\":1,\"executable\":\"/x/y\",\"b\":\"\"}\n";
        assert_eq!(executable(messages), Some("/x/y"));
        assert_eq!(executable("{\"executable\":null}"), None);
        let program = r#"{"target":{"kind":["bin"],"name":"a"},"executable":"/x/a"}"#;
        let bench = r#"{"target":{"kind":["bench"],"name":"b"},"executable":"/x/b"}"#;
        for messages in [[program, bench], [bench, program]] {
            assert_eq!(executable(&messages.join("\n")), Some("/x/b"));
        }
        assert_eq!(executable(program), Some("/x/a"));
    }

    #[test]
    fn plain_words_are_not_quoted() {
        assert_eq!(quote("--device=rxe0"), "--device=rxe0");
        assert_eq!(quote("/usr/bin/a.b_c"), "/usr/bin/a.b_c");
    }

    #[test]
    fn a_shell_parses_a_quoted_word_as_the_original() {
        let words =
            ["", " ", "a b", "it's", "$HOME", "`id`", "a\nb", "\\", "\"", "*", "~", "é", "-", "#x", "!"];
        for word in words {
            let script = format!("printf %s {}", quote(word));
            let echoed = text(Command::new("sh").args(["-c", &script])).unwrap();
            assert_eq!(echoed, word, "{script}");
        }
    }

    #[test]
    fn the_error_of_a_failing_program_contains_its_output() {
        let error = output(Command::new("sh").args(["-c", "echo because >&2; exit 3"])).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("because") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error_with_a_hint() {
        let error = run(&mut Command::new("no-such-program-as-this")).unwrap_err();
        assert!(format!("{error:#}").contains("is it installed"), "{error:#}");
    }
}
