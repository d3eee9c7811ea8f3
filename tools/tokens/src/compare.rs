//! The comparison of two lists of tokens.

use std::collections::{BTreeMap, BTreeSet};

use crate::lex::{Kind, Token};
use crate::renames::Scope;

/// The maximum number of tokens that are added or removed in one file, before the comparison of the file ends.
const MAX_EDITS: usize = 2000;

/// The maximum number of tokens of a difference to print.
const MAX_PRINTED: usize = 16;

/// The result of a comparison.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    /// The differences, each with its file and line.
    pub(crate) differences: Vec<String>,
    /// The changed string literals, each with its file and line.
    pub(crate) strings: Vec<String>,
    /// The number of renamed identifiers, by their old and new names. It includes names that a rule permits to stay.
    pub(crate) renamed: BTreeMap<(String, String), usize>,
    /// New names that the old version of a file uses for something else: a rename may have confused two things.
    pub(crate) shared: BTreeSet<String>,
}

impl Comparison {
    /// Adds the result for another file.
    pub(crate) fn append(&mut self, other: Self) {
        self.differences.extend(other.differences);
        self.strings.extend(other.strings);
        for (pair, count) in other.renamed {
            *self.renamed.entry(pair).or_default() += count;
        }
        self.shared.extend(other.shared);
    }
}

/// Compares the tokens of a file's two versions. `path` is the new path.
pub(crate) fn files(path: &str, old: &[Token], new: &[Token], scope: &Scope<'_>) -> Comparison {
    let mut result = Comparison::default();
    let Some(pairs) = alignment(old, new, scope) else {
        result.differences.push(format!("{path}: more than {MAX_EDITS} tokens differ"));
        return result;
    };
    // The end of both versions is a pair too, so that the tokens before it are compared.
    let (mut next_old, mut next_new) = (0, 0);
    for (at_old, at_new) in pairs.into_iter().chain([(old.len(), new.len())]) {
        if next_old < at_old || next_new < at_new {
            let line = new.get(next_new).or(new.last()).map_or(1, |token| token.line);
            let (before, after) = (&old[next_old..at_old], &new[next_new..at_new]);
            result.differences.push(format!("{path}:{line}: {}", difference(before, after, scope)));
        }
        if at_old < old.len() {
            record(path, &old[at_old], &new[at_new], scope, &mut result);
        }
        (next_old, next_new) = (at_old + 1, at_new + 1);
    }
    result.shared.extend(shared_names(path, old, scope, &result.renamed));
    result
}

/// Records the renames and the changed strings of two tokens that correspond to each other.
fn record(path: &str, old: &Token, new: &Token, scope: &Scope<'_>, result: &mut Comparison) {
    match (&old.kind, &new.kind) {
        (Kind::Ident(before), Kind::Ident(after)) if before != after || scope.is_listed(before) => {
            *result.renamed.entry((before.clone(), after.clone())).or_default() += 1;
        }
        (Kind::String { text: before, .. }, Kind::String { text: after, .. })
            if !is_same_text(before, after, scope) =>
        {
            result.strings.push(format!("{path}:{}: {before} → {after}", new.line));
        }
        (Kind::Items(before), Kind::Items(after)) => {
            for item in before {
                let counterpart = after.iter().find(|other| is_same_item(item, other, scope));
                for (old, new) in item.iter().zip(counterpart.into_iter().flatten()) {
                    record(path, old, new, scope, result);
                }
            }
        }
        _ => {}
    }
}

/// Returns the new names in use that the old version uses too, without being renamed itself.
fn shared_names(
    path: &str,
    old: &[Token],
    scope: &Scope<'_>,
    renamed: &BTreeMap<(String, String), usize>,
) -> Vec<String> {
    let names = scope.new_names().filter(|name| !scope.renames(name));
    let used = names.filter(|name| renamed.keys().any(|(before, after)| before != after && after == name));
    used.filter_map(|name| {
        let is_name = |token: &&Token| matches!(&token.kind, Kind::Ident(found) if found == name);
        old.iter().find(is_name).map(|token| format!("{name}: line {} of the old {path}", token.line))
    })
    .collect()
}

