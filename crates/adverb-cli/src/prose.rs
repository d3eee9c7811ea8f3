//! Line wrapping for terminals.

use crate::symbols;

/// The maximum length of a line.
pub(crate) const MAX_WIDTH: usize = 80;

/// The start of a hint's line, as in Adverb's errors.
pub(crate) const HINT: &str = "  hint: ";

/// The start of an item of a list.
pub(crate) const ITEM: &str = "  - ";

/// Wraps long lines, never within a command in backticks, and indents the continuation lines. The result ends with a
/// newline, and has only characters of the locale.
pub(crate) fn wrap(text: &str) -> String {
    wrap_at(text, MAX_WIDTH)
}

/// Wraps like [`wrap`], at another length.
pub(crate) fn wrap_at(text: &str, max_width: usize) -> String {
    let mut wrapped = String::new();
    for line in symbols::in_locale(text).lines() {
        let indent = if line.starts_with(HINT) {
            HINT.len()
        } else if line.starts_with(ITEM) {
            ITEM.len()
        } else {
            (line.len() - line.trim_start().len()).max(2)
        };
        wrapped += &wrap_line(line, indent, max_width);
    }
    wrapped
}

/// Wraps a line like [`wrap_at`], with continuation lines indented by `indent`.
pub(crate) fn wrap_line(line: &str, indent: usize, max_width: usize) -> String {
    let start = line.len() - line.trim_start().len();
    let mut wrapped = line[..start].to_owned();
    let mut length = start;
    for (n, word) in words(line.trim_start()).into_iter().enumerate() {
        let word_length = word.chars().count();
        if n > 0 && length + 1 + word_length > max_width {
            wrapped.push('\n');
            wrapped += &" ".repeat(indent);
            length = indent;
        } else if n > 0 {
            wrapped.push(' ');
            length += 1;
        }
        wrapped += word;
        length += word_length;
    }
    wrapped.push('\n');
    wrapped
}

/// Returns the parts between which a line may be broken. A command in backticks is one part.
fn words(line: &str) -> Vec<&str> {
    let mut in_command = false;
    let is_break = |c: char| {
        in_command ^= c == '`';
        c == ' ' && !in_command
    };
    line.split(is_break).collect()
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn short_lines_stay_as_they_are() {
        assert_eq!(wrap("error: no device\n  hint: make one"), "error: no device\n  hint: make one\n");
    }

    #[test]
    fn commands_stay_whole_and_hints_are_indented() {
        let text = "  hint: without a card, make a device of a network interface: \
                    `rdma link add rxe0 type rxe netdev eth0`, as root";
        assert_eq!(
            wrap(text),
            "  hint: without a card, make a device of a network interface:\n        \
             `rdma link add rxe0 type rxe netdev eth0`, as root\n"
        );
    }

    #[test]
    fn a_word_longer_than_a_line_has_its_own_line() {
        let long = "x".repeat(100);
        assert_eq!(wrap(&format!("see {long} there")), format!("see\n  {long}\n  there\n"));
    }
}
