//! Test cases between two devices, and their results.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::case_run::{Counts, MissingFeature};
use crate::report::nanos;

/// A test case between two devices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Case {
    /// The operation under test.
    pub operation: Operation,
    /// The direction of the operation.
    pub direction: Direction,
}

impl Case {
    /// Returns all cases.
    pub fn all() -> impl Iterator<Item = Case> {
        let both = |operation| Direction::ALL.map(|direction| Case { operation, direction });
        Operation::ALL.into_iter().flat_map(both)
    }
}

/// Formats the case as on command lines: `rc-write-imm:forward`.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.operation, self.direction)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        Case::all().find(|case| case.to_string() == text).ok_or_else(|| {
            let names = Operation::ALL.map(|operation| operation.to_string()).join(", ");
            format!("there is no case `{text}`: the cases are {names}, each with `:forward` or `:reverse`")
        })
    }
}

/// Declares an enum whose variants have names.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $type {
            /// All variants.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $($type::$variant => $name,)+
                })
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

named! {
    /// An operation under test.
    Operation {
        /// SEND over a reliable connection.
        RcSend = "rc-send",
        /// SEND with immediate data over a reliable connection.
        RcSendWithImm = "rc-send-imm",
        /// SEND with invalidate of a memory window of type 2B, which is bound to the connection's queue pair.
        RcSendInvalidate = "rc-send-inv",
        /// WRITE over a reliable connection.
        RcWrite = "rc-write",
        /// WRITE with immediate data over a reliable connection.
        RcWriteWithImm = "rc-write-imm",
        /// READ over a reliable connection.
        RcRead = "rc-read",
        /// Atomic compare and swap over a reliable connection.
        RcCompareSwap = "rc-cas",
        /// Atomic fetch and add over a reliable connection.
        RcFetchAdd = "rc-faa",
        /// ATOMIC WRITE over a reliable connection.
        RcAtomicWrite = "rc-atomic-write",
        /// FLUSH of ranges and of the whole region over a reliable connection, each after a WRITE.
        RcFlush = "rc-flush",
        /// SEND over an unreliable connection. Every second message has immediate data.
        UcSend = "uc-send",
        /// WRITE over an unreliable connection. Every second message has immediate data.
        UcWrite = "uc-write",
        /// Unreliable datagrams. Every second datagram has immediate data.
        Ud = "ud",
    }
}

named! {
    /// The direction of an operation.
    Direction {
        /// The end that runs the [`Session`](super::Session) is the requester.
        Forward = "forward",
        /// The end that runs [`serve`](super::serve) is the requester.
        Reverse = "reverse",
    }
}

/// The result of a case.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// The numbers of messages and bytes.
    #[serde(flatten)]
    pub counts: Counts,
    /// The outcome of the case.
    #[serde(flatten)]
    pub outcome: CaseOutcome,
    /// The duration of the case.
    #[serde(rename = "elapsed_ns", serialize_with = "nanos")]
    pub elapsed: Duration,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            CaseOutcome::Passed => {
                let Counts { sent, arrived, bytes } = self.counts;
                write!(
                    f,
                    "ok, {arrived} of {sent} messages, {bytes} bytes, {:.2} s",
                    self.elapsed.as_secs_f64()
                )
            }
            CaseOutcome::Failed { reason } => write!(f, "FAILED: {reason}"),
            CaseOutcome::Skipped { reason } => write!(f, "skipped: {reason}"),
        }
    }
}

/// The outcome of a case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum CaseOutcome {
    /// All checks succeeded.
    Passed,
    /// A check failed.
    Failed {
        /// The failed check.
        reason: String,
    },
    /// A device lacks the feature.
    Skipped {
        /// The missing feature.
        reason: String,
    },
}

impl CaseOutcome {
    pub(super) fn new(ended: anyhow::Result<()>) -> CaseOutcome {
        match ended {
            Ok(()) => CaseOutcome::Passed,
            Err(error) => match error.downcast_ref::<MissingFeature>() {
                Some(missing) => CaseOutcome::Skipped { reason: missing.to_string() },
                None => CaseOutcome::Failed { reason: format!("{error:#}") },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_name_of_its_own() {
        assert_eq!(Case::all().count(), 26);
        for case in Case::all() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("rc-send".parse::<Case>().is_err());
    }

    #[test]
    fn a_result_is_serialized_without_nesting() {
        let case = Case { operation: Operation::UcWrite, direction: Direction::Reverse };
        let outcome = CaseOutcome::Failed { reason: "a byte".into() };
        let counts = Counts { sent: 3, arrived: 2, bytes: 9 };
        let value =
            serde_json::to_value(CaseResult { case, counts, outcome, elapsed: Duration::from_millis(500) })
                .unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "operation": "uc-write", "direction": "reverse", "sent": 3, "arrived": 2, "bytes": 9,
                "outcome": "failed", "reason": "a byte", "elapsed_ns": 500_000_000,
            })
        );
    }
}
