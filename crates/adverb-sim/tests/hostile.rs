//! Attacks: that the engine stands them, and that they'd notice if it didn't.

use adverb_sim::{ATTACK_PACKETS, attack, attack_from_bytes, run_attacks};

#[test]
fn some_attacks_do_no_harm() {
    let (report, failures) = run_attacks(1_000_000, 20 * ATTACK_PACKETS, None, 2);
    assert_eq!(failures, []);
    assert_eq!(report.packets, 20 * ATTACK_PACKETS);
    // They came far enough to matter.
    assert!(report.accepted * 4 > report.packets && report.memory_accesses * 40 > report.packets, "{report}");
    assert!(report.naks > 0 && report.sent > 2 * report.naks && report.completions > 0, "{report}");
}

#[test]
fn every_state_is_attacked() {
    let (report, _) = run_attacks(0, 10 * ATTACK_PACKETS, None, 2);
    assert!(report.states.iter().all(|count| *count > 100), "{report}");
}

#[test]
fn attack_repeats_itself() {
    assert_eq!(attack(3, 5000), attack(3, 5000));
}

#[test]
fn attack_by_bytes_ends_with_them() {
    let bytes: Vec<u8> = (0..4000u32).map(|n| ((n * n) >> 3) as u8).collect();
    let report = attack_from_bytes(&bytes).unwrap();
    assert!(report.packets > 10 && report.packets < 4000, "{report}");
    attack_from_bytes(&[]).unwrap();
}

#[cfg(feature = "mutants")]
#[test]
fn attacks_notice_what_guards_memory() {
    use adverb_proto::mutation::{Mutation, select};

    for mutation in [
        Mutation::BoundsOffByOne,
        Mutation::SkipDomainCheck,
        Mutation::SkipRightsCheck,
        Mutation::NoAccessRecheck,
        Mutation::InvalidateNothing,
        Mutation::DoubleCompletion,
        Mutation::DestroyLeaks,
    ] {
        select(Some(mutation));
        let found = (0..200).find_map(|seed| attack(seed, ATTACK_PACKETS).err().map(|what| (seed, what)));
        select(None);
        println!("{mutation:?}: {found:?}");
        assert!(found.is_some(), "{mutation:?}");
    }
}
