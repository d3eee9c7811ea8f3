//! Other processes: this program, started with a role, possibly in a network namespace of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The environment variable that selects the role.
const ROLE: &str = "ADVERB_ROLE";
/// The line that a role prints at its end.
const DONE: &str = "the role was run";

/// A process with a role, which is killed when this value is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(role: &str) -> Process {
        Process(command(Command::new(std::env::current_exe().unwrap()), role).spawn().unwrap())
    }

    /// Waits for a line with this word, and returns the rest of the line.
    pub(crate) fn wait_for_line(&mut self, word: &str) -> String {
        let lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let mut found =
            lines.map_while(Result::ok).filter_map(|line| Some(line.split_once(word)?.1.trim().to_owned()));
        found.next().unwrap_or_else(|| panic!("the process ended before it printed {word}"))
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a role, and prints the part of the list that it prints.
pub(crate) fn run(role: &str) {
    finish(command(Command::new(std::env::current_exe().unwrap()), role));
}

/// A network namespace, which is deleted when this value is dropped.
pub(crate) struct Namespace(String);

impl Namespace {
    /// Creates a namespace whose interfaces are down, or returns the reason why that is impossible.
    pub(crate) fn create() -> Result<Namespace, String> {
        let name = format!("adverb-errors-{}", std::process::id());
        ip(&format!("netns add {name}"))?;
        Ok(Namespace(name))
    }

    /// Runs `ip` in the namespace.
    pub(crate) fn ip(&self, line: &str) {
        ip(&format!("-n {} {line}", self.0)).unwrap();
    }

    /// Runs a role in the namespace, and prints the part of the list that it prints.
    pub(crate) fn run(&self, role: &str) {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &self.0]).arg(std::env::current_exe().unwrap());
        finish(command(program, role));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.0));
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

fn command(mut program: Command, role: &str) -> Command {
    program.args(["--exact", "process::runs_its_role", "--nocapture"]).env(ROLE, role);
    // A role that waits ends when its standard input is closed.
    program.stdin(Stdio::piped()).stdout(Stdio::piped());
    program
}

fn finish(mut command: Command) {
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    assert!(output.status.success() && text.contains(DONE), "{text}");
    // The test harness prints to the same pipe.
    let list = text.lines().skip_while(|line| !line.starts_with(|first: char| first.is_ascii_digit()));
    list.take_while(|line| *line != DONE).for_each(|line| println!("{line}"));
}

/// Runs the role of a started process. Without a role, as in a run of all tests, it does nothing.
#[test]
fn runs_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.split_once(' ').unwrap_or((&role, "")) {
        ("peer", options) => crate::established::be_killed(options),
        ("no-descriptors", _) => crate::connecting::lack_descriptors(),
        ("all-down", _) => {
            crate::connecting::meet_a_network_that_is_down();
            crate::listening::listen_without_a_device();
        }
        ("no-permission", device) => crate::device::lack_permission(device),
        ("listen-on", device) => crate::device::listen_on(device),
        ("listen-without-memory", device) => crate::device::listen_without_memory(device),
        ("memlock", device) => crate::device::exceed_the_memlock_limit(device),
        ("removed", device) => crate::device::lose_device(device),
        ("unserved", _) => crate::connecting::dial_an_address_without_a_device(),
        _ => panic!("unknown role {role}"),
    }
    println!("{DONE}");
}

/// Waits until the parent has closed the standard input, or has ended.
pub(crate) fn wait_for_parent() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
