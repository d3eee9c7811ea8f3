//! Running tests.

use std::any::Any;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::Device;

use crate::fixture::Fixture;
use crate::{Deviations, DeviceReport, Observed, Outcome, Report, Suite, SystemReport, Test, TestResult};

/// The options of [`Suite::run`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The time limit of one test. The default is one minute.
    pub time_limit: Duration,
    /// The known deviations of the device. The list is empty by default.
    pub deviations: Deviations,
    /// The injected packet loss between the device's queue pairs, in packets per million. The default is 0. With packet
    /// loss, tests of UD and UC accept the loss of whole messages, up to twice this rate.
    pub loss_ppm: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { time_limit: Duration::from_secs(60), deviations: Deviations::default(), loss_ppm: 0 }
    }
}

impl Suite {
    /// Runs the tests in order on the device with this name, and calls `each` after every test. Each test creates its
    /// own objects.
    ///
    /// # Errors
    ///
    /// Returns an error if the device can't be opened or queried. A failed test is not an error.
    pub fn run(
        &self,
        device: &str,
        options: &Options,
        mut each: impl FnMut(&Test, &TestResult),
    ) -> adverb::verbs::Result<Report> {
        let opened = Device::open(device)?;
        let mut tests = Vec::with_capacity(self.tests.len());
        for test in &self.tests {
            let start = Instant::now();
            let known = options.deviations.find(test.name);
            let outcome = match missing(test, &opened)? {
                Some(reason) => Outcome::Skipped { reason },
                None if known.is_some_and(|known| known.observed == Observed::NotRun) => {
                    Outcome::Skipped { reason: "the test would crash the machine".to_owned() }
                }
                None => run(test, device, options),
            };
            let has_not_failed = !matches!(outcome, Outcome::Failed { .. });
            let result = TestResult {
                name: test.name,
                group: test.group,
                expected: options.deviations.matches_deviation(test.name, &outcome).unwrap_or(has_not_failed),
                outcome,
                deviation: known.map(|known| known.cause.clone()),
                elapsed: start.elapsed(),
            };
            each(test, &result);
            tests.push(result);
        }
        Ok(Report {
            adverb_version: env!("CARGO_PKG_VERSION"),
            device: DeviceReport::new(&opened)?,
            system: SystemReport::here(),
            tests,
        })
    }
}

/// Returns the reason if the device lacks a feature that the test needs.
fn missing(test: &Test, device: &Device) -> adverb::verbs::Result<Option<String>> {
    for need in test.needs {
        if let Some(reason) = need.missing(device)? {
            return Ok(Some(reason));
        }
    }
    Ok(None)
}

/// Runs a test on its own thread, which keeps running if the time limit expires.
fn run(test: &Test, device: &str, options: &Options) -> Outcome {
    let (sender, receiver) = mpsc::channel();
    let (check, device) = (test.check, device.to_owned());
    let Options { time_limit, loss_ppm: loss, .. } = *options;
    let thread = thread::Builder::new().name(test.name.to_owned()).spawn(move || {
        let result =
            Fixture::new(&device, loss).and_then(|fixture| fixture.retry_after_loss(|| check(&fixture)));
        // The receiver is dropped if the time limit expired.
        let _ = sender.send(result);
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return failed(&format!("could not start a thread: {error}")),
    };
    match receiver.recv_timeout(time_limit) {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(error)) => failed(&format!("{error:#}")),
        Err(mpsc::RecvTimeoutError::Timeout) => {
            failed(&format!("the test did not finish within {time_limit:?}"))
        }
        Err(mpsc::RecvTimeoutError::Disconnected) => match thread.join() {
            Ok(()) => failed("the test ended without a result"),
            Err(panic) => failed(&format!("the test panicked: {}", panic_message(&*panic))),
        },
    }
}

/// Returns a failure with a one-line reason.
fn failed(reason: &str) -> Outcome {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    Outcome::Failed { reason }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}
