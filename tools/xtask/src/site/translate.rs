//! The translation of the manual's chapters and other documents to pages of mdBook.
//!
//! rustdoc and GitHub show the same files. So the translation replaces what only they understand: paths of Rust items,
//! paths in the repository, blocks of code without a language, and a chapter's first paragraph in place of a title.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::items::Items;
use super::markdown::{self, Block, Kind, Piece};
use super::pages::{self, Page, Source};

/// Directories whose files other than Markdown are copied to the site, and their directories there.
pub(super) const FILES: &[(&str, &str)] = &[("docs/pictures", "pictures"), ("docs/operate", "operate")];

/// The surroundings of the translated pages.
#[derive(Debug)]
pub(super) struct Translator<'a> {
    /// The checkout.
    pub(super) root: &'a Path,
    pub(super) items: &'a Items,
    /// The address of the repository's files at the version, with a slash at its end.
    pub(super) repository: String,
}

impl Translator<'_> {
    /// Returns the text of a page.
    pub(super) fn page(&self, page: &Page) -> Result<String> {
        let text = self.read(&page.path())?;
        let text = match page.source {
            Source::File(_) => text,
            Source::Chapter => chapter(page.title, &text),
            Source::Section(_) => section(&text, page.title)?,
            Source::Listing(path, language) => listing(page.title, path, &text, language),
        };
        let mut translated =
            self.links(page, &text).with_context(|| format!("translating {}", page.path()))?;
        if let Some(name) = page.picture {
            let picture = picture(&self.read("README.md")?, name)?;
            let place = translated.match_indices("\n\n").nth(1).context("the page has one paragraph")?.0;
            translated.insert_str(place, &format!("\n\n{picture}"));
        }
        Ok(translated)
    }

    fn read(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.root.join(path)).with_context(|| format!("could not read {path}"))
    }

    /// Translates the links in a page's prose.
    fn links(&self, page: &Page, text: &str) -> Result<String> {
        let mut definitions = Vec::new();
        for prose in markdown::prose(text) {
            let pieces = markdown::pieces(prose).into_iter().filter(|piece| piece.kind == Kind::Definition);
            definitions.extend(pieces.map(|piece| &prose[piece.text]));
        }
        let mut out = String::new();
        for block in markdown::blocks(text) {
            match block {
                Block::Code { indent, info, text } => out += &fenced(indent, info, text),
                Block::Prose(prose) => {
                    let mut at = 0;
                    for piece in markdown::pieces(prose) {
                        if let Some(new) = self.piece(page, prose, &piece, &definitions)? {
                            out += &prose[at..piece.range.start];
                            out += &new;
                            at = piece.range.end;
                        }
                    }
                    out += &prose[at..];
                }
            }
        }
        Ok(out)
    }

    /// Returns the replacement of a piece of prose, or `None` if the piece stays.
    fn piece(&self, page: &Page, prose: &str, piece: &Piece, definitions: &[&str]) -> Result<Option<String>> {
        let (text, target) = (&prose[piece.text.clone()], &prose[piece.target.clone()]);
        Ok(match piece.kind {
            Kind::Inline => {
                let target = self.target(page, target)?;
                Some(format!("[{}]({target})", title_of(text, &target)))
            }
            Kind::Definition => Some(format!("[{text}]: {}", self.target(page, target)?)),
            Kind::Attribute => Some(self.target(page, target)?),
            Kind::Shortcut => {
                let is_defined = definitions.contains(&text);
                ensure!(is_defined || !text.starts_with('`'), "`[{text}]` has no target");
                None
            }
            // rustdoc can't link to files of the repository, so its texts name them.
            Kind::Code if self.is_file(text) => Some(match pages::pages().find(|shown| shown.shows(text)) {
                Some(shown) => format!("[{}]({}.md)", shown.title, shown.name),
                None => format!("[`{text}`]({})", self.address(text)),
            }),
            Kind::Code => None,
        })
    }

    /// Whether code is the path of a document, or of a file in docs.
    fn is_file(&self, code: &str) -> bool {
        (code.starts_with("docs/") || code.ends_with(".md")) && self.root.join(code).exists()
    }

    /// Returns a link's target on the site.
    fn target(&self, page: &Page, target: &str) -> Result<String> {
        let (path, anchor) = match target.split_once('#') {
            Some((path, anchor)) => (path, format!("#{anchor}")),
            None => (target, String::new()),
        };
        if path.is_empty() || path.starts_with("https://") || path.starts_with("http://") {
            return Ok(target.to_owned());
        }
        if let Some(chapter) = path.strip_prefix("crate::manual::") {
            return Ok(format!("{chapter}.md{anchor}"));
        }
        if let Some(item) = path.strip_prefix("crate::") {
            return Ok(self.items.url(item)? + &anchor);
        }
        let directory = Path::new(&page.path()).parent().unwrap_or(Path::new("")).to_owned();
        let file = normalize(&directory.join(path))?;
        if let Some(shown) = pages::pages().find(|shown| shown.shows_section(&file, &anchor)) {
            return Ok(format!("{}.md", shown.name));
        }
        if let Some(shown) = pages::pages().find(|shown| shown.shows(&file)) {
            return Ok(format!("{}.md{anchor}", shown.name));
        }
        ensure!(self.root.join(&file).exists(), "{file} does not exist");
        Ok(self.address(&file) + &anchor)
    }

    /// Returns the address of a file: that of its copy on the site, or that in the repository. Directories have no copy that
    /// a server lists.
    fn address(&self, file: &str) -> String {
        let copy = FILES.iter().find_map(|(from, to)| {
            let name = file.strip_prefix(from)?.strip_prefix('/')?;
            self.root.join(file).is_file().then(|| format!("{to}/{name}"))
        });
        copy.unwrap_or_else(|| format!("{}{file}", self.repository))
    }
}

