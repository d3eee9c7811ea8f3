//! `adverb devices`: lists RDMA devices, or the reason why there are none.

mod inventory;
pub(crate) mod kernel;
mod query;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::json;

/// The options of `adverb devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is 1 if there is no device and listing the devices failed.
Otherwise it is 0. If there are only software devices, the reason (for example,
rdma-core is not installed, or the kernel has no RDMA support) is printed to
standard error, or as `problem` with --json.

  adverb devices
  adverb devices --json | jq -r '.devices[].ports[].gids[] | select(.chosen).ip'")]
pub(crate) struct Args {
    /// Print JSON. Its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Prints the devices.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let inventory = query::query_all();
    let output = match args.json {
        true => json::pretty("devices", &inventory)?,
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

/// The reason why no device can be used.
pub(crate) struct NoUsableDevice {
    /// The reason in one line.
    pub(crate) message: String,
    /// The reason with hints.
    pub(crate) text: String,
    /// Whether the devices could not be listed.
    pub(crate) is_failure: bool,
}

/// Returns the names of the usable devices, or the reason why there are none.
pub(crate) fn usable() -> std::result::Result<Vec<String>, NoUsableDevice> {
    let inventory = query::query_all();
    let usable = inventory.devices.iter().filter(|device| device.unusable.is_none());
    let names: Vec<String> = usable.map(|device| device.name.clone()).collect();
    match &inventory.problem {
        _ if !names.is_empty() => Ok(names),
        Some(problem) => Err(NoUsableDevice {
            message: problem.message.clone(),
            text: text::problem(problem, inventory.is_failure()),
            is_failure: inventory.is_failure(),
        }),
        None => {
            let message = "no device can be used: run `adverb doctor` for the reasons".to_owned();
            Err(NoUsableDevice { text: format!("error: {message}\n"), message, is_failure: true })
        }
    }
}
