//! Attacks on complete NICs over real sockets. `cargo xtask attack --nic` runs more of them.

#![cfg(target_os = "linux")]

#[path = "../examples/attack/round/mod.rs"]
mod round;

use adverb_sim::{DecisionSource, Random};
use round::{Kind, Report, attack};

#[test]
fn attacked_nics_keep_working_and_serve_their_peers() {
    let mut report = Report::default();
    for seed in 1_000_000..1_000_002 {
        let result = attack(DecisionSource::Random(Random::new(seed)), 3000, &mut report);
        assert_eq!(result, Ok(()), "seed {seed}: {report}");
    }
    println!("{report}");
    assert!(report.packets() >= 6000 && report.operations > 50 && report.connections > 0, "{report}");
    // Each kind of packet was sent, and the listener received connection requests of attackers.
    let kinds = [
        Kind::KnownQueuePair,
        Kind::Group,
        Kind::Message,
        Kind::GroupMessage,
        Kind::WrongAddress,
        Kind::Spoofed,
        Kind::Reflected,
    ];
    assert!(kinds.iter().all(|kind| report.sent[*kind as usize] > 0), "{report}");
    assert!(report.batches > 0 && report.requests > 0, "{report}");
}

#[test]
fn an_attack_driven_by_bytes_ends_when_they_are_used_up() {
    let bytes: Vec<u8> = (0..2000u32).map(|n| ((n * n) >> 3) as u8).collect();
    let mut report = Report::default();
    assert_eq!(attack(DecisionSource::Bytes(&bytes), u64::MAX, &mut report), Ok(()), "{report}");
    assert!(report.packets() > 10, "{report}");
}
