//! Connections on modeled queue pairs.

use adverb_sim::{run_net, run_net_seeds};

#[test]
fn connections_keep_their_rules() {
    let totals = run_net_seeds(0..1500, 2, 1);
    assert_eq!(totals.violations, []);
    assert_eq!(totals.seed_count, 1500);
    // The seeds cover sessions that resumed, messages that were reported, and graceful ends.
    assert!(totals.fault_count > 1000);
    assert!(totals.unacknowledged_count > 100);
    assert!(totals.graceful_count > 500);
}

#[test]
fn a_seed_determines_the_run() {
    let [first, second] = [false, true].map(|trace| run_net(31, trace));
    assert_eq!(first.digest, second.digest);
    assert_eq!(first.violation, None);
    assert!(first.trace.is_empty() && !second.trace.is_empty());
}
