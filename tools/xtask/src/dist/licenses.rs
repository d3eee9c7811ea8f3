//! The licenses of the code of others that the packages contain.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::process;

use super::dependencies::{Dependency, Id};

/// The beginnings of names of files with a license, in lower case.
const NAMES: &[&str] = &["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// Writes `THIRD-PARTY-LICENSES` and the notices of Rust's standard library to a directory. `others` are licenses of code
/// from elsewhere, by the name of the code.
///
/// A dependency without a license text is an error, because most licenses demand that their text is distributed.
pub(super) fn write(
    dependencies: &BTreeMap<Id, Dependency>,
    others: &[(&str, PathBuf)],
    directory: &Path,
) -> Result<()> {
    let mut packages = Vec::new();
    for (id, dependency) in dependencies.iter().filter(|(_, dependency)| dependency.checksum.is_some()) {
        let texts = texts(&dependency.directory)?;
        ensure!(
            !texts.is_empty(),
            "{} {} has no license text: depend on a version that has one",
            id.name,
            id.version
        );
        packages.push((format!("{} {}", id.name, id.version), dependency.license.as_str(), texts));
    }
    for (name, file) in others {
        packages.push(((*name).to_owned(), "see its text", vec![read(file)?]));
    }
    fs::create_dir_all(directory)?;
    fs::write(directory.join("THIRD-PARTY-LICENSES"), document(&packages))?;
    let sysroot = process::text(Command::new("rustc").args(["--print", "sysroot"]))?;
    let notices = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    fs::copy(&notices, directory.join("RUST-COPYRIGHT.html"))
        .with_context(|| format!("copying {} failed", notices.display()))?;
    Ok(())
}

/// Returns the license texts in the directory of a package's sources, in the order of their files' names.
fn texts(directory: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("listing {} failed", directory.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files
        .retain(|file| file.is_file() && is_license(&file.file_name().unwrap_or_default().to_string_lossy()));
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

/// Whether a file of this name has a license.
fn is_license(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    NAMES.iter().any(|start| name.starts_with(start))
}

fn read(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("reading {} failed", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n").trim_end().to_owned())
}

/// Returns the list of packages with their licenses, followed by each text and the packages that it applies to.
fn document(packages: &[(String, &str, Vec<String>)]) -> String {
    let mut document =
        "Adverb's command and libraries contain code of these packages, and of Rust's standard library \
                        (RUST-COPYRIGHT.html).\n\n"
            .to_owned();
    let width = packages.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    let mut users: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, license, texts) in packages {
        writeln!(document, "{name:width$}  {license}").expect("a string can be written to");
        for text in texts {
            users.entry(text).or_default().push(name);
        }
    }
    let mut texts: Vec<_> = users.into_iter().collect();
    // The text of most packages comes first.
    texts.sort_by_key(|(text, users)| (std::cmp::Reverse(users.len()), users[0], *text));
    for (text, users) in texts {
        let rule = "=".repeat(80);
        write!(document, "\n{rule}\n{}\n{rule}\n\n{text}\n", users.join(", "))
            .expect("a string can be written to");
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_with_licenses_are_known_by_their_names() {
        for name in
            ["LICENSE", "LICENSE-MIT", "license.txt", "COPYING", "NOTICE.md", "UNLICENSE", "Copyright"]
        {
            assert!(is_license(name), "{name}");
        }
        for name in ["README.md", "Cargo.toml", "src"] {
            assert!(!is_license(name), "{name}");
        }
    }

    #[test]
    fn equal_texts_are_written_once() {
        let package = |name: &str, texts: &[&str]| {
            (name.to_owned(), "MIT", texts.iter().map(|&text| text.to_owned()).collect())
        };
        let document = document(&[package("a 1", &["one"]), package("bb 2", &["two", "one"])]);
        assert!(document.contains("\na 1   MIT\nbb 2  MIT\n"), "{document}");
        assert_eq!(document.matches("one\n").count(), 1, "{document}");
        assert!(document.find("a 1, bb 2\n").unwrap() < document.find("two\n").unwrap(), "{document}");
    }
}
