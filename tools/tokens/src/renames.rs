//! The list of renames.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// Renames of identifiers and of files.
#[derive(Debug, Default)]
pub(crate) struct Renames {
    /// Renames of identifiers, in the order of the list.
    rules: Vec<Rule>,
    /// New paths of files, by their old paths.
    files: BTreeMap<String, String>,
}

/// A rename of an identifier.
#[derive(Debug)]
struct Rule {
    /// The old path of a file, or of a directory with a slash at the end; empty for all files.
    place: String,
    old: String,
    new: String,
}

impl Renames {
    /// Parses a list: one rename per line. `#` begins a comment.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut renames = Self::default();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                ["file", old, new] => {
                    renames.files.insert(old.into(), new.into());
                }
                [old, new] if is_identifier(old) && is_identifier(new) => {
                    renames.rules.push(Rule { place: String::new(), old: old.into(), new: new.into() });
                }
                [place, old, new] if place.ends_with(':') && is_identifier(old) && is_identifier(new) => {
                    let place = place.trim_end_matches(':').to_owned();
                    renames.rules.push(Rule { place, old: old.into(), new: new.into() });
                }
                _ => bail!(
                    "line {}: `{}` is neither `old new`, nor `PATH: old new`, nor `file OLD NEW`",
                    at + 1,
                    line.trim()
                ),
            }
        }
        Ok(renames)
    }

    /// Returns the new path of a file, if the list renames the file.
    pub(crate) fn file(&self, old: &str) -> Option<&str> {
        self.files.get(old).map(String::as_str)
    }

    /// Returns the renames that apply to a file. Rules for the file or its directory replace those for all files.
    pub(crate) fn scope(&self, path: &str) -> Scope<'_> {
        let mut scope = BTreeMap::<_, Vec<&str>>::new();
        let applies = |place: &str| {
            !place.is_empty() && (place == path || place.ends_with('/') && path.starts_with(place))
        };
        for rule in self.rules.iter().filter(|rule| applies(&rule.place)) {
            scope.entry(rule.old.as_str()).or_default().push(&rule.new);
        }
        let specific: Vec<_> = scope.keys().copied().collect();
        for rule in self.rules.iter().filter(|rule| rule.place.is_empty()) {
            if !specific.contains(&rule.old.as_str()) {
                scope.entry(&rule.old).or_default().push(&rule.new);
            }
        }
        Scope(scope)
    }

    /// Returns all pairs of old and new identifiers that differ.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (String, String)> {
        self.rules.iter().filter(|rule| rule.old != rule.new).map(|rule| (rule.old.clone(), rule.new.clone()))
    }

    /// Returns whether the list has several new names for an identifier.
    pub(crate) fn is_ambiguous(&self, old: &str) -> bool {
        let mut new = self.rules.iter().filter(|rule| rule.old == old).map(|rule| &rule.new);
        let first = new.next();
        new.any(|new| Some(new) != first)
    }
}

/// The new names of identifiers in one file.
#[derive(Debug)]
pub(crate) struct Scope<'a>(BTreeMap<&'a str, Vec<&'a str>>);

impl Scope<'_> {
    /// Returns whether `new` is the old identifier's name in the new version. An identifier without a rule must stay.
    pub(crate) fn permits(&self, old: &str, new: &str) -> bool {
        match self.0.get(old) {
            Some(names) => names.contains(&new),
            None => old == new,
        }
    }

    /// Returns the new names that differ from the old ones.
    pub(crate) fn new_names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|(old, names)| names.iter().copied().filter(move |new| new != old))
    }

    /// Returns whether there is a rule for the identifier.
    pub(crate) fn is_listed(&self, old: &str) -> bool {
        self.0.contains_key(old)
    }

    /// Returns whether the identifier itself gets another name.
    pub(crate) fn renames(&self, old: &str) -> bool {
        self.0.get(old).is_some_and(|names| !names.contains(&old))
    }
}

fn is_identifier(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_with_a_rule_must_change() {
        let renames = Renames::parse("# names\na b # reason\n\nfile x/a.rs x/b.rs\n").unwrap();
        let scope = renames.scope("x/a.rs");
        assert!(scope.permits("a", "b") && !scope.permits("a", "a") && scope.permits("c", "c"));
        assert_eq!(renames.file("x/a.rs"), Some("x/b.rs"));
        assert_eq!(renames.file("x/c.rs"), None);
    }

    #[test]
    fn a_rule_of_a_place_replaces_the_general_rule_there() {
        let renames = Renames::parse("a b\nx/: a c\nx/y.rs: d e\n").unwrap();
        assert!(renames.scope("z.rs").permits("a", "b"));
        let scope = renames.scope("x/y.rs");
        assert!(scope.permits("a", "c") && !scope.permits("a", "b") && scope.permits("d", "e"));
        assert!(renames.scope("x/z.rs").permits("d", "d"));
    }

    #[test]
    fn several_rules_permit_each_of_their_names() {
        let renames = Renames::parse("a b\na a\n").unwrap();
        let scope = renames.scope("x");
        assert!(scope.permits("a", "a") && scope.permits("a", "b") && !scope.permits("a", "c"));
        assert!(renames.is_ambiguous("a") && !renames.is_ambiguous("b"));
    }

    #[test]
    fn a_malformed_line_is_reported_with_its_number() {
        let error = Renames::parse("a b\na\n").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
