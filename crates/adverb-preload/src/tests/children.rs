//! Parts of tests that run in processes of their own.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::DEADLINE;

/// The environment variable with the name of the part that a process runs.
const PART: &str = "ADVERB_TEST_PART";

/// Whether this process runs the part with this name.
pub(super) fn is_part(name: &str) -> bool {
    std::env::var(PART).is_ok_and(|part| part == name)
}

/// A process that runs a part of a test.
pub(super) struct Part(Child);

impl Part {
    /// Starts a process that runs the part, a test with this path.
    pub(super) fn start(name: &str, variables: &[(&str, &str)]) -> Part {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("tests::{name}"), "--nocapture", "--test-threads=1"]);
        // Objects that the part leaves open aren't freed. Freed memory has other contents.
        command.env(PART, name).env("ASAN_OPTIONS", "detect_leaks=0").env("MALLOC_PERTURB_", "170");
        command.envs(variables.iter().copied()).stdout(Stdio::null());
        Part(command.spawn().unwrap())
    }

    /// Waits for the process, and returns its status, or `None` if it doesn't end.
    pub(super) fn status(mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < 2 * DEADLINE {
            if let Some(status) = self.0.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // The process is gone unless another one failed first.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// Runs a part in a process of its own, which must succeed.
pub(super) fn run(name: &str) {
    let status = Part::start(name, &[]).status();
    assert!(status.is_some_and(|status| status.success()), "{name} ended with {status:?}");
}
