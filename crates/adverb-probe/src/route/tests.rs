//! Traces of modeled networks, in virtual time.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use super::paths::ports_needed;
use super::*;

/// A router, or the destination.
#[derive(Clone)]
struct Node {
    address: IpAddr,
    answer: RouterAnswer,
    /// The maximum number of answers in reserve and the time in which the node gains one, as in Linux.
    limit: Option<(f64, Duration)>,
    tokens: f64,
    refilled_at: Instant,
    /// The percentage of answers that are lost.
    loss: u64,
    /// Whether answers have too few bytes of the packet to identify the probe.
    is_bare: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum RouterAnswer {
    Icmp(IcmpMessage),
    Ack,
    Never,
}

struct Network {
    nodes: Vec<Node>,
    /// The nodes that the packets of a source port pass. The last one keeps the packet.
    path: Box<dyn Fn(u16) -> Vec<usize>>,
    seed: u64,
    /// Source ports that other programs have.
    taken: BTreeSet<u16>,
    /// For each source port and hop limit, the number of probes.
    probes: std::collections::BTreeMap<(u16, u8), usize>,
    start: Instant,
    now: Instant,
}

/// Linux's default: six answers at once, then one per second.
const LINUX: Option<(f64, Duration)> = Some((6.0, Duration::from_secs(1)));

const ONE_WAY: Duration = Duration::from_micros(20);

fn address(node: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, node as u8).into()
}

/// Returns a hash like those of switches: the same for each packet of a port, and spread over all values.
fn hash(port: u16) -> usize {
    (u64::from(port).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize
}

impl Network {
    fn new(node_count: usize, path: impl Fn(u16) -> Vec<usize> + 'static) -> Network {
        let start = Instant::now();
        let node = |index| Node {
            address: address(index),
            answer: RouterAnswer::Icmp(IcmpMessage::TimeExceeded),
            limit: None,
            tokens: 6.0,
            refilled_at: start,
            loss: 0,
            is_bare: false,
        };
        Network {
            nodes: (0..node_count).map(node).collect(),
            path: Box::new(path),
            seed: 1,
            taken: BTreeSet::new(),
            probes: Default::default(),
            start,
            now: start,
        }
    }

    /// Returns a leaf (node 0), `spines` spines (from node 2 on), the other leaf (node 1) and the destination, the last node.
    fn leaf_spine(spines: usize, answer: RouterAnswer) -> Network {
        let mut network =
            Network::new(spines + 3, move |port| vec![0, 2 + hash(port) % spines, 1, spines + 2]);
        network.destination().answer = answer;
        network
    }

    fn limited(mut self) -> Network {
        self.nodes.iter_mut().for_each(|node| node.limit = LINUX);
        self
    }

    fn destination(&mut self) -> &mut Node {
        self.nodes.last_mut().unwrap()
    }

    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.seed >> 33
    }

    /// Returns the answer to a probe, if there is one.
    fn answer(&mut self, probe: RouteProbe) -> Option<(IpAddr, RouterAnswer, bool)> {
        *self.probes.entry((probe.source_port, probe.hop_limit)).or_default() += 1;
        let path = (self.path)(probe.source_port);
        let node = path[path.len().min(probe.hop_limit.into()) - 1];
        let (lost, now) = (self.random() % 100, self.now);
        let node = &mut self.nodes[node];
        if let Some((burst, interval)) = node.limit {
            let gained = (now - node.refilled_at).as_secs_f64() / interval.as_secs_f64();
            node.tokens = (node.tokens + gained).min(burst);
            node.refilled_at = now;
            if node.tokens < 1.0 {
                return None;
            }
            node.tokens -= 1.0;
        }
        let is_answered = node.answer != RouterAnswer::Never && lost >= node.loss;
        is_answered.then_some((node.address, node.answer, node.is_bare))
    }

    fn trace(&mut self, options: TraceOptions) -> Route {
        let destination = self.destination().address;
        let mut tracer = Tracer::new(options, destination, 0xc001..=0xffff).unwrap();
        // Answers in the order of their arrival.
        let mut answers = std::collections::VecDeque::new();
        while !tracer.is_finished() {
            assert!(self.now - self.start < Duration::from_secs(600), "the trace doesn't end: {tracer:?}");
            while let Some(probe) = tracer.poll_transmit(self.now) {
                if self.taken.contains(&probe.source_port) {
                    tracer.handle_unavailable_port(probe.source_port);
                } else if let Some(answer) = self.answer(probe) {
                    answers.push_back((self.now + 2 * u32::from(probe.hop_limit) * ONE_WAY, probe, answer));
                }
            }
            let first = answers.iter().enumerate().min_by_key(|(_, (at, ..))| *at).map(|(index, _)| index);
            let timeout = tracer.poll_timeout();
            if let Some(first) = first
                && timeout.is_none_or(|timeout| answers[first].0 <= timeout)
                && let Some((at, probe, (from, answer, is_bare))) = answers.remove(first)
            {
                self.now = at;
                match answer {
                    RouterAnswer::Icmp(message) => {
                        let id = (!is_bare).then_some(probe.id);
                        tracer.handle_icmp(probe.source_port, id, from, message, at);
                    }
                    RouterAnswer::Ack => tracer.handle_ack(probe.id, at),
                    RouterAnswer::Never => unreachable!(),
                }
            } else if let Some(timeout) = timeout {
                assert!(timeout >= self.now, "the timeout is in the past");
                self.now = timeout;
            }
        }
        tracer.into_route()
    }

    fn elapsed(&self) -> Duration {
        self.now - self.start
    }

    /// Checks that each port of each path takes the path.
    fn check(&self, route: &Route) {
        let ports: Vec<u16> = route.paths.iter().flat_map(|path| path.source_ports.clone()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), route.port_count, "each port has one path");
        for path in &route.paths {
            assert_eq!(path.source_ports[0], path.source_port);
            for &port in &path.source_ports {
                let nodes = (self.path)(port);
                for (hop, node) in path.hops.iter().zip(nodes) {
                    assert!(hop.address().is_none_or(|found| found == self.nodes[node].address), "{path:?}");
                }
            }
        }
    }
}

