//! Explanations of the codes and names that RDMA programs report: completion statuses, syndromes, asynchronous events,
//! error numbers, opcodes, and the reject reasons and SIDR statuses of the connection manager.
//!
//! The hints of errors, such as [`Status::hint`], are fields of these explanations. The command `adverb explain` prints
//! explanations.
//!
//! ```
//! # mod adverb { pub mod verbs { pub use adverb_proto::{explain, types::*}; } }
//! use adverb::verbs::Status;
//! use adverb::verbs::explain::{self, Kind};
//!
//! let found = explain::find("IBV_WC_RETRY_EXC_ERR");
//! assert_eq!(found[0].explanation.hint, Status::RetryExceeded.hint());
//!
//! // A number alone is ambiguous; a word before it selects the kind.
//! let kinds: Vec<Kind> = explain::find("12").iter().map(|found| found.explanation.kind).collect();
//! assert!(kinds.contains(&Kind::CompletionStatus) && kinds.contains(&Kind::Errno));
//! assert_eq!(explain::find("errno 12")[0].explanation.name, "ENOMEM");
//!
//! // The RNR backoff is a part of the syndrome's value.
//! let rnr = &explain::find("syndrome 0x2e")[0];
//! assert_eq!(rnr.note.as_deref(), Some("timer code 14: the requester waits 1.28ms"));
//!
//! // `similar` returns the explanations with names that resemble an unknown name.
//! assert!(explain::find("RETRY_EXCEEDED_ERR").is_empty());
//! assert_eq!(explain::similar("RETRY_EXC_ERROR")[0].name, "IBV_WC_RETRY_EXC_ERR");
//! ```

mod errno;
mod event;
mod opcode;
mod reject;
mod search;
mod sidr;
mod status;
mod syndrome;
#[cfg(test)]
mod tests;

use core::fmt;
use core::ops::RangeInclusive;

use adverb_wire::cm::{RejectReason, SidrStatus};
use adverb_wire::{Opcode, Syndrome};

pub use errno::{Call, ErrnoCase, errno_hint};
pub use event::{device_event, queue_event};
pub use search::{SearchResult, find, similar};

use crate::types::Status;

/// An explanation of one code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Explanation {
    /// The kind of code.
    pub kind: Kind,
    /// The name in rdma-core, Linux or the InfiniBand specification: `IBV_WC_RETRY_EXC_ERR`.
    pub name: &'static str,
    /// Other names: the variant in Adverb, and the texts that tools print.
    pub aliases: &'static [&'static str],
    /// The values of the code. A syndrome with a parameter has several values.
    pub codes: &'static [RangeInclusive<u32>],
    /// A description in one line.
    pub summary: &'static str,
    /// The meaning, in sentences.
    pub meaning: &'static str,
    /// The usual causes.
    pub causes: &'static [&'static str],
    /// Actions that find or remove the cause.
    pub checks: &'static [&'static str],
    /// The most important action, in one line. Errors with this code print it.
    pub hint: Option<&'static str>,
    /// The meanings of an error number in calls where it has a specific one.
    pub cases: &'static [ErrnoCase],
    /// The definition: a section of the InfiniBand specification, or a type of rdma-core or Linux.
    pub reference: &'static str,
}

impl Explanation {
    /// An explanation whose fields are empty, as a base for all explanations.
    const EMPTY: Explanation = Explanation {
        kind: Kind::CompletionStatus,
        name: "",
        aliases: &[],
        codes: &[],
        summary: "",
        meaning: "",
        causes: &[],
        checks: &[],
        hint: None,
        cases: &[],
        reference: "",
    };

    /// Returns the values of the code as text, in the notation that is usual for the kind: `12`, `0x62`, `0x20-0x3f`.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto as verbs; }
    /// use adverb::verbs::explain;
    ///
    /// assert_eq!(explain::find("RNR NAK")[0].explanation.code_text(), "0x20-0x3f");
    /// ```
    pub fn code_text(&self) -> String {
        let one = |code: u32| self.kind.format_code(code);
        let range = |codes: &RangeInclusive<u32>| match codes.start() == codes.end() {
            true => one(*codes.start()),
            false => format!("{}-{}", one(*codes.start()), one(*codes.end())),
        };
        self.codes.iter().map(range).collect::<Vec<_>>().join(", ")
    }

    /// Whether `code` is one of the values.
    const fn has_code(&self, code: u32) -> bool {
        let mut ranges = self.codes;
        while let [range, rest @ ..] = ranges {
            if *range.start() <= code && code <= *range.end() {
                return true;
            }
            ranges = rest;
        }
        false
    }
}

