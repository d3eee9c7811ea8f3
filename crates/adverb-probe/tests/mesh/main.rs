//! Diagnoses of simulated meshes: every fault is named in time, and nothing else is.

mod simulation;

use adverb_probe::mesh::{Suspect, Verdict};
use adverb_wire::random::SplitMix64;
use simulation::{Loss, Simulation, Stops, address};

/// The time in which a fault must be named, in seconds.
const DEADLINE: u64 = 20;

/// Returns the number of runs: 3, or the value of `MESH_RUNS`.
fn runs() -> u64 {
    std::env::var("MESH_RUNS").map_or(3, |runs| runs.parse().expect("MESH_RUNS is a number"))
}

/// Runs a fault with several seeds. Each time, `expected` must be named before the deadline, and nothing else at any time.
fn assert_named(fault: impl Fn(&mut Simulation), expected: &Suspect, has_own_processes: bool) {
    let mut slowest = 0;
    for seed in 0..runs() {
        let mut simulation = Simulation::new(seed, has_own_processes);
        fault(&mut simulation);
        let mut named = None;
        simulation.run(DEADLINE + 10, |second, diagnosis| {
            for fault in &diagnosis.faults {
                assert_eq!(&fault.suspect, expected, "seed {seed}, second {second}: {diagnosis}");
                named.get_or_insert(second);
            }
        });
        let named = named.unwrap_or_else(|| panic!("seed {seed}: {expected} was not named"));
        assert!(named <= DEADLINE, "seed {seed}: {expected} was named after {named} s");
        slowest = slowest.max(named);
    }
    println!("{expected}: named after {slowest} s at the latest, in {} runs", runs());
}

#[test]
fn nic_that_drops_packets_is_named() {
    for member in [0, 5] {
        let expected = Suspect::Nic(address(member));
        assert_named(|mesh| mesh.losses.push(Loss::Nic(member, 0.1)), &expected, true);
        assert_named(|mesh| mesh.losses.push(Loss::Nic(member, 0.1)), &expected, false);
        assert_named(|mesh| mesh.losses.push(Loss::Nic(member, 0.5)), &expected, false);
    }
}

#[test]
fn nic_of_a_member_that_only_answers_is_named() {
    let fault = |mesh: &mut Simulation| {
        mesh.passive.push(7);
        mesh.losses.push(Loss::Nic(7, 0.1));
    };
    assert_named(fault, &Suspect::Nic(address(7)), true);
}

#[test]
fn dead_member_is_named() {
    let expected = Suspect::Unreachable(address(3));
    assert_named(|mesh| mesh.losses.push(Loss::Nic(3, 1.0)), &expected, true);
    assert_named(|mesh| mesh.losses.push(Loss::Nic(3, 1.0)), &expected, false);
}

#[test]
fn class_that_is_dropped_is_named() {
    for (class, probability) in [(0, 0.1), (26, 0.1), (26, 1.0)] {
        let fault = |mesh: &mut Simulation| mesh.losses.push(Loss::Class(class, probability));
        assert_named(fault, &Suspect::Class(class), true);
    }
}

#[test]
fn class_that_one_nic_drops_is_named() {
    for probability in [0.1, 1.0] {
        let fault = |mesh: &mut Simulation| mesh.losses.push(Loss::NicClass(2, 26, probability));
        assert_named(fault, &Suspect::NicClass(address(2), 26), true);
    }
}

#[test]
fn path_and_rail_that_drop_packets_are_named() {
    let path = Suspect::Path(address(1), address(6));
    assert_named(|mesh| mesh.losses.push(Loss::Path(1, 6, 0.5)), &path, true);
    assert_named(|mesh| mesh.losses.push(Loss::Rail(1, 0.1)), &Suspect::Rail("rail1".to_owned()), true);
}

#[test]
fn loss_everywhere_is_named() {
    assert_named(|mesh| mesh.losses.push(Loss::All(0.03)), &Suspect::Everywhere, true);
}

/// Pairs of milliseconds in which a process is stopped, and in which it runs: bursts of SIGSTOP, and CPU quotas.
const STARVATIONS: [(u64, u64); 6] =
    [(300, 700), (1500, 1500), (3000, 2000), (800, 1600), (90, 10), (190, 10)];

#[test]
fn starved_process_is_named_and_never_called_a_network_fault() {
    for (stopped, running) in STARVATIONS {
        for queue in [4, 10_000] {
            let fault = |mesh: &mut Simulation| {
                mesh.queue = queue;
                mesh.stops[4] = Stops::bursts(&mut mesh.random, stopped, running, 60);
            };
            assert_named(fault, &Suspect::SlowProcess(vec![address(4)]), true);
            let fault = |mesh: &mut Simulation| {
                mesh.passive.push(4);
                fault(mesh);
            };
            assert_named(fault, &Suspect::SlowProcess(vec![address(4)]), true);
        }
    }
}

#[test]
fn starved_process_of_the_whole_mesh_is_named() {
    let all = Suspect::SlowProcess((0..8).map(address).collect());
    for (stopped, running) in STARVATIONS {
        let fault = |mesh: &mut Simulation| {
            mesh.stops[0] = Stops::bursts(&mut mesh.random, stopped, running, 60);
        };
        assert_named(fault, &all, false);
    }
}

