//! The list of this crate's error messages, `messages.txt`. Its other errors are those of adverb-verbs.

use messages::samples;

use crate::figures::Impossible;
use crate::format::ParseError;

#[test]
fn error_messages_are_as_listed() {
    let lists = [
        samples!(ParseError {
            ParseError::Length => ParseError::Length,
            ParseError::Magic => ParseError::Magic,
            ParseError::Version(_) => ParseError::Version(9),
            ParseError::Kind(_) => ParseError::Kind(7),
            ParseError::Field => ParseError::Field,
            ParseError::Tag => ParseError::Tag,
        }),
        samples!(Impossible {
            Impossible::ResponderDelay => Impossible::ResponderDelay,
            Impossible::AckBeforeProbe => Impossible::AckBeforeProbe,
            Impossible::RoundTrip => Impossible::RoundTrip,
            Impossible::ProberDelay => Impossible::ProberDelay,
            Impossible::ClocksDiffer => Impossible::ClocksDiffer,
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}
