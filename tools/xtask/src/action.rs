//! Tests of the GitHub Action that installs Adverb (`action.yml`), with a release that has a script as its command.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{paths, process};

use crate::metadata;

/// The directory of a release and of a runner, which is removed when this is dropped.
struct Runner(PathBuf);

impl Runner {
    fn create(name: &str) -> Runner {
        let path = std::env::temp_dir().join(format!("xtask-action-{name}-{}", std::process::id()));
        let bin = path.join("adverb-1.2.3-x86_64-linux/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir(path.join("temporary")).unwrap();
        let command = bin.join("adverb");
        fs::write(&command, COMMAND).unwrap();
        fs::set_permissions(&command, Permissions::from_mode(0o755)).unwrap();
        let script = "tar -czf $0.tar.gz $0 && sha256sum $0.tar.gz > SHA256SUMS";
        let mut sh = Command::new("sh");
        process::run(sh.args(["-c", script, "adverb-1.2.3-x86_64-linux"]).current_dir(&path)).unwrap();
        Runner(path)
    }

    /// Runs the step of the action with these inputs and other variables.
    fn run(&self, variables: &[(&str, &str)]) -> Output {
        for file in ["env", "path", "output"] {
            fs::write(self.0.join(file), "").unwrap();
        }
        let mut bash = Command::new("bash");
        bash.arg(paths::root().join(".github/actions/install/install.sh"));
        bash.env("RUNNER_TEMP", self.0.join("temporary")).env("RUNNER_OS", "Linux").env("RUNNER_ARCH", "X64");
        bash.env("GITHUB_ENV", self.0.join("env")).env("GITHUB_PATH", self.0.join("path"));
        bash.env("GITHUB_OUTPUT", self.0.join("output")).current_dir(&self.0);
        bash.env("INPUT_VERSION", "1.2.3").env("INPUT_SOURCE", &self.0);
        bash.envs(variables.iter().copied()).output().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The command of the release. Its variables have characters that shells interpret.
const COMMAND: &str = r#"#!/bin/sh
case "$1" in
--version) echo adverb 1.2.3 ;;
env) echo "export ADVERB_ARGUMENTS='$# $*'"; echo "export LD_PRELOAD='/a b/\$x'\\''y$VALUE'" ;;
esac
"#;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_command_is_in_the_path_of_later_steps() {
    let runner = Runner::create("path");
    let url = format!("file://{}", runner.0.display());
    for source in [runner.0.to_str().unwrap(), &url] {
        let output = runner.run(&[("INPUT_SOURCE", source)]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text(&output), "adverb 1.2.3\n");
        let bin = runner.read("path").trim().to_owned();
        assert!(Path::new(&bin).join("adverb").is_file(), "{bin}");
        assert_eq!(runner.read("output"), format!("directory={}\n", bin.trim_end_matches("/bin")));
        assert_eq!(runner.read("env"), "");
    }
    assert_eq!(fs::read_dir(runner.0.join("temporary")).unwrap().count(), 1, "downloads are removed");
}

#[test]
fn later_steps_get_the_variables_on_request() {
    let runner = Runner::create("env");
    let output = runner.run(&[("INPUT_RUN_ALL", "true"), ("INPUT_OPTIONS", "--loss 1 --seed 7")]);
    assert!(output.status.success(), "{output:?}");
    let expected = "ADVERB_ARGUMENTS=5 env --loss 1 --seed 7\nLD_PRELOAD=/a b/$x'y\n";
    assert_eq!(runner.read("env"), expected);
    let output = runner.run(&[("INPUT_OPTIONS", "--loss 1")]);
    assert!(!output.status.success() && text(&output).contains("no effect without run-all"), "{output:?}");
}

#[test]
fn a_release_that_is_not_as_published_is_refused() {
    let runner = Runner::create("checksum");
    let sums = runner.read("SHA256SUMS");
    let other = sums.replace("adverb-1.2.3", "adverb-1.2.4");
    let wrong = format!("{}{}", "0".repeat(64), &sums[64..]);
    for (sums, message) in
        [(&wrong, "the checksum of"), (&other, "does not list"), (&String::new(), "does not list")]
    {
        fs::write(runner.0.join("SHA256SUMS"), sums).unwrap();
        let output = runner.run(&[]);
        assert!(!output.status.success() && text(&output).contains(message), "{output:?}");
        assert_eq!(runner.read("path"), "");
    }
}

#[test]
fn a_directory_in_the_checkout_does_not_replace_a_url() {
    let runner = Runner::create("checkout");
    // Nothing listens on this port.
    let path = runner.0.join("https:/127.0.0.1:1/releases");
    fs::create_dir_all(&path).unwrap();
    for file in ["adverb-1.2.3-x86_64-linux.tar.gz", "SHA256SUMS"] {
        fs::copy(runner.0.join(file), path.join(file)).unwrap();
    }
    let output = runner.run(&[("INPUT_SOURCE", "https://127.0.0.1:1/releases")]);
    assert!(!output.status.success() && text(&output).contains("downloading https://"), "{output:?}");
    assert_eq!(runner.read("path"), "");
}

#[test]
fn line_breaks_begin_no_other_variables_or_commands() {
    let runner = Runner::create("lines");
    let output = runner.run(&[("INPUT_VERSION", "1.2.3\n::stop-commands::x")]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(text(&output), "::error::the version 1.2.3%0A::stop-commands::x is not a version\n");
    for version in ["../1.2.3", "1.2.3/..", "", "-1"] {
        let output = runner.run(&[("INPUT_VERSION", version)]);
        assert!(!output.status.success() && text(&output).contains("is not a version"), "{output:?}");
    }
    let output =
        runner.run(&[("INPUT_RUN_ALL", "true"), ("INPUT_OPTIONS", "--trace *"), ("VALUE", "a\nPATH=b")]);
    assert!(!output.status.success() && text(&output).contains("a line break"), "{output:?}");
    assert_eq!(runner.read("env"), "");
    let output = runner.run(&[("INPUT_RUN_ALL", "true"), ("INPUT_OPTIONS", "--trace /*")]);
    assert!(output.status.success(), "{output:?}");
    assert!(runner.read("env").starts_with("ADVERB_ARGUMENTS=3 env --trace /*\n"), "{}", runner.read("env"));
}

#[test]
fn runners_without_a_release_are_named() {
    let runner = Runner::create("runner");
    let cases = [
        (("RUNNER_OS", "macOS"), "not on macOS"),
        (("RUNNER_ARCH", "X86"), "the architecture X86"),
        (("RUNNER_ARCH", "ARM64"), "has no adverb-1.2.3-aarch64-linux.tar.gz"),
        (("INPUT_VERSION", "v1.2.4"), "has no adverb-1.2.4-x86_64-linux.tar.gz"),
    ];
    for (variable, message) in cases {
        let output = runner.run(&[variable]);
        assert!(!output.status.success() && text(&output).contains(message), "{output:?}");
    }
}

#[test]
fn the_default_version_is_that_of_the_packages() {
    let action = fs::read_to_string(paths::root().join("action.yml")).unwrap();
    let packages = metadata::packages().unwrap();
    let version = &packages.iter().find(|package| package.name == "adverb-cli").unwrap().version;
    assert!(action.contains(&format!("default: \"{version}\"\n")), "action.yml installs another version");
}
