//! Search of explanations by name or number.

use adverb_wire::Syndrome;

use super::{Explanation, Kind, all};

/// An explanation that [`find`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SearchResult {
    /// The explanation.
    pub explanation: &'static Explanation,
    /// The code that the number in the term stands for, or `None` if the term is a name.
    pub code: Option<u32>,
    /// The parameter that a syndrome's value contains: credits or the RNR backoff.
    pub note: Option<String>,
}

/// Returns the explanations of a name or a number.
///
/// The term may be
///
/// - a name, in any notation: `IBV_WC_RETRY_EXC_ERR`, `RETRY_EXC_ERR`, `RetryExceeded`, `rc-acknowledge`, `ENOMEM`;
/// - a text that a tool prints: `transport retry counter exceeded`, `Cannot allocate memory`;
/// - a number, decimal or hexadecimal: `12`, `0x11`. A negative number is an error number of the kernel;
/// - a [word](Kind::search_prefix) for the kind, and one of the above: `status 12`, `opcode 0x11`, `NAK remote access error`,
///   `errno=12`. After `NAK`, `RNR`, `min_rnr_timer` and `ACK`, a number below 32 is the low five bits of the syndrome.
///
/// The result is empty if the term is unknown, and contains several explanations if it is ambiguous.
pub fn find(term: &str) -> Vec<SearchResult> {
    let mut found = Vec::new();
    let (selector, rest) = Selector::split(term);
    if let Some(number) = Number::parse(rest) {
        let kinds =
            Kind::ALL.into_iter().filter(|kind| selector.is_none_or(|selector| selector.kind == *kind));
        found.extend(kinds.filter_map(|kind| number.explain(kind, selector)));
        if number.is_hexadecimal {
            // Opcodes and syndromes are usually printed in hexadecimal.
            found.sort_by_key(|found| !matches!(found.explanation.kind, Kind::Opcode | Kind::Syndrome));
        }
        return found;
    }
    let (whole, rest) = (normalized(term), normalized(rest));
    for explanation in all() {
        let is_selected = selector.is_some_and(|selector| selector.kind == explanation.kind);
        let names_it = |key: Key| key.equals(&whole) || (is_selected && key.equals(&rest));
        if !whole.is_empty() && keys(explanation).any(names_it) {
            found.push(SearchResult { explanation, code: None, note: None });
        }
    }
    found
}

/// Returns explanations whose names resemble the term, best first, at most six.
pub fn similar(term: &str) -> Vec<&'static Explanation> {
    const MAX_COUNT: usize = 6;
    let term = normalized(term);
    if term.len() < 2 {
        return Vec::new();
    }
    let best = |score: &dyn Fn(&str) -> Option<usize>| {
        let mut scored: Vec<(usize, &Explanation)> = all()
            .filter_map(|explanation| {
                let names = keys(explanation).map(|key| key.letters().collect::<String>());
                Some((names.filter_map(|name| score(&name)).min()?, explanation))
            })
            .collect();
        scored.sort_by_key(|(score, _)| *score);
        scored.into_iter().take(MAX_COUNT).map(|(_, explanation)| explanation).collect::<Vec<_>>()
    };
    let close = best(&|name| {
        // A name that contains the term is as similar as one that differs in two letters.
        let contained = (term.len() >= 3 && name.contains(&term)).then_some(2);
        let distance = edits(&term, name).last().copied()?;
        let is_close = distance <= (term.len().max(name.len()) / 4).max(1);
        is_close.then_some(distance).into_iter().chain(contained).min()
    });
    if !close.is_empty() {
        return close;
    }
    // The term may be a misspelled prefix of a name.
    best(&|name| edits(&term, name).into_iter().min().filter(|edits| *edits <= term.len() / 4))
}

/// A word that selects a kind, and the bits that a short number after it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Selector {
    kind: Kind,
    /// The high three bits of the syndromes that the word names.
    base: Option<u8>,
}

