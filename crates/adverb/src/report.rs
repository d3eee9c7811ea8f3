//! Errors for people.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "cluster")]
use crate::cluster;
use crate::net;
#[cfg(feature = "probe")]
use crate::probe;
use crate::verbs::raw::RawPostError;
use crate::verbs::{self, PostError, RecvRequest, SendRequest};

/// The text of an error for the person who runs the program: the error's message, the causes, and the first
/// [hint](crate::Error::hint), each on a line of its own.
///
/// Both `{}` and `{:?}` print this text. A `main` that returns a `Result` prints the error's `Debug`, which for most other
/// types shows variants and fields to programmers. The operator `?` converts texts, and errors that are `Send` and `Sync`,
/// into a report; [`Report::of`] makes a report of an error that the program still needs.
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
///
/// Such a program prints, for example:
///
/// ```text
/// Error: opening device mlx5_0 failed
///   cause: Permission denied (os error 13)
///   hint: allow the process to read and write /dev/infiniband/uverbs*
/// ```
pub struct Report(String);

impl Report {
    /// Makes a report of an error, without consuming the error.
    ///
    /// ```
    /// use adverb::Report;
    /// use adverb::blocking::connect;
    ///
    /// // No program listens at port 1.
    /// if let Err(error) = connect("127.0.0.1:1") {
    ///     eprintln!("{}", Report::of(&error));
    ///     assert!(error.is_retryable());
    /// }
    /// ```
    pub fn of(error: &(dyn Error + 'static)) -> Report {
        let mut text = error.to_string();
        for cause in chain(error).skip(1) {
            let message = cause.to_string();
            // Errors of other crates may contain the text of their cause.
            if !text.contains(&message) {
                text += &format!("\n  cause: {message}");
            }
        }
        if let Some(hint) = chain(error).find_map(hint) {
            text += &format!("\n  hint: {hint}");
        }
        Report(text)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Report {
    fn from(error: E) -> Report {
        Report::of(&*error.into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns an error and its causes.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns a reference to the error if it is an `E`, a `Box<E>` or an `Arc<E>`, which are error types of their own.
fn downcast<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    None.or_else(|| error.downcast_ref::<E>())
        .or_else(|| error.downcast_ref::<Box<E>>().map(|error| &**error))
        .or_else(|| error.downcast_ref::<Arc<E>>().map(|error| &**error))
}

/// Returns the hint of an error of Adverb, of an error that contains one, or of an [`io::Error`](std::io::Error) that was
/// made of one.
#[allow(clippy::useless_conversion, reason = "some of the errors return a `&'static str`")]
fn hint<'a>(error: &'a (dyn Error + 'static)) -> Option<Cow<'a, str>> {
    macro_rules! hint_of {
        ($($error:ty)*) => {
            $(if let Some(error) = downcast::<$error>(error) {
                return error.hint().map(Cow::from);
            })*
        };
    }
    if let Some(error) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return hint(&**error);
    }
    if let Some(error) = downcast::<std::io::Error>(error) {
        let inner: &(dyn Error + 'static) = error.get_ref()?;
        return hint(inner);
    }
    hint_of! {
        crate::Error
        verbs::Error
        net::ConnectError
        net::BindError
        net::AcceptError
        net::ConnectionError
        net::SendError
        net::SendErrorKind
        net::RecvError
        net::ExposeError
        net::RemoteError
        net::RemoteErrorKind
        verbs::KeyError
    }
    #[cfg(feature = "cluster")]
    hint_of! {
        cluster::ClusterError
        cluster::BrokerError
        cluster::ConfigError
        cluster::SessionError
        cluster::PostError
        cluster::TransferError
        cluster::RemotePtrError
        cluster::RefusedTransfer
        cluster::RefusedReply
        cluster::TicketError
        cluster::EstablishError
        cluster::CallError
        cluster::ArenaError
    }
    #[cfg(all(feature = "cluster", feature = "tokio"))]
    hint_of! {
        cluster::CallerError
    }
    #[cfg(feature = "probe")]
    hint_of! {
        probe::ProbeError
    }
    let cause = None
        .or_else(|| downcast::<PostError<SendRequest>>(error).map(|error| &error.error))
        .or_else(|| downcast::<PostError<RecvRequest>>(error).map(|error| &error.error))
        .or_else(|| downcast::<RawPostError>(error).map(|error| &error.error));
    cause?.hint()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::explain::Call;

    fn parse(text: &str) -> Result<u32, Report> {
        let number = text.parse()?;
        if number == 0 {
            return Err("the number is zero".into());
        }
        Ok(number)
    }

    fn report(error: impl Into<Report>) -> String {
        format!("{:?}", error.into())
    }

    fn failed() -> verbs::Error {
        let (action, call) = ("opening device mlx5_0".into(), Call::OpenDevice);
        let source = std::io::Error::from_raw_os_error(13);
        verbs::Error::PermissionDenied { action, call, source }
    }

    /// An error with a cause.
    #[derive(Debug)]
    struct Outer<E>(E, &'static str);

    impl<E: Error> fmt::Display for Outer<E> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.1)
        }
    }

    impl<E: Error + 'static> Error for Outer<E> {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_report_shows_texts_and_errors_of_other_crates() {
        assert_eq!(report(parse("x").unwrap_err()), "invalid digit found in string");
        assert_eq!(report(parse("0").unwrap_err()), "the number is zero");
    }

    #[test]
    fn a_report_shows_message_cause_and_hint_once() {
        let expected = "opening device mlx5_0 failed\n  cause: Permission denied (os error 13)\n  \
                        hint: allow the process to read and write /dev/infiniband/uverbs*";
        assert_eq!(report(failed()), expected);
        assert_eq!(report(crate::Error::from(failed())), expected);
        assert_eq!(report(PostError::<SendRequest> { error: failed(), requests: Vec::new() }), expected);
        assert_eq!(report(std::io::Error::from(failed())), expected);
    }

    #[test]
    fn a_report_shows_causes_and_their_hint_once() {
        let number = |text| report(Outer("x".parse::<u16>().unwrap_err(), text));
        assert_eq!(
            number("the port is invalid"),
            "the port is invalid\n  cause: invalid digit found in string"
        );
        let with_cause = "the port is invalid: invalid digit found in string";
        assert_eq!(number(with_cause), with_cause, "no cause is printed twice");
        let wrapped = report(Outer(failed(), "the server cannot start"));
        let inner = report(failed());
        assert_eq!(wrapped, format!("the server cannot start\n  cause: {inner}"));
    }
    #[test]
    fn a_report_shows_the_hint_of_a_connection() {
        let error = || net::ConnectError::Refused {
            peer: ([192, 0, 2, 7], 7471).into(),
            source: std::io::Error::other("the cause"),
        };
        let expected = "192.0.2.7:7471 refused the connection\n  cause: the cause\n  \
                        hint: start the listener: no program listens at this address and port";
        assert_eq!(report(error()), expected);
        assert_eq!(report(crate::Error::from(error())), expected);
        assert_eq!(report(std::io::Error::from(error())), expected);
    }
    #[test]
    fn a_report_shows_the_hint_of_boxed_and_shared_errors() {
        let expected = report(failed());
        assert!(expected.contains("\n  hint: "));
        assert_eq!(report(Box::new(failed())), expected);
        assert_eq!(report(Arc::new(failed())), expected);
        assert_eq!(report(Arc::<dyn Error + Send + Sync>::from(Box::from(failed()))), expected);
        assert_eq!(report(Box::new(std::io::Error::from(failed()))), expected);
        assert_eq!(report(Arc::new(std::io::Error::from(failed()))), expected);
        assert_eq!(report(std::io::Error::other(Arc::new(failed()))), expected);
        let refused = || PostError::<SendRequest> { error: failed(), requests: Vec::new() };
        assert_eq!(report(Box::new(refused())), expected);
        let expected = format!("the server cannot start\n  cause: {expected}");
        assert_eq!(report(Outer(Box::new(failed()), "the server cannot start")), expected);
        assert_eq!(report(Outer(Arc::new(failed()), "the server cannot start")), expected);
        match crate::Error::from(failed()) {
            crate::Error::Verbs(error) => assert_eq!(report(error), report(failed())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_report_needs_no_ownership_of_the_error_and_has_one_text() {
        let error = failed();
        assert_eq!(Report::of(&error).to_string(), report(failed()));
        assert_eq!(format!("{:?}", Report::of(&error)), report(error));
        assert_eq!(Report::from("a text").to_string(), "a text");
    }
}
