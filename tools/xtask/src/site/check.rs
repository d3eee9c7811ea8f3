//! The check of the site's links: in the translated pages, and in the HTML that mdBook makes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::items::Items;
use super::markdown::{self, Kind};

/// Numbers of checked links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links {
    /// Links to pages and files of the site.
    pub(super) internal: usize,
    /// Links to the documentation of Rust items.
    pub(super) items: usize,
    /// Links to other sites, which are not checked.
    pub(super) external: usize,
}

/// The files of a site with their links and anchors.
#[derive(Debug, Default)]
struct Site {
    /// The targets of links by file.
    targets: BTreeMap<PathBuf, Vec<String>>,
    /// The anchors by file, of those that have any.
    anchors: BTreeMap<PathBuf, BTreeSet<String>>,
}

/// Checks the links of the translated pages in a directory.
pub(super) fn pages(directory: &Path, items: &Items) -> Result<Links> {
    let mut site = Site::default();
    for (file, text) in texts(directory, "md")? {
        let mut targets = Vec::new();
        for prose in markdown::prose(&text) {
            let pieces = markdown::pieces(prose);
            let links = pieces.into_iter().filter(|piece| !matches!(piece.kind, Kind::Code | Kind::Shortcut));
            targets.extend(links.map(|piece| prose[piece.target].to_owned()));
        }
        site.targets.insert(file.clone(), targets);
        site.anchors.insert(file, markdown::anchors(&text).into_iter().collect());
    }
    site.check(directory, items)
}

/// Checks the links of mdBook's HTML in a directory.
pub(super) fn html(directory: &Path, items: &Items) -> Result<Links> {
    let mut site = Site::default();
    for (file, text) in texts(directory, "html")? {
        let values = |name: &str| {
            let values: Vec<_> = text.split(name).skip(1).filter_map(|rest| rest.split('"').next()).collect();
            values.into_iter().map(|value| value.replace("&amp;", "&").replace("%C2%B5", "µ"))
        };
        // The page for unknown addresses is served at any depth, so its links begin at the root of the server.
        if !file.ends_with("404.html") {
            site.targets.insert(file.clone(), values(" href=\"").chain(values(" src=\"")).collect());
        }
        site.anchors.insert(file, values(" id=\"").collect());
    }
    site.check(directory, items)
}

impl Site {
    /// Checks that the target of each link exists.
    fn check(&self, directory: &Path, items: &Items) -> Result<Links> {
        let mut links = Links::default();
        for (file, targets) in &self.targets {
            for target in targets {
                let name = file.strip_prefix(directory).unwrap_or(file).display();
                if target.contains("://") {
                    let is_item = items.check(target).with_context(|| format!("{name}: {target}"))?;
                    *(if is_item { &mut links.items } else { &mut links.external }) += 1;
                    continue;
                }
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let linked = match path {
                    "" => file.clone(),
                    _ => file.parent().unwrap_or(directory).join(path.split('?').next().unwrap_or(path)),
                };
                ensure!(linked.exists(), "{name}: the target of the link `{target}` does not exist");
                let has_anchor = || self.anchors.get(&linked).is_some_and(|known| known.contains(anchor));
                ensure!(
                    anchor.is_empty() || has_anchor(),
                    "{name}: the target of the link `{target}` has no such anchor"
                );
                links.internal += 1;
            }
        }
        Ok(links)
    }
}

/// Returns the files of a directory with an extension, and their texts.
fn texts(directory: &Path, extension: &str) -> Result<Vec<(PathBuf, String)>> {
    let mut texts = Vec::new();
    let entries =
        fs::read_dir(directory).with_context(|| format!("could not list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            texts.extend(self::texts(&path, extension)?);
        } else if path.extension().is_some_and(|found| found == extension) {
            let text = fs::read_to_string(&path);
            texts.push((path.clone(), text.with_context(|| format!("could not read {}", path.display()))?));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::super::items::tests::documentation;
    use super::*;

    /// Checks a site with two files.
    fn check(name: &str, extension: &str, one: &str, other: &str) -> Result<Links> {
        let documentation = documentation(name);
        let items = Items::open(&documentation, "0.1.0")?;
        let directory = documentation.join("site");
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("one").with_extension(extension), one)?;
        fs::write(directory.join("other").with_extension(extension), other)?;
        let links = if extension == "md" { pages(&directory, &items) } else { html(&directory, &items) };
        fs::remove_dir_all(documentation)?;
        links
    }

    #[test]
    fn links_of_pages_need_a_target_and_an_anchor() {
        let text = "# A b\n[a](other.md#c-d) [b](#a-b) [c](https://docs.rs/adverb/0.1.0/adverb/net/index.html) \
                    [d](https://docs.rs/adverb-probe)\n\n[`e`]: other.md\n```\n[f](absent.md)\n```\n";
        let links = check("pages", "md", text, "## C `d`\n").unwrap();
        assert_eq!(links, Links { internal: 3, items: 1, external: 1 });
        for wrong in
            ["absent.md", "other.md#c", "#c-d", "https://docs.rs/adverb/0.1.0/adverb/net/struct.A.html"]
        {
            assert!(check("wrong-pages", "md", &format!("[a]({wrong})"), "## C `d`\n").is_err(), "{wrong}");
        }
    }

    #[test]
    fn links_of_html_need_a_target_and_an_anchor() {
        let text =
            r##"<h1 id="a">A</h1><a class="b" href="other.html#c">c</a><img src="other.html"><a href="#a">"##;
        let other = r#"<h1 id="c">"#;
        let links = check("html", "html", text, other).unwrap();
        assert_eq!(links, Links { internal: 3, items: 0, external: 0 });
        for wrong in ["absent.html", "other.html#a", "#c"] {
            let text = format!(r#"<a href="{wrong}">"#);
            assert!(check("wrong-html", "html", &text, other).is_err(), "{wrong}");
        }
    }
}