const PORT_UNREACHABLE: RouterAnswer = RouterAnswer::Icmp(IcmpMessage::Unreachable(Unreachable::Port));

fn paths(max_paths: usize) -> TraceOptions {
    TraceOptions { max_paths, ..TraceOptions::new() }
}

#[test]
fn one_path_takes_one_probe_per_hop() {
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack);
    let route = network.trace(TraceOptions::new());
    assert_eq!((route.paths.len(), route.port_count, route.probe_count), (1, 1, 4));
    let path = &route.paths[0];
    assert!(path.is_complete());
    for (index, hop) in path.hops.iter().enumerate() {
        let rtt = 2 * (index as u32 + 1) * ONE_WAY;
        assert_eq!(hop.hop_limit, index as u8 + 1);
        assert!(matches!(hop.state, HopState::Answered { rtt: measured, .. } if measured == rtt), "{hop:?}");
    }
    network.check(&route);
}

#[test]
fn all_paths_are_complete_although_all_hops_limit_their_answers() {
    for (spines, seconds) in [(1, 5), (2, 10), (4, 12), (32, 30)] {
        for answer in [RouterAnswer::Ack, PORT_UNREACHABLE] {
            let mut network = Network::leaf_spine(spines, answer).limited();
            let route = network.trace(paths(64));
            assert_eq!(route.paths.len(), spines);
            assert!(route.paths.iter().all(Path::is_complete), "{route:?}");
            network.check(&route);
            let limit = Duration::from_secs(seconds);
            assert!(network.elapsed() < limit, "{spines} spines took {:?}", network.elapsed());
        }
    }
}

