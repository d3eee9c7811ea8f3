//! The pages of Rust items on docs.rs, found in documentation that rustdoc has built.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// The kinds of items in names of rustdoc's files.
const KINDS: &[&str] = &["struct", "enum", "trait", "fn", "type", "constant", "macro", "union", "static"];

/// The kinds of an item's members in rustdoc's anchors.
const MEMBERS: &[&str] =
    &["method", "tymethod", "variant", "structfield", "associatedconstant", "associatedtype"];

/// Modules whose items the crate's root exports again: `adverb::ConnectError` is documented as
/// `adverb::net::ConnectError`.
const EXPORTED: &[&str] = &["verbs", "net"];

/// The documented items of the crate `adverb`.
#[derive(Debug)]
pub(crate) struct Items {
    /// rustdoc's directory of the crate.
    root: PathBuf,
    /// The address of the crate's documentation, with a slash at its end.
    address: String,
    pages: RefCell<HashMap<PathBuf, String>>,
}

impl Items {
    /// Opens the documentation in rustdoc's directory, of a version of the crate.
    pub(crate) fn open(directory: &Path, version: &str) -> Result<Self> {
        let root = directory.join("adverb");
        ensure!(
            root.join("index.html").is_file(),
            "{} does not exist: run `cargo doc -p adverb --all-features --no-deps`",
            root.join("index.html").display()
        );
        let address = format!("https://docs.rs/adverb/{version}/adverb/");
        Ok(Self { root, address, pages: RefCell::default() })
    }

    /// Returns the address of an item, such as `net::blocking::Connection::send`, below the crate.
    pub(super) fn url(&self, item: &str) -> Result<String> {
        let segments: Vec<&str> = item.split("::").collect();
        if let Some(url) = self.find(&segments)? {
            return Ok(url);
        }
        for module in EXPORTED {
            if let Some(url) = self.find(&[&[*module], &segments[..]].concat())? {
                return Ok(url);
            }
        }
        bail!("the documentation of adverb has no item `{item}`")
    }

    /// Whether a program can name this item, such as `net::blocking::Connection`, by this path.
    pub(crate) fn contains(&self, item: &str) -> Result<bool> {
        let segments: Vec<&str> = item.split("::").collect();
        if self.find(&segments)?.is_some() {
            return Ok(true);
        }
        let (name, modules) = segments.split_last().expect("`split` returns at least one segment");
        let page = self.root.join(modules.join("/")).join("index.html");
        if page.is_file() && self.has_id(&page, &format!("reexport.{name}"))? {
            return Ok(true);
        }
        // A module that the crate exports a second time has its pages only at the first place.
        if self.has_id(&self.root.join("index.html"), &format!("reexport.{}", segments[0]))? {
            for module in EXPORTED {
                if self.find(&[&[*module], &segments[..]].concat())?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn find(&self, segments: &[&str]) -> Result<Option<String>> {
        let mut directory = self.root.clone();
        let mut url = self.address.clone();
        for (index, segment) in segments.iter().enumerate() {
            if directory.join(segment).join("index.html").is_file() {
                directory.push(segment);
                url += &format!("{segment}/");
                continue;
            }
            let names = KINDS.iter().map(|kind| format!("{kind}.{segment}.html"));
            let Some(name) = names.into_iter().find(|name| directory.join(name).is_file()) else {
                return Ok(None);
            };
            let page = directory.join(&name);
            url += &name;
            return match segments[index + 1..] {
                [] => Ok(Some(url)),
                [member] => Ok(self.anchor(&page, member)?.map(|anchor| format!("{url}#{anchor}"))),
                _ => Ok(None),
            };
        }
        Ok(Some(url + "index.html"))
    }

    /// Returns the anchor of a member on an item's page.
    fn anchor(&self, page: &Path, member: &str) -> Result<Option<String>> {
        for kind in MEMBERS {
            let anchor = format!("{kind}.{member}");
            if self.has_id(page, &anchor)? {
                return Ok(Some(anchor));
            }
        }
        Ok(None)
    }

    /// Whether the address is of this documentation, which then has its page and anchor. Fails if one of them is missing.
    pub(super) fn check(&self, url: &str) -> Result<bool> {
        let Some(rest) = url.strip_prefix(&self.address) else { return Ok(false) };
        let (path, anchor) = rest.split_once('#').unwrap_or((rest, ""));
        let page = self.root.join(path);
        ensure!(page.is_file(), "the documentation of adverb has no page {path}");
        ensure!(anchor.is_empty() || self.has_id(&page, anchor)?, "{path} has no anchor `{anchor}`");
        Ok(true)
    }

    fn has_id(&self, page: &Path, id: &str) -> Result<bool> {
        let mut pages = self.pages.borrow_mut();
        if !pages.contains_key(page) {
            let text =
                fs::read_to_string(page).with_context(|| format!("could not read {}", page.display()))?;
            pages.insert(page.to_owned(), text);
        }
        Ok(pages[page].contains(&format!("id=\"{id}\"")))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes documentation of the crate with some items to a new directory.
    pub(crate) fn documentation(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("adverb-site-{name}-{}", std::process::id()));
        let files = [
            ("index.html", r#"<dt id="reexport.blocking"></dt>"#),
            ("manual/index.html", ""),
            ("net/index.html", ""),
            ("net/blocking/index.html", ""),
            ("net/blocking/struct.Connection.html", r#"<section id="method.send"></section>"#),
            ("net/blocking/fn.connect.html", ""),
            ("verbs/index.html", ""),
            ("net/enum.ConnectError.html", r#"<section id="variant.Refused"></section>"#),
        ];
        for (file, text) in files {
            let file = directory.join("adverb").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        directory
    }

    #[test]
    fn an_item_has_the_address_of_its_page_and_anchor() {
        let directory = documentation("items");
        let items = Items::open(&directory, "1.2.3").unwrap();
        for (item, path) in [
            ("net", "net/index.html"),
            ("net::blocking::connect", "net/blocking/fn.connect.html"),
            ("net::blocking::Connection", "net/blocking/struct.Connection.html"),
            ("net::blocking::Connection::send", "net/blocking/struct.Connection.html#method.send"),
            ("ConnectError::Refused", "net/enum.ConnectError.html#variant.Refused"),
        ] {
            let url = items.url(item).unwrap();
            assert_eq!(url, format!("https://docs.rs/adverb/1.2.3/adverb/{path}"));
            assert!(items.check(&url).unwrap());
        }
        for absent in ["net::Connection", "net::blocking::Connection::recv", "ConnectError::Refused::peer"] {
            assert!(items.url(absent).is_err(), "{absent}");
        }
        for absent in ["net/struct.Connection.html", "net/enum.ConnectError.html#variant.Gone"] {
            assert!(
                items.check(&format!("https://docs.rs/adverb/1.2.3/adverb/{absent}")).is_err(),
                "{absent}"
            );
        }
        assert!(!items.check("https://docs.rs/adverb-probe").unwrap());
        assert!(items.contains("blocking::connect").unwrap() && items.contains("net::ConnectError").unwrap());
        for absent in ["blocking::Listener", "ConnectError"] {
            assert!(!items.contains(absent).unwrap(), "{absent}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