impl Selector {
    /// Splits a term into the selector at its start, if there is one, and the rest.
    fn split(term: &str) -> (Option<Selector>, &str) {
        let mut selector: Option<Selector> = None;
        let mut rest = term.trim();
        while let Some((word, tail)) = rest.split_once([' ', '=', ':']) {
            let word = word.to_ascii_lowercase();
            match (Selector::of_word(&word), selector) {
                (Some(first), None) => selector = Some(first),
                // "status" in "completion status", or "NAK" and "timer" in "RNR NAK timer".
                (_, Some(_)) if FILLERS.contains(&word.as_str()) => (),
                _ => break,
            }
            rest = tail.trim_start_matches([' ', '=', ':']);
        }
        (selector, rest)
    }

    fn of_word(word: &str) -> Option<Selector> {
        let (kind, base) = match word {
            "status" | "wc" | "wc_status" | "completion" => (Kind::CompletionStatus, None),
            "event" | "async" | "asynchronous" => (Kind::AsyncEvent, None),
            "errno" => (Kind::Errno, None),
            "syndrome" | "aeth" => (Kind::Syndrome, None),
            "ack" => (Kind::Syndrome, Some(0x00)),
            "rnr" | "min_rnr_timer" => (Kind::Syndrome, Some(0x20)),
            "nak" => (Kind::Syndrome, Some(0x60)),
            "opcode" | "bth" => (Kind::Opcode, None),
            "reject" | "rej" => (Kind::RejectReason, None),
            "sidr" => (Kind::SidrStatus, None),
            _ => return None,
        };
        Some(Selector { kind, base })
    }
}

/// The words that may follow a selector.
const FILLERS: [&str; 8] = ["status", "event", "reason", "code", "nak", "syndrome", "timer", "opcode"];

/// A number in a term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Number {
    value: u32,
    is_negative: bool,
    is_hexadecimal: bool,
}

impl Number {
    fn parse(word: &str) -> Option<Number> {
        let (is_negative, digits) = match word.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, word),
        };
        let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
        // `from_str_radix` accepts a sign.
        if !hexadecimal.unwrap_or(digits).starts_with(|first: char| first.is_ascii_hexdigit()) {
            return None;
        }
        let value = match hexadecimal {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => digits.parse().ok()?,
        };
        Some(Number { value, is_negative, is_hexadecimal: hexadecimal.is_some() })
    }

    /// Returns the explanation of this number as a code of a kind.
    fn explain(self, kind: Kind, selector: Option<Selector>) -> Option<SearchResult> {
        // The kernel returns error numbers negated.
        if self.is_negative && kind != Kind::Errno {
            return None;
        }
        let code = match selector.and_then(|selector| selector.base) {
            Some(base) if self.value < 32 => self.value | u32::from(base),
            _ => self.value,
        };
        let explanation = kind.explanation(code)?;
        let note = match kind {
            Kind::Syndrome => note(Syndrome::from_byte(u8::try_from(code).ok()?)),
            _ => None,
        };
        Some(SearchResult { explanation, code: Some(code), note })
    }
}

/// Describes the parameter of a syndrome.
fn note(syndrome: Syndrome) -> Option<String> {
    match syndrome {
        Syndrome::Ack(credits) => Some(match credits.count() {
            Some(count) => format!("credit code {}: the requester may send {count} messages", credits.code()),
            None => format!("credit code {}: no credit limit", credits.code()),
        }),
        Syndrome::RnrNak(timer) => {
            Some(format!("timer code {}: the requester waits {:?}", timer.code(), timer.duration()))
        }
        Syndrome::Nak(_) | Syndrome::Reserved(_) => None,
    }
}