/// The kind of a code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Kind {
    /// The status of a completion (`ibv_wc_status`).
    CompletionStatus,
    /// An asynchronous event (`ibv_event_type`).
    AsyncEvent,
    /// An error number of Linux, which a verb returns or sets as `errno`.
    Errno,
    /// The syndrome of an acknowledgement packet: ACK, RNR NAK or NAK.
    Syndrome,
    /// The opcode of a packet: the first byte of its base transport header.
    Opcode,
    /// The reason of a REJ message of the connection manager.
    RejectReason,
    /// The status of a SIDR REP message of the connection manager.
    SidrStatus,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 7] = [
        Kind::CompletionStatus,
        Kind::AsyncEvent,
        Kind::Errno,
        Kind::Syndrome,
        Kind::Opcode,
        Kind::RejectReason,
        Kind::SidrStatus,
    ];

    /// Returns the name, such as `completion status`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::CompletionStatus => "completion status",
            Kind::AsyncEvent => "asynchronous event",
            Kind::Errno => "errno",
            Kind::Syndrome => "syndrome",
            Kind::Opcode => "opcode",
            Kind::RejectReason => "reject reason",
            Kind::SidrStatus => "SIDR status",
        }
    }

    /// Returns the word that selects this kind before a number in [`find`]: `status 12`.
    pub const fn search_prefix(self) -> &'static str {
        match self {
            Kind::CompletionStatus => "status",
            Kind::AsyncEvent => "event",
            Kind::Errno => "errno",
            Kind::Syndrome => "syndrome",
            Kind::Opcode => "opcode",
            Kind::RejectReason => "reject",
            Kind::SidrStatus => "sidr",
        }
    }

    /// Returns a code of this kind as text: opcodes and syndromes in hexadecimal, other codes in decimal.
    pub fn format_code(self, code: u32) -> String {
        match self {
            Kind::Syndrome | Kind::Opcode => format!("{code:#04x}"),
            _ => code.to_string(),
        }
    }

    /// Returns the explanations of this kind, in the order of their codes.
    pub const fn explanations(self) -> &'static [Explanation] {
        match self {
            Kind::CompletionStatus => status::STATUSES,
            Kind::AsyncEvent => event::EVENTS,
            Kind::Errno => errno::ERRNOS,
            Kind::Syndrome => syndrome::SYNDROMES,
            Kind::Opcode => opcode::OPCODES,
            Kind::RejectReason => reject::REASONS,
            Kind::SidrStatus => sidr::STATUSES,
        }
    }

    const fn explanation(self, code: u32) -> Option<&'static Explanation> {
        let mut rest = self.explanations();
        while let [explanation, tail @ ..] = rest {
            if explanation.has_code(code) {
                return Some(explanation);
            }
            rest = tail;
        }
        None
    }
}

/// Prints the name.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns all explanations, grouped by kind.
pub fn all() -> impl Iterator<Item = &'static Explanation> {
    Kind::ALL.into_iter().flat_map(|kind| kind.explanations())
}

/// Returns the explanation of a completion status, or `None` for [`Status::Other`].
pub const fn status(status: Status) -> Option<&'static Explanation> {
    Kind::CompletionStatus.explanation(status.code())
}

/// Returns the explanation of a syndrome. [`find`] also describes its parameter.
pub fn syndrome(syndrome: Syndrome) -> Option<&'static Explanation> {
    Kind::Syndrome.explanation(syndrome.byte().into())
}

/// Returns the explanation of an opcode.
pub fn opcode(opcode: Opcode) -> Option<&'static Explanation> {
    Kind::Opcode.explanation(opcode.byte().into())
}

/// Returns the explanation of an error number of Linux.
///
/// ```
/// # mod adverb { pub use adverb_proto as verbs; }
/// use adverb::verbs::explain;
///
/// assert_eq!(explain::errno(12).unwrap().name, "ENOMEM");
/// ```
pub fn errno(number: i32) -> Option<&'static Explanation> {
    Kind::Errno.explanation(u32::try_from(number).ok()?)
}

/// Returns the explanation of a reject reason of the connection manager, or `None` for an unlisted one.
pub fn reject_reason(reason: RejectReason) -> Option<&'static Explanation> {
    Kind::RejectReason.explanation(reason.code().into())
}

/// Returns the explanation of a SIDR status of the connection manager, or `None` for an unlisted one.
pub fn sidr_status(status: SidrStatus) -> Option<&'static Explanation> {
    Kind::SidrStatus.explanation(status.code().into())
}
