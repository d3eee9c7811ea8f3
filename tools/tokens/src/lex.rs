//! The tokens of a Rust file, in a normal form.
//!
//! The normal form removes the differences that rustfmt makes when the length of a name or of a comment changes:
//!
//! - Documentation and comments are dropped.
//! - A comma before a closing delimiter is dropped, except in a tuple of one element.
//! - A block without statements, after `=>` or after the parameters of a closure, loses its braces. A match arm always
//!   ends with a comma. A block with only a jump, such as `return`, loses its semicolon too.
//! - A field in shorthand notation is written out: `{ a }` becomes `{ a: a }`.
//! - Consecutive imports become one token, a set of paths; so do consecutive declarations of modules.
//! - A string's line continuations are removed.

use std::slice;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, Group, Literal, Spacing, TokenStream, TokenTree};

/// A token in normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// Line number, from 1.
    pub(crate) line: usize,
}

/// The kind of a token, with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier, a keyword, or the name of a lifetime.
    Ident(String),
    /// An operator, a delimiter, or a literal that is not a string.
    Other(String),
    /// A string literal: its prefix (such as `b`), and its source text without line continuations.
    String { prefix: String, text: String },
    /// Consecutive imports or declarations of modules, whose order has no meaning; each as its tokens.
    Items(Vec<Vec<Token>>),
}

impl Token {
    fn is(&self, text: &str) -> bool {
        matches!(&self.kind, Kind::Ident(found) | Kind::Other(found) if found == text)
    }
}

/// Operators of several characters. Those that begin with `>` are missing, because `>` also closes generic arguments.
const OPERATORS: &[&str] = &[
    "..=", "...", "<<=", "::", "->", "=>", "==", "!=", "<=", "&&", "||", "<<", "..", "+=", "-=", "*=", "/=",
    "%=", "^=", "&=", "|=",
];

/// Keywords of expressions that leave the block.
const JUMPS: &[&str] = &["return", "break", "continue"];

/// Returns the tokens of a file.
pub(crate) fn tokens(source: &str) -> Result<Vec<Token>> {
    let stream: TokenStream = source
        .parse()
        .map_err(|error: proc_macro2::LexError| anyhow!("line {}: {error}", error.span().start().line))?;
    let mut out = Vec::new();
    normalize(&trees(stream), &mut out);
    Ok(out)
}

/// Returns the token trees of a stream, without documentation.
fn trees(stream: TokenStream) -> Vec<TokenTree> {
    let mut trees = Vec::new();
    for tree in stream {
        if let TokenTree::Group(group) = &tree
            && is_documentation(group)
            && trees.last().is_some_and(|tree| is_punct(tree, '#') || is_punct(tree, '!'))
        {
            if trees.pop().is_some_and(|tree| is_punct(&tree, '!')) {
                trees.pop();
            }
            continue;
        }
        trees.push(tree);
    }
    trees
}

/// Returns whether the group is that of an attribute `#[doc = …]`, which is also the form of a doc comment.
fn is_documentation(group: &Group) -> bool {
    let mut inner = group.stream().into_iter();
    group.delimiter() == Delimiter::Bracket
        && inner.next().is_some_and(|tree| is_ident(&tree, "doc"))
        && inner.next().is_some_and(|tree| is_punct(&tree, '='))
}

fn is_punct(tree: &TokenTree, c: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == c)
}

fn is_ident(tree: &TokenTree, name: &str) -> bool {
    matches!(tree, TokenTree::Ident(ident) if ident == name)
}

