//! Explanations as JSON.

use adverb::verbs::explain::{Explanation, SearchResult};
use serde::Serialize;

use super::{Explanations, Unknown};

/// The explanations of all terms.
#[derive(Serialize)]
pub(super) struct ExplanationsJson<'a> {
    explanations: Vec<ExplanationJson<'a>>,
    unknown: Vec<UnknownJson<'a>>,
}

#[derive(Serialize)]
struct ExplanationJson<'a> {
    term: Option<&'a str>,
    kind: &'static str,
    name: &'static str,
    aliases: &'static [&'static str],
    /// The number in the term.
    code: Option<u32>,
    /// The first and the last value of each range.
    codes: Vec<[u32; 2]>,
    note: Option<&'a str>,
    summary: &'static str,
    meaning: &'static str,
    causes: &'static [&'static str],
    checks: &'static [&'static str],
    hint: Option<&'static str>,
    cases: Vec<CaseJson>,
    reference: &'static str,
}

#[derive(Serialize)]
struct CaseJson {
    calls: &'static str,
    cause: &'static str,
    hint: Option<&'static str>,
}

#[derive(Serialize)]
struct UnknownJson<'a> {
    term: &'a str,
    similar: Vec<&'static str>,
}

pub(super) fn explanations(found: &Explanations) -> ExplanationsJson<'_> {
    let explanations = found.known.iter().flat_map(|known| {
        let term = known.term.as_deref();
        known.found.iter().map(move |found| explanation(term, found))
    });
    let unknown = |unknown: &'_ Unknown| unknown.similar.iter().map(|similar| similar.name).collect();
    ExplanationsJson {
        explanations: explanations.collect(),
        unknown: found
            .unknown
            .iter()
            .map(|term| UnknownJson { term: &term.term, similar: unknown(term) })
            .collect(),
    }
}

fn explanation<'a>(term: Option<&'a str>, found: &'a SearchResult) -> ExplanationJson<'a> {
    let explanation: &'static Explanation = found.explanation;
    ExplanationJson {
        term,
        kind: explanation.kind.name(),
        name: explanation.name,
        aliases: explanation.aliases,
        code: found.code,
        codes: explanation.codes.iter().map(|range| [*range.start(), *range.end()]).collect(),
        note: found.note.as_deref(),
        summary: explanation.summary,
        meaning: explanation.meaning,
        causes: explanation.causes,
        checks: explanation.checks,
        hint: explanation.hint,
        cases: explanation
            .cases
            .iter()
            .map(|case| CaseJson { calls: case.call.name(), cause: case.cause, hint: case.hint })
            .collect(),
        reference: explanation.reference,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Programs read these names.
    #[test]
    fn fields_keep_their_names() {
        let terms = ["RNR 14".to_owned(), "ENOMEN".to_owned()];
        let value = serde_json::to_value(explanations(&Explanations::new(&terms))).unwrap();
        let explanation = &value["explanations"][0];
        assert_eq!(explanation["term"], "RNR 14");
        assert_eq!(explanation["kind"], "syndrome");
        assert_eq!(explanation["name"], "RNR NAK");
        assert_eq!(explanation["code"], 0x2e);
        assert_eq!(explanation["codes"], json!([[0x20, 0x3f]]));
        assert_eq!(explanation["note"], "timer code 14: the requester waits 1.28ms");
        for text in ["summary", "meaning", "reference"] {
            assert!(explanation[text].is_string(), "{text}");
        }
        for list in ["aliases", "causes", "checks", "cases"] {
            assert!(explanation[list].is_array(), "{list}");
        }
        assert_eq!(explanation["hint"], json!(null));
        assert_eq!(value["unknown"], json!([{ "term": "ENOMEN", "similar": ["ENOMEM"] }]));
    }
}
