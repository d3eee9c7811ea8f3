//! The string literals of Rust source that read like prose.

/// A string literal.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Literal {
    /// The line where the literal starts, counted from 1.
    pub(crate) line: usize,
    /// The text, without line continuations.
    pub(crate) text: String,
}

/// Returns the string literals with at least two words, outside comments, test modules and attributes, except the
/// attributes `error` and `must_use`.
pub(crate) fn of(source: &str) -> Vec<Literal> {
    let mut literals = Vec::new();
    let mut lexer = Lexer { rest: source, line: 1 };
    // Whether the next block is a test module.
    let mut is_test = false;
    while let Some(token) = lexer.next() {
        match token {
            Token::Attribute(attribute) => {
                is_test |= attribute.starts_with("#[cfg(") && has_word(attribute, "test");
                if attribute.starts_with("#[error(") || attribute.starts_with("#[must_use") {
                    let line = lexer.line - attribute.matches('\n').count();
                    let mut inner = Lexer { rest: &attribute[2..], line };
                    while let Some(token) = inner.next() {
                        literals.extend(token.into_literal());
                    }
                }
            }
            Token::Other('{') if is_test => {
                is_test = false;
                lexer.skip_block();
            }
            Token::Other(';') => is_test = false,
            token => literals.extend(token.into_literal()),
        }
    }
    literals
}

enum Token<'a> {
    Literal(Literal),
    Attribute(&'a str),
    Other(char),
}

impl Token<'_> {
    fn into_literal(self) -> Option<Literal> {
        match self {
            Token::Literal(literal) if is_prose(&literal.text) => Some(literal),
            _ => None,
        }
    }
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let first = self.rest.chars().next()?;
            if self.rest.starts_with("//") {
                self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.take(self.rest.find("*/").map_or(self.rest.len(), |end| end + 2));
            } else if first == '"' || self.is_raw() {
                return Some(self.literal());
            } else if self.rest.starts_with("#[") || self.rest.starts_with("#![") {
                return Some(Token::Attribute(self.attribute()));
            } else if first == '\'' {
                self.quote();
            } else if first.is_alphanumeric() || first == '_' {
                // Words are taken whole, so that an `r` at the end of a word doesn't start a raw string.
                let is_part = |c: char| c.is_alphanumeric() || c == '_';
                self.take(self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len()));
            } else {
                self.take(first.len_utf8());
                return Some(Token::Other(first));
            }
        }
    }

    /// Takes `len` bytes.
    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn is_raw(&self) -> bool {
        self.rest.strip_prefix('r').is_some_and(|rest| rest.trim_start_matches('#').starts_with('"'))
    }

    fn literal(&mut self) -> Token<'a> {
        let line = self.line;
        if let Some(raw) = self.rest.strip_prefix('r') {
            let hashes = raw.len() - raw.trim_start_matches('#').len();
            let end = format!("\"{}", "#".repeat(hashes));
            let begin = 1 + hashes + 1;
            let len = self.rest[begin..].find(&end).unwrap_or(self.rest.len() - begin);
            let text = self.rest[begin..begin + len].to_owned();
            self.take((begin + len + end.len()).min(self.rest.len()));
            return Token::Literal(Literal { line, text });
        }
        let mut text = String::new();
        let mut chars = self.rest.char_indices().skip(1).peekable();
        let mut len = self.rest.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    len = at + 1;
                    break;
                }
                '\\' => match chars.next() {
                    Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                    Some((_, 'n')) => text.push_str("\\n"),
                    Some((_, c)) => text.push(c),
                    None => {}
                },
                c => text.push(c),
            }
        }
        self.take(len);
        Token::Literal(Literal { line, text })
    }

    /// Takes an attribute, whose strings may contain brackets.
    fn attribute(&mut self) -> &'a str {
        let start = self.rest;
        let mut inner = Lexer { rest: start, line: self.line };
        inner.take(start.find('[').unwrap_or(0) + 1);
        let mut depth = 1;
        while depth > 0 {
            match inner.next() {
                Some(Token::Other('[')) => depth += 1,
                Some(Token::Other(']')) => depth -= 1,
                Some(_) => {}
                None => break,
            }
        }
        self.take(start.len() - inner.rest.len())
    }

    /// Takes a character literal, or the quote of a lifetime.
    fn quote(&mut self) {
        let mut chars = self.rest.char_indices().skip(1);
        let len = match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some((at, _))) => {
                self.rest[at + 1..].find('\'').map_or(1, |end| at + 1 + end + 1)
            }
            (Some(_), Some((at, '\''))) => at + 1,
            _ => 1,
        };
        self.take(len);
    }

    /// Skips the rest of a block.
    fn skip_block(&mut self) {
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Other('{')) => depth += 1,
                Some(Token::Other('}')) => depth -= 1,
                Some(_) => {}
                None => return,
            }
        }
    }
}

/// Whether a text has at least two words.
fn is_prose(text: &str) -> bool {
    let is_word =
        |word: &&str| word.chars().filter(char::is_ascii_lowercase).count() >= 2 && !word.contains("::");
    text.split(' ').filter(is_word).count() >= 2
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_found_where_users_see_them() {
        let source = r##"
            // "a comment"
            /// "a doc comment"
            #[expect(lint, reason = "not for users")]
            #[error("an attribute with {}", '"')]
            fn open<'a>(name: &'a str) { bail!("opening {name} \
                failed: \"no\"", 'x', '\''); let raw = r#"a raw "string" here"#; let one = "word"; }
            #[cfg(test)]
            mod tests { const A: &str = "only in tests"; }
            const LAST: &str = "the last one";
        "##;
        let found: Vec<_> = of(source).into_iter().map(|literal| (literal.line, literal.text)).collect();
        let expected = [
            (5, "an attribute with {}"),
            (6, "opening {name} failed: \"no\""),
            (7, "a raw \"string\" here"),
            (10, "the last one"),
        ];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }
}
