//! Hostile datagrams, and the effect that each must have.

use adverb_probe::figures::ResponderStamps;
use adverb_probe::format::{Ack, AckKind, PROBE_LEN, Probe, Sequence, TagKey};
use adverb_probe::stamp::StampKind;
use adverb_probe::ud_queue::Destination;
use adverb_wire::random::SplitMix64;

/// A sequence of numbers that follows from a seed.
pub(crate) struct Random(SplitMix64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(SplitMix64(seed ^ 0x7072_6f62_6561_7474))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// The kinds of hostile datagrams to a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A probe with the tag of probers without a key.
    WithoutKey,
    /// A probe with the responder's key, as an attacker records and repeats it, from the prober's address and queue pair.
    Replayed,
    /// A recorded probe from another address and queue pair than its prober's.
    Redirected,
    WrongTag,
    /// A probe of up to 1024 bytes with random padding.
    Padded,
    Truncated,
    WrongVersion,
    UnknownMessage,
    WrongField,
    Acknowledgement,
    Random,
    /// A datagram longer than the MTU.
    OverMtu,
    WrongQkey,
    UnknownQpn,
    WrongIcrc,
    /// A probe from the responder's own address and queue pair, so that the answers are sent to the responder.
    FromItself,
}

impl Kind {
    pub(crate) const ALL: [Kind; 16] = [
        Kind::WithoutKey,
        Kind::Replayed,
        Kind::Redirected,
        Kind::WrongTag,
        Kind::Padded,
        Kind::Truncated,
        Kind::WrongVersion,
        Kind::UnknownMessage,
        Kind::WrongField,
        Kind::Acknowledgement,
        Kind::Random,
        Kind::OverMtu,
        Kind::WrongQkey,
        Kind::UnknownQpn,
        Kind::WrongIcrc,
        Kind::FromItself,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::WithoutKey => "probe without the key",
            Kind::Replayed => "replayed probe",
            Kind::Redirected => "replayed from elsewhere",
            Kind::WrongTag => "probe with a wrong tag",
            Kind::Padded => "probe with random padding",
            Kind::Truncated => "truncated probe",
            Kind::WrongVersion => "wrong version or magic",
            Kind::UnknownMessage => "unknown kind",
            Kind::WrongField => "undefined field",
            Kind::Acknowledgement => "acknowledgement",
            Kind::Random => "random bytes",
            Kind::OverMtu => "longer than the MTU",
            Kind::WrongQkey => "wrong queue key",
            Kind::UnknownQpn => "unknown queue pair",
            Kind::WrongIcrc => "wrong ICRC",
            Kind::FromItself => "from the responder itself",
        }
    }

    /// Returns the effect on a responder with or without a key.
    pub(crate) fn effect(self, has_key: bool) -> Effect {
        match self {
            Kind::Replayed => Effect::Answered,
            Kind::WithoutKey | Kind::Redirected | Kind::WrongTag | Kind::Padded | Kind::FromItself => {
                if has_key {
                    Effect::BadTag
                } else {
                    Effect::Answered
                }
            }
            Kind::Acknowledgement if has_key => Effect::BadTag,
            Kind::Truncated
            | Kind::WrongVersion
            | Kind::UnknownMessage
            | Kind::WrongField
            | Kind::Acknowledgement
            | Kind::Random => Effect::Invalid,
            Kind::OverMtu | Kind::WrongQkey | Kind::UnknownQpn | Kind::WrongIcrc => Effect::DroppedByNic,
        }
    }

    /// Returns the payload. `sender` is the source of the packet, `prober` is a prober that has the key, and `max_payload`
    /// is the MTU.
    pub(crate) fn payload(
        self,
        random: &mut Random,
        sequence: Sequence,
        [sender, prober]: [&Destination; 2],
        key: Option<&TagKey>,
        max_payload: usize,
    ) -> Vec<u8> {
        let probe = Probe { sequence, flow_label: random.next() as u32, dscp: random.next() as u8 };
        let written = |len: usize, key: Option<&TagKey>| {
            let mut bytes = vec![0; len];
            probe.write(&mut bytes, if self == Kind::Redirected { prober } else { sender }, key);
            bytes
        };
        let mut bytes = written(PROBE_LEN, None);
        match self {
            Kind::Replayed | Kind::Redirected => bytes = written(PROBE_LEN, key),
            Kind::WrongTag => {
                bytes = written(PROBE_LEN, key);
                bytes[16 + random.below(16)] ^= 1 << random.below(8);
            }
            Kind::Padded => {
                bytes = written(PROBE_LEN + random.below(1024 - PROBE_LEN), None);
                let padding = random.bytes(bytes.len() - 32);
                bytes[32..].copy_from_slice(&padding);
            }
            // The pad bytes of the packet are not part of the payload, so any length is possible.
            Kind::Truncated => bytes.truncate(random.below(PROBE_LEN)),
            Kind::WrongVersion => bytes[random.below(2)] ^= 1 + random.below(255) as u8,
            Kind::UnknownMessage => bytes[2] = 4 + random.below(252) as u8,
            Kind::WrongField => bytes[3 + random.below(2)] |= 0xc0,
            Kind::Acknowledgement => bytes = acknowledgement(random, sequence, sender),
            Kind::Random => {
                let len = random.below(512);
                bytes = random.bytes(1 + len);
                // The first byte differs from that of all messages.
                bytes[0] &= 0x7f;
            }
            Kind::OverMtu => {
                let excess = 4 * (1 + random.below(64));
                bytes = random.bytes(max_payload + excess);
            }
            Kind::WithoutKey | Kind::WrongQkey | Kind::UnknownQpn | Kind::WrongIcrc | Kind::FromItself => {}
        }
        bytes
    }
}

/// The effect of a datagram on a responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    Answered,
    Invalid,
    BadTag,
    DroppedByNic,
}

/// Returns an ACK1 or ACK2 of a probe without the key, with any stamps.
pub(crate) fn acknowledgement(random: &mut Random, sequence: Sequence, prober: &Destination) -> Vec<u8> {
    let kind = match random.below(3) {
        0 => AckKind::First,
        1 => AckKind::Second(None),
        _ => AckKind::Second(Some(ResponderStamps {
            received: random.next(),
            received_kind: StampKind::Kernel,
            acked: random.next(),
            acked_kind: StampKind::Nic,
        })),
    };
    Ack { sequence, responder_epoch: random.next() as u32, kind }.to_bytes(prober, None).to_vec()
}
