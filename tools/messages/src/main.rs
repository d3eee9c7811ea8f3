//! Prints the string literals in the crates' sources, which users may see: messages, hints, actions and causes of
//! errors, log messages and panics. Run it with `cargo run -p messages`; names of crates, such as `adverb-net`, limit
//! the list.

mod literals;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let wanted: Vec<String> = env::args().skip(1).collect();
    let mut crates: Vec<PathBuf> = entries(&root)?;
    crates.retain(|path| wanted.is_empty() || wanted.iter().any(|name| path.ends_with(name)));
    let mut out = io::stdout().lock();
    for directory in crates {
        let mut files = Vec::new();
        add_sources(&directory.join("src"), &mut files)?;
        for file in files {
            let literals = literals::of(&fs::read_to_string(&file)?);
            if literals.is_empty() {
                continue;
            }
            writeln!(out, "## {}\n", file.strip_prefix(&root).unwrap_or(&file).display())?;
            for literals::Literal { line, text } in literals {
                writeln!(out, "{line}: {text}")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

/// Adds the source files of a directory and those below it, without tests and the samples of `messages.rs`.
fn add_sources(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for path in entries(directory)? {
        let is_skipped = path.file_stem().is_some_and(|name| name == "tests" || name == "messages");
        if is_skipped {
            continue;
        } else if path.is_dir() {
            add_sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}
