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
    let answer = Answer::new(&args.terms);
    let output = match (args.json, args.terms.is_empty()) {
        (true, _) => serde_json::to_string_pretty(&json::answer(&answer))? + "\n",
        (false, true) => text::list(),
        (false, false) => text::answer(&answer),
    };
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(output.as_bytes())
        .and_then(|()| stdout.flush())
        .context("could not write to standard output")?;
    if !args.json {
        eprint!("{}", text::problems(&answer));
    }
    Ok(if answer.unknown.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The explanations of the terms of a command line. Without a term, all explanations.
struct Answer {
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

impl Answer {
    fn new(terms: &[String]) -> Answer {
        let mut answer = Answer { known: Vec::new(), unknown: Vec::new() };
        if terms.is_empty() {
            let found = explain::all().flat_map(|explanation| {
                // Each name is unique, and other names may be shared.
                let found = explain::find(explanation.name).into_iter();
                found.filter(move |found| found.explanation == explanation)
            });
            answer.known.push(Known { term: None, found: found.collect() });
            return answer;
        }
        // The words of a phrase needn't be quoted.
        let phrase = terms.join(" ");
        let found = explain::find(&phrase);
        if !found.is_empty() {
            answer.known.push(Known { term: Some(phrase), found });
            return answer;
        }
        for term in terms {
            let found = explain::find(term);
            match found.is_empty() {
                true => answer.unknown.push(Unknown { term: term.clone(), similar: explain::similar(term) }),
                false => answer.known.push(Known { term: Some(term.clone()), found }),
            }
        }
        // If no word has a meaning, the words are probably one misspelled phrase.
        if answer.known.is_empty() && terms.len() > 1 {
            let similar = explain::similar(&phrase);
            if !similar.is_empty() {
                answer.unknown = vec![Unknown { term: phrase, similar }];
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(terms: &[&str]) -> Answer {
        Answer::new(&terms.iter().map(|term| (*term).to_owned()).collect::<Vec<_>>())
    }

    fn names(answer: &Answer) -> Vec<&'static str> {
        answer.known.iter().flat_map(|known| &known.found).map(|found| found.explanation.name).collect()
    }

    #[test]
    fn words_are_one_term_if_they_have_a_meaning_together() {
        assert_eq!(names(&answer(&["status", "12"])), ["IBV_WC_RETRY_EXC_ERR"]);
        assert_eq!(names(&answer(&["transport", "retry", "counter", "exceeded"])), ["IBV_WC_RETRY_EXC_ERR"]);
        assert_eq!(names(&answer(&["ENOMEM", "EINVAL"])), ["ENOMEM", "EINVAL"]);
        assert_eq!(names(&answer(&["-12"])), ["ENOMEM"]);
    }

    #[test]
    fn unknown_terms_have_similar_ones() {
        let some = answer(&["ENOMEM", "ENOMEN"]);
        assert_eq!(names(&some), ["ENOMEM"]);
        assert_eq!(some.unknown[0].term, "ENOMEN");
        assert_eq!(some.unknown[0].similar[0].name, "ENOMEM");
        let phrase = answer(&["transport", "retry", "count", "exceeded"]);
        assert_eq!(phrase.unknown.len(), 1);
        assert_eq!(phrase.unknown[0].similar[0].name, "IBV_WC_RETRY_EXC_ERR");
    }

    #[test]
    fn no_term_means_all() {
        assert_eq!(
            names(&answer(&[])),
            explain::all().map(|explanation| explanation.name).collect::<Vec<_>>()
        );
    }
}
