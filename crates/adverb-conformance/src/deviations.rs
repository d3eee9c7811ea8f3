//! Known deviations of a device from the InfiniBand specification.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use adverb::verbs::DeviceAttributes;

use crate::{Outcome, Suite};

/// The tests that a device is known to fail, with their results and the causes.
///
/// A file of deviations consists of paragraphs of three lines. Lines that begin with `#` are comments.
///
/// ```
/// use adverb_conformance::Deviations;
///
/// let deviations: Deviations = "\
/// ## Deviations of an old NIC
/// test: rc_empty_messages_arrive
/// result: fail: timed out after 10s while waiting for a completion
/// cause: the firmware loses a wake-up
/// ".parse()?;
/// assert_eq!(deviations.iter().len(), 1);
/// # Ok::<(), adverb_conformance::ParseDeviationsError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Deviations(Vec<Deviation>);

/// A test that a device is known to fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deviation {
    /// The name of the test.
    pub test: String,
    /// The known result of the test.
    pub observed: Observed,
    /// The cause of the deviation.
    pub cause: String,
}

/// The known result of a test that a device doesn't pass.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Observed {
    /// The test fails with exactly this reason.
    Fails(String),
    /// The test must not run: it would crash the machine.
    NotRun,
}

/// Whether a device is Linux soft-RoCE.
pub(crate) fn is_soft_roce(attributes: &DeviceAttributes) -> bool {
    /// `RXE_VENDOR_ID` (rxe_param.h).
    const SOFT_ROCE: u32 = 0xff_ffff;
    attributes.vendor_id == SOFT_ROCE
}

impl Deviations {
    /// Returns Adverb's list of known deviations for a device, selected by its vendor ID. The list is empty for every
    /// device except Linux soft-RoCE.
    pub fn known(attributes: &DeviceAttributes) -> Deviations {
        if is_soft_roce(attributes) {
            include_str!("../deviations/rxe.txt").parse().expect("a test has read it")
        } else {
            Deviations::default()
        }
    }

    /// Returns an iterator over all deviations.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Deviation> {
        self.0.iter()
    }

    /// Returns the deviation of the test with this name, or `None` if the test isn't listed.
    pub fn find(&self, test: &str) -> Option<&Deviation> {
        self.0.iter().find(|deviation| deviation.test == test)
    }

    /// Whether the outcome matches the test's deviation, or `None` if the test has none.
    pub(crate) fn matches_deviation(&self, test: &str, outcome: &Outcome) -> Option<bool> {
        let deviation = self.find(test)?;
        Some(match (&deviation.observed, outcome) {
            (Observed::Fails(expected), Outcome::Failed { reason }) => expected == reason,
            (Observed::NotRun, Outcome::Skipped { .. }) => true,
            _ => false,
        })
    }
}

impl FromStr for Deviations {
    type Err = ParseDeviationsError;

    fn from_str(text: &str) -> Result<Deviations, ParseDeviationsError> {
        let known: HashSet<&str> = Suite::all().tests().map(|test| test.name()).collect();
        let mut seen = HashSet::new();
        let mut deviations = Vec::new();
        let mut lines =
            (1..).zip(text.lines()).filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty());
        while let Some((number, line)) = lines.next() {
            let error = |reason: String| ParseDeviationsError { line: number, reason };
            let field = |name: &str, line: Option<&str>| {
                let rest = line.and_then(|line| line.strip_prefix(name)?.strip_prefix(':'));
                rest.map(|rest| rest.trim().to_owned()).ok_or_else(|| error(format!("`{name}:` is missing")))
            };
            let test = field("test", Some(line))?;
            let result = field("result", lines.next().map(|(_, line)| line))?;
            let cause = field("cause", lines.next().map(|(_, line)| line))?;
            if !known.contains(test.as_str()) {
                return Err(error(format!("no test is named {test}")));
            }
            if !seen.insert(test.clone()) {
                return Err(error(format!("the test {test} is listed twice")));
            }
            let observed = match result.strip_prefix("fail:") {
                Some(reason) => Observed::Fails(reason.trim().to_owned()),
                None if result == "not run" => Observed::NotRun,
                None => return Err(error("the result must be `fail: REASON` or `not run`".to_owned())),
            };
            deviations.push(Deviation { test, observed, cause });
        }
        Ok(Deviations(deviations))
    }
}

/// The error of parsing a file of deviations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseDeviationsError {
    /// The line number, from 1, of the first line of the invalid paragraph.
    pub line: usize,
    /// The cause of the error.
    pub reason: String,
}

impl fmt::Display for ParseDeviationsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for ParseDeviationsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: &str) -> Outcome {
        Outcome::Failed { reason: reason.to_owned() }
    }

    const TEST: &str = "rc_empty_messages_arrive";

    #[test]
    fn only_the_listed_result_matches() {
        let deviations: Deviations = format!("test: {TEST}\nresult: fail: so\ncause: why\n").parse().unwrap();
        assert_eq!(deviations.matches_deviation(TEST, &failed("so")), Some(true));
        assert_eq!(deviations.matches_deviation(TEST, &failed("otherwise")), Some(false));
        assert_eq!(deviations.matches_deviation(TEST, &Outcome::Passed), Some(false));
        assert_eq!(deviations.matches_deviation("another", &failed("so")), None);
    }

    #[test]
    fn an_invalid_line_is_rejected_with_its_number() {
        let cases = [
            ("# a comment\n\ntest: no_such_rule\nresult: fail: x\ncause: y\n", 3, "no test is named"),
            (&format!("test: {TEST}\ncause: y\n"), 1, "result"),
            (&format!("test: {TEST}\nresult: pass\ncause: y\n"), 1, "must be"),
        ];
        for (text, line, words) in cases {
            let error = text.parse::<Deviations>().unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.reason.contains(words), "{error}");
        }
    }

    #[test]
    fn the_files_of_this_crate_are_valid() {
        let mut attributes = DeviceAttributes::default();
        assert_eq!(Deviations::known(&attributes).iter().len(), 0);
        attributes.vendor_id = 0xff_ffff;
        let rxe = Deviations::known(&attributes);
        assert!(rxe.iter().len() > 0);
        assert!(rxe.iter().all(|deviation| !deviation.cause.is_empty()));
    }
}
