//! Prometheus' text format, version 0.0.4.
//!
//! Every version of Prometheus reads this format, and `promtool check metrics` checks it. prometheus-client writes only
//! OpenMetrics, which `promtool check metrics` rejects.

use std::fmt::Write;

use super::metrics::Metric;

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric with its samples.
pub(super) struct Family {
    pub metric: &'static Metric,
    pub samples: Vec<Sample>,
}

/// The value of one series.
pub(super) struct Sample {
    /// The values of the metric's labels, in their order.
    pub labels: Vec<String>,
    pub value: Value,
}

/// A value. Counts are exact.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    Count(u64),
    Number(f64),
}

impl Family {
    /// Creates a family without samples.
    pub(super) fn new(metric: &'static Metric) -> Family {
        Family { metric, samples: Vec::new() }
    }

    /// Adds a sample.
    pub(super) fn push<const N: usize>(&mut self, labels: [&str; N], value: Value) {
        debug_assert_eq!(labels.len(), self.metric.labels.len(), "{}", self.metric.name);
        self.samples.push(Sample { labels: labels.map(str::to_owned).into(), value });
    }
}

/// Returns the families as text, without those that have no samples.
pub(super) fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { metric, samples } in families.iter().filter(|family| !family.samples.is_empty()) {
        text += &format!("# HELP {} {}\n", metric.name, escaped(metric.help, false));
        text += &format!("# TYPE {} {}\n", metric.name, metric.kind.name());
        for sample in samples {
            text += metric.name;
            write_labels(&mut text, metric.labels, &sample.labels);
            // Writing to a string can't fail.
            let _ = match sample.value {
                Value::Count(count) => writeln!(text, " {count}"),
                Value::Number(number) => writeln!(text, " {number}"),
            };
        }
    }
    text
}

fn write_labels(text: &mut String, names: &[&str], values: &[String]) {
    if names.is_empty() {
        return;
    }
    let pairs = names.iter().zip(values).map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true)));
    *text += &format!("{{{}}}", pairs.collect::<Vec<_>>().join(","));
}

/// Escapes a help text, or a label's value, which is in quotes.
fn escaped(text: &str, is_quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if is_quoted { text.replace('"', "\\\"") } else { text }
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Kind, Metric};
    use super::*;

    static PACKETS: Metric = Metric {
        name: "packets_total",
        kind: Kind::Counter,
        labels: &["device", "port"],
        help: "A \\ \"b\".",
    };
    static RATE: Metric = Metric { name: "rate", kind: Kind::Gauge, labels: &[], help: "Rate." };

    #[test]
    fn samples_follow_their_help_and_type() {
        let mut packets = Family::new(&PACKETS);
        packets.push(["mlx5_0", "1"], Value::Count(u64::MAX));
        packets.push(["a\"b\\c\nd", "2"], Value::Count(0));
        let mut rate = Family::new(&RATE);
        rate.push([], Value::Number(12.5e9));
        assert_eq!(
            text(&[packets, Family::new(&PACKETS), rate]),
            "# HELP packets_total A \\\\ \"b\".\n\
             # TYPE packets_total counter\n\
             packets_total{device=\"mlx5_0\",port=\"1\"} 18446744073709551615\n\
             packets_total{device=\"a\\\"b\\\\c\\nd\",port=\"2\"} 0\n\
             # HELP rate Rate.\n\
             # TYPE rate gauge\n\
             rate 12500000000\n"
        );
    }
}
