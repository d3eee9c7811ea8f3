//! Bytes that were written down by hand, for what tshark doesn't dissect: see `vectors.txt`.

use std::collections::BTreeMap;
use std::fmt::Debug;

use adverb_wire::cm::Mad;
use adverb_wire::{Header, MAX_HEADER_LEN, Packet};
use anyhow::{Context, Result, bail, ensure};

use super::cm_fields::IpInside;
use super::field::Mismatch;
use super::samples;

/// All vectors.
pub(super) struct Vectors {
    packets: Vec<PacketVector>,
    messages: Vec<MessageVector>,
}

/// A packet up to its ICRC.
pub(super) struct PacketVector {
    /// What it is called in the file.
    pub(super) name: &'static str,
    /// The headers that it was written down for.
    pub(super) header: Header,
    /// The payload that it was written down for.
    pub(super) payload: Vec<u8>,
    /// The bytes.
    pub(super) bytes: Vec<u8>,
}

/// A message of the connection manager.
pub(super) struct MessageVector {
    /// What it is called in the file.
    pub(super) name: &'static str,
    /// The message that it was written down for.
    pub(super) mad: Mad,
    /// What makes it one of rdma_cm's.
    pub(super) ip: Option<IpInside>,
    /// The bytes.
    pub(super) bytes: Vec<u8>,
}

impl Vectors {
    /// The vectors of the file, each with its sample.
    pub(super) fn load() -> Result<Vectors> {
        let mut file = parse(include_str!("vectors.txt"))?;
        let mut take = |name: &str| file.remove(name).with_context(|| format!("vectors.txt has no [{name}]"));
        let packets = samples::packets().into_iter().map(|(name, header, payload)| {
            take(name).map(|bytes| PacketVector { name, header, payload, bytes })
        });
        let packets = packets.collect::<Result<_>>()?;
        let messages = samples::messages()?.into_iter();
        let messages =
            messages.map(|(name, mad, ip)| take(name).map(|bytes| MessageVector { name, mad, ip, bytes }));
        let messages = messages.collect::<Result<_>>()?;
        ensure!(file.is_empty(), "vectors.txt has vectors without a sample: {:?}", file.keys());
        Ok(Vectors { packets, messages })
    }

    /// The packets.
    pub(super) fn packets(&self) -> impl Iterator<Item = &PacketVector> {
        self.packets.iter()
    }

    /// The messages.
    pub(super) fn messages(&self) -> impl Iterator<Item = &MessageVector> {
        self.messages.iter()
    }

    /// Whether there is one of this name.
    #[cfg(test)]
    pub(super) fn has(&self, name: &str) -> bool {
        self.packets.iter().any(|vector| vector.name == name)
            || self.messages.iter().any(|vector| vector.name == name)
    }

    /// How many there are, and how many bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let packets = self.packets.iter().map(|vector| &vector.bytes);
        let all: Vec<_> = packets.chain(self.messages.iter().map(|vector| &vector.bytes)).collect();
        (all.len(), all.iter().map(|bytes| bytes.len()).sum())
    }

    /// Whether adverb-wire emits these bytes, and reads from them what they were written down for.
    pub(super) fn check(&self) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        for PacketVector { name, header, payload, bytes } in &self.packets {
            let mut head = [0; MAX_HEADER_LEN];
            let len = header.emit(payload.len(), &mut head);
            mismatches.extend(compare_bytes(name, bytes, &[&head[..len], payload].concat()));
            let with_icrc = [bytes, &[0; 4][..]].concat();
            let parsed =
                Packet::parse(&with_icrc).map(|packet| (*packet.header(), packet.payload().to_vec()));
            mismatches.extend(compare(name, &Ok((*header, payload.clone())), &parsed));
        }
        for MessageVector { name, mad, bytes, .. } in &self.messages {
            mismatches.extend(compare_bytes(name, bytes, &mad.emit()));
            mismatches.extend(compare(name, &Ok(*mad), &Mad::parse(bytes)));
        }
        mismatches
    }
}

