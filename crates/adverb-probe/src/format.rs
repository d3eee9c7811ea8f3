//! The format of probes and acknowledgements, version 2.
//!
//! All numbers are big-endian. The first bytes are common to all messages:
//!
//! | bytes | contents |
//! |---|---|
//! | 0 | the constant 0xAD |
//! | 1 | the version, 2 |
//! | 2 | the kind: 1 probe, 2 ACK1, 3 ACK2 |
//!
//! A probe has 96 bytes, or more if the prober asks for longer ones:
//!
//! | bytes | contents |
//! |---|---|
//! | 3 | the DSCP of the probe, which its acknowledgements also use |
//! | 4 to 7 | the flow label of the probe (20 bits), from which the flow label of its acknowledgements follows |
//! | 8 to 15 | the sequence: the prober's epoch and a number, 32 bits each |
//! | 16 to 31 | the tag |
//! | 32 to 95 | padding, which the tag covers |
//!
//! An acknowledgement has 48 bytes, so that both of them together are not longer than the probe:
//!
//! | bytes | contents |
//! |---|---|
//! | 3 | the kinds of the stamps T3 (lower four bits) and T4 (upper four bits): 0 none, 1 process, 2 kernel, 3 NIC |
//! | 4 to 7 | the responder's epoch |
//! | 8 to 15 | the sequence of the probe |
//! | 16 to 31 | the tag |
//! | 32 to 39 | T3 in nanoseconds of a clock of the responder |
//! | 40 to 47 | T4 by the same clock; 0 in ACK1 |
//!
//! The tag is the first 16 bytes of the keyed BLAKE3 hash of the prober's GID (16 bytes), its queue pair number (4 bytes)
//! and all other bytes of the message. A recorded probe from another address or queue pair has an invalid tag, so its
//! answers can't be directed at a third host. An epoch is chosen at random when a prober or responder starts, so an
//! acknowledgement of an earlier run is never taken for one of the current run.

use std::fmt;

use subtle::ConstantTimeEq;

use crate::figures::ResponderStamps;
use crate::key::TAG_LEN;
pub use crate::key::TagKey;
use crate::stamp::StampKind;
use crate::ud_queue::Destination;

/// Length of the shortest probe in bytes.
pub const PROBE_LEN: usize = 96;
/// Length of an acknowledgement in bytes.
pub const ACK_LEN: usize = 48;
/// Length of the longest probe in bytes.
pub const MAX_PROBE_LEN: usize = 4096;

const MAGIC: u8 = 0xad;
const VERSION: u8 = 2;
const TAG: std::ops::Range<usize> = 16..16 + TAG_LEN;
const _: () = assert!(2 * ACK_LEN <= PROBE_LEN && TAG.end <= ACK_LEN);

/// The sequence of a probe: the prober's epoch and a number that counts from 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sequence {
    /// A number that the prober chose at random when the epoch began.
    pub epoch: u32,
    /// The number of the probe in the epoch.
    pub number: u32,
}

/// A probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The sequence.
    pub sequence: Sequence,
    /// The flow label, of 20 bits; 0 if the prober chose none.
    pub flow_label: u32,
    /// The differentiated services code point, of six bits.
    pub dscp: u8,
}

/// An acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ack {
    /// The sequence of the acknowledged probe.
    pub sequence: Sequence,
    /// A number that the responder chose at random when it started.
    pub responder_epoch: u32,
    /// Whether it is ACK1 or ACK2.
    pub kind: AckKind,
}

/// The two acknowledgements of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AckKind {
    /// ACK1: the probe was received.
    First,
    /// ACK2: ACK1 was sent. It carries T3 and T4, or `None` if the responder could not measure their difference.
    Second(Option<ResponderStamps>),
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A probe.
    Probe(Probe),
    /// An acknowledgement.
    Ack(Ack),
}

/// The reason why a received datagram is neither a probe nor an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseError {
    /// The datagram has a length that its kind can't have.
    Length,
    /// The first byte differs from the constant.
    Magic,
    /// The version isn't supported.
    Version {
        /// The version.
        version: u8,
    },
    /// The kind is unknown.
    Kind {
        /// The code of the kind.
        kind: u8,
    },
    /// A field has a value that isn't defined.
    Field,
    /// The tag doesn't belong to the message: the sender has a different key, or none.
    Tag,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Length => f.write_str("the datagram has the wrong length"),
            ParseError::Magic => f.write_str("the datagram is no probe message"),
            ParseError::Version { version } => write!(f, "version {version} of the format is not supported"),
            ParseError::Kind { kind } => write!(f, "the message kind {kind} is unknown"),
            ParseError::Field => f.write_str("a field has an undefined value"),
            ParseError::Tag => f.write_str("the tag is invalid: the sender has a different key"),
        }
    }
}

