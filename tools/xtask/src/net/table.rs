//! The table of results.

/// The result of one case between a pair.
#[derive(Debug)]
pub(super) struct Run {
    pair: &'static str,
    case: String,
    apis: String,
    /// The reason of a failure; `None` if it passed.
    failure: Option<String>,
}

/// All results.
#[derive(Default, Debug)]
pub(super) struct Results {
    pub(super) runs: Vec<Run>,
    /// Other failures, such as of the guest.
    pub(super) problems: Vec<String>,
}

impl Results {
    /// Adds the results in the output of a pair's processes.
    pub(super) fn add(&mut self, pair: &'static str, out: &str, is_ok: bool, errors: &str) {
        let runs = out.lines().filter_map(|line| Run::parse(pair, line));
        let before = self.runs.len();
        self.runs.extend(runs);
        let has_failed = self.runs[before..].iter().any(|run| run.failure.is_some());
        if !is_ok {
            errors.lines().for_each(|line| println!("        | {line}"));
            if !has_failed {
                self.problems.push(format!("{pair}: its processes failed"));
            }
        }
    }
}

impl Run {
    /// Parses a line of the program's output: `ok` or `FAILED`, case, APIs, seconds, reason.
    fn parse(pair: &'static str, line: &str) -> Option<Run> {
        let mut words = line.splitn(5, ' ');
        let is_ok = match words.next()? {
            "ok" => true,
            "FAILED" => false,
            _ => return None,
        };
        let (case, apis) = (words.next()?.to_owned(), words.next()?.to_owned());
        let failure = (!is_ok).then(|| words.nth(1).unwrap_or_default().to_owned());
        Some(Run { pair, case, apis, failure })
    }
}

/// Returns a table with a row for each case and a column for each pair.
pub(super) fn table(cases: &[&str], pairs: &[&str], results: &Results) -> String {
    let mut text = format!("\n{:52}", "");
    pairs.iter().for_each(|pair| text += &format!(" {pair:>20}"));
    text.push('\n');
    for case in cases {
        text += &format!("{:52}", case.replace('_', " "));
        for pair in pairs {
            let runs = results.runs.iter().filter(|run| run.pair == *pair && run.case == *case);
            let (count, failed) = runs.fold((0, 0), |(count, failed), run| {
                (count + 1, failed + usize::from(run.failure.is_some()))
            });
            let word = match (count, failed) {
                (0, _) => "NOT RUN".to_owned(),
                (count, 0) => format!("ok {count}"),
                (count, failed) => format!("FAILED {failed} of {count}"),
            };
            text += &format!(" {word:>20}");
        }
        text.push('\n');
    }
    text + "\n"
}

/// Returns the failed runs with their reasons, the cases that did not run, and other failures.
pub(super) fn failures(cases: &[&str], pairs: &[&str], results: &Results) -> Vec<String> {
    let mut failures = results.problems.clone();
    for pair in pairs {
        for case in cases {
            let runs: Vec<&Run> =
                results.runs.iter().filter(|run| run.pair == *pair && run.case == *case).collect();
            if runs.is_empty() {
                failures.push(format!("{pair} {case}: it did not run"));
            }
            for run in runs {
                if let Some(reason) = &run.failure {
                    failures.push(format!("{pair} {case} {}: {reason}", run.apis));
                }
            }
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_failed_cases_are_failures() {
        let mut results = Results::default();
        results.add(
            "a-b",
            "ok first threads-tasks 0.1 \nFAILED first tasks-tasks 2.0 client: a byte; server: no\nnoise\n",
            false,
            "",
        );
        assert_eq!(
            failures(&["first", "second"], &["a-b"], &results),
            ["a-b first tasks-tasks: client: a byte; server: no", "a-b second: it did not run"]
        );
        let table = table(&["first", "second"], &["a-b"], &results);
        assert!(table.contains("FAILED 1 of 2") && table.contains("NOT RUN"), "{table}");
    }

    #[test]
    fn a_failed_process_without_a_failed_case_is_a_failure() {
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", false, "");
        assert_eq!(failures(&["first"], &["a-b"], &results), ["a-b: its processes failed"]);
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", true, "");
        assert!(failures(&["first"], &["a-b"], &results).is_empty());
    }
}
