//! `cargo xtask wire-check`: packets of every kind, emitted by adverb-wire and dissected by tshark.
//!
//! The packets are made from constants or generated values. The fields that tshark should show follow from these
//! values, never from the bytes. Every field that tshark shows must be expected, and tshark's fields must cover every
//! bit of a packet, except bits that a test vector covers: bytes written by hand. adverb-wire must parse each packet
//! back to the original values, and must reject forged packets.

mod case;
mod cm_fields;
mod coverage;
mod field;
mod headers;
mod icrc;
mod messages;
mod notes;
mod outer;
mod packets;
mod pcap;
mod pdml;
mod samples;
mod tshark;
mod values;
mod vectors;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, process};

use anyhow::{Context, Result, bail};

use case::{Case, Own};
use field::{Comparison, Mismatch};
use notes::{MISREAD, OTHER_NAMES, UNDISSECTED, Undissected};
use vectors::Vectors;

/// The tshark version that [`notes`] describe.
const TSHARK: &str = "4.0";

fn main() -> ExitCode {
    match check() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the capture, dissects it with tshark, and compares the fields.
fn check() -> Result<()> {
    let version = tshark::version()?;
    println!("tshark {version}");
    if !version.starts_with(TSHARK) {
        println!("note: the expected fields are those of tshark {TSHARK}; this version may differ");
    }
    let vectors = Vectors::load()?;
    let mut cases = packets::cases(&vectors)?;
    // These are last, because tshark tracks connections and dissects later packets accordingly.
    cases.append(&mut messages::cases(&vectors)?);

    let directory = env::temp_dir().join(format!("adverb-wire-check-{}", process::id()));
    fs::create_dir(&directory).with_context(|| format!("could not create {}", directory.display()))?;
    let capture = directory.join("capture.pcap");
    let file = pcap::file(cases.iter().map(|case| case.frame.as_slice()));
    fs::write(&capture, file).with_context(|| format!("could not write {}", capture.display()))?;
    let dissections = tshark::dissect(&capture, cases.len())?;

    let mut report = Report::default();
    for mismatch in vectors.check() {
        report.mismatch(&mismatch);
    }
    for ((case, dissection), number) in cases.iter().zip(&dissections).zip(1..) {
        report.add(number, case, case.expected.compare(dissection, case.frame.len()));
    }
    let rejected = cases.iter().filter(|case| matches!(case.own, Own::Rejects { .. })).count();
    println!("adverb-wire must parse {} packets and reject {rejected}", cases.len() - rejected);
    report.close(&vectors, cases.len(), capture)
}

/// The results so far.
#[derive(Default)]
struct Report {
    fields: usize,
    mismatches: usize,
    /// Indices of the notes in [`UNDISSECTED`] that were needed.
    needed: HashSet<usize>,
}

impl Report {
    /// Adds the result of a packet.
    fn add(&mut self, number: usize, case: &Case, comparison: Comparison) {
        self.fields += comparison.compared;
        let uncovered = self.uncovered(case, &comparison);
        for mismatch in comparison.mismatches.iter().chain(&uncovered).chain(&case.check_own()) {
            self.mismatch(&format!("packet {number} ({}, {}): {mismatch}", case.kind, case.details));
        }
    }

    /// Returns a mismatch for the bytes that neither a field of tshark's nor a note covers.
    fn uncovered(&mut self, case: &Case, comparison: &Comparison) -> Option<Mismatch> {
        // A wrong or missing field is reported already. Forged packets contain extra bytes.
        if !comparison.mismatches.is_empty() || matches!(case.own, Own::Rejects { .. }) {
            return None;
        }
        let mut unexplained = Vec::new();
        for gap in comparison.coverage.gaps() {
            let explains = |note: &Undissected| {
                note.kind == case.kind
                    && gap.checked_sub(case.transport).is_some_and(|at| note.bytes.contains(&at))
            };
            match UNDISSECTED.iter().position(explains) {
                Some(note) => _ = self.needed.insert(note),
                None => unexplained.push(gap),
            }
        }
        (!unexplained.is_empty()).then(|| Mismatch {
            field: format!("bytes {unexplained:?} of the frame"),
            expected: "a field, or a note in notes.rs".to_owned(),
            found: "neither".to_owned(),
        })
    }

    fn mismatch(&mut self, mismatch: &impl std::fmt::Display) {
        self.mismatches += 1;
        println!("MISMATCH {mismatch}");
    }

    /// Prints the notes and the totals. Fails if there are mismatches.
    fn close(mut self, vectors: &Vectors, packets: usize, capture: PathBuf) -> Result<()> {
        if self.mismatches == 0 {
            let needed = std::mem::take(&mut self.needed);
            for (_, note) in UNDISSECTED.iter().enumerate().filter(|(at, _)| !needed.contains(at)) {
                let Undissected { kind, bytes, .. } = note;
                self.mismatch(&format!(
                    "the note on {kind}, bytes {bytes:?}, is not needed: tshark dissects them"
                ));
            }
        }
        let (count, bytes) = vectors.size();
        println!("checked by {count} vectors ({bytes} bytes), because tshark does not dissect it:");
        for note in UNDISSECTED {
            let (first, last) = (note.bytes.start, note.bytes.end - 1);
            println!("  {}, bytes {first} to {last}: {} [{}]", note.kind, note.why, note.vectors.join(", "));
        }
        println!("dissected wrongly by tshark, compared with its wrong value, and checked by vectors:");
        for (fields, why) in MISREAD {
            println!("  {fields}: {why}");
        }
        println!("compared, although tshark shows it under another name:");
        for (field, what) in OTHER_NAMES {
            println!("  {field}: {what}");
        }
        println!("{packets} packets, {} fields, {} mismatches", self.fields, self.mismatches);
        if self.mismatches > 0 {
            bail!("{} mismatches; the capture is in {}", self.mismatches, capture.display());
        }
        if let Some(directory) = capture.parent() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("could not remove {}", directory.display()))?;
        }
        Ok(())
    }
}
