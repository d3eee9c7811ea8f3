//! Brokers of clusters on modeled queue pairs.

use adverb_sim::{Random, cluster_attack_from_bytes, run_cluster, run_cluster_scale, run_cluster_seeds};

#[test]
fn many_seeds_cause_no_violation() {
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
        totals.layers.answered_calls,
        totals.layers.failed_calls,
        totals.layers.expired_calls,
        totals.layers.cancelled_calls,
        totals.layers.lost_calls,
        totals.layers.nested_calls,
        totals.layers.pointer_transfers,
        totals.layers.refused_pointers,
        totals.layers.released_segments,
    ];
    assert!(counts.iter().all(|count| *count > 20), "{totals}");
    assert!(totals.doorbell_count < totals.request_count, "{totals}");
    assert!(totals.signaled_count < totals.request_count, "{totals}");
}

#[test]
fn a_seed_determines_the_run() {
    for seed in 0..4 {
        let (first, second) = (run_cluster(seed, true), run_cluster(seed, true));
        assert_eq!((first.digest, &first.trace), (second.digest, &second.trace));
        assert_eq!(run_cluster(seed, false).digest, first.digest, "tracing changes nothing");
    }
}

/// Returns an input of a hostile peer: messages that are nearly valid, among random bytes.
fn hostile_input(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut input = Vec::new();
    for _ in 0..random.between(20, 200) {
        let mut small = || random.below(6) as u8;
        let message = match small() {
            // A request, reply, failure or cancellation.
            0 => [&[1 + small() % 4, 0, 0, 0, 0, 0, 0, 0, small(), 0, 0, 0, small(), 0, 0, 0][..], b"data"]
                .concat(),
            // An addition, and a withdrawal or confirmation of a segment.
            1 => [&[1, 0, 0, 0, 1, 0, 0, 0, small()][..], &[0; 16], &[64, 0, 0, 0, 0, 0, 0]].concat(),
            2 => vec![2 + small() % 2, 0, 0, 0, 1, 0, 0, 0, small(), 0, 0, 0],
            _ => Vec::new(),
        };
        if message.is_empty() {
            let length = random.below(8) as usize;
            input.extend(random.bytes(1 + length));
        } else {
            let choice = random.below(6) as u8 + 16 * random.between(1, 3) as u8;
            input.extend([choice, message.len() as u8]);
            input.extend(message);
        }
    }
    input
}

#[test]
fn a_hostile_peer_violates_no_invariant() {
    for seed in 0..400 {
        let outcome = cluster_attack_from_bytes(&hostile_input(seed));
        assert_eq!(outcome, Ok(()), "seed {seed}");
    }
}

#[test]
fn a_larger_cluster_delivers_every_message() {
    let figures = run_cluster_scale(24, 8).unwrap();
    assert_eq!(figures.message_count, 24 * 23 * 8);
    assert_eq!(run_cluster_scale(24, 8).unwrap().digest, figures.digest);
    assert!(figures.state_bytes_per_member < 23 * 4096, "{figures}");
}
