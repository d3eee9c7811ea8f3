//! `adverb devices`: what RDMA devices there are, or why there are none.

mod ask;
mod inventory;
mod kernel;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// What `adverb devices` takes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is 0 if there is a device, or there could be. Why there is none
but software (rdma-core isn't installed, say, or the kernel has no RDMA) goes to
standard error; with --json, to `problem`.

  adverb devices
  adverb devices --json | jq -r '.devices[].ports[].gids[] | select(.chosen).ip'")]
pub(crate) struct Args {
    /// Print JSON; its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Prints them.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let inventory = ask::everything();
    let output = match args.json {
        true => serde_json::to_string_pretty(&inventory)? + "\n",
        false => text::tables(&inventory),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")?;
    let Some(problem) = &inventory.problem else {
        return Ok(ExitCode::SUCCESS);
    };
    if !args.json {
        eprint!("{}", text::problem(problem, inventory.is_failure()));
    }
    Ok(if inventory.is_failure() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Why no device can be used.
pub(crate) struct Absence {
    /// In a line.
    pub(crate) message: String,
    /// With what to do.
    pub(crate) text: String,
    /// Whether devices couldn't even be asked for.
    pub(crate) is_failure: bool,
}

/// The names of the devices that can be used, or why there are none.
pub(crate) fn usable() -> std::result::Result<Vec<String>, Absence> {
    let inventory = ask::everything();
    let usable = inventory.devices.iter().filter(|device| device.unusable.is_none());
    let names: Vec<String> = usable.map(|device| device.name.clone()).collect();
    match &inventory.problem {
        _ if !names.is_empty() => Ok(names),
        Some(problem) => Err(Absence {
            message: problem.message.clone(),
            text: text::problem(problem, inventory.is_failure()),
            is_failure: inventory.is_failure(),
        }),
        None => {
            let message = "none of the devices can be used: `adverb devices` says why".to_owned();
            Err(Absence { text: format!("error: {message}\n"), message, is_failure: true })
        }
    }
}