impl std::error::Error for ParseError {}

impl Probe {
    /// Writes the probe of the prober at `prober` into `bytes`, all of which it uses.
    ///
    /// # Panics
    ///
    /// Panics if `bytes` is shorter than [`PROBE_LEN`] or longer than [`MAX_PROBE_LEN`].
    pub fn write(&self, bytes: &mut [u8], prober: &Destination, key: Option<&TagKey>) {
        assert!((PROBE_LEN..=MAX_PROBE_LEN).contains(&bytes.len()), "a probe of {} bytes", bytes.len());
        bytes[TAG.end..].fill(0);
        bytes[..4].copy_from_slice(&[MAGIC, VERSION, 1, self.dscp & 0x3f]);
        bytes[4..8].copy_from_slice(&(self.flow_label & 0xf_ffff).to_be_bytes());
        self.sequence.write(bytes);
        write_tag(bytes, prober, key);
    }
}

impl Ack {
    /// Returns the bytes of the acknowledgement to the prober at `prober`.
    pub fn to_bytes(&self, prober: &Destination, key: Option<&TagKey>) -> [u8; ACK_LEN] {
        let mut bytes = [0; ACK_LEN];
        let (kind, stamps) = match self.kind {
            AckKind::First => (2, None),
            AckKind::Second(stamps) => (3, stamps),
        };
        bytes[..3].copy_from_slice(&[MAGIC, VERSION, kind]);
        if let Some(stamps) = stamps {
            bytes[3] = code(stamps.received_kind) | code(stamps.acked_kind) << 4;
            bytes[32..40].copy_from_slice(&stamps.received.to_be_bytes());
            bytes[40..48].copy_from_slice(&stamps.acked.to_be_bytes());
        }
        bytes[4..8].copy_from_slice(&self.responder_epoch.to_be_bytes());
        self.sequence.write(&mut bytes);
        write_tag(&mut bytes, prober, key);
        bytes
    }
}

impl Message {
    /// Parses a datagram, and checks its tag with `key`. `prober` is the sender of a probe, and the receiver of an
    /// acknowledgement. Without a key, the tag of an acknowledgement must be the one that a responder without a key
    /// writes, and the tag of a probe isn't checked.
    ///
    /// # Errors
    ///
    /// Returns the reason if the datagram is no valid message.
    ///
    /// ```
    /// use adverb::probe::format::{Message, PROBE_LEN, ParseError, Probe, Sequence};
    /// use adverb::probe::ud_queue::Destination;
    /// use adverb::verbs::{Gid, Qpn};
    ///
    /// let gid = Gid::from(std::net::IpAddr::from([192, 0, 2, 1]));
    /// let prober = Destination { gid, qpn: Qpn::truncate(17), qkey: 0 };
    /// let probe = Probe { sequence: Sequence { epoch: 7, number: 1 }, flow_label: 0x123, dscp: 26 };
    /// let mut bytes = [0; PROBE_LEN];
    /// probe.write(&mut bytes, &prober, None);
    /// assert_eq!(Message::parse(&bytes, &prober, None), Ok(Message::Probe(probe)));
    /// assert_eq!(Message::parse(&bytes[..95], &prober, None), Err(ParseError::Length));
    /// ```
    pub fn parse(bytes: &[u8], prober: &Destination, key: Option<&TagKey>) -> Result<Message, ParseError> {
        let Some(&[magic, version, kind, detail]) = bytes.first_chunk() else {
            return Err(ParseError::Length);
        };
        if magic != MAGIC {
            return Err(ParseError::Magic);
        }
        if version != VERSION {
            return Err(ParseError::Version { version });
        }
        let has_length = match kind {
            1 => (PROBE_LEN..=MAX_PROBE_LEN).contains(&bytes.len()),
            2 | 3 => bytes.len() == ACK_LEN,
            kind => return Err(ParseError::Kind { kind }),
        };
        if !has_length {
            return Err(ParseError::Length);
        }
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let sequence = Sequence { epoch: word(8), number: word(12) };
        let message = if kind == 1 {
            let flow_label = word(4);
            if flow_label > 0xf_ffff || detail > 0x3f {
                return Err(ParseError::Field);
            }
            Message::Probe(Probe { sequence, flow_label, dscp: detail })
        } else {
            let nanos = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
            let stamps = match (kind_of(detail & 0xf)?, kind_of(detail >> 4)?) {
                (Some(received_kind), Some(acked_kind)) if kind == 3 => {
                    Some(ResponderStamps { received: nanos(32), received_kind, acked: nanos(40), acked_kind })
                }
                (None, None) if nanos(32) == 0 && nanos(40) == 0 => None,
                _ => return Err(ParseError::Field),
            };
            let kind = match kind {
                2 => AckKind::First,
                _ => AckKind::Second(stamps),
            };
            Message::Ack(Ack { sequence, responder_epoch: word(4), kind })
        };
        // The tag is checked last, because this costs the most.
        if (key.is_some() || kind != 1) && !bool::from(tag_of(bytes, prober, key).ct_eq(&bytes[TAG])) {
            return Err(ParseError::Tag);
        }
        Ok(message)
    }
}

