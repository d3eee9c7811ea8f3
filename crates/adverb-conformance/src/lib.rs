//! What an RDMA device must do, as tests.
//!
//! The suite is written against Adverb's public API and is given a device: any device. Two queue pairs of that device
//! talk to each other, on every transport and with every operation, and in every way that can go wrong. A test is named
//! after the rule that it checks. It asserts what the InfiniBand specification says, not what some device does; what a
//! device is known to do otherwise is listed in a file of [`Deviations`].
//!
//! Tests are skipped only by what the device says of itself ([`Need`]), and the reason is printed.
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
