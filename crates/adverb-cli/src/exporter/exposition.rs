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
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Value {
    Count(u64),
    Number(f64),
    Histogram {
        /// The upper bound of each bucket, and the number of values up to the bound.
        buckets: Vec<(f64, u64)>,
        sum: f64,
        count: u64,
    },
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
            write_sample(&mut text, metric, sample);
        }
    }
    text
}

fn write_sample(text: &mut String, metric: &Metric, sample: &Sample) {
    let name = metric.name;
    let labels = labels(metric.labels, &sample.labels, None);
    // Writing to a string can't fail.
    let _ = match &sample.value {
        Value::Count(count) => writeln!(text, "{name}{labels} {count}"),
        Value::Number(number) => writeln!(text, "{name}{labels} {number}"),
        Value::Histogram { buckets, sum, count } => {
            let bounds = buckets.iter().map(|(bound, count)| (bound.to_string(), count));
            for (bound, count) in bounds.chain([("+Inf".to_owned(), count)]) {
                let labels = self::labels(metric.labels, &sample.labels, Some(&bound));
                let _ = writeln!(text, "{name}_bucket{labels} {count}");
            }
            writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}")
        }
    };
}

/// Returns the labels in braces, with the upper bound of a bucket; nothing if there are none.
fn labels(names: &[&str], values: &[String], bound: Option<&str>) -> String {
    let values = values.iter().map(String::as_str).chain(bound);
    let names = names.iter().copied().chain(["le"]);
    let pairs: Vec<String> =
        names.zip(values).map(|(name, value)| format!("{name}=\"{}\"", escaped(value, true))).collect();
    if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
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
    fn a_histogram_has_buckets_a_sum_and_a_count() {
        static DELAY: Metric =
            Metric { name: "delay_seconds", kind: Kind::Histogram, labels: &["device"], help: "Delay." };
        let mut delay = Family::new(&DELAY);
        delay.push(["a"], Value::Histogram { buckets: vec![(1e-6, 1), (0.5, 3)], sum: 2.5, count: 4 });
        assert_eq!(
            text(&[delay]),
            "# HELP delay_seconds Delay.\n\
             # TYPE delay_seconds histogram\n\
             delay_seconds_bucket{device=\"a\",le=\"0.000001\"} 1\n\
             delay_seconds_bucket{device=\"a\",le=\"0.5\"} 3\n\
             delay_seconds_bucket{device=\"a\",le=\"+Inf\"} 4\n\
             delay_seconds_sum{device=\"a\"} 2.5\n\
             delay_seconds_count{device=\"a\"} 4\n"
        );
    }

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
