//! The result of `adverb traceroute` as text.

use std::fmt::Write;

use adverb::probe::route::{PathEnd, TraceOptions};

use super::report::{HopReport, PathReport, Report};

/// Returns the text of a report.
pub(super) fn of(report: &Report, options: &TraceOptions) -> String {
    let Report {
        host, address, from, device, dscp, paths, source_port_count, probe_count, elapsed_ns, ..
    } = report;
    let seconds = *elapsed_ns as f64 / 1e9;
    let name = if *host == address.to_string() { String::new() } else { format!(" ({address})") };
    let mut text = format!("route to {host}{name} from {from} on {device}, UDP port 4791, DSCP {dscp}\n");
    for (index, path) in paths.iter().enumerate() {
        text += &path_text(index + 1, path);
    }
    let _ = write!(
        text,
        "\n{}, {}, {}, {seconds:.1} s",
        counted(paths.len() as u64, "path"),
        counted(*source_port_count as u64, "source port"),
        counted(*probe_count, "probe"),
    );
    if options.max_paths > 1 && paths.len() < options.max_paths {
        let percent = options.confidence * 100.0;
        let _ = write!(text, "; {percent:.0}% confidence that there are no other equally likely paths");
    } else if options.max_paths > 1 {
        text += "; there may be more paths than --paths allows";
    }
    text += "\n";
    if report.responder_port.is_none() && paths.iter().any(|path| !path.reached) {
        text += "no responder was found at the destination: without one, an RDMA NIC does not answer\n";
    }
    let is_silent = |path: &PathReport| path.end == PathEnd::NoAnswer.to_string();
    if report.responder_port.is_some() && paths.iter().any(is_silent) {
        text +=
            "the responder was found, but didn't answer: if it has a key, name the key file (--key-file)\n";
    }
    text
}

fn path_text(number: usize, path: &PathReport) -> String {
    let ports = path.source_ports.len();
    let more = if ports > 1 { format!(" (and {} more)", ports - 1) } else { String::new() };
    let mut text = format!("\npath {number}: source port {}{more}\n", path.source_port);
    let address = |hop: &HopReport| hop.address.map_or("*".to_owned(), |address| address.to_string());
    let width = path.hops.iter().map(|hop| address(hop).len()).max().unwrap_or(0);
    for (index, hop) in path.hops.iter().enumerate() {
        let time = match hop.rtt_ns {
            Some(rtt) => format!("{:>9.3} ms", rtt as f64 / 1e6),
            None if hop.inferred => "inferred".to_owned(),
            None => "no answer".to_owned(),
        };
        let is_destination = path.reached && index + 1 == path.hops.len();
        let note = if is_destination { "  destination" } else { "" };
        let _ = writeln!(text, "{:>4}  {:<width$}  {time:>12}{note}", hop.hop, address(hop));
    }
    if !path.reached {
        let _ = writeln!(text, "      {}", path.end);
    }
    text
}

/// Returns a number with its noun.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use adverb::probe::route::{Hop, HopState, Path, Route, RouteTarget, RouteTrace};
    use adverb::verbs::SoftDevice;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn report(host: &str, route: &Route) -> Report {
        let device = SoftDevice::loopback().open().unwrap();
        let target = RouteTarget::without_responder(address("10.0.1.2"));
        let options = TraceOptions::new();
        let local = address("10.0.0.2");
        let trace = RouteTrace { device: &device, local, target, dscp: 26, options, random: 0 };
        let mut report = Report::new(host, &trace, None, route, Duration::from_millis(1234));
        report.device = "soft:10.0.0.2".to_owned();
        report
    }

    fn route() -> Route {
        let answered =
            |text, micros| HopState::Answered { address: address(text), rtt: Duration::from_micros(micros) };
        let hops = |states: [HopState; 3]| {
            states.into_iter().zip(1..).map(|(state, hop_limit)| Hop { hop_limit, state }).collect()
        };
        Route {
            paths: vec![
                Path {
                    source_port: 50000,
                    source_ports: vec![50000, 50001],
                    hops: hops([answered("10.0.0.1", 41), HopState::Silent, answered("10.0.1.2", 90)]),
                    end: PathEnd::Destination,
                },
                Path {
                    source_port: 50002,
                    source_ports: vec![50002],
                    hops: hops([
                        HopState::Inferred { address: address("10.0.0.1") },
                        answered("10.200.100.1", 12_345),
                        answered("10.0.0.1", 60),
                    ]),
                    end: PathEnd::Loop,
                },
            ],
            port_count: 3,
            probe_count: 12,
        }
    }

    #[test]
    fn each_hop_has_a_line() {
        let mut options = TraceOptions::new();
        options.max_paths = 4;
        assert_eq!(
            of(&report("storage", &route()), &options),
            "\
route to storage (10.0.1.2) from 10.0.0.2 on soft:10.0.0.2, UDP port 4791, DSCP 26

path 1: source port 50000 (and 1 more)
   1  10.0.0.1      0.041 ms
   2  *            no answer
   3  10.0.1.2      0.090 ms  destination

path 2: source port 50002
   1  10.0.0.1          inferred
   2  10.200.100.1     12.345 ms
   3  10.0.0.1          0.060 ms
      routing loop

2 paths, 3 source ports, 12 probes, 1.2 s; 99% confidence that there are no other equally likely paths
no responder was found at the destination: without one, an RDMA NIC does not answer
"
        );
    }

    #[test]
    fn one_path_has_a_short_report() {
        let mut route = route();
        route.paths.truncate(1);
        (route.port_count, route.probe_count) = (1, 1);
        let text = of(&report("10.0.1.2", &route), &TraceOptions::new());
        assert!(text.starts_with("route to 10.0.1.2 from 10.0.0.2 on soft:10.0.0.2,"), "{text}");
        assert!(text.ends_with("\n1 path, 1 source port, 1 probe, 1.2 s\n"), "{text}");
    }

    #[test]
    fn json_has_the_same_contents() {
        let json = serde_json::to_value(report("storage", &route())).unwrap();
        assert_eq!(json["paths"][0]["source_port"], 50000);
        assert_eq!(json["paths"][0]["reached"], true);
        assert_eq!(json["paths"][0]["hops"][0]["rtt_ns"], 41_000);
        assert!(json["paths"][0]["hops"][1]["address"].is_null());
        assert_eq!(json["paths"][1]["end"], "routing loop");
        assert_eq!(json["paths"][1]["hops"][0]["inferred"], true);
    }
}
