use std::net::Ipv6Addr;

use adverb_verbs::{Key, Qpn};
use proptest::prelude::*;

use super::*;
use crate::format::{PROBE_LEN, Sequence};
use crate::stamp::StampKind;

/// The epoch is that of the expected acknowledgements.
const NUMBERS: RandomNumbers = RandomNumbers { epoch: 5, seed: 1 };

fn prober(number: u32) -> Destination {
    let gid = Gid::from(std::net::IpAddr::from(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(number))));
    Destination { gid, qpn: Qpn::truncate(17), qkey: 0 }
}

fn probe(number: u32, key: Option<&TagKey>) -> [u8; PROBE_LEN] {
    let mut bytes = [0; PROBE_LEN];
    let sequence = Sequence { epoch: 77, number };
    Probe { sequence, flow_label: 0x2_4680, dscp: 26 }.write(&mut bytes, &prober(1), key);
    bytes
}

fn ack_of(answer: &Answer, key: Option<&TagKey>) -> Ack {
    match Message::parse(&answer.bytes, &answer.destination, key) {
        Ok(Message::Ack(ack)) => ack,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_probe_is_answered_by_ack1_and_ack2_with_the_stamps() {
    let mut state = AnswerState::new(AnswerConfig::default(), NUMBERS);
    let first =
        state.handle_datagram(&probe(3, None), prober(1), Stamp::kernel(100), 200).expect("an answer");
    let sequence = Sequence { epoch: 77, number: 3 };
    assert_eq!(ack_of(&first, None), Ack { sequence, responder_epoch: 5, kind: AckKind::First });
    assert_eq!((first.dscp, first.flow_label), (26, ack_flow_label(0x2_4680)));
    let second = state.handle_ack1_sent(first.id, Some(Stamp::kernel(350))).expect("ACK2");
    let stamps = ResponderStamps {
        received: 100,
        received_kind: StampKind::Kernel,
        acked: 350,
        acked_kind: StampKind::Kernel,
    };
    assert_eq!(ack_of(&second, None).kind, AckKind::Second(Some(stamps)));
    assert_eq!((second.dscp, second.flow_label), (26, ack_flow_label(0x2_4680)));
    // A send completion is handled once.
    assert_eq!(state.handle_ack1_sent(first.id, Some(Stamp::kernel(400))), None);
    assert_eq!((state.counts().answered, state.counts().completed), (1, 1));
}

#[test]
fn stamps_of_two_clocks_are_not_reported() {
    let mut state = AnswerState::new(AnswerConfig::default(), NUMBERS);
    let first = state.handle_datagram(&probe(3, None), prober(1), Stamp::nic(100), 200).expect("an answer");
    let second = state.handle_ack1_sent(first.id, Some(Stamp::process(350))).expect("ACK2");
    assert_eq!(ack_of(&second, None).kind, AckKind::Second(None));
}

#[test]
fn an_ack1_that_was_not_sent_has_no_ack2() {
    let mut state = AnswerState::new(AnswerConfig::default(), NUMBERS);
    let first =
        state.handle_datagram(&probe(3, None), prober(1), Stamp::kernel(100), 200).expect("an answer");
    assert_eq!(state.handle_ack1_sent(first.id, None), None);
    assert_eq!((state.counts().completed, state.counts().not_sent), (0, 1));
}

#[test]
fn only_probes_with_a_valid_tag_are_answered_if_there_is_a_key() {
    let [key, other] = [1, 2].map(|byte| TagKey::new(&Key::new([byte; 32]).expect("a key")));
    let config = AnswerConfig { key: Some(key.clone()), ..AnswerConfig::default() };
    let mut state = AnswerState::new(config, NUMBERS);
    let mut handle = |bytes: &[u8]| state.handle_datagram(bytes, prober(1), Stamp::kernel(1), 1);
    assert_eq!(handle(&probe(1, None)), Err(Refusal::Invalid(ParseError::Tag)));
    assert_eq!(handle(&probe(1, Some(&other))), Err(Refusal::Invalid(ParseError::Tag)));
    let answer = handle(&probe(1, Some(&key))).expect("an answer");
    assert_eq!(handle(&answer.bytes), Err(Refusal::NotAProbe));
    assert_eq!(ack_of(&answer, Some(&key)).kind, AckKind::First);
    assert_eq!((state.counts().bad_tags, state.counts().invalid), (2, 1));
}

/// A recorded probe with the source address or the queue pair of a third host would make the responder a reflector.
#[test]
fn a_recorded_probe_from_another_source_is_not_answered_if_there_is_a_key() {
    let key = TagKey::new(&Key::new([1; 32]).expect("a key"));
    let mut state =
        AnswerState::new(AnswerConfig { key: Some(key.clone()), ..AnswerConfig::default() }, NUMBERS);
    let recorded = probe(1, Some(&key));
    let mut handle = |source| state.handle_datagram(&recorded, source, Stamp::kernel(1), 1);
    let bad_tag = Err(Refusal::Invalid(ParseError::Tag));
    assert_eq!(handle(prober(2)), bad_tag);
    assert_eq!(handle(Destination { qpn: Qpn::truncate(18), ..prober(1) }), bad_tag);
    assert_eq!(handle(prober(1)).map(|answer| answer.destination), Ok(prober(1)));
    assert_eq!((state.counts().bad_tags, state.counts().answered), (2, 1));
}

#[test]
fn a_source_over_its_rate_does_not_affect_others() {
    let config = AnswerConfig { source_rate: Rate { per_second: 10, burst: 3 }, ..AnswerConfig::default() };
    let mut state = AnswerState::new(config, NUMBERS);
    let mut answered = |source, now| {
        let answer = state.handle_datagram(&probe(1, None), prober(source), Stamp::kernel(1), now);
        if let Ok(answer) = answer {
            state.handle_ack1_sent(answer.id, Some(Stamp::kernel(2)));
        }
        answer.is_ok()
    };
    assert_eq!((0..100).filter(|_| answered(1, 0)).count(), 3);
    assert_eq!((0..100).filter(|_| answered(2, 0)).count(), 3);
    // 100 ms are one probe.
    assert!(!answered(1, 99_999_999));
    assert!(answered(1, 100_000_000));
    assert!(!answered(1, 100_000_000));
    // A pause fills the bucket up to the burst only.
    assert_eq!((0..100).filter(|_| answered(1, 100_000_000_000)).count(), 3);
}

#[test]
fn the_state_is_bounded_against_many_sources() {
    let config = AnswerConfig {
        source_rate: Rate { per_second: 1, burst: 2 },
        total_rate: Rate { per_second: 1_000_000, burst: 1_000_000 },
        ..AnswerConfig::default()
    };
    let mut state = AnswerState::new(config, NUMBERS);
    let places = SOURCE_SETS * SOURCE_WAYS;
    let mut count = 0;
    for source in 0..100_000 {
        if let Ok(answer) = state.handle_datagram(&probe(1, None), prober(source), Stamp::kernel(1), 0) {
            state.handle_ack1_sent(answer.id, Some(Stamp::kernel(2)));
            count += 1;
        }
    }
    assert!(count <= places && count > places * 9 / 10, "{count}");
    assert_eq!(state.sources.buckets.len(), places);
    // After the burst has recovered, the places are free again.
    let late = state.handle_datagram(&probe(1, None), prober(200_000), Stamp::kernel(1), 2_000_000_000);
    assert!(late.is_ok());
}

#[test]
fn the_total_rate_bounds_all_sources_together() {
    let total_rate = Rate { per_second: 10, burst: 5 };
    let mut state = AnswerState::new(AnswerConfig { total_rate, ..AnswerConfig::default() }, NUMBERS);
    let answered = (0..100).filter(|&source| {
        state.handle_datagram(&probe(1, None), prober(source), Stamp::kernel(1), 0).is_ok()
    });
    assert_eq!(answered.count(), 5);
}

#[test]
fn outstanding_answers_are_bounded_and_dropped_with_the_device() {
    let mut state = AnswerState::new(AnswerConfig { max_outstanding: 2, ..AnswerConfig::default() }, NUMBERS);
    let handle = |state: &mut AnswerState| {
        state.handle_datagram(&probe(1, None), prober(1), Stamp::kernel(1), 0).map(|answer| answer.id)
    };
    let first = handle(&mut state).expect("a place");
    let second = handle(&mut state).expect("a place");
    assert_ne!(first, second);
    assert_eq!(handle(&mut state), Err(Refusal::Busy));
    state.reset_outstanding();
    assert_eq!((state.counts().not_sent, state.counts().busy), (2, 1));
    assert!(handle(&mut state).is_ok());
}

proptest! {
    /// Hostile datagrams change nothing but counts, and the answers are never longer than the datagram.
    #[test]
    fn answers_are_never_longer_than_the_probe(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..50),
        is_probe in any::<u64>(),
    ) {
        let mut state = AnswerState::new(AnswerConfig::default(), NUMBERS);
        for (number, mut bytes) in datagrams.into_iter().enumerate() {
            if is_probe >> (number % 64) & 1 == 1 && bytes.len() >= 3 {
                bytes[..3].copy_from_slice(&[0xad, 2, 1]);
            }
            let mut sent = 0;
            if let Ok(answer) = state.handle_datagram(&bytes, prober(1), Stamp::kernel(1), 0) {
                sent += answer.bytes.len();
                sent += state.handle_ack1_sent(answer.id, Some(Stamp::kernel(2))).map_or(0, |ack| ack.bytes.len());
            }
            prop_assert!(sent <= bytes.len());
        }
        prop_assert_eq!(state.free.len(), state.outstanding.len());
    }
}
