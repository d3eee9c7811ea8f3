//! The summary at the end of `adverb run`, from the reports that the processes write when they exit.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::symbols;

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
            let entry = entry?;
            // The names of reports are numbers of processes.
            if entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()) {
                summary.add(&fs::read_to_string(entry.path())?);
            }
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
        let values: Vec<String> =
            values.map(|(_, name, value)| format!("{value} {} {name}", symbols::times())).collect();
        if values.is_empty() { "none".to_owned() } else { values.join(", ") }
    }

    /// Returns the lines about failed calls, the most frequent ones first.
    fn failed_calls(&self) -> String {
        let mut calls: Vec<(&str, u64)> = self
            .values
            .iter()
            .filter(|(group, ..)| group == "call")
            .map(|(_, call, count)| (call.as_str(), *count))
            .collect();
        calls.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let mut lines: Vec<String> = calls
            .iter()
            .take(MAX_FAILED_CALLS)
            .map(|(call, count)| format!("{count} {} {call}", symbols::times()))
            .collect();
        match calls.iter().skip(MAX_FAILED_CALLS).map(|(_, count)| count).sum::<u64>() {
            0 if lines.is_empty() => lines.push("none".to_owned()),
            0 => {}
            rest => lines.push(format!("{rest} others")),
        }
        format!("  failed calls   {}\n", lines.join("\n                 "))
    }

    /// Returns the summary as text, on request with all counters.
    pub(super) fn text(&self, with_counters: bool) -> String {
        if self.processes == 0 {
            return NOT_OPENED.to_owned();
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
        text += &self.failed_calls();
        if with_counters {
            for (_, name, value) in self.values.iter().filter(|(group, ..)| group == "counter") {
                _ = writeln!(text, "  {name:<28} {value}");
            }
        }
        text
    }
}

/// The summary of a run in which no process opened the device.
const NOT_OPENED: &str = "\
adverb: no process opened the device. Either no program called ibv_open_device (ibv_devices only lists devices), or the
call failed, which a line above explains, or the program can't load Adverb's libraries: it is statically linked, linked
against musl, setuid or with file capabilities, or it loads libibverbs by an absolute path.
";

/// The maximum number of lines about failed calls.
const MAX_FAILED_CALLS: usize = 5;

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
        assert!(text.ends_with("failed calls   none\n"), "{text}");
        assert!(!text.contains("sent_pkts") && summary.text(true).contains("  sent_pkts"));
    }

    #[test]
    fn the_most_frequent_failed_calls_are_listed() {
        let mut summary = Summary::default();
        for (at, count) in [3, 9, 1, 2, 4, 5, 6].into_iter().enumerate() {
            summary.add(&format!("call\tibv_create_qp failed with EINVAL: reason {at}\t{count}\n"));
        }
        let text = summary.text(false);
        let calls = text.split_once("failed calls   ").unwrap().1;
        let lines: Vec<&str> = calls.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[0], "9 × ibv_create_qp failed with EINVAL: reason 1");
        assert_eq!(lines[5], "3 others", "{text}");
    }

    #[test]
    fn a_run_that_did_not_open_the_device_is_reported() {
        let text = Summary::default().text(true);
        assert!(text.starts_with("adverb: no process opened the device. "), "{text}");
    }
}
