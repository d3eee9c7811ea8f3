//! `adverb completions`: scripts that complete the command line in a shell.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// The options of `adverb completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Print the script to a file that the shell reads:

  adverb completions bash > ~/.local/share/bash-completion/completions/adverb
  adverb completions zsh > ~/.zfunc/_adverb
  adverb completions fish > ~/.config/fish/completions/adverb.fish

The packages of Adverb contain these files.")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "adverb", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}
