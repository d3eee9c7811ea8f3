//! Connection managers in a fabric that fails.

use adverb_sim::{FaultCounts, run_cm};

#[test]
fn many_seeds_violate_nothing() {
    let (mut calls, mut established, mut faults) = (0, 0, FaultCounts::default());
    for seed in 0..400 {
        let outcome = run_cm(seed, false);
        assert_eq!(outcome.violation, None, "seed {seed}");
        calls += outcome.calls;
        established += outcome.established;
        faults.add(&outcome.faults);
    }
    assert!(calls >= 400 * 8, "{calls} calls");
    assert!(established * 4 >= calls, "{established} of {calls} calls made a connection");
    for count in [
        faults.lost,
        faults.duplicated,
        faults.reordered,
        faults.corrupted,
        faults.delayed,
        faults.partitioned,
    ] {
        assert!(count > 0, "{faults}");
    }
}

#[test]
fn a_seed_repeats_itself_to_the_byte() {
    for seed in 0..20 {
        let (first, second) = (run_cm(seed, true), run_cm(seed, true));
        assert_eq!((first.digest, &first.trace), (second.digest, &second.trace));
        assert_eq!(run_cm(seed, false).digest, first.digest, "watching changes nothing");
    }
}

#[cfg(feature = "mutants")]
mod mutants {
    use adverb_proto::mutation::{Mutation, select};
    use adverb_sim::run_cm;

    #[test]
    fn every_fault_planted_in_the_connection_manager_is_found() {
        for mutation in Mutation::ALL.iter().filter(|mutation| format!("{mutation:?}").starts_with("Cm")) {
            select(Some(*mutation));
            let found = (0..200).find_map(|seed| run_cm(seed, false).violation.map(|what| (seed, what)));
            select(None);
            let (seed, what) = found.unwrap_or_else(|| panic!("{mutation:?} survived"));
            println!("{mutation:?}: seed {seed}: {what}");
        }
    }
}