#[test]
fn a_network_without_limits_is_traced_without_waiting() {
    let mut network = Network::leaf_spine(16, RouterAnswer::Ack);
    let route = network.trace(paths(16));
    assert_eq!(route.paths.len(), 16);
    assert!(route.paths.iter().all(Path::is_complete));
    network.check(&route);
    assert!(network.elapsed() < Duration::from_secs(1), "{:?}", network.elapsed());
}

#[test]
fn a_trace_ends_when_the_requested_number_of_paths_is_found() {
    let mut network = Network::leaf_spine(8, RouterAnswer::Ack);
    let route = network.trace(paths(3));
    assert_eq!(route.paths.len(), 3);
    assert!(route.port_count <= ports_needed(2, 0.99));
}

#[test]
fn a_hop_that_all_ports_share_is_probed_from_few_ports() {
    let mut network = Network::leaf_spine(16, RouterAnswer::Ack);
    let route = network.trace(paths(64));
    let count = |hop_limit| network.probes.keys().filter(|(_, limit)| *limit == hop_limit).count();
    assert_eq!(count(1), ports_needed(2, 0.99));
    assert_eq!(count(2), route.port_count, "each port takes another spine");
    let is_inferred = |path: &Path| matches!(path.hops[0].state, HopState::Inferred { .. });
    assert!(route.paths.iter().any(is_inferred) && !route.paths.iter().all(is_inferred));
}

#[test]
fn silent_hops_are_reported_and_distinguish_paths() {
    // A spine that never answers is another path than the spine that does.
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack).limited();
    network.nodes[2].answer = RouterAnswer::Never;
    let route = network.trace(paths(8));
    network.check(&route);
    assert_eq!(route.paths.len(), 2, "{route:?}");
    let silent: Vec<usize> = route.paths.iter().map(Path::silent_hop_count).collect();
    assert!(silent == [0, 1] || silent == [1, 0], "{route:?}");
    assert!(route.paths.iter().all(|path| path.end == PathEnd::Destination && path.hops.len() == 4));
    assert!(network.elapsed() < Duration::from_secs(90), "{:?}", network.elapsed());

    // A first hop that is silent for all ports.
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack);
    network.nodes[0].answer = RouterAnswer::Never;
    let route = network.trace(paths(8));
    network.check(&route);
    assert_eq!(route.paths.len(), 2, "{route:?}");
    assert!(
        route.paths.iter().all(|path| path.hops[0].state == HopState::Silent && path.silent_hop_count() == 1)
    );
    assert!(network.elapsed() < Duration::from_secs(8), "{:?}", network.elapsed());
}

#[test]
fn a_destination_that_does_not_answer_ends_the_path_at_the_last_router() {
    let mut network = Network::leaf_spine(2, RouterAnswer::Never).limited();
    let route = network.trace(paths(4));
    network.check(&route);
    assert_eq!(route.paths.len(), 2);
    for path in &route.paths {
        assert_eq!(
            (path.end, path.hops.len(), path.silent_hop_count()),
            (PathEnd::NoAnswer, 3, 0),
            "{path:?}"
        );
        assert!(!path.is_complete());
    }
    assert!(network.elapsed() < Duration::from_secs(60), "{:?}", network.elapsed());
}

#[test]
fn a_black_hole_on_one_path_is_not_hidden_by_the_others() {
    // Spine 3 drops all packets that it should forward.
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack);
    let mut sink = network.nodes[0].clone();
    sink.answer = RouterAnswer::Never;
    network.nodes.insert(4, sink);
    network.path = Box::new(|port| match hash(port) % 2 {
        0 => vec![0, 2, 1, 5],
        _ => vec![0, 3, 4],
    });
    let route = network.trace(paths(8));
    let mut ends: Vec<(usize, PathEnd)> =
        route.paths.iter().map(|path| (path.hops.len(), path.end)).collect();
    ends.sort_by_key(|(length, _)| *length);
    assert_eq!(ends, [(2, PathEnd::NoAnswer), (4, PathEnd::Destination)]);
}

