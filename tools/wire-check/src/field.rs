//! The fields that tshark should show for a packet, and their comparison with its dissection.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use super::coverage::Coverage;
use super::pdml::{Dissection, Shown};

/// The fields that tshark should show for a packet, each with its original value. Fields of the same name are in packet
/// order.
#[derive(Debug, Default)]
pub(super) struct Expected(Vec<Field>);

/// An expected field.
#[derive(Debug)]
struct Field {
    name: &'static str,
    value: Value,
    /// Whether the field covers its bits. False for fields that tshark shows as raw bytes, or wrongly.
    dissects: bool,
}

/// The original value of a field.
#[derive(Debug)]
enum Value {
    Number(u64),
    /// A number, and tshark's text for it.
    Named(u64, String),
    Bytes(Vec<u8>),
    Address(IpAddr),
}

impl Expected {
    /// Adds a number or a flag.
    pub(super) fn number(&mut self, name: &'static str, number: impl Into<u64>) {
        self.push(name, Value::Number(number.into()), true);
    }

    /// Adds a number and tshark's text for it.
    pub(super) fn named(&mut self, name: &'static str, number: impl Into<u64>, meaning: impl Into<String>) {
        self.push(name, Value::Named(number.into(), meaning.into()), true);
    }

    /// Adds bytes.
    pub(super) fn bytes(&mut self, name: &'static str, bytes: impl Into<Vec<u8>>) {
        self.push(name, Value::Bytes(bytes.into()), true);
    }

    /// Adds an address.
    pub(super) fn address(&mut self, name: &'static str, address: impl Into<IpAddr>) {
        self.push(name, Value::Address(address.into()), true);
    }

    /// Adds bytes of a vector that tshark doesn't dissect.
    pub(super) fn undissected(&mut self, name: &'static str, bytes: impl Into<Vec<u8>>) {
        self.push(name, Value::Bytes(bytes.into()), false);
    }

    /// Adds tshark's value of a field that it dissects wrongly: see [`notes::MISREAD`](super::notes::MISREAD).
    pub(super) fn misread(&mut self, name: &'static str, number: impl Into<u64>) {
        self.push(name, Value::Number(number.into()), false);
    }

    /// Appends the fields of `other`.
    pub(super) fn append(&mut self, mut other: Expected) {
        self.0.append(&mut other.0);
    }

    fn push(&mut self, name: &'static str, value: Value, dissects: bool) {
        self.0.push(Field { name, value, dissects });
    }

    /// Compares the fields with tshark's dissection of a frame of `frame_len` bytes.
    pub(super) fn compare(&self, dissection: &Dissection, frame_len: usize) -> Comparison {
        let mut comparison =
            Comparison { compared: 0, mismatches: Vec::new(), coverage: Coverage::of_frame(frame_len) };
        let mut awaited: HashMap<&str, VecDeque<&Field>> = HashMap::new();
        for field in &self.0 {
            awaited.entry(field.name).or_default().push_back(field);
        }
        for protocol in &dissection.protocols {
            if !PROTOCOLS.contains(&protocol.as_str()) {
                comparison.mismatch(protocol, "no such protocol", "a protocol");
            }
        }
        for shown in &dissection.fields {
            if shown.hidden || shown.name.is_empty() || UNRELATED.contains(&shown.protocol.as_str()) {
                continue;
            }
            match awaited.get_mut(shown.name.as_str()).and_then(VecDeque::pop_front) {
                Some(field) => {
                    comparison.compared += 1;
                    if !field.value.is(shown) {
                        comparison.mismatch(field.name, &field.value, &shown.label);
                    } else if field.dissects {
                        comparison.coverage.add(shown);
                    }
                }
                None if REPEATED.contains(&shown.name.as_str()) => {}
                None => comparison.mismatch(&shown.name, "no such field", &shown.label),
            }
        }
        for field in awaited.into_values().flatten() {
            comparison.mismatch(field.name, &field.value, "nothing");
        }
        comparison
    }
}

/// The result of a comparison.
pub(super) struct Comparison {
    /// The number of fields that were compared.
    pub(super) compared: usize,
    /// The differences.
    pub(super) mismatches: Vec<Mismatch>,
    /// The bits of the frame that correct fields cover.
    pub(super) coverage: Coverage,
}

