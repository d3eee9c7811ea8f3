//! Attacks: the engine tolerates them, and they detect mutations of the engine.

use adverb_sim::{PACKETS_PER_ATTACK, attack, attack_from_bytes, run_attacks};

#[test]
fn attacks_cause_no_violation() {
    let (report, failures) = run_attacks(1_000_000, 20 * PACKETS_PER_ATTACK, None, 2);
    assert_eq!(failures, []);
    assert_eq!(report.attacker_packet_count, 20 * PACKETS_PER_ATTACK);
    // The attacks reach memory and cause NAKs and completions.
    assert!(
        report.delivered_count * 4 > report.attacker_packet_count
            && report.memory_access_count * 40 > report.attacker_packet_count,
        "{report}"
    );
    assert!(
        report.nak_count > 0
            && report.device_packet_count > 2 * report.nak_count
            && report.completion_count > 0,
        "{report}"
    );
}

#[test]
fn every_state_is_attacked() {
    let (report, _) = run_attacks(0, 10 * PACKETS_PER_ATTACK, None, 2);
    assert!(report.packets_per_state.iter().all(|count| *count > 100), "{report}");
}

#[test]
fn an_attack_is_reproducible() {
    assert_eq!(attack(3, 5000), attack(3, 5000));
}

#[test]
fn an_attack_from_bytes_ends_with_its_input() {
    let bytes: Vec<u8> = (0..4000u32).map(|n| ((n * n) >> 3) as u8).collect();
    let report = attack_from_bytes(&bytes).unwrap();
    assert!(report.attacker_packet_count > 10 && report.attacker_packet_count < 4000, "{report}");
    attack_from_bytes(&[]).unwrap();
}

#[cfg(feature = "mutants")]
#[test]
fn attacks_detect_mutations_of_memory_protection() {
    use adverb_proto::mutation::{Mutation, select};

    for mutation in [
        Mutation::BoundsOffByOne,
        Mutation::SkipDomainCheck,
        Mutation::SkipRightsCheck,
        Mutation::NoAccessRecheck,
        Mutation::SkipInvalidate,
        Mutation::DoubleCompletion,
        Mutation::DestroyLeaksQpn,
    ] {
        select(Some(mutation));
        let found = (0..200).find_map(|seed| attack(seed, PACKETS_PER_ATTACK).err().map(|what| (seed, what)));
        select(None);
        println!("{mutation:?}: {found:?}");
        assert!(found.is_some(), "{mutation:?}");
    }
}
