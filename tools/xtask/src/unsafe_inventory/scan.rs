//! Search for unsafe code and its justifications in source text.

/// A use of `unsafe`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// Line number, from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// The justification, or the contract for callers; `None` if there is none.
    pub(super) reason: Option<String>,
}

/// The kind of a use of `unsafe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Block,
    Impl,
    Function,
    Trait,
    /// An `extern` block, or an attribute.
    Other,
}

impl Kind {
    pub(super) const ALL: [Kind; 5] = [Kind::Block, Kind::Impl, Kind::Function, Kind::Trait, Kind::Other];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Block => "block",
            Kind::Impl => "impl",
            Kind::Function => "function",
            Kind::Trait => "trait",
            Kind::Other => "other",
        }
    }
}

/// Returns the uses of `unsafe` in a file, up to its tests. Types of unsafe functions don't count.
pub(super) fn uses(source: &str) -> Vec<Use> {
    let lines = split(source);
    let end = lines.iter().position(|line| is_tests(&line.code)).unwrap_or(lines.len());
    let mut uses = Vec::new();
    for (at, line) in lines[..end].iter().enumerate() {
        for (start, _) in line.code.match_indices("unsafe") {
            let word = |c: char| c.is_alphanumeric() || c == '_';
            let (before, after) = (&line.code[..start], &line.code[start + "unsafe".len()..]);
            if before.ends_with(word) || after.starts_with(word) {
                continue;
            }
            let following = lines[at + 1..].iter().map(|line| line.code.as_str());
            let rest = std::iter::once(after).chain(following).take(4).collect::<Vec<_>>().join(" ");
            if let Some(kind) = kind(&rest) {
                let reason = match kind {
                    Kind::Block | Kind::Impl | Kind::Other => safety_comment(&lines, at),
                    // A macro's functions are documented where the macro is used; the compiler requires it there.
                    Kind::Function if is_made_by_macro(&rest) => {
                        Some("see the documentation of each function".to_owned())
                    }
                    Kind::Function | Kind::Trait => safety_section(&lines, at),
                };
                uses.push(Use { line: at + 1, kind, reason });
            }
        }
    }
    uses
}

/// A line of source: its code with strings blanked, and its comment.
#[derive(Debug, Default)]
pub(crate) struct Line {
    pub(crate) code: String,
    comment: String,
}

/// Returns whether a line of code begins the tests.
pub(crate) fn is_tests(code: &str) -> bool {
    let code = code.trim();
    code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test")
}

/// Returns the kind of a use of `unsafe`, from the code after the keyword; `None` for the type of a function.
fn kind(rest: &str) -> Option<Kind> {
    let rest = rest.trim_start();
    let abi = rest.strip_prefix("extern").map(|rest| rest.trim_start().trim_start_matches('"').trim_start());
    match abi.unwrap_or(rest) {
        rest if rest.starts_with('{') && abi.is_none() => Some(Kind::Block),
        rest if rest.starts_with("impl") => Some(Kind::Impl),
        rest if rest.starts_with("trait") => Some(Kind::Trait),
        rest => match rest.strip_prefix("fn") {
            Some(name) if name.trim_start().starts_with('(') => None,
            Some(_) => Some(Kind::Function),
            None => Some(Kind::Other),
        },
    }
}

/// Returns whether the function after the keyword is named by a macro variable.
fn is_made_by_macro(rest: &str) -> bool {
    rest.split_once("fn").is_some_and(|(_, name)| name.trim_start().starts_with('$'))
}

/// Returns the comment `SAFETY: …` on the line, or above its statement.
fn safety_comment(lines: &[Line], at: usize) -> Option<String> {
    let mut top = at;
    while !lines[top].comment.contains("SAFETY:") {
        // Stop at the end of the previous statement: its comment doesn't apply.
        let above = lines.get(top.checked_sub(1)?)?;
        let code = above.code.trim_end();
        if code.ends_with([';', '{', '}']) && !above.comment.contains("SAFETY:") {
            return None;
        }
        if code.trim().is_empty() && above.comment.is_empty() {
            return None;
        }
        top -= 1;
    }
    // The lines of the comment, from the word SAFETY on.
    let comment =
        lines[top..=at].iter().map(|line| line.comment.as_str()).take_while(|text| !text.is_empty());
    let first = (0..=top).rev().take_while(|at| !lines[*at].comment.is_empty()).last()?;
    let before = lines[first..top].iter().map(|line| line.comment.as_str());
    let text = before.chain(comment).collect::<Vec<_>>().join(" ");
    Some(tidy(text.split_once("SAFETY:")?.1))
}