#[test]
fn loops_and_unreachable_destinations_end_a_path() {
    let mut network = Network::new(4, |_| vec![0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2]);
    let route = network.trace(TraceOptions::new());
    assert_eq!((route.paths[0].end, route.paths[0].hops.len()), (PathEnd::Loop, 4));
    assert!(route.probe_count <= 5, "a loop isn't followed");

    for reason in [Unreachable::Host, Unreachable::Network, Unreachable::Prohibited, Unreachable::Port] {
        let mut network = Network::new(4, |_| vec![0, 1]);
        network.nodes[1].answer = RouterAnswer::Icmp(IcmpMessage::Unreachable(reason));
        let route = network.trace(paths(4));
        assert_eq!(route.paths.len(), 1);
        assert_eq!((route.paths[0].end, route.paths[0].hops.len()), (PathEnd::Unreachable(reason), 2));
    }
}

#[test]
fn a_router_that_answers_twice_in_a_row_is_no_loop() {
    let mut network = Network::new(4, |_| vec![0, 1, 1, 3]);
    network.destination().answer = RouterAnswer::Ack;
    let route = network.trace(TraceOptions::new());
    assert_eq!((route.paths[0].end, route.paths[0].hops.len()), (PathEnd::Destination, 4));
}

#[test]
fn a_path_is_not_followed_beyond_the_maximum_number_of_hops() {
    let mut network = Network::new(40, |_| (0..40).collect());
    let route = network.trace(TraceOptions { max_hops: 12, ..TraceOptions::new() });
    assert_eq!((route.paths[0].end, route.paths[0].hops.len()), (PathEnd::MaxHops, 12));
    assert_eq!(route.probe_count, 12);
}

#[test]
fn probes_whose_answers_are_lost_are_retransmitted() {
    for seed in 0..20 {
        let mut network = Network::leaf_spine(2, RouterAnswer::Ack).limited();
        network.seed = seed;
        network.nodes.iter_mut().for_each(|node| node.loss = 10);
        let route = network.trace(paths(4));
        network.check(&route);
        assert_eq!(route.paths.len(), 2, "{route:?}");
        assert!(route.paths.iter().all(Path::is_complete), "seed {seed}: {route:?}");
    }
}

#[test]
fn paths_of_different_lengths_are_distinguished() {
    let mut network = Network::new(7, |port| match hash(port) % 2 {
        0 => vec![0, 1, 6],
        _ => vec![0, 2, 3, 4, 6],
    });
    network.destination().answer = RouterAnswer::Ack;
    let route = network.trace(paths(8));
    network.check(&route);
    let mut lengths: Vec<usize> = route.paths.iter().map(|path| path.hops.len()).collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [3, 5]);
    assert!(route.paths.iter().all(Path::is_complete));
}

#[test]
fn answers_without_the_packet_are_matched_one_by_one() {
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack).limited();
    network.nodes.iter_mut().for_each(|node| node.is_bare = true);
    let route = network.trace(paths(4));
    network.check(&route);
    assert_eq!(route.paths.len(), 2, "{route:?}");
    assert!(route.paths.iter().all(Path::is_complete), "{route:?}");
}

#[test]
fn ports_of_other_programs_are_left_out() {
    let mut network = Network::leaf_spine(2, RouterAnswer::Ack);
    network.taken = (0xc001..0xc004).chain(0xc006..0xc00a).collect();
    let taken = network.taken.clone();
    let route = network.trace(paths(2));
    assert_eq!(route.paths.len(), 2);
    assert!(route.paths.iter().flat_map(|path| &path.source_ports).all(|port| !taken.contains(port)));

    let mut network = Network::leaf_spine(2, RouterAnswer::Ack);
    network.taken = (0..=0xffff).collect();
    assert_eq!(network.trace(paths(2)).port_count, 0);
}

