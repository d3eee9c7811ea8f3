//! Errors for people.

use std::error::Error;
use std::fmt;

/// An error as `main` prints it: for the person who runs the program.
///
/// A `main` that returns a `Result` prints the error's `Debug`, which for most types shows variants and fields to
/// programmers. The `Debug` of a report is the error's message with its [hint](crate::Error::hint), and the causes that
/// the message doesn't contain. The operator `?` converts errors of all types, and texts, into a report.
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
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, "\n  cause: {error}")?;
            cause = error.source();
        }
        Ok(())
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
        struct Outer(std::num::ParseIntError);
        impl fmt::Display for Outer {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the port is invalid")
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.0)
            }
        }
        let outer = Outer("x".parse::<u16>().unwrap_err());
        assert_eq!(
            format!("{:?}", Report::from(outer)),
            "the port is invalid\n  cause: invalid digit found in string"
        );
    }
}