/// What is read from a vector.
fn compare<T: PartialEq + Debug>(name: &str, expected: &T, parsed: &T) -> Option<Mismatch> {
    (expected != parsed).then(|| Mismatch {
        field: format!("vector {name}, as adverb-wire reads it"),
        expected: format!("{expected:?}"),
        found: format!("{parsed:?}"),
    })
}

/// What is emitted: the first byte that differs, because there may be hundreds that don't.
fn compare_bytes(name: &str, expected: &[u8], emitted: &[u8]) -> Option<Mismatch> {
    let len = expected.len().max(emitted.len());
    let at = (0..len).find(|at| expected.get(*at) != emitted.get(*at))?;
    let show = |byte: Option<&u8>| byte.map_or("none".to_owned(), |byte| format!("{byte:02x}"));
    Some(Mismatch {
        field: format!("vector {name}, byte {at}, as adverb-wire emits it"),
        expected: show(expected.get(at)),
        found: show(emitted.get(at)),
    })
}

/// The bytes under each `[name]`.
fn parse(file: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut vectors = BTreeMap::new();
    let mut current: Option<&mut Vec<u8>> = None;
    for (line, number) in file.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            ensure!(!vectors.contains_key(name), "line {number}: a second [{name}]");
            current = Some(vectors.entry(name.to_owned()).or_insert_with(Vec::new));
        } else if !line.is_empty() {
            let more = bytes(line).with_context(|| format!("line {number}"))?;
            current.as_mut().with_context(|| format!("line {number}: bytes before any name"))?.extend(more);
        }
    }
    Ok(vectors)
}

/// Bytes in the file's notation.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for word in text.split_whitespace() {
        if let Some((byte, count)) = word.split_once('*') {
            bytes.extend(vec![single(byte)?; count.parse::<usize>().with_context(|| word.to_owned())?]);
        } else if let Some((first, last)) = word.split_once("..") {
            bytes.extend(single(first)?..=single(last)?);
        } else {
            ensure!(word.len().is_multiple_of(2), "{word}: an odd number of digits");
            for at in (0..word.len()).step_by(2) {
                bytes.push(single(word.get(at..at + 2).unwrap_or_default())?);
            }
        }
    }
    Ok(bytes)
}

fn single(digits: &str) -> Result<u8> {
    match u8::from_str_radix(digits, 16) {
        // Rust takes a single digit, and a sign before it, too.
        Ok(byte) if digits.len() == 2 && digits.starts_with(|c: char| c.is_ascii_hexdigit()) => Ok(byte),
        _ => bail!("{digits:?} is no byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation_of_vectors() {
        assert_eq!(bytes("0102 ff").unwrap(), [1, 2, 0xff]);
        assert_eq!(bytes("ab*3 fe..ff").unwrap(), [0xab, 0xab, 0xab, 0xfe, 0xff]);
        for wrong in ["1", "xy", "00*", "*3", "+1", "00..", "é"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert!(parse("00").is_err());
        assert!(parse("[a]\n[a]").is_err());
        assert_eq!(parse("[a] # b\n00 # 11\n\n22").unwrap()["a"], [0, 0x22]);
    }

    #[test]
    fn vectors_are_what_adverb_wire_emits_and_reads() {
        let mismatches = Vectors::load().unwrap().check();
        assert!(mismatches.is_empty(), "{mismatches:#?}");
    }

    #[test]
    fn the_first_difference_is_reported() {
        assert!(compare_bytes("a", &[1, 2], &[1, 2]).is_none());
        let shown = |emitted: &[u8]| compare_bytes("a", &[1, 2], emitted).unwrap().to_string();
        assert_eq!(shown(&[1, 3]), "vector a, byte 1, as adverb-wire emits it: expected 02, found 03");
        assert_eq!(shown(&[1]), "vector a, byte 1, as adverb-wire emits it: expected 02, found none");
        assert_eq!(shown(&[1, 2, 3]), "vector a, byte 2, as adverb-wire emits it: expected none, found 03");
    }
}
