//! A comparison of the tokens of two versions of the sources.
//!
//! A change of names and prose must not change behavior. This crate lexes both versions of each changed Rust file, drops
//! comments and documentation, maps the identifiers of the old version through a list of renames, and compares the
//! tokens. Differences in string literals are listed separately, because they need a reviewer; every other difference
//! fails the comparison. The crate depends on no product crate.
//!
//! Doc comments of command-line options are help texts and are not compared here; `help.txt` of adverb-cli lists them.

mod compare;
mod lex;
mod renames;
mod revision;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::compare::Comparison;
use crate::renames::Renames;
use crate::revision::Change;

/// The options of `cargo xtask tokens`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The old revision, in git's notation.
    old: String,
    /// The new revision; without it, the working tree.
    new: Option<String>,
    /// The list of renames: lines `old new`, `PATH: old new` for one file or directory, and `file OLD NEW`. Several lines
    /// for one name permit each of the new names, and `old old` permits that the name stays.
    #[arg(long, value_name = "FILE")]
    renames: Option<PathBuf>,
}

/// Compares the Rust files that differ between the revisions, and prints the differences.
///
/// Returns a failing exit code for every difference except string literals.
///
/// # Errors
///
/// Returns an error if git fails, or a file can't be read or lexed.
pub fn run(args: &Args) -> Result<ExitCode> {
    let renames = match &args.renames {
        Some(path) => {
            let text =
                fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
            Renames::parse(&text).with_context(|| format!("in {}", path.display()))?
        }
        None => Renames::default(),
    };
    let changes = revision::changes(&args.old, args.new.as_deref(), &renames)?;
    let mut total = Comparison::default();
    let mut compared = 0;
    for change in &changes.rust {
        match change {
            Change::Both { old, new } => {
                compared += 1;
                let before = revision::read(Some(&args.old), old)?;
                let after = revision::read(args.new.as_deref(), new)?;
                let before = lex::tokens(&before).with_context(|| format!("{}:{old}", args.old))?;
                let after = lex::tokens(&after).with_context(|| new.clone())?;
                total.append(compare::files(new, &before, &after, &renames.scope(old)));
            }
            Change::Removed(path) => {
                total.differences.push(format!("{path}: the file exists only in {}", args.old));
            }
            Change::Added(path) => {
                total.differences.push(format!("{path}: the file does not exist in {}", args.old));
            }
        }
    }
    print!("{}", report(&total, &renames, &changes.others));
    println!(
        "{compared} files compared: {} differences, {} string literals changed, {} identifiers renamed",
        total.differences.len(),
        total.strings.len(),
        total.renamed.values().sum::<usize>()
    );
    Ok(if total.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the text of the result, without the summary.
fn report(total: &Comparison, renames: &Renames, others: &[String]) -> String {
    let mut text = String::new();
    let mut section = |title: &str, lines: &[String]| {
        if !lines.is_empty() {
            text += &format!("{title}:\n");
            lines.iter().for_each(|line| text += &format!("  {line}\n"));
            text += "\n";
        }
    };
    section("differences", &total.differences);
    section("string literals to review", &total.strings);
    let ambiguous: Vec<_> = total
        .renamed
        .iter()
        .filter(|((old, _), _)| renames.is_ambiguous(old))
        .map(|((old, new), count)| format!("{old} → {new}: {count} times"))
        .collect();
    section("names with several new names, to review", &ambiguous);
    let shared: Vec<_> = total.shared.iter().cloned().collect();
    section("new names that the old version uses too, to review", &shared);
    let unused: Vec<_> = renames.pairs().filter(|pair| !total.renamed.contains_key(pair)).collect();
    let unused: Vec<_> = unused.iter().map(|(old, new)| format!("{old} → {new}")).collect();
    section("unused renames", &unused);
    section("other changed files, not compared", others);
    text
}
