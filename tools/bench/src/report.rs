//! The table of results: values, baselines, ratios and goals.

use std::fmt;

use super::median;

/// A row: the measured values and their baseline's, one of each per round.
pub(super) struct Row {
    pub(super) what: &'static str,
    pub(super) unit: &'static str,
    pub(super) values: Vec<f64>,
    pub(super) baseline: &'static str,
    pub(super) baseline_values: Vec<f64>,
    pub(super) goal: Option<Goal>,
}

/// A goal for the ratio of a value to its baseline.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Row {
    fn ratio(&self) -> f64 {
        median(self.values.clone()) / median(self.baseline_values.clone())
    }

    /// Returns whether the goal is reached; `None` without a goal.
    pub(super) fn is_reached(&self) -> Option<bool> {
        let ratio = self.ratio();
        Some(match self.goal? {
            Goal::AtMost(max) => ratio <= max,
            Goal::AtLeast(min) => ratio >= min,
        })
    }
}

/// Prints the table, and returns the number of missed goals.
pub(super) fn print(rows: &[Row]) -> usize {
    println!("{:44} {:>12}  {:32} {:>12} {:>7}  goal", "medians", "adverb", "baseline", "", "ratio");
    let mut missed = 0;
    for row in rows {
        let (goal, verdict) = match (row.goal, row.is_reached()) {
            (Some(goal), Some(true)) => (goal.to_string(), "ok"),
            (Some(goal), _) => {
                missed += 1;
                (goal.to_string(), "MISSED")
            }
            (None, _) => (String::new(), ""),
        };
        let what = format!("{}, {}", row.what, row.unit);
        let [values, baseline_values] =
            [&row.values, &row.baseline_values].map(|numbers| figure(median(numbers.clone())));
        let ratio =
            if row.baseline_values.is_empty() { String::new() } else { format!("{:.2}", row.ratio()) };
        let baseline_values = if row.baseline_values.is_empty() { String::new() } else { baseline_values };
        println!(
            "{what:44} {values:>12}  {:32} {baseline_values:>12} {ratio:>7}  {goal:7} {verdict}",
            row.baseline
        );
    }
    missed
}

/// Formats a number with up to two decimals: fewer for larger numbers, and millions with the suffix `M`.
pub(super) fn figure(number: f64) -> String {
    match number.abs() {
        1e6.. => format!("{:.2} M", number / 1e6),
        100.0.. => format!("{number:.0}"),
        10.0.. => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtMost(max) => write!(f, "≤ {max:?}"),
            Goal::AtLeast(min) => write!(f, "≥ {min:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_can_be_missed() {
        let row = |values: f64, goal| Row {
            what: "",
            unit: "",
            values: vec![values],
            baseline: "",
            baseline_values: vec![10.0],
            goal,
        };
        assert_eq!(row(10.0, Some(Goal::AtMost(1.0))).is_reached(), Some(true));
        assert_eq!(row(10.1, Some(Goal::AtMost(1.0))).is_reached(), Some(false));
        assert_eq!(row(14.9, Some(Goal::AtLeast(1.5))).is_reached(), Some(false));
        assert_eq!(row(f64::NAN, Some(Goal::AtLeast(1.5))).is_reached(), Some(false));
        assert_eq!(row(1.0, None).is_reached(), None);
    }

    #[test]
    fn figures_are_short() {
        let figures = [2_345_678.0, 1234.5, 45.67, 3.456].map(figure);
        assert_eq!(figures, ["2.35 M", "1234", "45.7", "3.46"]);
    }
}
