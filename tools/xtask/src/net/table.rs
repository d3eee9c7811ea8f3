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

/// A column of the table: a pair, and the cases that it had to run.
#[derive(Debug)]
pub(super) struct Column<'a> {
    pub(super) pair: &'static str,
    pub(super) cases: &'a [&'a str],
}

/// Returns a table with a row for each case.
pub(super) fn table(cases: &[&str], columns: &[Column<'_>], results: &Results) -> String {
    let mut text = format!("\n{:52}", "");
    columns.iter().for_each(|column| text += &format!(" {:>20}", column.pair));
    text.push('\n');
    for case in cases {
        text += &format!("{:52}", case.replace('_', " "));
        for column in columns {
            let runs = results.runs.iter().filter(|run| run.pair == column.pair && run.case == *case);
            let (count, failed) = runs.fold((0, 0), |(count, failed), run| {
                (count + 1, failed + usize::from(run.failure.is_some()))
            });
            let word = match (count, failed) {
                (0, _) if !column.cases.contains(case) => "-".to_owned(),
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
pub(super) fn failures(columns: &[Column<'_>], results: &Results) -> Vec<String> {
    let mut failures = results.problems.clone();
    for Column { pair, cases } in columns {
        for case in *cases {
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
        let columns = [Column { pair: "a-b", cases: &["first", "second"] }];
        assert_eq!(
            failures(&columns, &results),
            ["a-b first tasks-tasks: client: a byte; server: no", "a-b second: it did not run"]
        );
        let table = table(&["first", "second"], &columns, &results);
        assert!(table.contains("FAILED 1 of 2") && table.contains("NOT RUN"), "{table}");
    }

    #[test]
    fn cases_that_a_pair_had_not_to_run_are_no_failures() {
        let columns = [Column { pair: "a-b", cases: &[] }];
        let results = Results::default();
        assert!(failures(&columns, &results).is_empty());
        assert!(table(&["first"], &columns, &results).trim_end().ends_with(" -"));
    }

    #[test]
    fn a_failed_process_without_a_failed_case_is_a_failure() {
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", false, "");
        let columns = [Column { pair: "a-b", cases: &["first"] }];
        assert_eq!(failures(&columns, &results), ["a-b: its processes failed"]);
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", true, "");
        assert!(failures(&columns, &results).is_empty());
    }
}
