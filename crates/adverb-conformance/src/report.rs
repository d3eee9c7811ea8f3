//! Test reports.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::{DeviceReport, SystemReport};

/// A report of a run: the results of all tests, the device and the machine.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The version of the suite and of Adverb.
    pub adverb_version: &'static str,
    /// The tested device.
    pub device: DeviceReport,
    /// The machine of the tested device, and its RDMA software.
    pub system: SystemReport,
    /// The test results, in the order of the run.
    pub tests: Vec<TestResult>,
}

/// The result of a test.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct TestResult {
    /// The test's name: the rule that it checks.
    pub name: &'static str,
    /// The group of the rule.
    pub group: &'static str,
    /// The outcome of the test.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether the outcome is expected: a pass, a skip, or exactly the listed deviation of the device.
    pub expected: bool,
    /// The cause of the device's listed deviation, or `None` if no deviation is listed for this test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<String>,
    /// The duration of the test.
    #[serde(rename = "elapsed_ns", serialize_with = "nanos")]
    pub elapsed: Duration,
}

/// The outcome of a test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "result", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Outcome {
    /// The device follows the rule.
    Passed,
    /// The device breaks the rule.
    Failed {
        /// The observed behavior, on one line.
        reason: String,
    },
    /// The device lacks a feature, or the test must not run.
    Skipped {
        /// The missing feature, or the reason why the test must not run.
        reason: String,
    },
}

impl fmt::Display for TestResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.outcome, self.expected, &self.deviation) {
            (Outcome::Passed, true, _) => f.write_str("ok"),
            (Outcome::Passed, false, _) => {
                f.write_str("FAILED: the test passes but is listed as a deviation")
            }
            (Outcome::Failed { .. } | Outcome::Skipped { .. }, true, Some(cause)) => {
                write!(f, "listed deviation: {cause}")
            }
            (Outcome::Failed { reason }, _, None) => write!(f, "FAILED: {reason}"),
            (Outcome::Failed { reason }, _, Some(_)) => {
                write!(f, "FAILED unlike the listed deviation: {reason}")
            }
            (Outcome::Skipped { reason }, _, _) => write!(f, "skipped: {reason}"),
        }
    }
}

impl TestResult {
    /// Whether the test passed or shows its listed deviation.
    fn counts_as_passed(&self) -> bool {
        self.expected && (self.outcome == Outcome::Passed || self.deviation.is_some())
    }
}

impl Report {
    /// Whether every test passed, was skipped, or shows exactly its listed deviation.
    pub fn is_as_expected(&self) -> bool {
        self.tests.iter().all(|test| test.expected)
    }

    /// Returns the numbers of passed, failed and skipped tests. A listed deviation counts as passed.
    pub fn counts(&self) -> (usize, usize, usize) {
        count(self.tests.iter())
    }

    /// Returns the report as text: the device, the machine and the [table](Report::table).
    pub fn text(&self) -> String {
        let DeviceReport { name, driver, attributes, ports } = &self.device;
        let SystemReport { kernel, distribution, architecture, libraries } = &self.system;
        let mut text = format!(
            "device     {name}: vendor {:#x}, part {}, firmware {}, driver {}\n",
            attributes.vendor_id,
            attributes.vendor_part_id,
            if attributes.firmware.is_empty() { "none" } else { &attributes.firmware },
            driver.as_deref().unwrap_or("none"),
        );
        for port in ports {
            text += &format!(
                "port {}     {}, {}, MTU {} of {}; {}\n",
                port.number,
                port.state,
                port.link_layer,
                port.active_mtu,
                port.max_mtu,
                port.gids.join("; ")
            );
        }
        text += &format!("system     {kernel}, {distribution}, {architecture}\n");
        text += &format!("rdma-core  {}\nadverb     {}\n\n", libraries.join(", "), self.adverb_version);
        text + &self.table()
    }

