//! Runs simulations: many seeds, one seed with its trace, or each mutation of the engine; and attacks.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adverb_sim::{
    CONGESTION_SEED_INTERVAL, Scenario, Totals, explore_net_plans, run, run_attacks, run_cluster,
    run_cluster_scale, run_cluster_seeds, run_cm, run_congestion, run_net, run_net_seeds, run_seeds, shrink,
};

/// The maximum number of states per plan that `--exhaustive` visits.
const MAX_STATES: usize = 5_000_000;

/// The command-line options.
struct Args {
    first: u64,
    seeds: u64,
    seed: Option<u64>,
    mutants: bool,
    mutant: Option<String>,
    threads: usize,
    attack: bool,
    packets: Option<u64>,
    seconds: Option<u64>,
    cluster: bool,
    members: Option<u64>,
    rounds: u64,
    net: bool,
    exhaustive: bool,
}

const USAGE: &str = "\
usage: adverb-sim [--seeds N] [--first S] [--threads T]       run N seeds, starting with S
       adverb-sim --seed S [--mutant NAME]                    run one seed, and print its trace
       adverb-sim --mutants [--seeds N] [--first S]           inject each mutation of the engine in turn
       adverb-sim --attack [--packets N] [--seconds S] [--first S]
                                                              attack devices with hostile packets
       adverb-sim --cluster [--seeds N] [--seed S] [--mutants]
                                                              run the brokers of clusters
       adverb-sim --cluster --members N [--rounds R]          send R messages between each pair of N members
       adverb-sim --net [--seeds N] [--seed S] [--mutants]    run the two sides of connections
       adverb-sim --net --exhaustive                          visit all states of small connections";

fn parse() -> Result<Args, String> {
    let mut args = Args {
        first: 0,
        seeds: 2000,
        seed: None,
        mutants: false,
        mutant: None,
        threads: 2,
        attack: false,
        packets: None,
        seconds: None,
        cluster: false,
        members: None,
        rounds: 20,
        net: false,
        exhaustive: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number = |value: String| value.parse::<u64>().map_err(|_| format!("{value} is not a number"));
        match word.as_str() {
            "--seeds" => args.seeds = number(value()?)?,
            "--first" => args.first = number(value()?)?,
            "--seed" => args.seed = Some(number(value()?)?),
            "--threads" => args.threads = number(value()?)? as usize,
            "--mutant" => args.mutant = Some(value()?),
            "--mutants" => args.mutants = true,
            "--attack" => args.attack = true,
            "--packets" => args.packets = Some(number(value()?)?),
            "--cluster" => args.cluster = true,
            "--net" => args.net = true,
            "--exhaustive" => args.exhaustive = true,
            "--members" => args.members = Some(number(value()?)?),
            "--rounds" => args.rounds = number(value()?)?,
            "--seconds" => args.seconds = Some(number(value()?)?),
            _ => return Err(format!("unknown option {word}")),
        }
    }
    Ok(args)
}

