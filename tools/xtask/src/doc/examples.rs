//! The examples in the documentation of the crate `adverb`. A user copies them into a program that depends on `adverb`
//! alone, so they must not name the crates that `adverb` re-exports.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::site::items::Items;

/// Checks the imports of all examples in the documentation that rustdoc has built in a directory.
pub(super) fn check(directory: &Path) -> Result<()> {
    let items = Items::open(directory, "")?;
    let mut problems = BTreeSet::new();
    let mut count = 0;
    for page in pages(&directory.join("adverb"))? {
        let html = fs::read_to_string(&page).with_context(|| format!("could not read {}", page.display()))?;
        for example in examples(&html) {
            for import in imports(&example) {
                count += 1;
                if !import.starts_with("adverb::") || !items.contains(&import["adverb::".len()..])? {
                    problems.insert(format!("{}: {import}", page.display()));
                }
            }
        }
    }
    let problems = problems.into_iter().collect::<Vec<_>>().join("\n");
    ensure!(problems.is_empty(), "examples use paths that a user of `adverb` does not have:\n{problems}");
    println!("the examples import {count} items of adverb");
    Ok(())
}

/// Returns the pages in a directory and its subdirectories.
fn pages(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(directory).with_context(|| format!("could not read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            found.push(path);
        }
    }
    Ok(found)
}

/// Returns the examples of a page, without rustdoc's highlighting.
fn examples(html: &str) -> impl Iterator<Item = String> {
    let starts = html.split("<pre class=\"rust rust-example-rendered\">").skip(1);
    starts.map(|rest| {
        let highlighted = rest.split("</pre>").next().unwrap_or_default();
        let texts = highlighted.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text));
        texts.collect()
    })
}

/// Returns the items that an example imports from `adverb`, and its paths into the crates that `adverb` re-exports.
fn imports(example: &str) -> Vec<String> {
    let mut found = Vec::new();
    for rest in example.split("use adverb::").skip(1) {
        expand("adverb", rest.split(';').next().unwrap_or_default(), &mut found);
    }
    for (start, _) in example.match_indices("adverb_") {
        let is_path = |c: char| c == '_' || c == ':' || c.is_ascii_alphanumeric();
        let path: String = example[start..].chars().take_while(|c| is_path(*c)).collect();
        if path.contains("::") && !example[..start].ends_with(is_path) {
            found.push(path);
        }
    }
    found
}

/// Adds the items of a tree of imports, such as `net::{Listener, blocking::{self, Connection}}`.
fn expand(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((path, inner)) = tree.split_once('{') else {
        let name = tree.split_whitespace().next().unwrap_or_default();
        match name {
            "" => {}
            "self" | "*" => found.push(prefix.to_owned()),
            name => found.push(format!("{prefix}::{}", name.trim_end_matches("::*"))),
        }
        return;
    };
    let prefix = [prefix, path.trim_end_matches("::")].join("::");
    let prefix = prefix.trim_end_matches("::");
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut start) = (0, 0);
    for (index, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(prefix, &inner[start..index], found);
                start = index + 1;
            }
            _ => {}
        }
    }
    expand(prefix, &inner[start..], found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::site::items::tests::documentation;

    /// Returns an example as rustdoc highlights it.
    fn page(code: &str) -> String {
        let code = code.replace("use ", "<span class=\"kw\">use </span>").replace(';', "<br/>;");
        format!("<p>adverb_net::x</p><pre class=\"rust rust-example-rendered\"><code>{code}</code></pre>")
    }

    #[test]
    fn imports_are_expanded() {
        let example = "use adverb::net::{Listener, blocking::{self, Connection as C}};\nuse adverb::net::*;";
        let expected = ["net::Listener", "net::blocking", "net::blocking::Connection", "net"];
        assert_eq!(imports(example), expected.map(|item| format!("adverb::{item}")));
        assert_eq!(imports("adverb_net::connect(my_adverb_x::y, adverb_test)"), ["adverb_net::connect"]);
    }

    #[test]
    fn an_example_that_names_an_internal_crate_or_a_missing_item_is_reported() {
        let directory = documentation("examples");
        let chapter = directory.join("adverb/manual/index.html");
        fs::write(&chapter, page("use adverb::net::blocking::{self, connect};")).unwrap();
        check(&directory).unwrap();
        for wrong in ["adverb_net::ConnectError", "adverb::net::Missing", "adverb::ConnectError"] {
            fs::write(&chapter, page(&format!("use {wrong};"))).unwrap();
            let error = check(&directory).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