    /// Returns the results as text: a line for each group, the unexpected and skipped tests, and the totals.
    pub fn table(&self) -> String {
        let mut seen = HashSet::new();
        let groups: Vec<&str> =
            self.tests.iter().map(|test| test.group).filter(|group| seen.insert(*group)).collect();
        let width = groups.iter().map(|group| group.len()).max().unwrap_or(0).max("group".len());
        let mut text = format!("{:width$}  passed  failed  skipped  seconds\n", "group");
        for group in groups {
            let tests = || self.tests.iter().filter(|test| test.group == group);
            let (passed, failed, skipped) = count(tests());
            let took = tests().map(|test| test.elapsed).sum::<Duration>().as_secs_f64();
            text += &format!("{group:width$}  {passed:>6}  {failed:>6}  {skipped:>7}  {took:>7.1}\n");
        }
        for test in &self.tests {
            if !test.expected || matches!(test.outcome, Outcome::Skipped { .. }) {
                text += &format!("{}: {test}\n", test.name);
            }
        }
        let deviating = self.tests.iter().filter(|test| test.expected && test.deviation.is_some()).count();
        if deviating > 0 {
            text +=
                &format!("{deviating} of the passed tests show a listed deviation from the specification\n");
        }
        let (passed, failed, skipped) = self.counts();
        text + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
    }
}

fn count<'a>(tests: impl Iterator<Item = &'a TestResult>) -> (usize, usize, usize) {
    tests.fold((0, 0, 0), |(passed, failed, skipped), test| {
        if !test.expected {
            (passed, failed + 1, skipped)
        } else if test.counts_as_passed() {
            (passed + 1, failed, skipped)
        } else {
            (passed, failed, skipped + 1)
        }
    })
}

/// Serializes a duration as nanoseconds.
pub(crate) fn nanos<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use adverb::verbs::DeviceAttributes;

    use super::*;
    use crate::machine::PortReport;

    fn result(group: &'static str, outcome: Outcome, expected: bool, deviation: Option<&str>) -> TestResult {
        let deviation = deviation.map(str::to_owned);
        TestResult {
            name: "a_rule",
            group,
            outcome,
            expected,
            deviation,
            elapsed: Duration::from_millis(250),
        }
    }

    fn report() -> Report {
        let failed = |reason: &str| Outcome::Failed { reason: reason.to_owned() };
        let port = PortReport {
            number: 1,
            state: "active".into(),
            link_layer: "Ethernet".into(),
            active_mtu: 1024,
            max_mtu: 4096,
            max_message_size: 1 << 23,
            pkey_table_len: 1,
            gids: vec!["RoCE v2, IPv4".into()],
        };
        let device = DeviceReport {
            name: "d0".into(),
            driver: Some("d_core".into()),
            attributes: DeviceAttributes::default(),
            ports: vec![port],
        };
        let system = SystemReport {
            kernel: "Linux 6.1".into(),
            distribution: "Debian".into(),
            architecture: "x86_64".into(),
            libraries: vec!["libibverbs.so.1.14".into()],
        };
        Report {
            adverb_version: "0",
            device,
            system,
            tests: vec![
                result("one", Outcome::Passed, true, None),
                result("one", failed("listed"), true, Some("old silicon")),
                result("another", failed("new"), false, None),
                result("another", Outcome::Skipped { reason: "no atomics".into() }, true, None),
                result("another", Outcome::Passed, false, Some("old silicon")),
            ],
        }
    }

    #[test]
    fn the_table_has_a_line_per_group_and_ends_with_the_sum() {
        assert_eq!(
            report().table(),
            "group    passed  failed  skipped  seconds\n\
             one           2       0        0      0.5\n\
             another       0       2        1      0.8\n\
             a_rule: FAILED: new\n\
             a_rule: skipped: no atomics\n\
             a_rule: FAILED: the test passes but is listed as a deviation\n\
             1 of the passed tests show a listed deviation from the specification\n\
             2 passed, 2 failed, 1 skipped\n"
        );
        assert!(!report().is_as_expected());
    }

    #[test]
    fn the_text_report_names_the_machine() {
        let text = report().text();
        let head = "device     d0: vendor 0x0, part 0, firmware none, driver d_core\n\
                    port 1     active, Ethernet, MTU 1024 of 4096; RoCE v2, IPv4\n\
                    system     Linux 6.1, Debian, x86_64\n\
                    rdma-core  libibverbs.so.1.14\n\
                    adverb     0\n\n";
        assert_eq!(text, format!("{head}{}", report().table()));
    }

    #[test]
    fn the_json_report_contains_device_system_and_results() {
        let json: serde_json::Value = serde_json::to_value(report()).unwrap();
        assert_eq!(json["device"]["ports"][0]["active_mtu"], 1024);
        assert_eq!(json["device"]["attributes"]["max_queue_depth"], 0);
        assert_eq!(json["system"]["kernel"], "Linux 6.1");
        assert_eq!(json["tests"][1]["result"], "failed");
        assert_eq!(json["tests"][1]["reason"], "listed");
        assert_eq!(json["tests"][1]["expected"], true);
    }
}
