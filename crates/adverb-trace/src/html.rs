//! One HTML page with a sequence diagram.
//!
//! The page is made of the files in `html/`: a skeleton, a style sheet, and scripts. It loads nothing else. The trace
//! is embedded as JSON, and the scripts draw the part of it that is visible.

mod data;
mod ends;
mod headers;
mod order;
mod texts;

use std::io::{self, Write};

use crate::model::Trace;

/// The maximum number of rows that the page draws at a time.
const ROW_LIMIT: u32 = 500;

const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/page.css");
const SCRIPTS: [&str; 5] = [
    include_str!("html/model.js"),
    include_str!("html/diagram.js"),
    include_str!("html/overview.js"),
    include_str!("html/detail.js"),
    include_str!("html/page.js"),
];

impl Trace {
    /// Writes the trace as one HTML page with a sequence diagram: application, NIC, network, NIC, application.
    ///
    /// The page needs no network access and no other file. It shows at most 500 rows at a time, and has an overview,
    /// a search, filters, and the details of each work request, packet and completion. If two devices have no common
    /// clock, the page orders their steps by cause and effect, and shows the times of both.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// let mut page = Vec::new();
    /// Trace::new([]).write_html(&mut page)?;
    /// assert!(page.starts_with(b"<!DOCTYPE html>"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of `out`.
    pub fn write_html(&self, out: &mut impl Write) -> io::Result<()> {
        let mut rest = PAGE;
        while let Some((before, placeholder, after)) = next_placeholder(rest) {
            out.write_all(before.as_bytes())?;
            match placeholder {
                "style" => out.write_all(STYLE.as_bytes())?,
                "data" => data::write(self, out)?,
                "scripts" => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
                other => unreachable!("page.html has an unknown placeholder {other}"),
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

/// Splits the text at its first placeholder, such as `{{style}}`.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (placeholder, after) = rest.split_once("}}")?;
    Some((before, placeholder, after))
}

#[cfg(test)]
mod tests;
