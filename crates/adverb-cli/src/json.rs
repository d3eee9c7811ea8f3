//! The JSON output of all commands. Each document contains the version of the schema, and the name of the command that wrote
//! the document.
//!
//! Durations and points in time are integers in nanoseconds, in fields whose names end in `_ns`. A point in time is the time
//! since the Unix epoch. Ratios, such as the share of lost packets, are numbers between 0 and 1. An unknown value is `null`.

use std::time::Duration;

use serde::Serialize;

/// The version of the schema. Fields may be added without a new version. While the version is the same, fields keep their
/// names and meanings.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a, T: Serialize> {
    version: u32,
    command: &'a str,
    #[serde(flatten)]
    body: &'a T,
}

/// Returns a document on one line, without a line break at its end.
pub(crate) fn line(command: &str, body: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(&Document { version: VERSION, command, body })
}

/// Returns a document on several lines, with a line break at its end.
pub(crate) fn pretty(command: &str, body: &impl Serialize) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(&Document { version: VERSION, command, body })? + "\n")
}

/// Returns a duration in nanoseconds, for a field whose name ends in `_ns`.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
