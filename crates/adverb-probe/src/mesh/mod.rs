//! A mesh: members that probe each other, and the part that is at fault.
//!
//! A [`Matrix`] holds the results of all members per window of time. [`diagnose`] names the NIC, path, rail or traffic
//! class that loses packets, the process that is starved, or the member that is dead; or it reports that the evidence
//! is not enough. Both are plain data: they use no clock, socket or thread, and matrices of several agents can be
//! merged.

mod condition;
mod diagnose;
mod diagnosis;
mod matrix;
mod statistics;

pub use condition::{STALLED_SHARE, STALLED_WINDOWS};
pub use diagnose::{BACKGROUND_LOSS, FALSE_ALARMS_PER_HOUR, MIN_WITNESSES, SILENT_WINDOWS, diagnose};
pub use diagnosis::{Diagnosis, Evidence, Fault, Gap, Suspect, Verdict};
pub use matrix::{Cell, CellKey, Delays, LONG_STALL, Matrix, Member, SETTLE_WINDOWS, SPAN, STALL, WINDOW};
