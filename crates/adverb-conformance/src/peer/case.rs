//! What can be tried between two devices, and what became of it.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::script::{Counts, Lacking};

/// One thing that is tried.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
pub struct Case {
    /// What is done.
    pub operation: Operation,
    /// By which of the two.
    pub direction: Direction,
}

impl Case {
    /// All that there are.
    pub fn all() -> impl Iterator<Item = Case> {
        let both = |operation| Direction::ALL.map(|direction| Case { operation, direction });
        Operation::ALL.into_iter().flat_map(both)
    }
}

/// As it is written on command lines: `rc-write-imm:forward`.
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
            format!("no case is called “{text}”: one of {names}, with `:forward` or `:reverse` after it")
        })
    }
}

/// Declares an enum of things with names.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $type {
            /// All of them.
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
    /// What is done.
    Operation {
        /// SEND over a reliable connection.
        RcSend = "rc-send",
        /// SEND with immediate data over a reliable connection.
        RcSendWithImm = "rc-send-imm",
        /// SEND that invalidates a window of type 2B, which is bound to the connection's queue pair.
        RcSendInvalidate = "rc-send-inv",
        /// WRITE over a reliable connection.
        RcWrite = "rc-write",
        /// WRITE with immediate data over a reliable connection.
        RcWriteWithImm = "rc-write-imm",
        /// READ.
        RcRead = "rc-read",
        /// Compare and swap.
        RcCompareSwap = "rc-cas",
        /// Fetch and add.
        RcFetchAdd = "rc-faa",
        /// SEND over an unreliable connection, every other one with immediate data.
        UcSend = "uc-send",
        /// WRITE over an unreliable connection, every other one with immediate data.
        UcWrite = "uc-write",
        /// Datagrams, every other one with immediate data.
        Ud = "ud",
    }
}

named! {
    /// By which of the two.
    Direction {
        /// By the end that decides, to the other.
        Forward = "forward",
        /// By the end that serves.
        Reverse = "reverse",
    }
}

/// What became of a case.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    #[serde(flatten)]
    pub case: Case,
    /// How much there was of what.
    #[serde(flatten)]
    pub counts: Counts,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: CaseOutcome,
    /// How long it took.
    pub seconds: f64,
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            CaseOutcome::Passed => {
                let Counts { sent, arrived, bytes } = self.counts;
                write!(f, "ok, {arrived} of {sent} messages, {bytes} bytes, {:.2} s", self.seconds)
            }
            CaseOutcome::Failed { reason } => write!(f, "FAILED: {reason}"),
            CaseOutcome::Skipped { reason } => write!(f, "skipped: {reason}"),
        }
    }
}

/// How a case ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum CaseOutcome {
    /// All was as it must be.
    Passed,
    /// Something wasn't.
    Failed {
        /// What.
        reason: String,
    },
    /// A device says that it can't do such a thing.
    Skipped {
        /// What it can't.
        reason: String,
    },
}

impl CaseOutcome {
    pub(super) fn new(ended: anyhow::Result<()>) -> CaseOutcome {
        match ended {
            Ok(()) => CaseOutcome::Passed,
            Err(error) => match error.downcast_ref::<Lacking>() {
                Some(lacking) => CaseOutcome::Skipped { reason: lacking.to_string() },
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
        assert_eq!(Case::all().count(), 22);
        for case in Case::all() {
            assert_eq!(case.to_string().parse(), Ok(case));
        }
        assert!("rc-send".parse::<Case>().is_err());
    }

    #[test]
    fn a_result_is_flat_for_programs_that_read_it() {
        let case = Case { operation: Operation::UcWrite, direction: Direction::Reverse };
        let outcome = CaseOutcome::Failed { reason: "a byte".into() };
        let counts = Counts { sent: 3, arrived: 2, bytes: 9 };
        let value = serde_json::to_value(CaseResult { case, counts, outcome, seconds: 0.5 }).unwrap();
        assert_eq!(
            value,
            serde_json::json!({
                "operation": "uc-write", "direction": "reverse", "sent": 3, "arrived": 2, "bytes": 9,
                "outcome": "failed", "reason": "a byte", "seconds": 0.5,
            })
        );
    }
}
