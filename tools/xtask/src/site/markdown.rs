//! The parts of Markdown that matter to a translation: blocks of code, links and headings.

use std::collections::HashMap;
use std::ops::Range;

/// A part of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block<'a> {
    /// Text that is not in a block of code.
    Prose(&'a str),
    /// A block of code between two fences: the indentation of the fences, the text after the opening one, and the lines.
    Code { indent: &'a str, info: &'a str, text: &'a str },
}

/// A piece of prose that a translation may replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) kind: Kind,
    /// The whole piece.
    pub(super) range: Range<usize>,
    /// The text that readers see.
    pub(super) text: Range<usize>,
    /// The target of a link; empty if there is none.
    pub(super) target: Range<usize>,
}

/// The kind of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `[text](target)`, or an image with `!` before it.
    Inline,
    /// `[text]: target`.
    Definition,
    /// `[text]`, whose target is in a definition.
    Shortcut,
    /// The value of `src` or `href` in an HTML tag.
    Attribute,
    /// Code in backticks.
    Code,
}

/// Splits a page at the fences of its blocks of code.
pub(super) fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let (mut start, mut at) = (0, 0);
    let mut opened = None;
    for line in text.split_inclusive('\n') {
        let end = at + line.len();
        if let Some((indent, rest)) = line.split_once("```").filter(|(indent, _)| indent.trim().is_empty()) {
            match opened.take() {
                None => {
                    blocks.push(Block::Prose(&text[start..at]));
                    opened = Some((indent, rest.trim()));
                }
                Some((indent, info)) => {
                    blocks.push(Block::Code { indent, info, text: &text[start..at] });
                }
            }
            start = end;
        }
        at = end;
    }
    blocks.push(Block::Prose(&text[start..]));
    blocks
}

/// Returns the blocks of prose of a page.
pub(super) fn prose(text: &str) -> impl Iterator<Item = &str> {
    blocks(text).into_iter().filter_map(|block| match block {
        Block::Prose(prose) => Some(prose),
        Block::Code { .. } => None,
    })
}

/// Returns the links and the code of prose, in order.
pub(super) fn pieces(prose: &str) -> Vec<Piece> {
    let bytes = prose.as_bytes();
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'`' => {
                let (code, end) = code(prose, at);
                if let Some(text) = code {
                    pieces.push(Piece { kind: Kind::Code, range: at..end, text, target: 0..0 });
                }
                at = end;
            }
            b'<' => {
                let end = prose[at..].find('>').map_or(at + 1, |length| at + length + 1);
                for name in ["src=\"", "href=\""] {
                    if let Some(start) = prose[at..end].find(name).map(|offset| at + offset + name.len())
                        && let Some(length) = prose[start..end].find('"')
                    {
                        let target = start..start + length;
                        let range = target.clone();
                        pieces.push(Piece { kind: Kind::Attribute, range, text: 0..0, target });
                    }
                }
                at = end;
            }
            b'[' => match bracket(prose, at) {
                Some(piece) => {
                    at = piece.range.end;
                    pieces.push(piece);
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    pieces
}

/// Returns the text of the code that begins with the backticks at a place, if they are closed, and the end.
fn code(prose: &str, at: usize) -> (Option<Range<usize>>, usize) {
    let count = |at: usize| prose[at..].bytes().take_while(|byte| *byte == b'`').count();
    let ticks = count(at);
    let mut end = at + ticks;
    while let Some(offset) = prose[end..].find('`') {
        let (close, length) = (end + offset, count(end + offset));
        if length == ticks {
            return (Some(at + ticks..close), close + length);
        }
        end = close + length;
    }
    (None, at + ticks)
}

/// Returns the link that begins with the bracket at a place, if the bracket is closed.
fn bracket(prose: &str, at: usize) -> Option<Piece> {
    let close = closing(prose, at, b'[', b']')?;
    let text = at + 1..close;
    let rest = &prose[close + 1..];
    let is_line_start = at == 0 || prose[..at].ends_with('\n');
    if rest.starts_with('(') {
        let end = closing(prose, close + 1, b'(', b')')?;
        return Some(Piece { kind: Kind::Inline, range: at..end + 1, text, target: close + 2..end });
    }
    if let Some(target) = rest.strip_prefix(": ").filter(|_| is_line_start) {
        let start = close + 3;
        let end = start + target.find('\n').unwrap_or(target.len());
        return Some(Piece { kind: Kind::Definition, range: at..end, text, target: start..end });
    }
    Some(Piece { kind: Kind::Shortcut, range: at..close + 1, text, target: 0..0 })
}

/// Returns the place of the bracket that closes the one at a place, outside of code.
fn closing(prose: &str, at: usize, open: u8, close: u8) -> Option<usize> {
    let bytes = prose.as_bytes();
    let (mut depth, mut at) = (0, at);
    while at < bytes.len() {
        match bytes[at] {
            b'`' => {
                at = code(prose, at).1;
                continue;
            }
            byte if byte == open => depth += 1,
            byte if byte == close => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Returns the anchors of a page's headings, as mdBook makes them.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    for line in prose(text).flat_map(str::lines) {
        let title = line.trim_start_matches('#');
        let Some(title) = title.strip_prefix(' ').filter(|_| line.starts_with('#')) else { continue };
        let anchor = anchor(title.trim());
        let count = counts.entry(anchor.clone()).or_default();
        anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the anchor of a heading, if it is the first one with its text.
pub(super) fn anchor(title: &str) -> String {
    let kept = title.chars().filter_map(|c| match c {
        '-' | '_' => Some(c),
        _ if c.is_alphanumeric() => Some(c),
        _ if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_alternate_between_prose_and_code() {
        let text = "a\n```\n# b\n```\n- c\n  ```text\n  d\n  ```\n";
        assert_eq!(
            blocks(text),
            [
                Block::Prose("a\n"),
                Block::Code { indent: "", info: "", text: "# b\n" },
                Block::Prose("- c\n"),
                Block::Code { indent: "  ", info: "text", text: "  d\n" },
                Block::Prose("")
            ]
        );
    }

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "A [flow\nlabel](crate::A::b) of [`c`], `[d](e)` and ``f ` [g](h)``, \\[i](j), <img src=\"k.png\" alt=\"l\">.\n\n\
                    [`c`]: crate::c\n[m(n)[o]](p(q))";
        let found: Vec<_> = pieces(text)
            .into_iter()
            .map(|piece| (piece.kind, &text[piece.text], &text[piece.target]))
            .collect();
        assert_eq!(
            found,
            [
                (Kind::Inline, "flow\nlabel", "crate::A::b"),
                (Kind::Shortcut, "`c`", ""),
                (Kind::Code, "[d](e)", ""),
                (Kind::Code, "f ` [g](h)", ""),
                (Kind::Attribute, "", "k.png"),
                (Kind::Definition, "`c`", "crate::c"),
                (Kind::Inline, "m(n)[o]", "p(q)"),
            ]
        );
    }

    #[test]
    fn anchors_are_those_of_mdbook() {
        let text = "# The software NIC\n## `lost_count`: 1 µs, 50 %\n```\n# no heading\n```\n# Limits\n## Limits\n#tag\n";
        assert_eq!(anchors(text), ["the-software-nic", "lost_count-1-µs-50-", "limits", "limits-1"]);
    }
}
