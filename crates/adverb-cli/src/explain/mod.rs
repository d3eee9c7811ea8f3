//! `adverb explain`: explains codes and names of errors, events and packets.

mod json;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;

use adverb::verbs::explain::{self, Explanation, SearchResult};
use anyhow::{Context, Result};

/// The options of `adverb explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A term is a name in any notation, a text that a tool printed, or a number. A
number has a meaning of each kind; a word before it selects the kind: status,
event, errno, syndrome, opcode, reject, sidr. After nak, rnr and ack, a number
below 32 is the low five bits of the syndrome. Several words are one term if
they have a meaning together, and otherwise one term each. The exit status is 1
if a term is unknown; similar names are printed to standard error.

  adverb explain IBV_WC_RETRY_EXC_ERR
  adverb explain transport retry counter exceeded
  adverb explain status 12
  adverb explain rnr 14
  adverb explain ENOMEM --json | jq -r '.explanations[].checks[]'")]
pub(crate) struct Args {
    /// The names or numbers to explain. The default is a list of all names.
    #[arg(value_name = "TERM", allow_negative_numbers = true)]
    terms: Vec<String>,
    /// Print JSON. Its fields keep their names and meanings while `version` is 1.
    #[arg(long)]
    json: bool,
}

/// Prints the explanations of the terms, or a list of all names.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let explanations = Explanations::new(&args.terms);
    let output = match (args.json, args.terms.is_empty()) {
        (true, _) => crate::json::pretty("explain", &json::explanations(&explanations))?,
        (false, true) => text::list(),
        (false, false) => text::explanations(&explanations),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")?;
    if !args.json {
        eprint!("{}", text::problems(&explanations));
    }
    Ok(if explanations.unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The explanations of the terms of a command line, or all explanations if there is no term.
struct Explanations {
    known: Vec<Known>,
    unknown: Vec<Unknown>,
}

/// A term with its explanations, at least one.
struct Known {
    /// The term, unless the command line has none.
    term: Option<String>,
    found: Vec<SearchResult>,
}

/// A term without an explanation.
struct Unknown {
    term: String,
    similar: Vec<&'static Explanation>,
}

impl Explanations {
    fn new(terms: &[String]) -> Explanations {
        let mut explanations = Explanations { known: Vec::new(), unknown: Vec::new() };
        if terms.is_empty() {
            let found = explain::all().flat_map(|explanation| {
                // Each name is unique, and other names may be shared.
                let found = explain::find(explanation.name).into_iter();
                found.filter(move |found| found.explanation == explanation)
            });
            explanations.known.push(Known { term: None, found: found.collect() });
            return explanations;
        }
        // The words of a phrase needn't be quoted.
        let phrase = terms.join(" ");
        let found = explain::find(&phrase);
        if !found.is_empty() {
            explanations.known.push(Known { term: Some(phrase), found });
            return explanations;
        }
        for term in terms {
            let found = explain::find(term);
            match found.is_empty() {
                true => {
                    explanations
                        .unknown
                        .push(Unknown { term: term.clone(), similar: explain::similar(term) });
                }
                false => explanations.known.push(Known { term: Some(term.clone()), found }),
            }
        }
        // If no word has a meaning, the words are probably one misspelled phrase.
        if explanations.known.is_empty() && terms.len() > 1 {
            let similar = explain::similar(&phrase);
            if !similar.is_empty() {
                explanations.unknown = vec![Unknown { term: phrase, similar }];
            }
        }
        explanations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanations(terms: &[&str]) -> Explanations {
        Explanations::new(&terms.iter().map(|term| (*term).to_owned()).collect::<Vec<_>>())
    }

    fn names(explanations: &Explanations) -> Vec<&'static str> {
        explanations.known.iter().flat_map(|known| &known.found).map(|found| found.explanation.name).collect()
    }

    #[test]
    fn words_are_one_term_if_they_have_a_meaning_together() {
        assert_eq!(names(&explanations(&["status", "12"])), ["IBV_WC_RETRY_EXC_ERR"]);
        assert_eq!(
            names(&explanations(&["transport", "retry", "counter", "exceeded"])),
            ["IBV_WC_RETRY_EXC_ERR"]
        );
        assert_eq!(names(&explanations(&["ENOMEM", "EINVAL"])), ["ENOMEM", "EINVAL"]);
        assert_eq!(names(&explanations(&["-12"])), ["ENOMEM"]);
    }

    #[test]
    fn unknown_terms_have_similar_ones() {
        let some = explanations(&["ENOMEM", "ENOMEN"]);
        assert_eq!(names(&some), ["ENOMEM"]);
        assert_eq!(some.unknown[0].term, "ENOMEN");
        assert_eq!(some.unknown[0].similar[0].name, "ENOMEM");
        let phrase = explanations(&["transport", "retry", "count", "exceeded"]);
        assert_eq!(phrase.unknown.len(), 1);
        assert_eq!(phrase.unknown[0].similar[0].name, "IBV_WC_RETRY_EXC_ERR");
    }

    #[test]
    fn no_term_means_all() {
        assert_eq!(
            names(&explanations(&[])),
            explain::all().map(|explanation| explanation.name).collect::<Vec<_>>()
        );
    }
}
