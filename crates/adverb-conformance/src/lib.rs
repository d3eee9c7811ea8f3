//! Conformance tests for RDMA devices.
//!
//! The suite uses Adverb's public API, and runs on any device. Two queue pairs of the device communicate over every
//! transport, with every operation, and in every error case. A test is named after the rule that it checks. The rules
//! are those of the InfiniBand specification, not the behavior of a particular device. Known deviations of a device are
//! listed in a file of [`Deviations`].
//!
//! A test is skipped only if the device's own attributes show that the device lacks a feature ([`Need`]), or if a
//! listed deviation excludes the test ([`Observed::NotRun`]). The report contains the reason.
//!
//! ```no_run
//! use adverb_conformance::{Options, Suite};
//!
//! let suite = Suite::all().matching("atomic");
//! let report = suite.run("rxe0", &Options::default(), |test, result| println!("{}: {result}", test.name()))?;
//! print!("{}", report.table());
//! assert!(report.is_as_expected());
//! # Ok::<(), adverb::Error>(())
//! ```

#![forbid(unsafe_code)]

mod deviations;
mod fixture;
mod machine;
pub mod peer;
mod registry;
mod report;
mod runner;
mod suite;

pub use deviations::{Deviation, Deviations, Observed, ParseDeviationsError};
pub use machine::{DeviceReport, PortReport, SystemReport};
pub use registry::{Need, Suite, Test};
pub use report::{Outcome, Report, TestResult};
pub use runner::Options;