/// Returns the positions of tokens that correspond to each other, in order; `None` if too many differ.
///
/// This is Myers' algorithm. `rows[edits]` has, for each diagonal (the position in the old version minus that in the new
/// one) from `-edits` to `edits`, the furthest position in the old version that so many additions and removals reach.
fn alignment(old: &[Token], new: &[Token], scope: &Scope<'_>) -> Option<Vec<(usize, usize)>> {
    let mut rows: Vec<Vec<Option<usize>>> = Vec::new();
    for edits in 0..=MAX_EDITS as isize {
        let mut row = vec![None; 2 * edits as usize + 1];
        for diagonal in (-edits..=edits).step_by(2) {
            let Some(mut at_old) = start(&rows, diagonal) else { continue };
            let Some(mut at_new) = at_old.checked_add_signed(-diagonal) else { continue };
            if at_old > old.len() || at_new > new.len() {
                continue;
            }
            while at_old < old.len() && at_new < new.len() && is_same(&old[at_old], &new[at_new], scope) {
                (at_old, at_new) = (at_old + 1, at_new + 1);
            }
            row[(diagonal + edits) as usize] = Some(at_old);
            if at_old == old.len() && at_new == new.len() {
                return Some(path_back(rows, at_old, at_new));
            }
        }
        rows.push(row);
    }
    None
}

/// Returns the position in the old version where a diagonal is entered by one more edit than the rows have.
fn start(rows: &[Vec<Option<usize>>], diagonal: isize) -> Option<usize> {
    let Some(row) = rows.last() else { return Some(0) };
    let end = |diagonal: isize| *row.get(usize::try_from(diagonal + rows.len() as isize - 1).ok()?)?;
    let (addition, removal) = (end(diagonal + 1), end(diagonal - 1).map(|at_old| at_old + 1));
    addition.max(removal)
}

/// Returns the tokens that correspond to each other, from the rows before the end.
fn path_back(mut rows: Vec<Vec<Option<usize>>>, mut at_old: usize, mut at_new: usize) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    loop {
        let diagonal = at_old as isize - at_new as isize;
        let start = start(&rows, diagonal).unwrap_or(0);
        while at_old > start {
            (at_old, at_new) = (at_old - 1, at_new - 1);
            pairs.push((at_old, at_new));
        }
        let Some(row) = rows.pop() else { break };
        // The same choice as in `start`: the removal, if both reach equally far.
        let below = usize::try_from(diagonal + rows.len() as isize - 1).ok().and_then(|at| *row.get(at)?);
        if below.is_some_and(|end| end + 1 == start) {
            at_old -= 1;
        } else {
            at_new -= 1;
        }
    }
    pairs.reverse();
    pairs
}

/// Returns whether two tokens correspond to each other. Strings do, if they have the same prefix.
fn is_same(old: &Token, new: &Token, scope: &Scope<'_>) -> bool {
    match (&old.kind, &new.kind) {
        (Kind::Ident(old), Kind::Ident(new)) => scope.permits(old, new),
        (Kind::Other(old), Kind::Other(new)) => old == new,
        (Kind::String { prefix: old, .. }, Kind::String { prefix: new, .. }) => old == new,
        (Kind::Items(old), Kind::Items(new)) => unmatched(old, new, scope) == (Vec::new(), Vec::new()),
        _ => false,
    }
}

/// Returns the items of each version that have no counterpart in the other.
fn unmatched<'a>(
    old: &'a [Vec<Token>],
    new: &'a [Vec<Token>],
    scope: &Scope<'_>,
) -> (Vec<&'a [Token]>, Vec<&'a [Token]>) {
    let mut rest: Vec<&[Token]> = new.iter().map(Vec::as_slice).collect();
    let mut missing = Vec::new();
    for item in old {
        match rest.iter().position(|other| is_same_item(item, other, scope)) {
            Some(found) => _ = rest.swap_remove(found),
            None => missing.push(item.as_slice()),
        }
    }
    (missing, rest)
}

