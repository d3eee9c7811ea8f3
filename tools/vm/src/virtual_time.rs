//! Commands in a guest with one CPU and a virtual clock that counts instructions.

use std::io;

use anyhow::{Result, bail};

use super::guest::{Observer, Stream};
use super::{Options, explain, prepare};

/// Runs shell commands in such a guest until one fails, and returns the standard output of each.
///
/// # Errors
///
/// Returns an error if the guest or a command fails.
pub fn run(mtu: u32, lines: &[String]) -> Result<Vec<String>> {
    let options = Options { timeout: 600, mtu, cpus: 1, icount: true, out: None, verbose: false };
    let mut collector = Collector::default();
    let report = prepare(&options)?.run(lines, &mut collector)?;
    if explain(&report, &options) != 0 || collector.printed.len() != lines.len() {
        bail!(
            "a command in the guest failed:\n{}\n{}",
            lines.get(collector.printed.len().saturating_sub(1)).map_or("", |line| line),
            collector.errors
        );
    }
    Ok(collector.printed)
}

/// An observer that collects the output of the commands.
#[derive(Default)]
struct Collector {
    printed: Vec<String>,
    errors: String,
}

impl Observer for Collector {
    fn started(&mut self, _index: usize) {
        self.printed.push(String::new());
        self.errors.clear();
    }

    fn output(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(bytes);
        match (stream, self.printed.last_mut()) {
            (Stream::Out, Some(printed)) => *printed += &text,
            _ => self.errors += &text,
        }
        Ok(())
    }

    fn finished(&mut self, _index: usize, _status: u8) {}
}
