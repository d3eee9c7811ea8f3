//! What became of the plays, as a table.

/// What became of a case between a pair.
#[derive(Debug)]
pub(super) struct Play {
    pair: &'static str,
    case: String,
    flavours: String,
    /// Why it failed, if it did.
    failure: Option<String>,
}

/// What became of it all.
#[derive(Default, Debug)]
pub(super) struct Results {
    pub(super) plays: Vec<Play>,
    /// What else went wrong.
    pub(super) trouble: Vec<String>,
}

impl Results {
    /// Takes in what the processes of a pair said.
    pub(super) fn add(&mut self, pair: &'static str, out: &str, is_ok: bool, errors: &str) {
        let plays = out.lines().filter_map(|line| Play::read(pair, line));
        let before = self.plays.len();
        self.plays.extend(plays);
        let has_failed = self.plays[before..].iter().any(|play| play.failure.is_some());
        if !is_ok {
            errors.lines().for_each(|line| println!("        | {line}"));
            if !has_failed {
                self.trouble.push(format!("{pair}: its processes failed"));
            }
        }
    }
}

impl Play {
    /// Reads a line of the program: `ok` or `FAILED`, the case, the flavours, the seconds, and why.
    fn read(pair: &'static str, line: &str) -> Option<Play> {
        let mut words = line.splitn(5, ' ');
        let is_ok = match words.next()? {
            "ok" => true,
            "FAILED" => false,
            _ => return None,
        };
        let (case, flavours) = (words.next()?.to_owned(), words.next()?.to_owned());
        let failure = (!is_ok).then(|| words.nth(1).unwrap_or_default().to_owned());
        Some(Play { pair, case, flavours, failure })
    }
}

/// A line for every case, a column for every pair.
pub(super) fn table(cases: &[&str], pairs: &[&str], results: &Results) -> String {
    let mut text = format!("\n{:52}", "");
    pairs.iter().for_each(|pair| text += &format!(" {pair:>20}"));
    text.push('\n');
    for case in cases {
        text += &format!("{:52}", case.replace('_', " "));
        for pair in pairs {
            let plays = results.plays.iter().filter(|play| play.pair == *pair && play.case == *case);
            let (count, failed) = plays.fold((0, 0), |(count, failed), play| {
                (count + 1, failed + usize::from(play.failure.is_some()))
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

/// The plays that failed and why, the cases that no pair got to, and what else went wrong.
pub(super) fn failures(cases: &[&str], pairs: &[&str], results: &Results) -> Vec<String> {
    let mut failures = results.trouble.clone();
    for pair in pairs {
        for case in cases {
            let plays: Vec<&Play> =
                results.plays.iter().filter(|play| play.pair == *pair && play.case == *case).collect();
            if plays.is_empty() {
                failures.push(format!("{pair} {case}: it wasn't run"));
            }
            for play in plays {
                if let Some(why) = &play.failure {
                    failures.push(format!("{pair} {case} {}: {why}", play.flavours));
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
    fn what_is_missing_has_failed_and_so_has_what_failed() {
        let mut results = Results::default();
        results.add(
            "a-b",
            "ok first threads-tasks 0.1 \nFAILED first tasks-tasks 2.0 client: a byte; server: no\nnoise\n",
            false,
            "",
        );
        assert_eq!(
            failures(&["first", "second"], &["a-b"], &results),
            ["a-b first tasks-tasks: client: a byte; server: no", "a-b second: it wasn't run"]
        );
        let table = table(&["first", "second"], &["a-b"], &results);
        assert!(table.contains("FAILED 1 of 2") && table.contains("NOT RUN"), "{table}");
    }

    #[test]
    fn processes_that_fail_for_no_known_reason_have_failed() {
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", false, "");
        assert_eq!(failures(&["first"], &["a-b"], &results), ["a-b: its processes failed"]);
        let mut results = Results::default();
        results.add("a-b", "ok first threads-tasks 0.1 \n", true, "");
        assert!(failures(&["first"], &["a-b"], &results).is_empty());
    }
}
