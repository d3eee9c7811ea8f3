//! Runs Adverb's conformance suite on a device.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use adverb_conformance::{Deviations, Options, Outcome, Suite};
use clap::Parser;

/// Check whether a device does what an RDMA device must do: two of its queue pairs talk to each other.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// The device, by its name.
    #[arg(long, required_unless_present = "list")]
    device: Option<String>,
    /// Run only tests whose group or name contains this.
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// What the device is known to do its own way.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
    /// Where to write the results, as JSON.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How long one test may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    time_limit: u64,
    /// Print a line for every test, not only for those with something to say.
    #[arg(long, short)]
    verbose: bool,
    /// Only list the tests.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let suite = Suite::all().matching(&args.filter);
    let Some(device) = args.device.as_ref().filter(|_| !args.list) else {
        suite.tests().for_each(|test| println!("{}: {}", test.group(), test.name()));
        return Ok(ExitCode::SUCCESS);
    };
    let mut options = Options::default();
    options.time_limit = Duration::from_secs(args.time_limit);
    if let Some(file) = &args.deviations {
        let text = fs::read_to_string(file).map_err(|error| with_path(file, error))?;
        options.deviations = text.parse::<Deviations>().map_err(|error| with_path(file, error))?;
    }
    let report = suite.run(device, &options, |test, result| {
        if args.verbose {
            println!("{:7.3} s  {}: {result}", result.seconds, test.name());
        } else if result.outcome != Outcome::Passed || !result.expected {
            println!("{}: {result}", test.name());
        }
    })?;
    if let Some(file) = &args.report {
        fs::write(file, report.to_json()?).map_err(|error| with_path(file, error))?;
    }
    print!("{}", report.table());
    Ok(if report.is_as_expected() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn with_path(path: &std::path::Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