/// Returns the first paragraph of the section `# Safety` in the doc comment above the line.
fn safety_section(lines: &[Line], at: usize) -> Option<String> {
    let above = lines[..at].iter().rev();
    let documented = |line: &&Line| {
        let code = line.code.trim();
        code.is_empty() && !line.comment.is_empty() || code.starts_with("#[") || code.ends_with(")]")
    };
    let mut text: Vec<&str> = above.take_while(documented).map(|line| line.comment.as_str()).collect();
    text.reverse();
    let start = text.iter().position(|line| line.trim() == "# Safety")?;
    let section = text[start + 1..].iter().skip_while(|line| line.trim().is_empty());
    Some(tidy(&section.take_while(|line| !line.trim().is_empty()).copied().collect::<Vec<_>>().join(" ")))
}

fn tidy(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Splits a file into lines of code and comments.
pub(crate) fn split(source: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let length = piece(rest);
        let (text, after) = rest.split_at(length);
        for (number, part) in text.split('\n').enumerate() {
            if number > 0 {
                lines.push(Line::default());
            }
            let Some(line) = lines.last_mut() else { continue };
            if text.starts_with("//") || text.starts_with("/*") {
                let part = part.trim_start().trim_start_matches(['/', '!', '*']);
                line.comment.push_str(part);
                // The space marks an empty comment line as part of the comment.
                line.comment.push(' ');
            } else if length > c.len_utf8() {
                line.code.push('"');
            } else {
                line.code.push_str(part);
            }
        }
        rest = after;
    }
    lines
}

/// Returns the length of the token at the beginning: a comment, a quoted literal, or a single character.
fn piece(rest: &str) -> usize {
    let found =
        |end: &str, from: usize| rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len());
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return found("*/", 2);
    }
    let raw = rest.trim_start_matches(['b', 'c']);
    if let Some(hashes) = raw.strip_prefix('r').filter(|_| rest.len() - raw.len() <= 1) {
        let count = hashes.len() - hashes.trim_start_matches('#').len();
        if hashes[count..].starts_with('"') {
            let opening = rest.len() - hashes.len() + count + 1;
            return found(&format!("\"{}", &hashes[..count]), opening);
        }
    }
    let character = rest.strip_prefix('\'').is_some_and(|rest| {
        let mut characters = rest.chars();
        characters.next() == Some('\\') || characters.next() == Some('\'')
    });
    match rest.chars().next() {
        Some(quote @ '"') => quoted(rest, quote),
        Some(quote @ '\'') if character => quoted(rest, quote),
        Some(other) => other.len_utf8(),
        None => 0,
    }
}

/// Returns the length of the literal at the beginning, including both quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, Kind, Option<String>)> {
        uses(source).into_iter().map(|found| (found.line, found.kind, found.reason)).collect()
    }

    #[test]
    fn every_kind_is_found_with_its_reason() {
        let source = "\
// SAFETY: nobody else
// has it.
unsafe impl Send for A {}

/// Does it.
///
/// # Safety
///
/// The pointer is
/// good.
///
/// Always.
#[inline]
pub unsafe extern \"C\" fn f() {
    // SAFETY: checked above.
    let x =
        unsafe { g() };
}
unsafe trait T {}
";
        let reason = |text: &str| Some(text.to_owned());
        assert_eq!(
            found(source),
            [
                (3, Kind::Impl, reason("nobody else has it.")),
                (14, Kind::Function, reason("The pointer is good.")),
                (17, Kind::Block, reason("checked above.")),
                (19, Kind::Trait, None),
            ]
        );
    }

    #[test]
    fn a_reason_belongs_to_one_statement() {
        let source = "fn f() {\n    // SAFETY: so.\n    unsafe { a() };\n    unsafe { b() };\n}\n";
        assert_eq!(found(source), [(3, Kind::Block, Some("so.".into())), (4, Kind::Block, None)]);
    }

    #[test]
    fn words_in_comments_strings_names_and_types_are_not_code() {
        let source = r##"
// unsafe { }
/* unsafe {
   unsafe { */
const A: &str = "unsafe { \" unsafe {";
const B: &str = r#"unsafe { " unsafe {"#;
const C: char = '"';
fn f<'a>(unsafely: &'a u8, not_unsafe: unsafe extern "C" fn(u8), other: unsafe fn(u8)) {}
#![forbid(unsafe_code)]
#[cfg(test)]
mod tests { fn f() { unsafe {} } }
"##;
        assert_eq!(found(source), []);
    }
}