/// Returns whether two imports or declarations correspond to each other. Strings in attributes must be the same.
fn is_same_item(old: &[Token], new: &[Token], scope: &Scope<'_>) -> bool {
    let is_same = |(old, new): (&Token, &Token)| match (&old.kind, &new.kind) {
        (Kind::String { text: before, .. }, Kind::String { text: after, .. }) => before == after,
        _ => is_same(old, new, scope),
    };
    old.len() == new.len() && old.iter().zip(new).all(is_same)
}

/// Returns whether two strings are the same, apart from renamed arguments of a format string, as in `{name}` or
/// `{:width$}`.
fn is_same_text(old: &str, new: &str, scope: &Scope<'_>) -> bool {
    let (old, new) = (words(old), words(new));
    let is_same = |at: usize| {
        let is_argument =
            at > 0 && old[at - 1].ends_with('{') || old.get(at + 1).is_some_and(|w| w.starts_with('$'));
        old[at] == new[at] || is_argument && scope.permits(old[at], new[at])
    };
    old.len() == new.len() && (0..old.len()).all(is_same)
}

/// Splits a text into identifiers and the text between them.
fn words(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(len);
        words.push(word);
        rest = after;
    }
    words
}

/// Returns the text of a difference. Of imports, it shows only those that differ.
fn difference(old: &[Token], new: &[Token], scope: &Scope<'_>) -> String {
    if let ([Token { kind: Kind::Items(old), .. }], [Token { kind: Kind::Items(new), .. }]) = (old, new) {
        let (old, new) = unmatched(old, new, scope);
        let text = |items: Vec<&[Token]>| items.into_iter().map(text).collect::<Vec<_>>().join("; ");
        return format!("`{}` became `{}`", text(old), text(new));
    }
    match (old, new) {
        (old, []) => format!("`{}` was removed", text(old)),
        ([], new) => format!("`{}` was added", text(new)),
        (old, new) => format!("`{}` became `{}`", text(old), text(new)),
    }
}

