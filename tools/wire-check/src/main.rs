//! `cargo xtask wire-check`: packets of every kind, as adverb-wire emits them, before the eyes of tshark.
//!
//! The packets are made from values that are written down here or come from a generator; what tshark should
//! show of each follows from those values, never from the bytes. All that it does show must have been
//! expected, and all bits of a packet must be among what it shows, or else be covered by a vector: bytes
//! written down by hand. adverb-wire must read back what was put in, and refuse what is forged.

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

/// The tshark that [`notes`] are about.
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

/// Makes the capture, has it dissected, and compares.
fn check() -> Result<()> {
    let version = tshark::version()?;
    println!("tshark {version}");
    if !version.starts_with(TSHARK) {
        println!("note: what tshark shows was written down for version {TSHARK}, and may differ");
    }
    let vectors = Vectors::load()?;
    let mut cases = packets::cases(&vectors)?;
    // Last, because tshark remembers the connections that it sees being made, and looks at later packets with
    // that.
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
    let refused = cases.iter().filter(|case| matches!(case.own, Own::Refuses { .. })).count();
    println!("adverb-wire had to read {} packets back and to refuse {refused}", cases.len() - refused);
    report.close(&vectors, cases.len(), capture)
}

/// What was found so far.
#[derive(Default)]
struct Report {
    fields: usize,
    mismatches: usize,
    /// Which of the notes on what isn't dissected were needed.
    needed: HashSet<usize>,
}

impl Report {
    /// Takes in what became of a packet.
    fn add(&mut self, number: usize, case: &Case, comparison: Comparison) {
        self.fields += comparison.compared;
        let uncovered = self.uncovered(case, &comparison);
        for mismatch in comparison.mismatches.iter().chain(&uncovered).chain(&case.check_own()) {
            self.mismatch(&format!("packet {number} ({}, {}): {mismatch}", case.kind, case.details));
        }
    }

    /// The bytes that neither tshark's fields cover nor a note explains.
    fn uncovered(&mut self, case: &Case, comparison: &Comparison) -> Option<Mismatch> {
        // Where a field is wrong or missing, that is reported and enough; forged packets have bytes in vain.
        if !comparison.mismatches.is_empty() || matches!(case.own, Own::Refuses { .. }) {
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
            expected: "to be dissected, or noted in notes.rs".to_owned(),
            found: "neither".to_owned(),
        })
    }

    fn mismatch(&mut self, mismatch: &impl std::fmt::Display) {
        self.mismatches += 1;
        println!("MISMATCH {mismatch}");
    }

    /// Prints the lists and the sum.
    fn close(mut self, vectors: &Vectors, packets: usize, capture: PathBuf) -> Result<()> {
        if self.mismatches == 0 {
            let needed = std::mem::take(&mut self.needed);
            for (_, note) in UNDISSECTED.iter().enumerate().filter(|(at, _)| !needed.contains(at)) {
                let Undissected { kind, bytes, .. } = note;
                self.mismatch(&format!("the note on {kind}, bytes {bytes:?}: tshark does dissect them"));
            }
        }
        let (count, bytes) = vectors.size();
        println!("checked by vectors ({count} of them, {bytes} bytes), because tshark doesn't dissect it:");
        for note in UNDISSECTED {
            let (first, last) = (note.bytes.start, note.bytes.end - 1);
            println!("  {}, bytes {first} to {last}: {} [{}]", note.kind, note.why, note.vectors.join(", "));
        }
        println!("shown wrongly by tshark, compared as such, and checked by vectors:");
        for (fields, why) in MISREAD {
            println!("  {fields}: {why}");
        }
        println!("compared, though tshark has no name of its own for it:");
        for (field, what) in OTHER_NAMES {
            println!("  {field}: {what}");
        }
        println!("{packets} packets, {} fields, {} mismatches", self.fields, self.mismatches);
        if self.mismatches > 0 {
            bail!("{} mismatches; the capture is {}", self.mismatches, capture.display());
        }
        if let Some(directory) = capture.parent() {
            fs::remove_dir_all(directory)
                .with_context(|| format!("could not remove {}", directory.display()))?;
        }
        Ok(())
    }
}
