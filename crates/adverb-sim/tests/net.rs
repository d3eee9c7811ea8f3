//! Connections on modeled queue pairs and on devices.

use adverb_sim::{NetPlan, Random, explore_net, net_attack_from_bytes, run_net, run_net_seeds};

#[test]
fn connections_keep_their_invariants() {
    let totals = run_net_seeds(0..600, 2, 1);
    assert_eq!(totals.violations, []);
    assert_eq!(totals.seed_count, 600);
    // The seeds cover faults, messages that were reported as unacknowledged, and graceful ends.
    assert!(totals.fault_count > 400);
    assert!(totals.unacknowledged_count > 50);
    assert!(totals.graceful_count > 200);
    // One seed in 20 runs on devices.
    assert!(totals.packet_count > 500);
}

#[test]
fn a_seed_determines_the_run() {
    let [first, second] = [false, true].map(|trace| run_net(31, trace));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.violation, None);
    assert!(first.trace.is_empty() && !second.trace.is_empty());
}

#[test]
fn all_states_of_small_connections_lead_to_their_end() {
    for plan in &[NetPlan::ListenerCloses, NetPlan::ShutdownAndClose] {
        let exploration = explore_net(*plan, 0, 0, 100_000);
        assert_eq!(exploration.violation, None, "{plan:?}");
        assert!(exploration.is_complete && exploration.final_count > 0, "{plan:?}: {exploration}");
    }
    let exploration = explore_net(NetPlan::ConnectorCloses, 0, 1, 100_000);
    assert_eq!(exploration.violation, None);
    assert!(exploration.is_complete && exploration.final_count > 100, "{exploration}");
    // A search that stops early reports that it is incomplete.
    assert!(!explore_net(NetPlan::BothClose, 1, 1, 100).is_complete);
}

#[test]
fn a_hostile_peer_violates_no_invariant() {
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let length = random.between(20, 400) as usize;
        assert_eq!(net_attack_from_bytes(&random.bytes(length)), Ok(()), "seed {seed}");
    }
}