fn is_brace(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

/// Appends the trees in normal form.
fn normalize(trees: &[TokenTree], out: &mut Vec<Token>) {
    let mut at = 0;
    while at < trees.len() {
        for keyword in ["use", "mod"] {
            let line = line(&trees[at]);
            let mut items = Vec::new();
            while let Some((found, len)) = item(&trees[at..], keyword) {
                items.extend(found);
                at += len;
            }
            if !items.is_empty() {
                out.push(Token { kind: Kind::Items(items), line });
            }
            if at == trees.len() {
                return;
            }
        }
        at += match &trees[at] {
            TokenTree::Group(group) => group_tokens(group, &trees[at + 1..], out),
            TokenTree::Punct(_) => operator(&trees[at..], out),
            TokenTree::Ident(ident) => {
                out.push(Token { kind: Kind::Ident(ident.to_string()), line: line(&trees[at]) });
                1
            }
            TokenTree::Literal(literal) => {
                out.push(Token { kind: literal_kind(literal), line: line(&trees[at]) });
                1
            }
        };
    }
}

/// Appends an operator and returns its number of characters.
fn operator(trees: &[TokenTree], out: &mut Vec<Token>) -> usize {
    let mut text = String::new();
    for tree in trees {
        let TokenTree::Punct(punct) = tree else { break };
        text.push(punct.as_char());
        if punct.spacing() == Spacing::Alone {
            break;
        }
    }
    let known = OPERATORS.iter().find(|operator| text.starts_with(**operator));
    let len = known.map_or(1, |operator| operator.len());
    text.truncate(len);
    // A list of generic arguments that is broken into lines has a comma at its end.
    if text == ">" && out.last().is_some_and(|token| token.is(",")) {
        out.pop();
    }
    out.push(Token { kind: Kind::Other(text), line: line(&trees[0]) });
    len
}

/// Appends a group in normal form, and returns the number of trees: 1, or 2 with the comma of a match arm.
fn group_tokens(group: &Group, following: &[TokenTree], out: &mut Vec<Token>) -> usize {
    let mut inner = trees(group.stream());
    let is_after = |text: &str| out.last().is_some_and(|token| token.is(text));
    let is_block = group.delimiter() == Delimiter::Brace;
    let is_arm = is_block && is_after("=>") && !following.first().is_some_and(|tree| is_punct(tree, ';'));
    let is_closure = is_block && (is_after("|") || is_after("||"));
    // rustfmt ends a jump in a block with a semicolon.
    let is_jump = inner.first().is_some_and(|tree| JUMPS.iter().any(|jump| is_ident(tree, jump)));
    if (is_arm || is_closure) && is_jump {
        inner.pop_if(|tree| is_punct(tree, ';'));
    }
    let is_bare = !inner.is_empty() && !inner.iter().any(|tree| is_punct(tree, ';'));
    if (is_arm || is_closure) && is_bare {
        normalize(&inner, out);
        if is_closure && out.last().is_some_and(|token| token.is(",")) {
            out.pop();
        }
    } else {
        delimited(group, &inner, out);
    }
    if !is_arm {
        return 1;
    }
    if !out.last().is_some_and(|token| token.is(",")) {
        out.push(Token { kind: Kind::Other(",".into()), line: group.span_close().start().line });
    }
    if following.first().is_some_and(|tree| is_punct(tree, ',')) { 2 } else { 1 }
}

/// Appends a group with its delimiters.
fn delimited(group: &Group, inner: &[TokenTree], out: &mut Vec<Token>) {
    let (open, close) = match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    };
    let is_called = group.delimiter() != Delimiter::Parenthesis || is_call(out);
    let has_fields = group.delimiter() == Delimiter::Brace && out.last().is_some_and(has_fields_after);
    out.push(Token { kind: Kind::Other(open.into()), line: group.span_open().start().line });
    let begin = out.len();
    if has_fields {
        fields(inner, out);
    } else {
        normalize(inner, out);
    }
    let commas = inner.iter().filter(|tree| is_punct(tree, ',')).count();
    if out.len() > begin + 1 && out.last().is_some_and(|token| token.is(",")) && (is_called || commas > 1) {
        out.pop();
    }
    out.push(Token { kind: Kind::Other(close.into()), line: group.span_close().start().line });
}

/// Returns whether parentheses after these tokens contain arguments, so that a comma at their end has no meaning.
fn is_call(out: &[Token]) -> bool {
    let Some(last) = out.last() else { return false };
    match &last.kind {
        Kind::Ident(name) => !matches!(
            name.as_str(),
            "return"
                | "in"
                | "match"
                | "if"
                | "else"
                | "while"
                | "break"
                | "as"
                | "mut"
                | "ref"
                | "let"
                | "move"
        ),
        Kind::Other(text) => matches!(text.as_str(), ")" | "]" | "}" | ">" | "!" | "?"),
        _ => false,
    }
}

