//! The exit status and the streams of `adverb explain`.

use std::process::{Command, Output};

fn explain(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).arg("explain").args(args).output().expect("the command runs")
}

#[test]
fn known_terms_are_printed_with_exit_status_0() {
    for args in [&["RETRY_EXC_ERR"][..], &["status", "12"], &["-12"], &["0x11"], &["12", "--json"], &[]] {
        let output = explain(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn an_unknown_term_is_an_error_with_exit_status_1() {
    let output = explain(&["RETRY_EXC_ER"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("did you mean: IBV_WC_RETRY_EXC_ERR"), "{error}");
    let output = explain(&["RETRY_EXC_ER", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["unknown"][0]["similar"][0], "IBV_WC_RETRY_EXC_ERR");
}

#[test]
fn a_locale_without_utf8_gets_ascii() {
    let names = String::from_utf8(explain(&[]).stdout).unwrap();
    let is_name = |word: &&str| word.len() > 3 && word.bytes().all(|c| c.is_ascii_uppercase() || c == b'_');
    let names = names.split_whitespace().filter(is_name).map(str::to_owned);
    // Numbers have tables of meanings, and syndromes have times.
    let codes = (0..=255).map(|code: u8| code.to_string());
    let terms: Vec<String> = names.chain(codes).chain(["nak 3", "rnr 14"].map(str::to_owned)).collect();
    for (locale, is_ascii) in [("C", true), ("C.UTF-8", false)] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
        let output = command.arg("explain").args(&terms).env("LC_ALL", locale).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find(|line| !line.is_ascii());
        assert_eq!(line.is_none(), is_ascii, "{locale}: {line:?}");
    }
}
