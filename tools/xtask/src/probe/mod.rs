//! `cargo xtask probe`: measurements of `adverb ping`, `adverb respond` and `adverb exporter`, each as a process.

mod footprint;
mod parts;
mod restarts;
mod timing;

use anyhow::Result;

/// The options of `cargo xtask probe`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Debug, clap::Subcommand)]
enum Measurement {
    /// Compare injected delays of the network, the responder and the prober with the reported ones. Needs root.
    Timing(timing::Args),
    /// Kill and restart a responder and a prober in turn, and check that no probe counts as lost.
    Restarts(restarts::Args),
    /// Measure the CPU time and the memory of an exporter that probes from several devices. Needs root.
    Footprint(footprint::Args),
}

/// Runs a measurement.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.measurement {
        Measurement::Timing(args) => timing::run(args),
        Measurement::Restarts(args) => restarts::run(args),
        Measurement::Footprint(args) => footprint::run(args),
    }
}
