//! Brokers of clusters on modeled queue pairs.

use adverb_sim::{run_cluster, run_cluster_scale, run_cluster_seeds};

#[test]
fn many_seeds_violate_nothing() {
    let totals = run_cluster_seeds(0..60, 1, 1);
    assert_eq!(totals.violations, []);
    // Each kind of event occurs.
    let counts = [
        totals.message_count,
        totals.ticket_count,
        totals.failed_ticket_count,
        totals.control_request_count,
        totals.fault_count,
        totals.restart_count,
        totals.stale_epoch_count,
    ];
    assert!(counts.iter().all(|count| *count > 20), "{totals}");
    assert!(totals.doorbell_count < totals.request_count, "{totals}");
    assert!(totals.signaled_count < totals.request_count, "{totals}");
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..4 {
        let (first, second) = (run_cluster(seed, true), run_cluster(seed, true));
        assert_eq!((first.digest, &first.trace), (second.digest, &second.trace));
        assert_eq!(run_cluster(seed, false).digest, first.digest, "the trace changes nothing");
    }
}

#[test]
fn a_larger_cluster_delivers_every_message() {
    let figures = run_cluster_scale(24, 8).unwrap();
    assert_eq!(figures.message_count, 24 * 23 * 8);
    assert_eq!(run_cluster_scale(24, 8).unwrap().digest, figures.digest);
    assert!(figures.state_bytes_per_member < 23 * 4096, "{figures}");
}
