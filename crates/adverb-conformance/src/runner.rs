//! Running tests.

use std::any::Any;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::Device;

use crate::fixture::Fixture;
use crate::report::seconds;
use crate::{Deviations, DeviceReport, Observed, Outcome, Report, Suite, SystemReport, Test, TestResult};

/// How to run tests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long one test may take; a minute unless set.
    pub time_limit: Duration,
    /// What the device is known to do its own way; nothing unless set.
    pub deviations: Deviations,
    /// How many packets in a million are lost between the device's queue pairs, on purpose; none unless set. Datagrams and
    /// unreliable connections may then lose messages, but not parts of them, and no more than twice as many.
    pub loss: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { time_limit: Duration::from_secs(60), deviations: Deviations::default(), loss: 0 }
    }
}

impl Suite {
    /// Runs the tests on the device of this name, one after the other, each with objects of its own. `each` hears of
    /// every test when it is done.
    ///
    /// # Errors
    ///
    /// If the device can't be opened or asked. A test that fails is no error.
    pub fn run(
        &self,
        device: &str,
        options: &Options,
        mut each: impl FnMut(&Test, &TestResult),
    ) -> adverb::Result<Report> {
        let opened = Device::open(device)?;
        let mut tests = Vec::with_capacity(self.tests.len());
        for test in &self.tests {
            let start = Instant::now();
            let known = options.deviations.find(test.name);
            let outcome = match missing(test, &opened)? {
                Some(reason) => Outcome::Skipped { reason },
                None if known.is_some_and(|known| known.observed == Observed::NotRun) => {
                    Outcome::Skipped { reason: "it would take the machine down".to_owned() }
                }
                None => run(test, device, options),
            };
            let usual = !matches!(outcome, Outcome::Failed { .. });
            let result = TestResult {
                name: test.name,
                group: test.group,
                expected: options.deviations.fits(test.name, &outcome).unwrap_or(usual),
                outcome,
                deviation: known.map(|known| known.cause.clone()),
                seconds: seconds(start.elapsed()),
            };
            each(test, &result);
            tests.push(result);
        }
        Ok(Report {
            format: 1,
            version: env!("CARGO_PKG_VERSION"),
            device: DeviceReport::new(&opened)?,
            system: SystemReport::here(),
            tests,
        })
    }
}

/// What the device lacks that the test needs.
fn missing(test: &Test, device: &Device) -> adverb::Result<Option<String>> {
    for need in test.needs {
        if let Some(reason) = need.missing(device)? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Runs a test on a thread of its own, which is left behind if it takes too long.
fn run(test: &Test, device: &str, options: &Options) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let (check, device) = (test.check, device.to_owned());
    let Options { time_limit, loss, .. } = *options;
    let thread = thread::Builder::new().name(test.name.to_owned()).spawn(move || {
        let result = Fixture::new(&device, loss).and_then(|fixture| fixture.eventually(|| check(&fixture)));
        // Nobody listens when it took too long.
        let _ = sender.send(result);
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return failed(&format!("no thread could be started: {error}")),
    };
    match receiver.recv_timeout(time_limit) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(error)) => failed(&format!("{error:#}")),
        Err(mpsc::RecvTimeoutError::Timeout) => failed(&format!("it isn't done after {time_limit:?}")),
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(()) => failed("it ended without a result"),
            Err(panic) => failed(&format!("it panicked: {}", words(&*panic))),
        },
    }
}

/// A failure, with a reason of one line.
fn failed(reason: &str) -> Outcome {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    Outcome::Failed { reason }
}

/// What a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it didn't say why")
}