/// Returns the first tokens as text.
fn text(tokens: &[Token]) -> String {
    let word = |token: &Token| match &token.kind {
        Kind::Ident(text) | Kind::Other(text) => text.clone(),
        Kind::String { prefix, text } => format!("{prefix}{text}"),
        Kind::Items(items) => items.iter().map(|item| text(item)).collect::<Vec<_>>().join("; "),
    };
    let mut words: Vec<_> = tokens.iter().take(MAX_PRINTED).map(word).collect();
    if tokens.len() > MAX_PRINTED {
        words.push(format!("… ({} tokens)", tokens.len()));
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lex;
    use crate::renames::Renames;

    const SOURCE: &str = r#"
        //! A module.
        use std::{fs, io};

        /// Reads a file.
        fn read_it(path: &str) -> io::Result<String> {
            // The file may be missing.
            println!("reading {path} failed after {} attempts", 3);
            fs::read_to_string(path)
        }
    "#;

    fn compared(old: &str, new: &str, renames: &str) -> Comparison {
        let renames = Renames::parse(renames).unwrap();
        files("a.rs", &lex::tokens(old).unwrap(), &lex::tokens(new).unwrap(), &renames.scope("a.rs"))
    }

    fn changed(from: &str, to: &str, renames: &str) -> Comparison {
        let new = SOURCE.replace(from, to);
        assert_ne!(SOURCE, new, "`{from}` must occur");
        compared(SOURCE, &new, renames)
    }

    #[test]
    fn a_changed_comment_is_not_a_difference() {
        for comment in ["/// Reads a file.", "// The file may be missing.", "//! A module."] {
            let result = changed(comment, "// Other words.", "");
            assert!(result.differences.is_empty() && result.strings.is_empty(), "{comment}: {result:?}");
        }
    }

    #[test]
    fn each_changed_token_is_a_difference() {
        let changes = [
            ("3)", "4)", "a.rs:8: `3` became `4`"),
            ("fs::read_to_string(path)", "fs::read_to_string(&path)", "a.rs:9: `&` was added"),
            ("(path: &str)", "(path: str)", "a.rs:6: `&` was removed"),
            ("{fs, io}", "{fs, io, mem}", "a.rs:3: `` became `use std :: mem`"),
            ("fn read_it", "fn read", "a.rs:6: `read_it` became `read`"),
        ];
        for (from, to, expected) in changes {
            assert_eq!(changed(from, to, "").differences, [expected]);
        }
    }

    #[test]
    fn a_changed_literal_is_listed_for_review() {
        let result = changed("failed after", "took", "");
        assert!(result.differences.is_empty());
        let expected =
            r#"a.rs:8: "reading {path} failed after {} attempts" → "reading {path} took {} attempts""#;
        assert_eq!(result.strings, [expected]);
    }

    #[test]
    fn a_renamed_identifier_is_not_a_difference() {
        let result = changed("path", "name", "path name");
        assert!(result.differences.is_empty() && result.strings.is_empty(), "{result:?}");
        // The argument of the format string is not counted.
        assert_eq!(result.renamed[&("path".into(), "name".into())], 2);
        assert!(result.shared.is_empty());
    }

    #[test]
    fn an_identifier_that_is_renamed_at_one_place_only_is_a_difference() {
        let result = changed("read_to_string(path)", "read_to_string(name)", "path name");
        assert_eq!(result.differences, ["a.rs:6: `path` became `path`"]);
        let result = changed("read_to_string(path)", "read_to_string(name)", "path name\npath path");
        assert!(result.differences.is_empty());
        assert_eq!(result.renamed[&("path".into(), "name".into())], 1);
        assert_eq!(result.renamed[&("path".into(), "path".into())], 1);
    }

    #[test]
    fn a_new_name_that_was_in_use_is_listed() {
        let result = changed("path", "fs", "path fs");
        assert!(result.differences.is_empty());
        assert_eq!(result.shared.into_iter().collect::<Vec<_>>(), ["fs: line 9 of the old a.rs"]);
    }

    #[test]
    fn several_differences_are_reported_at_their_lines() {
        let (old, new) = ("a\nb\nc\nd\ne\nf", "a\nx\nc\nd\nf\ng");
        let expected = ["a.rs:2: `b` became `x`", "a.rs:5: `e` was removed", "a.rs:6: `g` was added"];
        assert_eq!(compared(old, new, "").differences, expected);
        let many = |first: usize| (first..first + 1500).map(|at| format!("a{at} ")).collect::<String>();
        assert_eq!(compared(&many(0), &many(5000), "").differences, ["a.rs: more than 2000 tokens differ"]);
    }

    #[test]
    fn an_alignment_rebuilds_both_versions() {
        // Every pair of texts of up to 5 tokens over two letters.
        let texts: Vec<String> = (0..=5_u32)
            .flat_map(|len| (0..1_u32 << len).map(move |bits| (len, bits)))
            .map(|(len, bits)| (0..len).map(|at| if bits >> at & 1 == 0 { "a " } else { "b " }).collect())
            .collect();
        let renames = Renames::default();
        let scope = renames.scope("a.rs");
        let lists: Vec<_> = texts.iter().map(|text| lex::tokens(text).unwrap()).collect();
        for old in &lists {
            for new in &lists {
                let pairs = alignment(old, new, &scope).unwrap();
                assert!(pairs.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{pairs:?}");
                assert!(pairs.iter().all(|&(a, b)| old[a].kind == new[b].kind), "{pairs:?}");
                assert_eq!(pairs.len(), longest_common(old, new));
            }
        }
    }

    fn longest_common(old: &[Token], new: &[Token]) -> usize {
        match (old, new) {
            ([a, old @ ..], [b, new @ ..]) if a.kind == b.kind => 1 + longest_common(old, new),
            ([_, rest_old @ ..], [_, rest_new @ ..]) => {
                longest_common(rest_old, new).max(longest_common(old, rest_new))
            }
            _ => 0,
        }
    }
}
