//! How far it is.

use std::io::{self, IsTerminal, Write};

/// A line at the bottom of a terminal that says how far it is and what is under way. Elsewhere there is none.
pub(super) struct Progress {
    names: Vec<&'static str>,
    done: usize,
    is_shown: bool,
}

/// How many characters the bar has.
const BAR: usize = 24;

/// How long the line gets, so that it fits any terminal.
const WIDTH: usize = 79;

/// Goes to the beginning of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

impl Progress {
    /// Nothing is done yet of what has these names.
    pub(super) fn new(names: Vec<&'static str>) -> Progress {
        let progress = Progress { names, done: 0, is_shown: io::stderr().is_terminal() };
        progress.show();
        progress
    }

    /// One more is done.
    pub(super) fn advance(&mut self) {
        self.done += 1;
        self.show();
    }

    /// Prints a line that stays.
    pub(super) fn line(&self, text: &str) {
        self.hide();
        println!("{text}");
        self.show();
    }

    fn show(&self) {
        if self.is_shown {
            // It is only a bar: whoever can't see it misses nothing.
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

/// The line.
fn bar(names: &[&str], done: usize) -> String {
    let full = BAR * done / names.len().max(1);
    let name = names.get(done).copied().unwrap_or_default();
    let line = format!(
        "[{}{}] {done}/{} {}",
        "#".repeat(full),
        ".".repeat(BAR - full),
        names.len(),
        name.replace('_', " ")
    );
    line.chars().take(WIDTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_up_and_names_what_is_under_way() {
        let names = ["a_rule", "another_rule"];
        assert_eq!(bar(&names, 0), "[........................] 0/2 a rule");
        assert_eq!(bar(&names, 1), "[############............] 1/2 another rule");
        assert_eq!(bar(&names, 2), "[########################] 2/2 ");
        assert_eq!(bar(&[], 0), "[........................] 0/0 ");
    }

    #[test]
    fn bar_fits_a_terminal() {
        assert_eq!(bar(&[&"x".repeat(200)], 0).len(), WIDTH);
    }
}
