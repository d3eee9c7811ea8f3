//! The situations that a user of connections meets, each with its error: a `match` tells it apart without reading texts.
//! The error's message, its causes and its report are printed in one list:
//!
//! ```text
//! cargo test -p adverb --test errors -- --nocapture
//! ```
//!
//! The numbers of the list are those of the groups: connecting (1 to 11), listening (12 to 14), and established connections
//! (15 to 20). Three situations need an RDMA device: no permission for its file (9), the limit of locked memory (10), and
//! its removal (25). [`device`] has them, in a list of its own.

#![cfg(feature = "soft")]

#[path = "../common/attacker.rs"]
mod attacker;
#[path = "../common/mod.rs"]
mod common;
mod connecting;
#[path = "../common/connections.rs"]
mod connections;
mod device;
mod established;
#[path = "../common/greeting.rs"]
mod greeting;
mod listening;
mod process;
mod violation;

use std::error::Error;
use std::time::Duration;

use adverb::Report;
use adverb::net::Options;

/// The time limit of operations that must not exceed it.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The time limit of operations that must exceed it.
const SHORT_TIMEOUT: Duration = Duration::from_millis(300);

/// Returns options with long time limits.
fn options() -> Options {
    Options::new().connect_timeout(TIMEOUT).timeout(TIMEOUT)
}

#[test]
fn each_situation_has_an_error_that_a_match_tells_apart() {
    connecting::show_all();
    listening::show_all();
    established::show_all();
}

/// Prints an error in the three forms, and checks the rules that all errors obey.
fn show(situation: &str, error: impl Error + Send + Sync + 'static) {
    let chain = Vec::from_iter(chain(&error).map(ToString::to_string));
    for message in &chain {
        assert!(!message.is_empty() && !message.contains('\n'), "not one line: {message:?}");
        assert!(!message.ends_with('.') && !message.contains("hint:"), "{message:?}");
    }
    for causes in chain.windows(2) {
        assert!(!causes[0].contains(&causes[1]), "a message has the text of its cause: {chain:?}");
    }
    let report = format!("{:?}", Report::from(error)).replace('\n', "\n            ");
    let (message, chain) = (&chain[0], chain.join(" <- "));
    println!("{situation}\n    {{}}:     {message}\n    chain:  {chain}\n    report: {report}\n");
}

/// Returns an error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let current = next?;
        next = current.source();
        Some(current)
    })
}
