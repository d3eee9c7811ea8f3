//! Lists of the texts that users see, kept in tracked files.
//!
//! Each crate with public error types has a test that builds every variant with [`samples!`] and compares the texts with
//! the crate's `messages.txt` by [`check`]. A changed text shows up in review as a changed line of that file.

use std::path::Path;

/// The environment variable that makes [`check`] overwrite the tracked file.
const OVERWRITE_VARIABLE: &str = "MESSAGES";

/// Returns the `Display` texts of one sample per variant of an error type, in a section of the list.
///
/// The patterns must cover the type, so that a new variant without a sample doesn't compile.
///
/// ```
/// enum Error {
///     Closed,
///     TooLong(usize),
/// }
///
/// impl std::fmt::Display for Error {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         match self {
///             Error::Closed => f.write_str("the connection is closed"),
///             Error::TooLong(len) => write!(f, "{len} bytes exceed the maximum"),
///         }
///     }
/// }
///
/// let section = messages::samples!(Error {
///     Error::Closed => Error::Closed,
///     Error::TooLong(_) => Error::TooLong(9000),
/// });
/// assert_eq!(section, "## Error\n\nthe connection is closed\n\n9000 bytes exceed the maximum\n\n");
/// ```
#[macro_export]
macro_rules! samples {
    ($type:ty { $($pattern:pat => $sample:expr,)+ }) => {{
        let _covers_every_variant = |error: &$type| match error {
            $($pattern => (),)+
        };
        let mut section = format!("## {}\n\n", stringify!($type));
        $({
            let sample: $type = $sample;
            assert!(matches!(&sample, $pattern), "the sample {sample} is not a {}", stringify!($pattern));
            section += &format!("{sample}\n\n");
        })+
        section
    }};
}

/// Compares a list of texts with the tracked file, or overwrites the file if the environment variable `MESSAGES` is
/// `overwrite`.
///
/// # Panics
///
/// Panics if the texts differ, or the file can't be read or written.
pub fn check(file: impl AsRef<Path>, sections: &[String]) {
    let file = file.as_ref();
    let text = format!("{}\n", sections.concat().trim_end());
    if std::env::var_os(OVERWRITE_VARIABLE).is_some_and(|value| value == "overwrite") {
        std::fs::write(file, text)
            .unwrap_or_else(|error| panic!("writing {} failed: {error}", file.display()));
        return;
    }
    let tracked = std::fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("reading {} failed: {error}", file.display()));
    if tracked == text {
        return;
    }
    let changed = text.lines().zip(tracked.lines()).find(|(now, before)| now != before);
    let (now, before) = changed.unwrap_or(("(end of list)", "(more or fewer lines)"));
    panic!(
        "the texts differ from {}: `{now}` instead of `{before}`; \
         run the test with {OVERWRITE_VARIABLE}=overwrite, and read the changed lines",
        file.display()
    );
}