#[test]
fn faults_are_named_on_a_busy_machine() {
    let faults = [
        (Loss::Nic(3, 1.0), Suspect::Unreachable(address(3))),
        (Loss::Nic(3, 0.1), Suspect::Nic(address(3))),
        (Loss::Class(26, 0.1), Suspect::Class(26)),
        (Loss::NicClass(2, 26, 1.0), Suspect::NicClass(address(2), 26)),
    ];
    for (loss, expected) in faults {
        for has_own_processes in [true, false] {
            let fault = |mesh: &mut Simulation| {
                mesh.losses.push(loss);
                mesh.make_busy();
            };
            assert_named(fault, &expected, has_own_processes);
        }
    }
}

#[test]
fn starved_process_is_distinguished_from_the_others_of_a_busy_machine() {
    for (stopped, running) in STARVATIONS {
        let fault = |mesh: &mut Simulation| {
            mesh.stops[4] = Stops::bursts(&mut mesh.random, stopped, running, 60);
            mesh.make_busy();
        };
        assert_named(fault, &Suspect::SlowProcess(vec![address(4)]), true);
    }
}

#[test]
fn busy_machine_is_no_fault() {
    for seed in 0..runs() {
        let mut mesh = Simulation::new(seed, seed % 2 == 0);
        mesh.make_busy();
        mesh.run(120, |second, diagnosis| {
            assert_eq!(diagnosis.faults, [], "seed {seed}, second {second}");
        });
    }
}

#[test]
fn stalls_that_exclude_all_results_are_not_enough_evidence() {
    let mut mesh = Simulation::new(7, false);
    // All members are of one process. It stalls too rarely to be slow, but in each window or next to it.
    mesh.stops[0] = Stops::bursts(&mut mesh.random, 200, 2000, 60);
    let mut last = None;
    mesh.run(DEADLINE + 10, |second, diagnosis| {
        assert_eq!(diagnosis.faults, [], "second {second}");
        last = Some(diagnosis.to_string());
    });
    let last = last.unwrap();
    let members: Vec<String> = (0..8).map(|n| address(n).to_string()).collect();
    let expected = format!("nothing is known about the network of {}, because", members.join(", "));
    assert!(last.starts_with("not enough evidence: ") && last.contains(&expected), "{last}");
}

#[test]
fn single_stops_and_bursts_of_loss_are_no_fault() {
    for seed in 0..runs() {
        let mut mesh = Simulation::new(seed, seed % 2 == 0);
        mesh.queue = 4;
        // One stop of up to 4 s in half a minute.
        let milliseconds = 100 + mesh.random.below(3000);
        mesh.stops[0] = Stops::bursts(&mut mesh.random, milliseconds, 30_000, 120);
        mesh.run(120, |second, diagnosis| {
            assert_eq!(diagnosis.faults, [], "seed {seed}, second {second}");
        });
    }
}

#[test]
fn two_faults_are_both_named() {
    for seed in 0..runs() {
        let mut mesh = Simulation::new(seed, true);
        mesh.losses.extend([Loss::Nic(1, 0.1), Loss::Nic(6, 0.2)]);
        mesh.stops[3] = Stops::bursts(&mut mesh.random, 400, 600, 60);
        let expected =
            [Suspect::SlowProcess(vec![address(3)]), Suspect::Nic(address(1)), Suspect::Nic(address(6))];
        let mut found = 0;
        mesh.run(DEADLINE + 5, |second, diagnosis| {
            for fault in &diagnosis.faults {
                assert!(expected.contains(&fault.suspect), "seed {seed}, second {second}: {diagnosis}");
            }
            found = diagnosis.faults.len();
        });
        assert_eq!(found, 3, "seed {seed}");
    }
}

#[test]
fn three_members_are_too_few_witnesses() {
    for seed in 0..runs() {
        let mut mesh = Simulation::new(seed, true);
        mesh.members.truncate(3);
        mesh.losses.push(Loss::Nic(1, 0.1));
        let mut last = None;
        mesh.run(DEADLINE, |second, diagnosis| {
            assert_eq!(diagnosis.faults, [], "seed {seed}, second {second}");
            last = Some(diagnosis.clone());
        });
        let last = last.unwrap();
        assert_eq!(last.verdict(), Verdict::NotEnoughEvidence, "seed {seed}: {last}");
        assert!(last.to_string().contains("fewer than 3"), "{last}");
    }
}

#[test]
fn healthy_mesh_is_called_healthy() {
    for seed in 0..runs().div_ceil(3) {
        let mut mesh = Simulation::new(seed, seed % 2 == 0);
        // Processes of a busy machine stall now and then, for less than a second.
        let mut random = SplitMix64(seed);
        for stops in &mut mesh.stops {
            *stops = Stops::bursts(&mut random, 150, 300_000, 1800);
        }
        let mut healthy = 0;
        mesh.run(1800, |second, diagnosis| {
            assert_eq!(diagnosis.faults, [], "seed {seed}, second {second}");
            healthy += u64::from(diagnosis.verdict() == Verdict::Healthy);
        });
        assert!(healthy > 1700, "seed {seed}: healthy for {healthy} s of 1800");
    }
}
