//! How errors are told.

use std::io;
use std::process::ExitCode;

use crate::prose;

/// Tells why a command failed, and gives its exit status.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    // Who reads our output may have seen enough, as in `adverb devices | head -1`. That is no failure of ours.
    let is_broken_pipe = |io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", prose::wrap(&format!("error: {}", in_words(error))));
    ExitCode::FAILURE
}

/// An error and what caused it, a line for each.
fn in_words(error: &anyhow::Error) -> String {
    let mut lines = Vec::new();
    for cause in error.chain() {
        lines.push(cause.to_string());
        // Adverb's errors have all that is to be said in their own text, the hint at its end.
        if cause.is::<adverb::Error>() {
            break;
        }
    }
    lines.join("\n  ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::in_words;

    #[test]
    fn error_of_adverb_is_told_once_with_its_hint() {
        let error = adverb::Error::Verb {
            action: "opening the device rxe0".to_owned(),
            error: std::io::Error::other("permission denied"),
            hint: "ask for permission".into(),
        };
        let error = Err::<(), _>(error).context("no device could be had").unwrap_err();
        assert_eq!(
            in_words(&error),
            "no device could be had\n  opening the device rxe0 failed: permission denied\n  hint: ask for permission"
        );
    }
}