/// Returns a path without `.` and `..`.
fn normalize(path: &Path) -> Result<String> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir if normal.pop() => {}
            Component::CurDir => {}
            _ => bail!("{} is outside of the repository", path.display()),
        }
    }
    Ok(normal.to_str().context("a path is not UTF-8")?.to_owned())
}

/// Returns the text of a link: a page's title for the name of a chapter, such as `` `one_sided` ``.
fn title_of<'a>(text: &'a str, target: &str) -> &'a str {
    let name = target.split_once(".md").map_or("", |(name, _)| name);
    let named = pages::pages().find(|page| page.name == name && text == format!("`{name}`"));
    named.map_or(text, |page| page.title)
}

/// Returns a chapter with headings below the page's title. Blocks of code without a language are Rust, as in rustdoc.
fn chapter(title: &str, text: &str) -> String {
    let mut out = format!("# {title}\n\n");
    // rustdoc shows the first paragraph as the chapter's summary. Many chapters have only a title there.
    let summary = if title.ends_with('?') { title.to_owned() } else { format!("{title}.") };
    let text = text.strip_prefix(&format!("{summary}\n\n")).unwrap_or(text);
    for block in markdown::blocks(text) {
        match block {
            Block::Prose(prose) => {
                for line in prose.split_inclusive('\n') {
                    let is_heading = line.trim_start_matches('#').starts_with(' ') && line.starts_with('#');
                    out += if is_heading { "#" } else { "" };
                    out += line;
                }
            }
            Block::Code { indent, info, text } => {
                let is_rust = info.is_empty() || ["no_run", "ignore", "should_panic"].contains(&info);
                let language = match info {
                    "" => "rust".to_owned(),
                    _ if is_rust => format!("rust,{info}"),
                    _ => info.to_owned(),
                };
                out += &fenced(indent, &language, text);
            }
        }
    }
    out
}

/// Returns a block of code with its fences.
fn fenced(indent: &str, info: &str, text: &str) -> String {
    format!("{indent}```{info}\n{text}{indent}```\n")
}

/// Returns the section of a file, with its heading as the page's title.
pub(super) fn section(text: &str, title: &str) -> Result<String> {
    let heading = format!("\n## {title}\n");
    let (_, rest) = text.split_once(&heading).with_context(|| format!("no section `{title}`"))?;
    let end = rest.find("\n## ").map_or(rest.len(), |end| end + 1);
    Ok(format!("# {title}\n{}", rest[..end].replace("\n### ", "\n## ")))
}

