//! The characters of the output that are not ASCII, and their replacements for locales without UTF-8.

use std::sync::LazyLock;

/// Returns the prefix of microseconds.
pub(crate) fn micro() -> &'static str {
    select("µ", "u")
}

/// Returns the element of a bar.
pub(crate) fn bar() -> &'static str {
    select("█", "#")
}

/// Returns the sign between a count and its object.
pub(crate) fn times() -> &'static str {
    select("×", "x")
}

/// Returns the mark of a destination.
pub(crate) fn arrow() -> &'static str {
    select("→", ">")
}

/// Returns a text of another crate, such as an explanation or an error, in the characters that the locale has.
pub(crate) fn in_locale(text: &str) -> String {
    let characters = [("µ", "u"), ("×", "x"), ("…", "..."), ("“", "\""), ("”", "\"")];
    characters.iter().fold(text.to_owned(), |text, (utf8, ascii)| text.replace(utf8, select(utf8, ascii)))
}

fn select<'a>(utf8: &'a str, ascii: &'a str) -> &'a str {
    static IS_UTF8: LazyLock<bool> = LazyLock::new(|| is_utf8(|name| std::env::var(name).ok()));
    // The expected texts of tests don't depend on the locale.
    if cfg!(test) || *IS_UTF8 { utf8 } else { ascii }
}

/// Whether the locale has UTF-8. The first of these variables that is not empty names it, as in C. Without a locale, the
/// output is UTF-8, because that is the encoding of terminals today.
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).map(|name| name.to_lowercase());
    locale.is_none_or(|name| name.contains("utf-8") || name.contains("utf8"))
}

#[cfg(test)]
mod tests {
    use super::is_utf8;

    #[test]
    fn the_locale_decides_as_in_c() {
        for (variables, expected) in [
            (&[][..], true),
            (&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], false),
            (&[("LC_ALL", ""), ("LC_CTYPE", "POSIX")], false),
            (&[("LC_ALL", "C.utf8"), ("LANG", "C")], true),
            (&[("LANG", "de_DE.UTF-8")], true),
            (&[("LANG", "de_DE.ISO-8859-1")], false),
        ] {
            let variable = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(is_utf8(variable), expected, "{variables:?}");
        }
    }
}