/// Returns whether braces after this token may contain fields.
fn has_fields_after(token: &Token) -> bool {
    match &token.kind {
        Kind::Ident(name) => !matches!(
            name.as_str(),
            "else" | "unsafe" | "loop" | "const" | "move" | "async" | "try" | "return" | "break" | "do"
        ),
        Kind::Other(text) => text == ">",
        _ => false,
    }
}

/// Appends fields, with those in shorthand notation written out.
fn fields(inner: &[TokenTree], out: &mut Vec<Token>) {
    for field in inner.split_inclusive(|tree| is_punct(tree, ',')) {
        let bare: Vec<_> = field.iter().filter(|tree| !is_punct(tree, ',')).collect();
        let is_prefix = |tree: &TokenTree| is_ident(tree, "mut") || is_ident(tree, "ref");
        let prefixes = bare.iter().take_while(|tree| is_prefix(tree)).count();
        if let [TokenTree::Ident(name)] = bare[prefixes..] {
            let line = name.span().start().line;
            out.push(Token { kind: Kind::Ident(name.to_string()), line });
            out.push(Token { kind: Kind::Other(":".into()), line });
        }
        normalize(field, out);
    }
}

fn literal_kind(literal: &Literal) -> Kind {
    let text = literal.to_string();
    let Some(quote) = text.find('"').filter(|_| !text.contains('\'') || text.find('"') < text.find('\''))
    else {
        return Kind::Other(text);
    };
    let prefix = text[..quote].to_owned();
    let text =
        if prefix.contains('r') { text[quote..].to_owned() } else { without_continuations(&text[quote..]) };
    Kind::String { prefix, text }
}

/// Removes backslashes at the ends of lines, with the line breaks and indentation after them.
fn without_continuations(text: &str) -> String {
    let mut result = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            result.push(c);
        } else if chars.next_if_eq(&'\n').is_some() {
            while chars.next_if(|c| c.is_ascii_whitespace()).is_some() {}
        } else {
            result.push(c);
            result.extend(chars.next());
        }
    }
    result
}

/// Returns the imports of the declaration `use …;` that the trees begin with, or the module of a declaration `mod …;`,
/// and the number of trees.
///
/// `#[macro_use]` gives the order of modules a meaning, so such a declaration is not an item here.
fn item(trees: &[TokenTree], keyword: &str) -> Option<(Vec<Vec<Token>>, usize)> {
    let mut at = 0;
    while is_punct(trees.get(at)?, '#') {
        let TokenTree::Group(attribute) = trees.get(at + 1)? else { return None };
        if attribute.stream().into_iter().any(|tree| is_ident(&tree, "macro_use")) {
            return None;
        }
        at += 2;
    }
    if is_ident(trees.get(at)?, "pub") {
        at += 1;
        if matches!(trees.get(at)?, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis) {
            at += 1;
        }
    }
    if !is_ident(trees.get(at)?, keyword) || is_punct(trees.get(at + 1)?, '<') {
        return None;
    }
    let len = trees[at..].iter().position(|tree| is_punct(tree, ';'))? + at + 1;
    let contents = &trees[at + 1..len - 1];
    if keyword == "mod" && (contents.len() != 1 || is_brace(&contents[0])) {
        return None;
    }
    let mut prefix = Vec::new();
    for tree in &trees[..=at] {
        normalize(slice::from_ref(tree), &mut prefix);
    }
    let mut paths = Vec::new();
    flatten(contents, &prefix, &mut paths);
    Some((paths, len))
}

