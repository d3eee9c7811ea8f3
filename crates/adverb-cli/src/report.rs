//! Printing of errors.

use std::io;
use std::process::ExitCode;

use crate::prose;

/// Prints the error of a command, and returns the exit status.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    // The reader of a pipe may close it early, as in `adverb devices | head -1`. That is not an error.
    let is_broken_pipe = |io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", prose::wrap(&format!("error: {}", format_error(error))));
    ExitCode::FAILURE
}

/// Returns an error and its causes, one per line.
fn format_error(error: &anyhow::Error) -> String {
    let mut lines = Vec::new();
    for cause in error.chain() {
        lines.push(cause.to_string());
        // The text of Adverb's errors includes their causes and the hint.
        if cause.is::<adverb::Error>() {
            break;
        }
    }
    lines.join("\n  ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::format_error;

    #[test]
    fn error_of_adverb_is_printed_once_with_its_hint() {
        let error = adverb::Error::Verb {
            action: "opening the device rxe0".to_owned(),
            error: std::io::Error::other("permission denied"),
            hint: "ask for permission".into(),
        };
        let error = Err::<(), _>(error).context("no device could be opened").unwrap_err();
        assert_eq!(
            format_error(&error),
            "no device could be opened\n  opening the device rxe0 failed: permission denied\n  hint: ask for permission"
        );
    }
}
