//! Programs in a guest with one CPU and a clock that goes by its instructions.

use std::io;

use anyhow::{Result, bail};

use super::guest::{Observer, Stream};
use super::{Options, explain, prepare};

/// Runs lines of shell, and gives what each printed.
pub fn run(mtu: u32, lines: &[String]) -> Result<Vec<String>> {
    let options = Options { timeout: 600, mtu, cpus: 1, icount: true, out: None, verbose: false };
    let mut heard = Heard::default();
    let report = prepare(&options)?.run(lines, &mut heard)?;
    if explain(&report, &options) != 0 || heard.said.len() != lines.len() {
        bail!(
            "a run failed:\n{}\n{}",
            lines.get(heard.said.len().saturating_sub(1)).map_or("", |line| line),
            heard.errors
        );
    }
    Ok(heard.said)
}

/// What the runs print.
#[derive(Default)]
struct Heard {
    said: Vec<String>,
    errors: String,
}

impl Observer for Heard {
    fn started(&mut self, _index: usize) {
        self.said.push(String::new());
        self.errors.clear();
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        match (stream, self.said.last_mut()) {
            (Stream::Out, Some(said)) => *said += &text,
            _ => self.errors += &text,
        }
        Ok(())
    }

    fn finished(&mut self, _index: usize, _status: u8) {}
}
