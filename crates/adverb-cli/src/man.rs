//! `adverb man`: the manual pages, for packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The options of `adverb man`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory in which the pages are written.
    directory: PathBuf,
}

/// Writes a page for the command and for each subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut cli = crate::Cli::command().disable_help_subcommand(true);
    cli.build();
    write(&cli, &args.directory)
        .with_context(|| format!("writing the manual pages to {} failed", args.directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of its subcommands.
fn write(command: &Command, directory: &Path) -> Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write(subcommand, directory)?;
    }
    let (name, text) = page(command)?;
    Ok(fs::write(directory.join(name), text)?)
}

/// Returns the name of the file of a command's page, and its text.
fn page(command: &Command) -> Result<(String, Vec<u8>)> {
    // The usage of `--help`: clap_mangen's own lists all options without their values.
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let man = Man::new(command.clone().override_usage(usage));
    let man = man.source(concat!("adverb ", env!("CARGO_PKG_VERSION"))).manual("Adverb");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(help) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        notes(&help.to_string()).to_writer(&mut text)?;
    }
    if command.get_name() != "adverb" {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([roman("adverb(1)")]);
        roff.to_writer(&mut text)?;
    }
    Ok((man.get_filename(), text))
}

/// Returns the section with the text after the options. Indented lines, which are commands or tables, stay as they are.
fn notes(help: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["NOTES"]);
    let mut was_literal = false;
    for line in help.lines() {
        let is_literal = line.starts_with(' ');
        if is_literal != was_literal {
            roff.control(if is_literal { "nf" } else { "fi" }, []);
            was_literal = is_literal;
        }
        if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]);
        }
    }
    if was_literal {
        roff.control("fi", []);
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indented_lines_are_not_filled() {
        let text = notes("Prose that\ngoes on:\n\n  adverb ping a\n  adverb stat\n\nMore.").to_roff();
        let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with(".SH")).collect();
        let expected = [
            ".SH NOTES",
            "Prose that",
            "goes on:",
            ".PP",
            ".nf",
            "  adverb ping a",
            "  adverb stat",
            ".fi",
            ".PP",
            "More.",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn every_page_has_the_usage_of_the_help_text() {
        let mut cli = crate::Cli::command();
        cli.build();
        let run = cli.find_subcommand("run").unwrap();
        let (name, text) = page(run).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(name, "adverb-run.1");
        assert!(text.contains("\\fBadverb run\\fR [OPTIONS] [PROGRAM]..."), "{text}");
        assert!(text.contains(".SH NOTES") && text.contains(".SH \"SEE ALSO\""), "{text}");
    }
}
