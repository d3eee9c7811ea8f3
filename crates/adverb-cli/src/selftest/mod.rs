//! `adverb selftest`: does a device do what an RDMA device must do?

mod progress;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use adverb::verbs::Device;
use adverb_conformance::{Deviations, Options, Outcome, Report, Suite};
use anyhow::{Context, Result, ensure};

use progress::Progress;

/// What `adverb selftest` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two queue pairs of the device talk to each other, on a port that is active: no
peer is needed, and nothing leaves the machine but what the port itself sends.
The exit status is 0 if the device keeps every rule, or breaks only those that
it is known to break.

  adverb selftest --device mlx5_0 --report mlx5_0.json

writes mlx5_0.json for programs and mlx5_0.txt for people. Neither has addresses
or identifiers in it. Please send them, whatever they say: the README tells how.")]
pub(crate) struct Args {
    /// The device, by its name: see `adverb devices`.
    #[arg(long, value_name = "NAME", required_unless_present = "list")]
    device: Option<String>,
    /// Where to write what was found: JSON, and beside it the same as text (.txt).
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Run only tests whose group or name contains this; may be given again.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// What the device is known to do its own way, instead of what Adverb knows of it.
    #[arg(long, value_name = "FILE")]
    deviations: Option<PathBuf>,
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

/// Runs the tests.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    for words in &args.filter {
        ensure!(Suite::all().matching(words).tests().len() > 0, "no test has a group or name with “{words}”");
    }
    let suite = Suite::all().matching_any(&args.filter);
    let Some(name) = args.device.as_ref().filter(|_| !args.list) else {
        suite.tests().for_each(|test| println!("{}: {}", test.group(), test.name()));
        return Ok(ExitCode::SUCCESS);
    };
    let mut options = Options::default();
    options.time_limit = Duration::from_secs(args.time_limit);
    options.deviations = deviations(args.deviations.as_deref(), name)?;
    if let Some(file) = &args.report {
        // Better now than after minutes of tests.
        write(file, "")?;
    }
    let mut progress = Progress::new(suite.tests().map(|test| test.name()).collect());
    let report = suite.run(name, &options, |test, result| {
        if args.verbose {
            progress.line(&format!("{:7.3} s  {}: {result}", result.seconds, test.name()));
        } else if result.outcome != Outcome::Passed || !result.expected {
            progress.line(&format!("{}: {result}", test.name()));
        }
        progress.advance();
    });
    drop(progress);
    let report = report?;
    print!("{}", report.text());
    if let Some(file) = &args.report {
        save(&report, file)?;
    }
    Ok(if report.is_as_expected() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the device is known to do its own way.
fn deviations(file: Option<&Path>, device: &str) -> Result<Deviations> {
    let Some(file) = file else {
        return Ok(Deviations::known(Device::open(device)?.attributes()));
    };
    let text = fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    text.parse::<Deviations>().with_context(|| format!("{} makes no sense", file.display()))
}

fn save(report: &Report, file: &Path) -> Result<()> {
    let text = text_beside(file);
    write(file, &(report.to_json()? + "\n"))?;
    write(&text, &report.text())?;
    eprintln!("the report is in {} and {}: please send it to us", file.display(), text.display());
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
}

/// Where the text goes if the JSON goes to `file`.
fn text_beside(file: &Path) -> PathBuf {
    match file.extension().is_some_and(|extension| extension == "txt") {
        true => file.with_extension("txt.txt"),
        false => file.with_extension("txt"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_lies_beside_the_json_and_never_over_it() {
        assert_eq!(text_beside(Path::new("a/mlx5_0.json")), Path::new("a/mlx5_0.txt"));
        assert_eq!(text_beside(Path::new("report")), Path::new("report.txt"));
        assert_eq!(text_beside(Path::new("report.txt")), Path::new("report.txt.txt"));
    }
}
