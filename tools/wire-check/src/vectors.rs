//! Test vectors written by hand, for bytes that tshark doesn't dissect: see `vectors.txt`.

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
    /// The name in the file.
    pub(super) name: &'static str,
    /// The headers that the bytes encode.
    pub(super) header: Header,
    /// The payload that the bytes encode.
    pub(super) payload: Vec<u8>,
    /// The bytes.
    pub(super) bytes: Vec<u8>,
}

/// A message of the connection manager.
pub(super) struct MessageVector {
    /// The name in the file.
    pub(super) name: &'static str,
    /// The message that the bytes encode.
    pub(super) mad: Mad,
    /// The IP information, if it is a message of rdma_cm's.
    pub(super) ip: Option<IpInside>,
    /// The bytes.
    pub(super) bytes: Vec<u8>,
}

impl Vectors {
    /// Loads the vectors of the file, each with its values.
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
        ensure!(file.is_empty(), "vectors.txt has vectors without values in samples.rs: {:?}", file.keys());
        Ok(Vectors { packets, messages })
    }

    /// Returns the packets.
    pub(super) fn packets(&self) -> impl Iterator<Item = &PacketVector> {
        self.packets.iter()
    }

    /// Returns the messages.
    pub(super) fn messages(&self) -> impl Iterator<Item = &MessageVector> {
        self.messages.iter()
    }

    /// Returns whether a vector of this name exists.
    #[cfg(test)]
    pub(super) fn has(&self, name: &str) -> bool {
        self.packets.iter().any(|vector| vector.name == name)
            || self.messages.iter().any(|vector| vector.name == name)
    }

    /// Returns the number of vectors, and of their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        let packets = self.packets.iter().map(|vector| &vector.bytes);
        let all: Vec<_> = packets.chain(self.messages.iter().map(|vector| &vector.bytes)).collect();
        (all.len(), all.iter().map(|bytes| bytes.len()).sum())
    }

    /// Compares the vectors with the bytes that adverb-wire emits, and their values with the result that it parses.
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

/// Compares the parsed values of a vector.
fn compare<T: PartialEq + Debug>(name: &str, expected: &T, parsed: &T) -> Option<Mismatch> {
    (expected != parsed).then(|| Mismatch {
        field: format!("vector {name}, as adverb-wire parses it"),
        expected: format!("{expected:?}"),
        found: format!("{parsed:?}"),
    })
}

/// Compares the emitted bytes of a vector. Returns only the first difference.
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

/// Parses the file: the bytes under each `[name]`.
fn parse(file: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut vectors = BTreeMap::new();
    let mut current: Option<&mut Vec<u8>> = None;
    for (line, number) in file.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            ensure!(!vectors.contains_key(name), "line {number}: [{name}] is defined twice");
            current = Some(vectors.entry(name.to_owned()).or_insert_with(Vec::new));
        } else if !line.is_empty() {
            let more = bytes(line).with_context(|| format!("line {number}"))?;
            current
                .as_mut()
                .with_context(|| format!("line {number}: bytes before the first name"))?
                .extend(more);
        }
    }
    Ok(vectors)
}

/// Parses bytes in the file's notation.
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
        // Rust's parser would also accept a single digit, or a sign.
        Ok(byte) if digits.len() == 2 && digits.starts_with(|c: char| c.is_ascii_hexdigit()) => Ok(byte),
        _ => bail!("{digits:?} is not a byte"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_parsed() {
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
    fn adverb_wire_emits_and_parses_the_vectors() {
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