impl Comparison {
    fn mismatch(&mut self, field: &str, expected: impl fmt::Display, found: impl fmt::Display) {
        self.mismatches.push(Mismatch {
            field: field.to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }
}

/// A difference from an expected value.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// A field of tshark's, or a check of this program.
    pub(super) field: String,
    /// The expected value.
    pub(super) expected: String,
    /// The value that was found.
    pub(super) found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

impl Value {
    fn is(&self, shown: &Shown) -> bool {
        match self {
            Value::Number(expected) => number(&shown.show) == Some(*expected),
            Value::Named(expected, meaning) => {
                number(&shown.show) == Some(*expected)
                    && shown.label.ends_with(&format!(": {meaning} ({expected})"))
            }
            Value::Bytes(expected) => bytes(&shown.show).as_ref() == Some(expected),
            Value::Address(expected) => shown.show.parse() == Ok(*expected),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number} ({number:#x})"),
            Value::Named(number, meaning) => write!(f, "{meaning} ({number})"),
            Value::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Value::Address(address) => address.fmt(f),
        }
    }
}

/// Parses a number, which tshark prints in decimal or in hexadecimal.
fn number(show: &str) -> Option<u64> {
    match show.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => show.parse().ok(),
    }
}

/// Parses bytes in the form `0a:1b:2c`.
fn bytes(show: &str) -> Option<Vec<u8>> {
    show.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect()
}

/// The protocols of a RoCEv2 packet. Any other means that tshark dissected the packet as another protocol, or as
/// malformed. PDML puts the wrapper around a payload without a protocol.
const PROTOCOLS: &[&str] =
    &["geninfo", "frame", "raw", "ip", "ipv6", "udp", "infiniband", "fake-field-wrapper"];

/// Pseudo-protocols of tshark that describe the capture file, not the packet.
const UNRELATED: &[&str] = &["geninfo", "frame"];

/// Fields that repeat the bytes of their children, and counters that tshark keeps across packets.
const REPEATED: &[&str] = &[
    "data",
    "infiniband.aeth",
    "infiniband.atomicacketh",
    "infiniband.atomiceth",
    "infiniband.bth",
    "infiniband.cm.req.ip_cm",
    "infiniband.deth",
    "infiniband.mad",
    "infiniband.mad.data",
    "infiniband.reth",
    "infiniband.smplid.smpdata",
    "udp.payload",
    "udp.stream",
    "udp.time_delta",
    "udp.time_relative",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(name: &str, show: &str, label: &str) -> Shown {
        Shown {
            name: name.to_owned(),
            show: show.to_owned(),
            label: label.to_owned(),
            len: 1,
            ..Shown::default()
        }
    }

    fn compare(expected: &Expected, fields: Vec<Shown>) -> (usize, Vec<String>) {
        let comparison = expected.compare(&Dissection { protocols: Vec::new(), fields }, 1);
        (comparison.compared, comparison.mismatches.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn values_are_compared_in_every_notation() {
        let mut expected = Expected::default();
        expected.number("a", 31u8);
        expected.number("a", 31u8);
        expected.named("b", 2u8, "Two");
        expected.bytes("c", [0xab, 1]);
        expected.address("d", [10, 0, 0, 1]);
        let fields = || {
            vec![
                shown("a", "31", "A: 31"),
                shown("a", "0x0000001f", "A: 31"),
                shown("b", "2", "..1. .... = B: Two (2)"),
                shown("c", "ab:01", "C: ab01"),
                shown("d", "10.0.0.1", "D: 10.0.0.1"),
            ]
        };
        assert_eq!(compare(&expected, fields()), (5, vec![]));
        for at in 0..5 {
            let mut wrong = fields();
            wrong[at].show = "9".to_owned();
            assert_eq!(compare(&expected, wrong).1.len(), 1);
        }
        let mut wrong = fields();
        wrong[2].label = "..1. .... = B: Three (2)".to_owned();
        assert_eq!(compare(&expected, wrong).1, ["b: expected Two (2), found ..1. .... = B: Three (2)"]);
    }

    #[test]
    fn a_field_too_many_or_too_few_is_a_mismatch() {
        let mut expected = Expected::default();
        expected.number("a", 1u8);
        let (compared, mismatches) = compare(&expected, vec![shown("b", "1", "B: 1")]);
        assert_eq!(compared, 0);
        assert_eq!(
            mismatches,
            ["b: expected no such field, found B: 1", "a: expected 1 (0x1), found nothing"]
        );
    }

    #[test]
    fn an_unexpected_protocol_is_a_mismatch() {
        let dissection = Dissection { protocols: vec!["_ws.malformed".to_owned()], fields: Vec::new() };
        assert_eq!(Expected::default().compare(&dissection, 0).mismatches.len(), 1);
    }
}
