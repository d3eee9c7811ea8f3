//! The summary at the end of `adverb run`, from the reports that the processes write when they exit.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

/// The sum of the reports of all processes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// The number of processes that opened the device.
    processes: usize,
    /// The number of processes without a report.
    unreported: usize,
    /// Groups, names and values, in the order of their first report.
    values: Vec<(String, String, u64)>,
}

impl Summary {
    /// Reads the reports in a directory.
    pub(super) fn read(directory: &Path) -> io::Result<Summary> {
        let mut summary = Summary::default();
        for entry in fs::read_dir(directory)? {
            summary.add(&fs::read_to_string(entry?.path())?);
        }
        Ok(summary)
    }

    /// Adds the report of a process. It is empty if the process did not exit by itself.
    fn add(&mut self, report: &str) {
        self.processes += 1;
        self.unreported += usize::from(report.is_empty());
        for line in report.lines() {
            let words: Vec<&str> = line.split('\t').collect();
            let [group, name, value] = words[..] else { continue };
            let value = value.parse().unwrap_or(0);
            let known =
                self.values.iter_mut().find(|(in_group, known, _)| in_group == group && known == name);
            match known {
                Some((.., sum)) => *sum += value,
                None => self.values.push((group.to_owned(), name.to_owned(), value)),
            }
        }
    }

    /// Returns the sum of a value.
    fn value(&self, group: &str, name: &str) -> u64 {
        let found = self.values.iter().find(|(in_group, known, _)| in_group == group && known == name);
        found.map_or(0, |(.., value)| *value)
    }

    /// Returns the values of a group as a list.
    fn list(&self, group: &str) -> String {
        let values = self.values.iter().filter(|(in_group, ..)| in_group == group);
        let values: Vec<String> = values.map(|(_, name, value)| format!("{value} × {name}")).collect();
        if values.is_empty() { "none".to_owned() } else { values.join(", ") }
    }

    /// Returns the summary as text, on request with all counters.
    pub(super) fn text(&self, with_counters: bool) -> String {
        if self.processes == 0 {
            return "adverb: no process opened the device\n".to_owned();
        }
        let messages = |name| self.value("messages", name);
        let counter = |name| self.value("counter", name);
        let mut text = match self.processes {
            1 => "adverb: 1 process opened the device".to_owned(),
            count => format!("adverb: {count} processes opened the device"),
        };
        if self.unreported > 0 {
            // Writing to a string can't fail, here and below.
            _ = write!(text, ", {} of them ended without a report", self.unreported);
        }
        _ = write!(
            text,
            "\n  messages       {} sent, {} received\n  payload        {} bytes sent, {} bytes received\n  packets        \
             {} sent, {} received, {} retransmitted, {} acknowledgement timeouts\n  errors         {}\n  leaked \
             objects {}\n",
            messages("sent"),
            messages("received"),
            counter("sent_bytes"),
            counter("rcvd_bytes"),
            counter("sent_pkts"),
            counter("rcvd_pkts"),
            counter("retransmitted_pkts"),
            counter("local_ack_timeout_err"),
            self.list("error"),
            self.list("leak"),
        );
        if with_counters {
            for (_, name, value) in self.values.iter().filter(|(group, ..)| group == "counter") {
                _ = writeln!(text, "  {name:<28} {value}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_added() {
        let mut summary = Summary::default();
        summary.add("messages\tsent\t2\nerror\ttimeout\t1\ncounter\tsent_pkts\t5\n");
        summary.add("messages\tsent\t3\nleak\tqueue pairs\t1\ncounter\tsent_pkts\t4\ncounter\tx\t0\n");
        summary.add("");
        let text = summary.text(false);
        assert!(
            text.starts_with("adverb: 3 processes opened the device, 1 of them ended without a report\n")
        );
        assert!(text.contains("5 sent, 0 received") && text.contains("9 sent, 0 received"), "{text}");
        assert!(text.contains("errors         1 × timeout\n"), "{text}");
        assert!(text.contains("leaked objects 1 × queue pairs\n"), "{text}");
        assert!(!text.contains("sent_pkts") && summary.text(true).contains("  sent_pkts"));
    }

    #[test]
    fn a_run_that_did_not_open_the_device_is_reported() {
        assert_eq!(Summary::default().text(true), "adverb: no process opened the device\n");
    }
}