/// Returns a file as a block of code, below the comment at its beginning and a link to the file.
fn listing(title: &str, path: &str, text: &str, language: &str) -> String {
    let mut out = format!("# {title}\n\n");
    let comment = text.lines().map_while(|line| line.strip_prefix('#'));
    let mut length = 0;
    for line in comment {
        length += line.len() + 2;
        out += &format!("{}\n", line.trim());
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    format!("{out}\nThe file is [`{name}`]({name}).\n\n```{language}\n{}```\n", &text[length..])
}

/// Returns the picture with a file's name in the README. A picture with a dark form becomes two, of which the theme shows
/// one.
fn picture(readme: &str, name: &str) -> Result<String> {
    let source = format!("src=\"docs/pictures/{name}\"");
    let at = readme.find(&source).with_context(|| format!("README.md has no picture {name}"))?;
    let alt = readme[at..].split_once("alt=\"").and_then(|(_, rest)| rest.split_once('"'));
    let alt = alt.with_context(|| format!("the picture {name} has no text"))?.0;
    let image = |name: &str, class: &str| format!("<img{class} src=\"pictures/{name}\" alt=\"{alt}\">");
    let dark = name.replace("light", "dark");
    Ok(if dark != name && readme.contains(&format!("srcset=\"docs/pictures/{dark}\"")) {
        image(name, " class=\"in-light\"") + &image(&dark, " class=\"in-dark\"")
    } else {
        image(name, "")
    })
}

#[cfg(test)]
mod tests {
    use super::super::items::tests::documentation;
    use super::*;

    /// Translates a chapter's text.
    fn translate(text: &str) -> Result<String> {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("translate{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = documentation(&name);
        let items = Items::open(&directory, "0.1.0")?;
        let repository = "https://example.org/".to_owned();
        let translator = Translator { root: &support::paths::root(), items: &items, repository };
        let page = pages::pages().find(|page| page.name == "messages").unwrap();
        let text = translator.links(page, &chapter(page.title, text));
        fs::remove_dir_all(directory)?;
        Ok(text?.strip_prefix("# Messages\n\n").expect("a title").to_owned())
    }

    #[test]
    fn links_to_items_and_chapters_become_links_of_the_site() {
        let text = "[sends](crate::net::blocking::Connection::send), [`one_sided`](crate::manual::one_sided#limits), [`E`].\n\n[`E`]: crate::ConnectError\n";
        let docs = "https://docs.rs/adverb/0.1.0/adverb";
        assert_eq!(
            translate(text).unwrap(),
            format!(
                "[sends]({docs}/net/blocking/struct.Connection.html#method.send), \
                 [One-sided access to memory](one_sided.md#limits), [`E`].\n\n\
                 [`E`]: {docs}/net/enum.ConnectError.html\n"
            )
        );
    }

    #[test]
    fn wrong_links_are_errors() {
        for text in ["[`E`]", "[x](crate::net::Absent)", "[x](absent.md)", "[x](../../../../../absent.md)"] {
            assert!(translate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn files_of_the_repository_are_pages_copies_or_links_to_the_repository() {
        let text = "[a](../../../../docs/operate/json.md#b), [c](../../../../docs/pictures/ping.svg), \
                    [d](../../../../UNSAFE.md), `docs/operate/metrics.md`, `SECURITY.md`, `docs/absent`, \
                    `docs/operate/alerts.yml`, `docs/operate`";
        assert_eq!(
            translate(text).unwrap(),
            "[a](json.md#b), [c](pictures/ping.svg), [d](https://example.org/UNSAFE.md), [Metrics](metrics.md), \
             [`SECURITY.md`](https://example.org/SECURITY.md), `docs/absent`, \
             [`docs/operate/alerts.yml`](operate/alerts.yml), [`docs/operate`](https://example.org/docs/operate)"
        );
    }

    #[test]
    fn headings_are_below_the_title_and_code_without_a_language_is_rust() {
        let text = "Messages.\n\n# A\n```\n# hidden\n[x](crate::y)\n```\n```no_run\n```\n```text\n# b\n```\n";
        assert_eq!(
            translate(text).unwrap(),
            "## A\n```rust\n# hidden\n[x](crate::y)\n```\n```rust,no_run\n```\n```text\n# b\n```\n"
        );
    }

    #[test]
    fn sections_listings_and_pictures_are_parts_of_files() {
        assert_eq!(section("# A\n\n## B\nb\n### C\nc\n## D\n", "B").unwrap(), "# B\nb\n## C\nc\n");
        assert_eq!(
            listing("A", "b/f.yml", "# b\n#\n# c\nd: e\n", "yaml"),
            "# A\n\nb\n\nc\n\nThe file is [`f.yml`](f.yml).\n\n```yaml\nd: e\n```\n"
        );
        let readme =
            "<source srcset=\"docs/pictures/a-dark.png\"><img src=\"docs/pictures/a-light.png\" alt=\"b\">";
        assert_eq!(
            picture(readme, "a-light.png").unwrap(),
            "<img class=\"in-light\" src=\"pictures/a-light.png\" alt=\"b\">\
             <img class=\"in-dark\" src=\"pictures/a-dark.png\" alt=\"b\">"
        );
    }
}
