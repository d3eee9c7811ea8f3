//! Explanations as text.

use adverb::verbs::explain::{Explanation, Kind, SearchResult};

use super::{Explanations, Known, Unknown};
use crate::prose::{self, HINT, ITEM};
use crate::symbols;
use crate::table::{Column, Table};

/// Returns tables of all names, one for each kind.
pub(super) fn list() -> String {
    let mut text = String::new();
    for kind in Kind::ALL {
        let mut table = Table::new([Column::Right("CODE"), Column::Left("NAME"), Column::Left("MEANING")]);
        for explanation in kind.explanations() {
            table.add_row([
                explanation.code_text(),
                explanation.name.to_owned(),
                explanation.summary.to_owned(),
            ]);
        }
        text += &format!("{kind} (`adverb explain {} CODE`)\n{table}\n", kind.search_prefix());
    }
    text
}

/// Returns the explanations of all known terms.
pub(super) fn explanations(explanations: &Explanations) -> String {
    explanations.known.iter().map(known).collect::<Vec<_>>().join("\n")
}

/// Returns the errors about unknown terms.
pub(super) fn problems(explanations: &Explanations) -> String {
    explanations.unknown.iter().map(problem).collect()
}

fn problem(unknown: &Unknown) -> String {
    let hint = match unknown.similar.as_slice() {
        [] => "`adverb explain` lists all names".to_owned(),
        similar => {
            let names: Vec<&str> = similar.iter().map(|similar| similar.name).collect();
            format!("did you mean: {}", names.join(", "))
        }
    };
    prose::wrap(&format!("error: no explanation of \"{}\"\n{HINT}{hint}", unknown.term))
}

fn known(known: &Known) -> String {
    match known.found.as_slice() {
        // A number has several meanings, of which the reader wants one.
        [first, _, ..] if first.code.is_some() => meanings(known),
        found => found.iter().map(explanation).collect::<Vec<_>>().join("\n"),
    }
}

/// Returns a table of the meanings of a number.
fn meanings(known: &Known) -> String {
    let term = known.term.as_deref().unwrap_or_default();
    let mut table = Table::new([
        Column::Left("KIND"),
        Column::Right("CODE"),
        Column::Left("NAME"),
        Column::Left("MEANING"),
    ]);
    for found in &known.found {
        let Explanation { kind, name, summary, .. } = *found.explanation;
        let code = found.code.map(|code| kind.format_code(code)).unwrap_or_default();
        let note = found.note.as_ref().map(|note| format!(" ({note})")).unwrap_or_default();
        table.add_row([kind.to_string(), code, name.to_owned(), format!("{summary}{note}")]);
    }
    let word = known.found.first().map_or("status", |found| found.explanation.kind.search_prefix());
    let table = symbols::in_locale(&table.to_string());
    format!(
        "{term} has {} meanings:\n\n{table}\n{}",
        known.found.len(),
        prose::wrap(&format!("For a whole explanation, name the kind: `adverb explain {word} {term}`"))
    )
}

/// Returns a whole explanation.
fn explanation(found: &SearchResult) -> String {
    let explanation = found.explanation;
    let code = match found.code {
        Some(code) => explanation.kind.format_code(code),
        None => explanation.code_text(),
    };
    let mut text = format!("{}: {} {code}\n", explanation.name, explanation.kind);
    let mut line = |start: &str, rest: &str| text += &prose::wrap(&format!("{start}{rest}"));
    line("  ", explanation.summary);
    if let Some(note) = &found.note {
        line("  ", note);
    }
    line("\n", "");
    line("  ", explanation.meaning);
    let mut list = |heading: &str, items: &[&str]| {
        line("", heading);
        items.iter().for_each(|item| line(ITEM, item));
    };
    list("\nusual causes:", explanation.causes);
    list("\nwhat to check:", explanation.checks);
    if !explanation.cases.is_empty() {
        line("", "\nin these calls:");
        for case in explanation.cases {
            line(ITEM, &format!("{}: {}", case.call.name(), case.cause));
            if let Some(hint) = case.hint {
                line("    ", &format!("hint: {hint}"));
            }
        }
    }
    line("\n", "");
    if let Some(hint) = explanation.hint {
        line(HINT, hint);
    }
    line("  also known as: ", &explanation.aliases.join(", "));
    line("  defined by: ", explanation.reference);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(term: &str) -> String {
        explanations(&Explanations::new(&[term.to_owned()]))
    }

    #[test]
    fn a_name_has_a_whole_explanation() {
        let text = text("IBV_WC_BAD_RESP_ERR");
        assert_eq!(
            text,
            "\
IBV_WC_BAD_RESP_ERR: completion status 7
  the peer's response was invalid (bad response)

  The requester received a response with an opcode or a length that the protocol
  does not allow at this point, for example a READ response that is longer or
  shorter than requested.

usual causes:
  - the two ends use a different path MTU, so READ responses have packets of an
    unexpected length
  - the peer's device or its software violates the protocol

what to check:
  - compare the path MTU of both queue pairs (`ibv_query_qp`)
  - capture the packets, and compare the responses with the request

  also known as: BadResponse, bad response error
  defined by: InfiniBand vol. 1, 11.6.2; `enum ibv_wc_status`
"
        );
    }

    #[test]
    fn a_number_has_a_table_of_its_meanings() {
        let text = text("12");
        assert!(text.starts_with("12 has 6 meanings:\n\nKIND "), "{text}");
        assert!(text.contains("completion status     12  IBV_WC_RETRY_EXC_ERR"), "{text}");
        assert!(text.contains("opcode              0x0c  IB_OPCODE_RC_RDMA_READ_REQUEST"), "{text}");
        assert!(text.contains("(credit code 12: the requester may send 64 messages)"), "{text}");
        assert!(
            text.ends_with("For a whole explanation, name the kind: `adverb explain status 12`\n"),
            "{text}"
        );
    }

    #[test]
    fn an_error_number_has_its_meanings_by_call() {
        let text = text("ENOMEM");
        let (_, calls) = text.split_once("in these calls:\n").expect("calls");
        assert!(calls.starts_with("  - ibv_reg_mr: the limit of locked memory is too low"), "{calls}");
        let hint = "\n    hint: raise the limit of locked memory (ulimit -l): memlock in\n    /etc/security/limits.conf";
        assert!(calls.contains(hint), "{calls}");
    }

    #[test]
    fn an_unknown_term_has_a_hint() {
        let problem = |term: &str| problems(&Explanations::new(&[term.to_owned()]));
        assert_eq!(problem("ENOMEN"), "error: no explanation of \"ENOMEN\"\n  hint: did you mean: ENOMEM\n");
        assert_eq!(
            problem("xyzzy"),
            "error: no explanation of \"xyzzy\"\n  hint: `adverb explain` lists all names\n"
        );
        assert_eq!(problem("ENOMEM"), "");
    }

    #[test]
    fn the_list_has_every_name() {
        let list = list();
        for explanation in adverb::verbs::explain::all() {
            let has = |line: &str| line.contains(explanation.name) && line.ends_with(explanation.summary);
            assert!(list.lines().any(has), "{}", explanation.name);
        }
    }
}
