//! Samples as text.

use super::sample::{PortSample, Sample, per_million};
use crate::table::{Column, Table};

/// Returns a table for each port, with the counters that changed or, with `all`, all counters.
pub(super) fn tables(sample: &Sample, all: bool) -> String {
    sample.ports.iter().map(|port| port_table(port, all)).collect()
}

fn port_table(port: &PortSample, all: bool) -> String {
    let seconds = port.interval_ns as f64 / 1e9;
    let mut text = format!("{} port {}, {seconds:.2} s: {}\n", port.device, port.port, summary(port));
    let mut table = Table::new([
        Column::Left(""),
        Column::Left("COUNTER"),
        Column::Right("TOTAL"),
        Column::Right("NEW"),
        Column::Right("PER SECOND"),
        Column::Right("PER MILLION PACKETS"),
    ]);
    for (name, counter) in &port.counters {
        if !all && counter.grown.count == 0 {
            continue;
        }
        let per_packet = port.packets.and_then(|packets| per_million(counter.grown.count, packets.count));
        table.add_row([
            if counter.error { "!" } else { " " }.to_owned(),
            name.clone(),
            counter.total.to_string(),
            counter.grown.count.to_string(),
            format!("{:.1}", counter.grown.rate),
            per_packet.filter(|_| counter.error).map(|rate| format!("{rate:.1}")).unwrap_or_default(),
        ]);
    }
    text += &table.to_string();
    text + "\n"
}

/// Returns a summary of the interval.
fn summary(port: &PortSample) -> String {
    if port.counters.is_empty() {
        return "the device has no counters".to_owned();
    }
    let packets = match port.packets {
        Some(packets) => format!("{:.1} packets/s, ", packets.rate),
        None => String::new(),
    };
    let share = match port.errors_per_million {
        Some(share) => format!(" ({share:.1} per million packets)"),
        None => String::new(),
    };
    format!("{packets}{:.1} errors/s{share}", port.errors.rate)
}

#[cfg(test)]
mod tests {
    use super::super::sample::samples;
    use super::*;

    fn text(all: bool, change: impl FnOnce(&mut PortSample)) -> String {
        let mut port = samples::port();
        change(&mut port);
        tables(&Sample { time_ns: 0, ports: vec![port], problem: None }, all)
    }

    #[test]
    fn changed_counters_are_shown_and_errors_are_marked() {
        assert_eq!(
            text(false, |_| ()),
            "rxe0 port 1, 2.00 s: 1000.0 packets/s, 1.0 errors/s (1000.0 per million packets)\n   \
             COUNTER       TOTAL   NEW  PER SECOND  PER MILLION PACKETS\n   \
             rcvd_pkts      5000  1000       500.0                    -\n\
             !  rcvd_seq_err      7     2         1.0               1000.0\n   \
             sent_pkts      6000  1000       500.0                    -\n\n"
        );
        assert!(text(true, |_| ()).contains("rdma_sends"));
    }

    #[test]
    fn a_device_without_counters_is_reported() {
        let text = text(false, |port| port.counters.clear());
        assert_eq!(text, "rxe0 port 1, 2.00 s: the device has no counters\n\n");
    }

    #[test]
    fn a_device_that_counts_no_packets_still_has_errors() {
        let text = text(false, |port| (port.packets, port.errors_per_million) = (None, None));
        assert!(text.starts_with("rxe0 port 1, 2.00 s: 1.0 errors/s\n"), "{text}");
    }
}
