//! `cargo xtask site`: the documentation site, made of the manual's chapters, docs/operate and parts of the README.

mod check;
pub(crate) mod items;
mod markdown;
mod pages;
mod translate;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use support::{paths, process};

use crate::{metadata, tools};
use check::Links;
use items::Items;
use pages::{PARTS, Page, START, Source};
use translate::{FILES, Translator};

/// The arguments of `cargo xtask site`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Check the pages and their links with the documentation that `cargo xtask doc` has built, and install nothing.
    #[arg(long)]
    check: bool,
}

/// Translates the pages, checks their links, and builds the site with mdBook.
pub(crate) fn run(args: &Args) -> Result<()> {
    let package = package()?;
    let documentation = documentation(!args.check)?;
    let items = Items::open(&documentation, &package.version)?;
    let target = paths::root().join("target");
    let (book, site) = (target.join("site-pages"), target.join("site"));
    prepare(&book, &items, &package)?;
    report("pages", check::pages(&book.join("src"), &items)?);

    let Some(mdbook) = (if args.check { tools::mdbook() } else { Some(tools::ensure_mdbook()?) }) else {
        println!("site: HTML SKIPPED, because mdBook is not installed (`cargo xtask site` installs it)");
        return Ok(());
    };
    let mut mdbook = Command::new(mdbook);
    mdbook.env("MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL", repository(&package)?);
    process::run(mdbook.arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    report("HTML", check::html(&site, &items)?);
    println!("{}", site.join("index.html").display());
    Ok(())
}

fn report(of: &str, links: Links) {
    let Links { internal, items, external } = links;
    println!(
        "links of {of}: {internal} within the site and {items} to docs.rs exist; {external} to other sites"
    );
}

/// Returns the package `adverb`.
fn package() -> Result<metadata::Package> {
    let packages = metadata::packages()?;
    packages.into_iter().find(|package| package.name == "adverb").context("the workspace has no adverb")
}

/// Returns the address of the repository.
fn repository(package: &metadata::Package) -> Result<&str> {
    package.repository.as_deref().context("Cargo.toml names no repository")
}

/// Returns rustdoc's directory. Builds the documentation of `adverb` if it is absent, or if it may be outdated.
fn documentation(update: bool) -> Result<PathBuf> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| paths::root().join("target"), PathBuf::from);
    let directory = target.join("doc");
    if update || !directory.join("adverb/index.html").is_file() {
        let mut cargo = process::cargo("doc -p adverb --no-deps --all-features");
        process::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    Ok(directory)
}

/// Writes the directory that mdBook builds: its settings, the translated pages, and the files that they refer to.
fn prepare(book: &Path, items: &Items, package: &metadata::Package) -> Result<()> {
    let root = paths::root();
    if book.exists() {
        fs::remove_dir_all(book).with_context(|| format!("could not remove {}", book.display()))?;
    }
    let source = book.join("src");
    fs::create_dir_all(&source).with_context(|| format!("could not create {}", source.display()))?;
    for name in ["book.toml", "site.css"] {
        fs::copy(root.join("docs/site").join(name), book.join(name))?;
    }
    for (from, to) in FILES {
        copy(&root.join(from), &source.join(to))?;
    }
    let repository = format!("{}/blob/v{}/", repository(package)?, package.version);
    let translator = Translator { root: &root, items, repository };
    for page in pages::pages() {
        fs::write(source.join(page.name).with_extension("md"), translator.page(page)?)?;
    }
    fs::write(source.join("SUMMARY.md"), pages::summary())?;
    for part in PARTS.iter().filter(|part| part.installed) {
        for page in part.pages {
            check_installed(page)?;
        }
    }
    check_installed(&START)
}

/// Copies the files of a directory other than Markdown, also those in its subdirectories.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("could not create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("could not list {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &target)?;
        } else if path.extension().is_none_or(|extension| extension != "md") {
            fs::copy(&path, &target).with_context(|| format!("could not copy {}", path.display()))?;
        }
    }
    Ok(())
}

/// Checks that a page does not expect its readers to have a checkout.
fn check_installed(page: &Page) -> Result<()> {
    let text = fs::read_to_string(paths::root().join(page.path()))?;
    let text = match page.source {
        Source::Section(_) => translate::section(&text, page.title)?,
        _ => text,
    };
    for words in ["cargo xtask", "cargo install --path", "cargo run", "a checkout"] {
        ensure!(!text.contains(words), "{} mentions `{words}`; its readers install a package", page.path());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::pages::{MANUAL, pages};
    use super::*;

    fn read(path: &str) -> String {
        fs::read_to_string(paths::root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    #[test]
    fn the_site_has_every_chapter_of_the_manual() {
        let manual = read(&format!("{MANUAL}/mod.rs"));
        let chapters: BTreeSet<&str> =
            manual.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(" {}")).collect();
        let listed: Vec<&str> =
            pages().filter(|page| matches!(page.source, Source::Chapter)).map(|page| page.name).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), chapters);
        assert_eq!(listed.len(), chapters.len(), "a chapter is listed twice");
    }

    #[test]
    fn the_site_has_every_page_for_operators() {
        for entry in fs::read_dir(paths::root().join("docs/operate")).unwrap() {
            let path = entry.unwrap().path();
            let path = path.strip_prefix(paths::root()).unwrap().to_str().unwrap();
            assert!(!path.ends_with(".md") || pages().any(|page| page.shows(path)), "no page shows {path}");
        }
    }

    #[test]
    fn the_table_of_contents_has_every_page_once() {
        let summary = pages::summary();
        let names: BTreeSet<&str> = pages().map(|page| page.name).collect();
        assert_eq!(names.len(), pages().count());
        for page in pages() {
            assert_eq!(summary.matches(&format!("({}.md)", page.name)).count(), 1, "{}", page.name);
        }
    }

    /// Their readers have installed packages.
    #[test]
    fn pages_for_operators_and_c_programmers_need_no_checkout() {
        let installed = PARTS.iter().filter(|part| part.installed).flat_map(|part| part.pages);
        let results: Vec<_> = installed.chain([&START]).map(check_installed).collect();
        assert!(results.len() >= 10, "only {} pages", results.len());
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert!(errors.is_empty(), "{errors:?}");
        let guide = pages().find(|page| page.name == "clusters").unwrap();
        assert!(check_installed(guide).is_err(), "a page for Rust programmers names commands of a checkout");
    }
}