impl Sequence {
    fn write(self, bytes: &mut [u8]) {
        bytes[8..12].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_be_bytes());
    }
}

fn write_tag(bytes: &mut [u8], prober: &Destination, key: Option<&TagKey>) {
    let tag = tag_of(bytes, prober, key);
    bytes[TAG].copy_from_slice(&tag);
}

/// Returns the tag of a message between a responder and the prober at `prober`.
fn tag_of(bytes: &[u8], prober: &Destination, key: Option<&TagKey>) -> [u8; TAG_LEN] {
    let (gid, qpn) = (prober.gid.bytes(), prober.qpn.get().to_be_bytes());
    key.unwrap_or(TagKey::public()).tag([&gid, &qpn, &bytes[..TAG.start], &bytes[TAG.end..]])
}

fn code(kind: StampKind) -> u8 {
    match kind {
        StampKind::Process => 1,
        StampKind::Kernel => 2,
        StampKind::Nic => 3,
    }
}

fn kind_of(code: u8) -> Result<Option<StampKind>, ParseError> {
    match code {
        0 => Ok(None),
        1 => Ok(Some(StampKind::Process)),
        2 => Ok(Some(StampKind::Kernel)),
        3 => Ok(Some(StampKind::Nic)),
        _ => Err(ParseError::Field),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use adverb_verbs::{Gid, Key, Qpn};
    use proptest::prelude::*;

    use super::*;

    fn stamp_kinds() -> impl Strategy<Value = StampKind> {
        prop::sample::select(vec![StampKind::Process, StampKind::Kernel, StampKind::Nic])
    }

    fn sequences() -> impl Strategy<Value = Sequence> {
        any::<(u32, u32)>().prop_map(|(epoch, number)| Sequence { epoch, number })
    }

    fn prober() -> Destination {
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        Destination { gid, qpn: Qpn::truncate(0x12_3456), qkey: 0 }
    }

    fn probes() -> impl Strategy<Value = Probe> {
        (sequences(), 0_u32..1 << 20, 0_u8..64).prop_map(|(sequence, flow_label, dscp)| Probe {
            sequence,
            flow_label,
            dscp,
        })
    }

    fn acks() -> impl Strategy<Value = Ack> {
        let stamps = (any::<(u64, u64)>(), stamp_kinds(), stamp_kinds()).prop_map(
            |((received, acked), received_kind, acked_kind)| ResponderStamps {
                received,
                received_kind,
                acked,
                acked_kind,
            },
        );
        let kinds = prop_oneof![Just(AckKind::First), prop::option::of(stamps).prop_map(AckKind::Second)];
        (sequences(), any::<u32>(), kinds).prop_map(|(sequence, responder_epoch, kind)| Ack {
            sequence,
            responder_epoch,
            kind,
        })
    }

    fn keys() -> impl Strategy<Value = Option<TagKey>> {
        prop::option::of(any::<[u8; 32]>().prop_map(|secret| TagKey::new(&Key::new(secret).expect("a key"))))
    }

    proptest! {
        #[test]
        fn probes_are_parsed_as_written(probe in probes(), key in keys(), len in PROBE_LEN..2048) {
            let mut bytes = vec![0xff; len];
            probe.write(&mut bytes, &prober(), key.as_ref());
            prop_assert_eq!(Message::parse(&bytes, &prober(), key.as_ref()), Ok(Message::Probe(probe)));
        }

        #[test]
        fn acks_are_parsed_as_written(ack in acks(), key in keys()) {
            let bytes = ack.to_bytes(&prober(), key.as_ref());
            prop_assert_eq!(Message::parse(&bytes, &prober(), key.as_ref()), Ok(Message::Ack(ack)));
        }

        /// With a key, no bit can change.
        #[test]
        fn a_changed_message_is_refused(probe in probes(), ack in acks(), at in 0..ACK_LEN * 8) {
            let key = TagKey::new(&Key::new([7; 32]).expect("a key"));
            let mut bytes = [0; PROBE_LEN];
            probe.write(&mut bytes, &prober(), Some(&key));
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(Message::parse(&bytes, &prober(), Some(&key)).is_err());
            let mut bytes = ack.to_bytes(&prober(), Some(&key));
            bytes[at / 8] ^= 1 << (at % 8);
            prop_assert!(Message::parse(&bytes, &prober(), Some(&key)).is_err());
        }

        /// Writing an accepted message results in the same bytes.
        #[test]
        fn arbitrary_bytes_are_refused_or_canonical(
            mut bytes in prop::collection::vec(any::<u8>(), 0..130),
            kind in 0_u8..5,
            len in prop::sample::select(vec![0_usize, 3, ACK_LEN, PROBE_LEN]),
            detail in any::<u8>(),
        ) {
            if len > 0 {
                bytes.resize(len, 0);
                for (byte, value) in bytes.iter_mut().zip([MAGIC, VERSION, kind, detail]) {
                    *byte = value;
                }
            }
            if bytes.len() >= ACK_LEN {
                write_tag(&mut bytes, &prober(), None);
            }
            match Message::parse(&bytes, &prober(), None) {
                Ok(Message::Probe(probe)) => {
                    prop_assert!(probe.dscp < 64 && probe.flow_label < 1 << 20);
                }
                Ok(Message::Ack(ack)) => prop_assert_eq!(ack.to_bytes(&prober(), None).to_vec(), bytes),
                Err(_) => {}
            }
        }
    }

    #[test]
    fn the_layout_is_as_documented() {
        let sequence = Sequence { epoch: 0x0102_0304, number: 0x0506_0708 };
        let mut probe = [0; PROBE_LEN];
        Probe { sequence, flow_label: 0xa_bcde, dscp: 46 }.write(&mut probe, &prober(), None);
        assert_eq!(probe[..16], [0xad, 2, 1, 46, 0, 0x0a, 0xbc, 0xde, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(probe[32..], [0; 64]);
        let stamps = ResponderStamps {
            received: 0x1122,
            received_kind: StampKind::Nic,
            acked: 0x3344,
            acked_kind: StampKind::Kernel,
        };
        let ack = Ack { sequence, responder_epoch: 9, kind: AckKind::Second(Some(stamps)) };
        let bytes = ack.to_bytes(&prober(), None);
        assert_eq!(bytes[..16], [0xad, 2, 3, 0x23, 0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[32..], [0, 0, 0, 0, 0, 0, 0x11, 0x22, 0, 0, 0, 0, 0, 0, 0x33, 0x44]);
    }

    #[test]
    fn keys_must_agree() {
        let [one, other] = [1, 2].map(|byte| TagKey::new(&Key::new([byte; 16]).expect("a key")));
        let sequence = Sequence { epoch: 1, number: 2 };
        let ack = Ack { sequence, responder_epoch: 3, kind: AckKind::First };
        let with_key = ack.to_bytes(&prober(), Some(&one));
        assert_eq!(Message::parse(&with_key, &prober(), Some(&other)), Err(ParseError::Tag));
        assert_eq!(Message::parse(&with_key, &prober(), None), Err(ParseError::Tag));
        assert_eq!(
            Message::parse(&ack.to_bytes(&prober(), None), &prober(), Some(&one)),
            Err(ParseError::Tag)
        );
        let mut probe = [0; PROBE_LEN];
        Probe { sequence, flow_label: 0, dscp: 0 }.write(&mut probe, &prober(), Some(&one));
        assert_eq!(Message::parse(&probe, &prober(), Some(&other)), Err(ParseError::Tag));
        // A responder without a key answers every prober.
        assert!(Message::parse(&probe, &prober(), None).is_ok());
    }

    /// A tag is valid for one prober only: a recorded probe can't be sent from another address or queue pair.
    #[test]
    fn a_tag_belongs_to_the_address_and_queue_pair_of_the_prober() {
        let key = TagKey::new(&Key::new([7; 32]).expect("a key"));
        let sequence = Sequence { epoch: 1, number: 2 };
        let mut probe = [0; PROBE_LEN];
        Probe { sequence, flow_label: 3, dscp: 4 }.write(&mut probe, &prober(), Some(&key));
        let ack = Ack { sequence, responder_epoch: 3, kind: AckKind::First }.to_bytes(&prober(), Some(&key));
        let other_gid = Gid::from(IpAddr::from([10, 0, 0, 2]));
        for other in [
            Destination { gid: other_gid, ..prober() },
            Destination { qpn: Qpn::truncate(0x12_3457), ..prober() },
        ] {
            for message in [&probe[..], &ack] {
                assert!(Message::parse(message, &prober(), Some(&key)).is_ok());
                assert_eq!(Message::parse(message, &other, Some(&key)), Err(ParseError::Tag));
            }
        }
    }
}
