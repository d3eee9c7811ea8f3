//! The results of checks, in the structure of the JSON output, and as text.

use serde::Serialize;

use crate::prose;

/// The results of all checks.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The number of results that are problems.
    pub(super) problem_count: usize,
    results: Vec<CheckResult>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct CheckResult {
    /// The name of the check.
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    /// The fact, or the problem with its cause.
    pub(super) message: String,
    /// The actions that fix a problem.
    pub(super) fixes: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    Ok,
    /// RDMA doesn't work, or works only in part.
    Problem,
    /// A fact without a verdict.
    Note,
    /// The check needs something that this machine doesn't have, or a permission.
    NotChecked,
}

impl CheckResult {
    pub(super) fn ok(check: &'static str, message: impl Into<String>) -> CheckResult {
        CheckResult { check, verdict: Verdict::Ok, message: message.into(), fixes: Vec::new() }
    }

    pub(super) fn note(check: &'static str, message: impl Into<String>) -> CheckResult {
        CheckResult { check, verdict: Verdict::Note, message: message.into(), fixes: Vec::new() }
    }

    pub(super) fn not_checked(check: &'static str, reason: impl Into<String>) -> CheckResult {
        CheckResult { check, verdict: Verdict::NotChecked, message: reason.into(), fixes: Vec::new() }
    }

    pub(super) fn problem(
        check: &'static str,
        message: impl Into<String>,
        fixes: &[impl AsRef<str>],
    ) -> CheckResult {
        let fixes = fixes.iter().map(|fix| fix.as_ref().to_owned()).collect();
        CheckResult { check, verdict: Verdict::Problem, message: message.into(), fixes }
    }
}

impl Report {
    pub(super) fn new(results: Vec<CheckResult>) -> Report {
        let problem_count = results.iter().filter(|result| result.verdict == Verdict::Problem).count();
        Report { problem_count, results }
    }

    /// Returns the report for people: a line for each result, and the problems with their fixes at the end, where a
    /// terminal shows them.
    pub(super) fn text(&self) -> String {
        let width = self.results.iter().map(|result| result.check.len()).max().unwrap_or(0);
        let mut text = String::new();
        for CheckResult { check, verdict, message, .. } in &self.results {
            let verdict = match verdict {
                Verdict::Ok => "ok",
                Verdict::Problem => "PROBLEM",
                Verdict::Note => "note",
                Verdict::NotChecked => "-",
            };
            text += &prose::wrap_line(
                &format!("{verdict:<7}  {check:<width$}  {message}"),
                width + 11,
                prose::MAX_WIDTH,
            );
        }
        let problems = self.results.iter().filter(|result| result.verdict == Verdict::Problem);
        for CheckResult { message, fixes, .. } in problems {
            text += &prose::wrap(&format!("\nproblem: {message}"));
            for fix in fixes {
                text += &prose::wrap(&format!("  fix: {fix}"));
            }
        }
        text + match self.problem_count {
            0 => "\nno problem was found\n",
            _ => "",
        }
    }
}
