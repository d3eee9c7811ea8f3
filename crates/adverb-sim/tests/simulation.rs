//! Tests of the simulator: it is reproducible, its runs are large enough, and it detects mutations.

use adverb_sim::{Scenario, run, run_congestion, run_seeds};

#[test]
fn some_seeds_cause_no_violation() {
    let totals = run_seeds(1_000_000..1_000_040, 2, 1);
    assert_eq!(totals.violations, []);
    assert_eq!(totals.seed_count, 40);
}

#[test]
fn a_seed_always_produces_the_same_bytes() {
    for seed in 0..5 {
        let (first, second) = (run(&Scenario::new(seed), true), run(&Scenario::new(seed), true));
        assert_eq!(first.digest, second.digest);
        assert_eq!(first.trace, second.trace);
        assert_eq!(run(&Scenario::new(seed), false).digest, first.digest, "tracing changes nothing");
    }
}

#[test]
fn seeds_are_large_enough_on_average() {
    let scenarios: Vec<Scenario> = (0..300).map(Scenario::new).collect();
    let requests: usize = scenarios.iter().map(Scenario::max_request_count).sum();
    assert!(requests / scenarios.len() >= 500);
    assert!(scenarios.iter().all(|scenario| scenario.connections.len() >= 2), "at least 4 queue pairs");
}

#[test]
fn every_kind_of_fault_occurs() {
    let totals = run_seeds(0..60, 2, 1);
    let faults = totals.fault_counts;
    for count in [
        faults.lost,
        faults.duplicated,
        faults.reordered,
        faults.corrupted,
        faults.delayed,
        faults.partitioned,
        faults.stalled,
        faults.marked,
    ] {
        assert!(count > 0, "{faults}");
    }
}

#[test]
fn senders_share_a_slow_link_and_recover_when_it_is_free() {
    for seed in 1000..1001 {
        let report = run_congestion(seed).unwrap();
        assert!(report.ecn_marked_count > 0, "{report}");
        assert_eq!(run_congestion(seed), Ok(report), "a seed determines the run");
    }
}

#[test]
fn messages_cover_all_transports_and_operations() {
    use adverb_proto::types::Transport;
    use adverb_sim::MessageAction as A;

    let scenarios: Vec<Scenario> = (0..20).map(Scenario::new).collect();
    let endpoints = || scenarios.iter().flat_map(|scenario| &scenario.message_run.endpoints);
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for shared in [false, true] {
            assert!(endpoints().any(|plan| plan.transport == transport && plan.has_srq == shared));
        }
    }
    for action in [
        A::Send,
        A::SendWithImm,
        A::Write,
        A::WriteWithImm,
        A::Multicast,
        A::SendWithWrongQkey,
        A::SendToUnknownQp,
        A::Bind,
        A::Invalidate,
        A::SendInvalidate,
        A::WriteThroughWindow,
        A::WriteBeyondWindow,
        A::WriteWithStaleKey,
        A::WriteThroughForeignWindow,
        A::ArmSrqLimit,
        A::Recreate,
        A::Reset,
    ] {
        assert!(endpoints().any(|plan| plan.steps.iter().any(|step| step.action == action)), "{action:?}");
    }
}

#[cfg(feature = "mutants")]
mod mutants {
    use adverb_proto::mutation::{Mutation, select};
    use adverb_sim::{Scenario, run, shrink};

    #[test]
    fn at_least_fifteen_mutations_exist() {
        assert!(Mutation::ALL.len() >= 15);
    }

    #[test]
    fn a_mutation_is_detected_and_its_scenario_is_reduced() {
        select(Some(Mutation::IgnoreFence));
        let found = (0..50).map(Scenario::new).find(|scenario| run(scenario, false).violation.is_some());
        let scenario = found.expect("one of fifty seeds detects a missing fence");
        let smaller = shrink(&scenario, 300);
        assert!(
            smaller.max_request_count() * 10 < scenario.max_request_count(),
            "{} requests",
            smaller.max_request_count()
        );
        let outcome = run(&smaller, true);
        assert!(outcome.violation.is_some());
        assert!(outcome.trace.iter().any(|line| line.contains("VIOLATION")));
        select(None);
        assert_eq!(run(&scenario, false).violation, None, "no violation without the mutation");
    }
}