fn main() -> ExitCode {
    let args = match parse() {
        Ok(args) => args,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let passed = if args.attack {
        attack(&args)
    } else if args.net {
        net(&args)
    } else if args.cluster {
        cluster(&args)
    } else if args.mutants {
        mutants(&args)
    } else if let Some(seed) = args.seed {
        replay(seed, args.mutant.as_deref())
    } else {
        run_many(&args)
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Attacks devices with malformed and hostile packets.
fn attack(args: &Args) -> bool {
    let start = Instant::now();
    let until = args.seconds.map(|seconds| start + Duration::from_secs(seconds));
    // With a time but no packet count, only the time limits the attack.
    let packets = args.packets.unwrap_or(if until.is_some() { 1 << 50 } else { 1_000_000 });
    let (report, failures) = run_attacks(args.first, packets, until, args.threads);
    println!("{report}");
    println!("{:.1} s, peak memory {}", start.elapsed().as_secs_f64(), peak_memory());
    for (seed, what) in failures.iter().take(10) {
        println!("--first {seed} --packets 1: {what}");
    }
    println!("{} violations", failures.len());
    failures.is_empty()
}

/// Runs the brokers of clusters.
fn cluster(args: &Args) -> bool {
    if let Some(members) = args.members {
        return match run_cluster_scale(members as usize, args.rounds as u32) {
            Ok(figures) => {
                println!("{figures}");
                println!("peak memory of the process: {}", peak_memory());
                true
            }
            Err(what) => {
                println!("violation: {what}");
                false
            }
        };
    }
    if args.mutants {
        return cluster_mutants(args);
    }
    if let Some(seed) = args.seed {
        return select_cluster(args.mutant.as_deref()) && replay_cluster(seed);
    }
    run_many_clusters(args)
}

/// Runs connections.
fn net(args: &Args) -> bool {
    if args.exhaustive {
        return explore(args);
    }
    if args.mutants {
        return net_mutants(args);
    }
    if let Some(seed) = args.seed {
        return select_net(args.mutant.as_deref()) && replay_net(seed);
    }
    run_many_connections(args)
}

/// Visits all states of small connections.
fn explore(args: &Args) -> bool {
    let start = Instant::now();
    let failures = AtomicU64::new(0);
    let states = AtomicU64::new(0);
    explore_net_plans(MAX_STATES, args.threads, |(plan, breaks, restarts), exploration| {
        let took = start.elapsed().as_secs_f64();
        println!("{plan:?}, breaks: {breaks}, restarts: {restarts}: {exploration}, after {took:.1} s");
        states.fetch_add(exploration.state_count, Ordering::Relaxed);
        if let Some(what) = &exploration.violation {
            println!("violation: {what}");
        }
        if exploration.violation.is_some() || !exploration.is_complete {
            failures.fetch_add(1, Ordering::Relaxed);
        }
    });
    let (states, failures) = (states.into_inner(), failures.into_inner());
    println!("connections: {states} states in {:.1} s, {failures} violations", start.elapsed().as_secs_f64());
    failures == 0
}

/// Runs the connections of many seeds.
fn run_many_connections(args: &Args) -> bool {
    let start = Instant::now();
    let totals = run_net_seeds(args.first..args.first + args.seeds, args.threads, 10);
    println!("{totals}");
    println!("{} violations in {:.1} s", totals.violations.len(), start.elapsed().as_secs_f64());
    for (seed, what) in &totals.violations {
        println!("seed {seed}: {what}");
    }
    totals.violations.is_empty()
}

/// Runs the connection of one seed, and prints its trace.
fn replay_net(seed: u64) -> bool {
    let outcome = run_net(seed, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} messages, {} received, {} unacknowledged, {} lanes, {} faults, digest {:#018x}",
        outcome.message_count,
        outcome.received_count,
        outcome.unacknowledged_count,
        outcome.lane_count,
        outcome.fault_count,
        outcome.digest
    );
    match &outcome.violation {
        Some(what) => println!("violation: {what}"),
        None => println!("no violation"),
    }
    outcome.violation.is_none()
}

/// Runs the brokers of many seeds.
fn run_many_clusters(args: &Args) -> bool {
    let start = Instant::now();
    let totals = run_cluster_seeds(args.first..args.first + args.seeds, args.threads, 10);
    println!("{totals}");
    println!("{} violations in {:.1} s", totals.violations.len(), start.elapsed().as_secs_f64());
    for (seed, what) in &totals.violations {
        println!("seed {seed}: {what}");
    }
    totals.violations.is_empty()
}

/// Runs the brokers of one seed, and prints their trace.
fn replay_cluster(seed: u64) -> bool {
    let outcome = run_cluster(seed, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} members, {} messages, {} tickets, {} faults, digest {:#018x}",
        outcome.member_count,
        outcome.message_count,
        outcome.ticket_count,
        outcome.fault_count,
        outcome.digest
    );
    match &outcome.violation {
        Some(what) => println!("violation: {what}"),
        None => println!("no violation"),
    }
    outcome.violation.is_none()
}

/// Returns the peak memory of the process, as the kernel formats it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")).map_or("unknown", str::trim).to_owned()
}

/// Runs everything of many seeds. Shrinks the first failing scenario, and prints it.
fn run_many(args: &Args) -> bool {
    let start = Instant::now();
    let totals = run_seeds(args.first..args.first + args.seeds, args.threads, 10);
    print_totals(&totals, start);
    for (seed, what) in &totals.violations {
        println!("seed {seed}: {what}");
    }
    let shrinkable = |seed: &u64| run(&Scenario::new(*seed), false).violation.is_some();
    if let Some(seed) = totals.violations.iter().map(|(seed, _)| *seed).find(shrinkable) {
        show_smallest(seed);
    } else if let Some((seed, _)) =
        totals.violations.iter().find(|(seed, _)| run_cm(*seed, false).violation.is_some())
    {
        replay_cm(*seed);
    }
    run_many_clusters(args) & run_many_connections(args) & totals.violations.is_empty()
}

fn print_totals(totals: &Totals, start: Instant) {
    let Totals {
        seed_count: seeds,
        send_request_count: operations,
        packet_count: packets,
        queue_pair_count: queue_pairs,
        failed_qp_count: failures,
        cm_request_count: calls,
        established_connection_count: established,
        fault_counts: faults,
        violations,
        congestion_run_count: congestion_runs,
        digest,
    } = totals;
    let per_seed = |number: &u64| *number as f64 / (*seeds).max(1) as f64;
    println!("{seeds} seeds in {:.1} s", start.elapsed().as_secs_f64());
    println!("{operations} operations ({:.0} per seed)", per_seed(operations));
    println!(
        "{queue_pairs} queue pairs ({:.1} per seed), of which {failures} failed because of a fault or an action",
        per_seed(queue_pairs)
    );
    println!("{calls} calls of connection managers, {established} connections established");
    println!("{packets} packets, including {congestion_runs} runs over a slow link");
    println!("{} faults: {faults}", faults.total());
    println!("digest of all packets and their times: {digest:#018x}");
    println!("{} violations", violations.len());
}

/// Runs several senders of one seed over a slow link, if the seed is a multiple of [`CONGESTION_SEED_INTERVAL`].
fn replay_congestion(seed: u64) -> bool {
    if !seed.is_multiple_of(CONGESTION_SEED_INTERVAL) {
        return true;
    }
    let outcome = run_congestion(seed);
    match &outcome {
        Ok(report) => println!("over a slow link: {report}"),
        Err(what) => println!("violation over a slow link: {what}"),
    }
    outcome.is_ok()
}

/// Runs one seed, and prints its trace.
fn replay(seed: u64, mutant: Option<&str>) -> bool {
    if !select(mutant) {
        return false;
    }
    let scenario = Scenario::new(seed);
    let outcome = run(&scenario, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} operations, {} packets, {} faults, digest {:#018x}, end at {}",
        outcome.send_request_count,
        outcome.packet_count,
        outcome.fault_counts.total(),
        outcome.digest,
        outcome.end_time
    );
    match &outcome.violation {
        Some(what) => {
            println!("violation: {what}");
            show_smallest(seed);
        }
        None => println!("no violation"),
    }
    replay_congestion(seed)
        & replay_cm(seed)
        & replay_cluster(seed)
        & replay_net(seed)
        & outcome.violation.is_none()
}

/// Runs the connection managers of one seed, and prints their trace.
fn replay_cm(seed: u64) -> bool {
    let outcome = run_cm(seed, true);
    println!("\nconnection managers");
    for line in &outcome.trace {
        println!("{line}");
    }
    println!(
        "seed {seed}: {} calls, {} connections, {} packets, {} faults, digest {:#018x}, end at {}",
        outcome.cm_request_count,
        outcome.established_connection_count,
        outcome.packet_count,
        outcome.fault_counts.total(),
        outcome.digest,
        outcome.end_time
    );
    match &outcome.violation {
        Some(what) => println!("violation: {what}"),
        None => println!("no violation"),
    }
    outcome.violation.is_none()
}

/// Shrinks the scenario of a failing seed, and prints it.
fn show_smallest(seed: u64) {
    let smallest = shrink(&Scenario::new(seed), 2000);
    let outcome = run(&smallest, true);
    println!(
        "\nseed {seed} shrunk to {} requests, faults {:?}",
        smallest.max_request_count(),
        smallest.faults
    );
    for (index, connection) in smallest.connections.iter().enumerate() {
        println!("connection {index}: {connection:?}");
    }
    let from = outcome.trace.len().saturating_sub(200);
    for line in &outcome.trace[from..] {
        println!("{line}");
    }
    if let Some(what) = &outcome.violation {
        println!("violation: {what}");
    }
}

#[cfg(feature = "mutants")]
fn select(mutant: Option<&str>) -> bool {
    use adverb_proto::mutation::{Mutation, select};
    select_by_name(mutant, Mutation::ALL, select)
}

#[cfg(feature = "mutants")]
fn select_cluster(mutant: Option<&str>) -> bool {
    use adverb_cluster_proto::mutation::{Mutation, select};
    select_by_name(mutant, Mutation::ALL, select)
}

#[cfg(feature = "mutants")]
fn select_net(mutant: Option<&str>) -> bool {
    use adverb_net_proto::mutation::{Mutation, select};
    select_by_name(mutant, Mutation::ALL, select)
}

#[cfg(not(feature = "mutants"))]
fn select_net(mutant: Option<&str>) -> bool {
    select(mutant)
}

/// Injects each mutation of the connection in turn, and prints the seed that detects it.
#[cfg(feature = "mutants")]
fn net_mutants(args: &Args) -> bool {
    use adverb_net_proto::mutation::{Mutation, select};
    inject_each(args, Mutation::ALL, select, |seed| run_net(seed, false).violation)
}

#[cfg(not(feature = "mutants"))]
fn net_mutants(args: &Args) -> bool {
    mutants(args)
}

/// Selects the mutation with this name, if there is a name.
#[cfg(feature = "mutants")]
fn select_by_name<M: Copy + std::fmt::Debug>(name: Option<&str>, all: &[M], select: fn(Option<M>)) -> bool {
    let Some(name) = name else { return true };
    let found = all.iter().find(|mutation| format!("{mutation:?}") == name);
    select(found.copied());
    if found.is_none() {
        eprintln!("unknown mutant {name}");
    }
    found.is_some()
}

#[cfg(not(feature = "mutants"))]
fn select_cluster(mutant: Option<&str>) -> bool {
    select(mutant)
}

#[cfg(not(feature = "mutants"))]
fn select(mutant: Option<&str>) -> bool {
    if mutant.is_some() {
        eprintln!("built without the feature `mutants`: add `--features mutants`");
    }
    mutant.is_none()
}

#[cfg(feature = "mutants")]
fn violation(seed: u64) -> Option<String> {
    let slow_link =
        || seed.is_multiple_of(CONGESTION_SEED_INTERVAL).then(|| run_congestion(seed).err()).flatten();
    // The connection managers run first, because they take less time.
    let engine = || run(&Scenario::new(seed), false).violation;
    run_cm(seed, false).violation.or_else(engine).or_else(slow_link)
}

/// Injects each mutation of the engine, the broker and the connection in turn, and prints the seed that detects it.
#[cfg(feature = "mutants")]
fn mutants(args: &Args) -> bool {
    use adverb_proto::mutation::{Mutation, select};
    inject_each(args, Mutation::ALL, select, violation) & cluster_mutants(args) & net_mutants(args)
}

/// Injects each mutation of the broker in turn, and prints the seed that detects it.
#[cfg(feature = "mutants")]
fn cluster_mutants(args: &Args) -> bool {
    use adverb_cluster_proto::mutation::{Mutation, select};
    inject_each(args, Mutation::ALL, select, |seed| run_cluster(seed, false).violation)
}

/// Injects each mutation in turn, and prints the seed that detects it.
#[cfg(feature = "mutants")]
fn inject_each<M: Copy + std::fmt::Debug + Sync>(
    args: &Args,
    all: &[M],
    select: fn(Option<M>),
    violation: fn(u64) -> Option<String>,
) -> bool {
    use std::sync::Mutex;

    let start = Instant::now();
    let queue = Mutex::new(all.iter());
    let survivors = Mutex::new(0);
    let work = || {
        loop {
            let next = queue.lock().map(|mut queue| queue.next().copied()).ok().flatten();
            let Some(mutation) = next else { break };
            select(Some(mutation));
            // A mutation may also cause a panic, which counts as detected.
            let detected = (args.first..args.first + args.seeds).find_map(|seed| {
                let outcome = std::panic::catch_unwind(|| violation(seed));
                match outcome {
                    Ok(violation) => violation.map(|what| (seed, what)),
                    Err(_) => Some((seed, "panic".to_owned())),
                }
            });
            select(None);
            match detected {
                Some((seed, what)) => println!("{:<30} seed {seed}: {what}", format!("{mutation:?}")),
                None => {
                    println!("{:<30} SURVIVED {} seeds", format!("{mutation:?}"), args.seeds);
                    if let Ok(mut survivors) = survivors.lock() {
                        *survivors += 1;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(work);
        }
    });
    let survivors = survivors.into_inner().unwrap_or(1);
    let total = all.len();
    println!("{} of {total} mutants detected in {:.1} s", total - survivors, start.elapsed().as_secs_f64());
    survivors == 0
}

#[cfg(not(feature = "mutants"))]
fn mutants(_: &Args) -> bool {
    eprintln!("built without the feature `mutants`: add `--features mutants`");
    false
}

#[cfg(not(feature = "mutants"))]
fn cluster_mutants(args: &Args) -> bool {
    mutants(args)
}