#[test]
fn sockets_are_needed_for_active_ports_only() {
    let mut network = Network::leaf_spine(16, RouterAnswer::Ack);
    let route = network.trace(TraceOptions { max_active_ports: 4, ..paths(64) });
    network.check(&route);
    assert_eq!(route.paths.len(), 16);
}

#[test]
fn a_trace_with_forged_answers_ends() {
    let destination = address(9);
    for seed in 0..200 {
        let mut network = Network::new(1, |_| Vec::new());
        network.seed = seed;
        let mut now = network.now;
        let mut tracer = Tracer::new(paths(4), destination, 0xc001..=0xc010).unwrap();
        for _ in 0..2_000 {
            match network.random() % 8 {
                0 => _ = tracer.poll_transmit(now),
                1 => tracer.handle_ack(network.random() as u32 % 300, now),
                2 => tracer.handle_unavailable_port(0xc000 | (network.random() as u16 % 16)),
                3 => now = tracer.poll_timeout().unwrap_or(now).max(now),
                choice => {
                    let message = match choice {
                        4 => IcmpMessage::Unreachable(Unreachable::Port),
                        5 => IcmpMessage::Unreachable(Unreachable::Host),
                        _ => IcmpMessage::TimeExceeded,
                    };
                    let id = (!network.random().is_multiple_of(4)).then(|| network.random() as u32 % 300);
                    let port = 0xc000 | (network.random() as u16 % 16);
                    tracer.handle_icmp(port, id, address(network.random() as usize % 10), message, now);
                }
            }
        }
        let end = now + Duration::from_secs(3_600);
        while !tracer.is_finished() && now < end {
            while tracer.poll_transmit(now).is_some() {}
            now = tracer.poll_timeout().unwrap_or(end);
        }
        assert!(tracer.is_finished(), "seed {seed}: {tracer:?}");
    }
}

#[test]
fn an_answer_to_another_port_is_ignored() {
    let mut tracer = Tracer::new(TraceOptions::new(), address(9), [0xc001, 0xc002]).unwrap();
    let now = Instant::now();
    let probe = tracer.poll_transmit(now).unwrap();
    assert_eq!((probe.source_port, probe.hop_limit), (0xc001, 1));
    tracer.handle_icmp(0xc002, Some(probe.id), address(1), IcmpMessage::TimeExceeded, now);
    let later = now + Duration::from_millis(10);
    assert_eq!(tracer.poll_transmit(later), None, "the probe is still outstanding");
    tracer.handle_icmp(0xc001, Some(probe.id), address(1), IcmpMessage::TimeExceeded, later);
    assert_eq!(tracer.poll_transmit(later).unwrap().hop_limit, 2);
}

#[test]
fn more_paths_need_more_ports() {
    assert_eq!([1, 2, 3, 4, 16].map(|paths| ports_needed(paths, 0.99)), [1, 8, 15, 21, 115]);
    assert_eq!(ports_needed(0, 0.99), 1);
    assert!(ports_needed(4, MAX_CONFIDENCE) < 1_000);
    assert!(ports_needed(4, MIN_CONFIDENCE) >= 4);
}

#[test]
fn options_outside_their_range_are_refused() {
    let new = |options: TraceOptions| Tracer::new(options, address(9), [0xc001]).unwrap_err();
    let refused = new(TraceOptions { max_hops: 0, ..TraceOptions::new() });
    let option = "TraceOptions::max_hops";
    assert!(
        matches!(refused, ProbeError::InvalidOption { option: o, requested: 0, min: 1, .. } if o == option)
    );
    for confidence in [0.0, 1.0, -1.0, f64::NAN] {
        let refused = new(TraceOptions { confidence, ..TraceOptions::new() });
        assert!(matches!(refused, ProbeError::InvalidConfidence { .. }), "{confidence}: {refused:?}");
    }
}
