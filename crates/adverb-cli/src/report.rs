//! Printing of errors.

use std::error::Error;
use std::io;
use std::process::ExitCode;

use crate::prose;

/// Prints the error of a command, and returns the exit status.
pub(crate) fn failure(error: anyhow::Error) -> ExitCode {
    // The reader of a pipe may close it early, as in `adverb devices | head -1`. That is not an error.
    let is_broken_pipe = |io: &io::Error| io.kind() == io::ErrorKind::BrokenPipe;
    if error.downcast_ref::<io::Error>().is_some_and(is_broken_pipe) {
        return ExitCode::SUCCESS;
    }
    eprint!("{}", prose::wrap(&format!("error: {}", format_error(error))));
    ExitCode::FAILURE
}

/// Returns an error, its causes and its hint, one per line.
pub(crate) fn format_error(error: anyhow::Error) -> String {
    format!("{:?}", adverb::Report::from(error.reallocate_into_boxed_dyn_error_without_backtrace()))
}

/// Returns an error and its causes in one line.
pub(crate) fn message(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns the hint of an error, as a list.
pub(crate) fn hints(error: &adverb::verbs::Error) -> Vec<String> {
    error.hint().map(Into::into).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use adverb::verbs::explain::Call;
    use anyhow::Context;

    use super::{format_error, message};

    fn denied() -> adverb::verbs::Error {
        adverb::verbs::Error::PermissionDenied {
            action: "opening the device rxe0".into(),
            call: Call::OpenDevice,
            source: std::io::Error::from_raw_os_error(13),
        }
    }

    #[test]
    fn error_of_adverb_is_printed_once_with_its_causes_and_hint() {
        let lines = "opening the device rxe0 failed\n  cause: Permission denied (os error 13)\n  \
                     hint: allow the process to read and write /dev/infiniband/uverbs*";
        assert_eq!(format_error(denied().into()), lines);
        let error = Err::<(), _>(denied()).context("no device could be opened").unwrap_err();
        assert_eq!(format_error(error), format!("no device could be opened\n  cause: {lines}"));
    }

    #[test]
    fn message_has_the_causes_in_one_line() {
        assert_eq!(message(&denied()), "opening the device rxe0 failed: Permission denied (os error 13)");
    }
}