/// Returns the names of an explanation, with and without the prefixes of their library.
fn keys(explanation: &Explanation) -> impl Iterator<Item = Key> {
    let prefixes: &[&str] = match explanation.kind {
        Kind::CompletionStatus => &["IBV_", "IBV_WC_"],
        Kind::AsyncEvent => &["IBV_", "IBV_EVENT_"],
        Kind::Opcode => &["IB_OPCODE_"],
        Kind::RejectReason => &["IB_CM_", "IB_CM_REJ_"],
        Kind::SidrStatus => &["IB_"],
        Kind::Errno | Kind::Syndrome => &[],
    };
    let short = prefixes.iter().filter_map(|prefix| explanation.name.strip_prefix(prefix));
    let names = [explanation.name].into_iter().chain(short).chain(explanation.aliases.iter().copied());
    // The kernel's names of statuses and events begin with IB, those of the library with IBV.
    let kernel = explanation.name.strip_prefix("IBV_").map(|rest| Key { prefix: "IB", rest });
    names.map(|rest| Key { prefix: "", rest }).chain(kernel)
}

/// A name of an explanation, as a prefix and the rest.
#[derive(Clone, Copy)]
struct Key {
    prefix: &'static str,
    rest: &'static str,
}

impl Key {
    fn letters(self) -> impl Iterator<Item = char> {
        letters(self.prefix).chain(letters(self.rest))
    }

    /// Whether a normalized name is this name.
    fn equals(self, normalized: &str) -> bool {
        self.letters().eq(normalized.chars())
    }
}

/// Returns a name in the form in which all notations of it are equal.
fn normalized(name: &str) -> String {
    letters(name).collect()
}

/// Returns the letters and digits of a name, in lower case.
fn letters(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
}

