//! Errors for people.

use std::error::Error;
use std::fmt;

/// An error as `main` prints it: for the person who runs the program.
///
/// A `main` that returns a `Result` prints the error's `Debug`, which for most types shows variants and fields to
/// programmers. The `Debug` of a report is the error's message with its [hint](crate::Error::hint), and the causes that
/// the message doesn't contain. The operator `?` converts texts, and errors that are `Send` and
/// `Sync`, into a report.
///
/// ```no_run
/// fn main() -> Result<(), adverb::Report> {
///     let address = std::env::args().nth(1).ok_or("usage: hello ADDRESS:PORT")?;
///     let connection = adverb::blocking::connect(&*address)?;
///     connection.send(b"hello")?;
///     connection.close()?;
///     Ok(())
/// }
/// ```
pub struct Report(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Report {
    fn from(error: E) -> Report {
        Report(error.into())
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let message = error.to_string();
            if !text.contains(&message) {
                text += &format!("\n  cause: {message}");
            }
            cause = error.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u32, Report> {
        let number = text.parse()?;
        if number == 0 {
            return Err("the number is zero".into());
        }
        Ok(number)
    }

    #[test]
    fn a_report_shows_messages_hints_and_causes() {
        assert_eq!(format!("{:?}", parse("x").unwrap_err()), "invalid digit found in string");
        assert_eq!(format!("{:?}", parse("0").unwrap_err()), "the number is zero");
        let error =
            || crate::Error::NoDevice { reason: "no device is named a".into(), hint: "try soft".into() };
        assert_eq!(format!("{:?}", Report::from(error())), "no device is named a\n  hint: try soft");

        #[derive(Debug)]
        struct Outer(std::num::ParseIntError, &'static str);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.1)
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let report = |text| format!("{:?}", Report::from(Outer("x".parse::<u16>().unwrap_err(), text)));
        assert_eq!(
            report("the port is invalid"),
            "the port is invalid\n  cause: invalid digit found in string"
        );
        let with_cause = "the port is invalid: invalid digit found in string";
        assert_eq!(report(with_cause), with_cause, "no cause is printed twice");
    }
}
