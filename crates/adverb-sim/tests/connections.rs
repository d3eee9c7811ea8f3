//! Connection managers over a fabric with faults.

use adverb_sim::{FaultCounts, attack_cm, attack_cm_from_bytes, run_cm};

#[test]
fn many_seeds_cause_no_violation() {
    let (mut requests, mut established, mut faults) = (0, 0, FaultCounts::default());
    for seed in 0..400 {
        let outcome = run_cm(seed, false);
        assert_eq!(outcome.violation, None, "seed {seed}");
        requests += outcome.cm_request_count;
        established += outcome.established_connection_count;
        faults.add(&outcome.fault_counts);
    }
    assert!(requests >= 400 * 8, "{requests} requests");
    assert!(established * 4 >= requests, "{established} connections for {requests} requests");
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
fn a_seed_always_produces_the_same_bytes() {
    for seed in 0..20 {
        let (first, second) = (run_cm(seed, true), run_cm(seed, true));
        assert_eq!((first.digest, &first.trace), (second.digest, &second.trace));
        assert_eq!(run_cm(seed, false).digest, first.digest, "tracing changes nothing");
    }
}

#[test]
fn attacks_cause_no_violation_and_establish_connections() {
    let (mut sent, mut established) = (0, 0);
    for seed in 0..30 {
        let report = attack_cm(seed, 2000).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        sent += report.manager_message_count;
        established += report.established_connection_count;
    }
    assert!(sent > 30 * 500 && established > 30 * 5, "{sent} sent, {established} established");
}

#[test]
fn an_attack_from_bytes_ends_with_its_input() {
    let bytes: Vec<u8> = (0..4000u32).map(|n| ((n * n) >> 3) as u8).collect();
    let report = attack_cm_from_bytes(&bytes).unwrap();
    assert!(report.attacker_message_count > 10, "{report:?}");
    assert_eq!(attack_cm_from_bytes(&bytes), Ok(report));
    attack_cm_from_bytes(&[]).unwrap();
}

#[cfg(feature = "mutants")]
mod mutants {
    use adverb_proto::mutation::{Mutation, select};
    use adverb_sim::{attack_cm, run_cm};

    #[test]
    fn every_mutation_of_the_connection_manager_is_detected() {
        for mutation in Mutation::ALL.iter().filter(|mutation| format!("{mutation:?}").starts_with("Cm")) {
            select(Some(*mutation));
            let found = (0..200).find_map(|seed| run_cm(seed, false).violation.map(|what| (seed, what)));
            select(None);
            let (seed, what) = found.unwrap_or_else(|| panic!("{mutation:?} survived"));
            println!("{mutation:?}: seed {seed}: {what}");
        }
    }

    #[test]
    fn attacks_detect_mutations_of_the_connection_manager() {
        for mutation in
            [Mutation::CmEstablishedTwice, Mutation::CmRejAnsweredByRej, Mutation::CmRemoteIdLeaks]
        {
            select(Some(mutation));
            let found = (0..50).find_map(|seed| attack_cm(seed, 2000).err().map(|what| (seed, what)));
            select(None);
            let (seed, what) = found.unwrap_or_else(|| panic!("{mutation:?} survived"));
            println!("{mutation:?}: seed {seed}: {what}");
        }
    }
}
