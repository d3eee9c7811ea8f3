//! A progress bar.

use std::io::{self, IsTerminal, Write};

/// A progress bar at the bottom of a terminal, with the name of the running test. Without a terminal nothing is shown.
pub(super) struct Progress {
    names: Vec<&'static str>,
    done: usize,
    is_shown: bool,
}

/// The length of the bar in characters.
const BAR_LEN: usize = 24;

/// The maximum length of the line, which fits any terminal.
const MAX_LINE_LEN: usize = 79;

/// The escape sequence that clears the line.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    /// Shows a progress bar for tests with these names.
    pub(super) fn new(names: Vec<&'static str>) -> Progress {
        let progress = Progress { names, done: 0, is_shown: io::stderr().is_terminal() };
        progress.show();
        progress
    }

    /// Counts one more finished test.
    pub(super) fn advance(&mut self) {
        self.done += 1;
        self.show();
    }

    /// Prints a line above the bar.
    pub(super) fn line(&self, text: &str) {
        self.hide();
        println!("{text}");
        self.show();
    }

    fn show(&self) {
        if self.is_shown {
            // A failed write only hides the bar.
            let _ = write!(io::stderr(), "{CLEAR}{}", bar(&self.names, self.done));
        }
    }

    fn hide(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "{CLEAR}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}

/// Returns the line with the bar.
fn bar(names: &[&str], done: usize) -> String {
    let full = BAR_LEN * done / names.len().max(1);
    let name = names.get(done).copied().unwrap_or_default();
    let line = format!(
        "[{}{}] {done}/{} {}",
        "#".repeat(full),
        ".".repeat(BAR_LEN - full),
        names.len(),
        name.replace('_', " ")
    );
    line.chars().take(MAX_LINE_LEN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_and_names_the_running_test() {
        let names = ["a_rule", "another_rule"];
        assert_eq!(bar(&names, 0), "[........................] 0/2 a rule");
        assert_eq!(bar(&names, 1), "[############............] 1/2 another rule");
        assert_eq!(bar(&names, 2), "[########################] 2/2 ");
        assert_eq!(bar(&[], 0), "[........................] 0/0 ");
    }

    #[test]
    fn bar_fits_a_terminal() {
        assert_eq!(bar(&[&"x".repeat(200)], 0).len(), MAX_LINE_LEN);
    }
}