/// Appends the paths of an import, each with the prefix before it, and returns the number of trees up to a comma.
fn flatten(trees: &[TokenTree], prefix: &[Token], paths: &mut Vec<Vec<Token>>) -> usize {
    let end = trees.iter().position(|tree| is_punct(tree, ',') || is_brace(tree)).unwrap_or(trees.len());
    let mut path = prefix.to_vec();
    normalize(&trees[..end], &mut path);
    if let Some(TokenTree::Group(group)) = trees.get(end) {
        let inner = self::trees(group.stream());
        let mut at = 0;
        while at < inner.len() {
            at += flatten(&inner[at..], &path, paths);
        }
        return end + 1 + usize::from(trees.get(end + 1).is_some_and(|tree| is_punct(tree, ',')));
    }
    // `a::{self}` imports `a`.
    if let [.., before, last] = &path[..]
        && before.is("::")
        && last.is("self")
    {
        path.truncate(path.len() - 2);
    }
    paths.push(path);
    (end + 1).min(trees.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the tokens as text, without their lines.
    fn text(source: &str) -> String {
        fn words(tokens: &[Token]) -> String {
            tokens.iter().map(|token| word(&token.kind)).collect::<Vec<_>>().join(" ")
        }
        fn word(kind: &Kind) -> String {
            match kind {
                Kind::Ident(text) | Kind::Other(text) => text.clone(),
                Kind::String { prefix, text } => format!("{prefix}{text}"),
                Kind::Items(items) => {
                    let mut items: Vec<_> = items.iter().map(|item| words(item)).collect();
                    items.sort();
                    format!("<{}>", items.join(", "))
                }
            }
        }
        words(&tokens(source).unwrap())
    }

    #[test]
    fn comments_and_documentation_are_dropped() {
        let source = "//! A\n#![doc = \"b\"]\n/// c\n#[doc(hidden)]\nfn f() { /* d */ g() // e\n}";
        assert_eq!(text(source), text("#[doc(hidden)] fn f() { g() }"));
        assert_ne!(text(source), text("fn f() { g() }"));
    }

    #[test]
    fn changes_of_line_breaks_are_not_differences() {
        let same = [
            ("f(a, b)", "f(\n    a,\n    b,\n)"),
            ("f(a)", "f(\n    a,\n)"),
            ("let x: F<A, B<C>> = y;", "let x: F<\n    A,\n    B<\n        C,\n    >,\n> = y;"),
            ("match a { b => c, d => e }", "match a {\n    b => {\n        c\n    }\n    d => e,\n}"),
            ("match a { b => {} c => d.e() }", "match a { b => {}, c => { d.e() } }"),
            ("match a { b => return c }", "match a { b => { return c; } }"),
            ("f(|a| b(a))", "f(|a| {\n    b(a)\n})"),
            ("f(move || b)", "f(move || { b })"),
            ("f(\"a b\")", "f(\"a \\\n   b\")"),
            ("use a::b; use a::{self, d::{e, f}};", "use a::{d::f, d::e, b}; use a;"),
            ("mod b; #[cfg(test)] mod a;", "#[cfg(test)]\nmod a;\nmod b;"),
            ("S { a, b: c }", "S { a: a, b: c }"),
            ("let S { mut a, .. } = s;", "let S { a: mut a, .. } = s;"),
        ];
        for (a, b) in same {
            assert_eq!(text(a), text(b));
        }
    }

    #[test]
    fn tokens_with_a_meaning_are_kept() {
        let different = [
            ("(a,)", "(a)"),
            ("fn f() -> (u8,) {}", "fn f() -> (u8) {}"),
            ("return (a,);", "return (a);"),
            ("a & &b", "a && b"),
            ("a..b", "a..=b"),
            ("a = b", "a == b"),
            ("$(,)?", "$()?"),
            ("match a { b => { c; } }", "match a { b => c }"),
            ("match a { b => { return c; d } }", "match a { b => { return c } d }"),
            ("if a { b } else { c }", "if a { c } else { b }"),
            ("f(a, b)", "f(b, a)"),
            ("a - b", "a + b"),
            ("'a'", "'b'"),
            ("1", "1u8"),
            ("r\"a\\n\"", "\"a\\n\""),
            ("pub use a::b;", "use a::b;"),
            ("use a::b;", "use a::b as c;"),
            ("#[macro_use] mod b; mod a;", "mod a; #[macro_use] mod b;"),
            ("'\"'", "\"'\""),
        ];
        for (a, b) in different {
            assert_ne!(text(a), text(b));
        }
    }

    #[test]
    fn a_line_continuation_is_not_an_escaped_backslash() {
        assert_eq!(text("\"a\\\n  b\""), "\"ab\"");
        assert_eq!(text("\"a\\\\\n  b\""), "\"a\\\\\n  b\"");
    }

    #[test]
    fn every_token_has_its_line() {
        let lines: Vec<_> =
            tokens("/// a\nfn f() {\n    g\n}").unwrap().iter().map(|token| token.line).collect();
        assert_eq!(lines, [2, 2, 2, 2, 2, 3, 4]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_an_error() {
        assert!(tokens("fn f( {").is_err());
    }
}