/// Returns the edit distance from `term` to each prefix of `name`, from the empty prefix to the whole name.
fn edits(term: &str, name: &str) -> Vec<usize> {
    let name: Vec<char> = name.chars().collect();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for (n, a) in term.chars().enumerate() {
        let mut diagonal = n;
        let mut left = n + 1;
        if let Some(first) = row.first_mut() {
            *first = left;
        }
        for (b, cell) in name.iter().zip(row.iter_mut().skip(1)) {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = *cell;
            left = replaced.min(left + 1).min(diagonal + 1);
            *cell = left;
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(term: &str) -> Vec<&'static str> {
        find(term).iter().map(|found| found.explanation.name).collect()
    }

    #[test]
    fn a_name_is_found_in_every_notation() {
        for term in [
            "IBV_WC_RETRY_EXC_ERR",
            "ibv_wc_retry_exc_err",
            "IB_WC_RETRY_EXC_ERR",
            "WC_RETRY_EXC_ERR",
            "RETRY_EXC_ERR",
            "RetryExceeded",
            "retry exceeded",
            "transport retry counter exceeded",
            "Transport Retry Counter Exceeded",
            "status RETRY_EXC_ERR",
            "status 12",
            "status=12",
            "status: 0xc",
            "completion status 12",
            " wc_status 12 ",
        ] {
            assert_eq!(names(term), ["IBV_WC_RETRY_EXC_ERR"], "{term}");
        }
        assert_eq!(names("rc-acknowledge"), ["IB_OPCODE_RC_ACKNOWLEDGE"]);
        assert_eq!(names("RC ACK"), ["IB_OPCODE_RC_ACKNOWLEDGE"]);
        assert_eq!(names("EVENT_QP_FATAL"), ["IBV_EVENT_QP_FATAL"]);
        assert_eq!(names("QueuePairFatal"), ["IBV_EVENT_QP_FATAL"]);
        assert_eq!(names("enomem"), ["ENOMEM"]);
        assert_eq!(names("Cannot allocate memory"), ["ENOMEM"]);
        assert_eq!(names("STALE_CONN"), ["IB_CM_REJ_STALE_CONN"]);
        assert_eq!(names("NAK remote access error"), ["NAK remote access error"]);
        assert_eq!(names("remote access error"), ["IBV_WC_REM_ACCESS_ERR", "NAK remote access error"]);
    }

    #[test]
    fn a_number_is_found_in_every_kind_that_has_it() {
        let kinds = |term| find(term).iter().map(|found| found.explanation.kind).collect::<Vec<_>>();
        use Kind::*;
        assert_eq!(kinds("12"), [CompletionStatus, AsyncEvent, Errno, Syndrome, Opcode, RejectReason]);
        // A hexadecimal number lists the bytes of packets (syndromes and opcodes) first.
        assert_eq!(kinds("0x0c"), [Syndrome, Opcode, CompletionStatus, AsyncEvent, Errno, RejectReason]);
        assert_eq!(kinds("-12"), [Errno]);
        assert_eq!(kinds("0x81"), [Syndrome, Opcode]);
        assert_eq!(names("opcode 0x11"), ["IB_OPCODE_RC_ACKNOWLEDGE"]);
        assert_eq!(names("event 1"), ["IBV_EVENT_QP_FATAL"]);
        assert_eq!(names("async event 1"), ["IBV_EVENT_QP_FATAL"]);
        assert_eq!(names("reject reason 8"), ["IB_CM_REJ_INVALID_SERVICE_ID"]);
        assert_eq!(names("SIDR status 1"), ["IB_SIDR_UNSUPPORTED"]);
    }

    #[test]
    fn syndromes_have_their_parameter() {
        let note = |term: &str| {
            let found = find(term);
            let [found] = &found[..] else { panic!("{term}: {found:?}") };
            (found.explanation.name, found.code, found.note.clone().unwrap_or_default())
        };
        let wait = "timer code 12: the requester waits 640µs".to_owned();
        assert_eq!(note("syndrome 0x2c"), ("RNR NAK", Some(0x2c), wait.clone()));
        assert_eq!(note("RNR 12"), ("RNR NAK", Some(0x2c), wait.clone()));
        assert_eq!(note("RNR NAK timer 12"), ("RNR NAK", Some(0x2c), wait.clone()));
        assert_eq!(note("min_rnr_timer 12"), ("RNR NAK", Some(0x2c), wait));
        assert_eq!(note("syndrome 0x1f"), ("ACK", Some(0x1f), "credit code 31: no credit limit".to_owned()));
        let credits = "credit code 5: the requester may send 6 messages".to_owned();
        assert_eq!(note("ACK 5"), ("ACK", Some(5), credits));
        assert_eq!(note("NAK 2"), ("NAK remote access error", Some(0x62), String::new()));
        assert_eq!(note("syndrome 0x62"), ("NAK remote access error", Some(0x62), String::new()));
    }

    #[test]
    fn nonsense_is_not_found() {
        for term in [
            "",
            " ",
            "-",
            "_",
            "0x",
            "0x+1",
            "+12",
            "--12",
            "4294967296",
            "status 99",
            "opcode 256",
            "xyzzy",
            "status xyzzy",
            "opcode RETRY_EXC_ERR",
            "1 2",
        ] {
            assert_eq!(names(term), [""; 0], "{term}");
        }
    }

    #[test]
    fn similar_names_are_suggested_best_first() {
        let suggestions = |term| similar(term).iter().map(|similar| similar.name).collect::<Vec<_>>();
        assert_eq!(suggestions("IBV_WC_RETRY_EXC_ER").first(), Some(&"IBV_WC_RETRY_EXC_ERR"));
        assert!(suggestions("flush").contains(&"IBV_WC_WR_FLUSH_ERR"));
        assert!(suggestions("retry").contains(&"IBV_WC_RNR_RETRY_EXC_ERR"));
        assert_eq!(suggestions("ENOMEN"), ["ENOMEM"]);
        assert!(suggestions("REM_ACESS").contains(&"IBV_WC_REM_ACCESS_ERR"));
        assert!(suggestions("e").is_empty());
        assert!(suggestions("quux quux quux").is_empty());
        assert!(suggestions("err").len() <= 6);
    }

    #[test]
    fn edit_distance_is_returned_for_each_prefix() {
        assert_eq!(edits("", ""), [0]);
        assert_eq!(edits("abc", ""), [3]);
        assert_eq!(edits("", "abc"), [0, 1, 2, 3]);
        assert_eq!(edits("ab", "abc"), [2, 1, 0, 1]);
        assert_eq!(edits("kitten", "sitting").last(), Some(&3));
    }
}
