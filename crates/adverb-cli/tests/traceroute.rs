//! `adverb traceroute` in a leaf-spine network of network namespaces: two racks, two spines, ECMP by ports.
//!
//! ```text
//!  h1 ─ l1 ┬ s1 ┬ l2 ─ h2
//!          └ s2 ┘
//! ```
//!
//! The test needs root to make the namespaces. `adverb` itself runs as an unprivileged user.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const NODES: [&str; 6] = ["h1", "h2", "l1", "l2", "s1", "s2"];

/// Each link: a node, its interface and address, and the same of the other end.
const LINKS: [[&str; 6]; 6] = [
    ["h1", "leaf", "10.91.1.2/24", "l1", "host", "10.91.1.1/24"],
    ["h2", "leaf", "10.91.2.2/24", "l2", "host", "10.91.2.1/24"],
    ["l1", "s1", "10.91.11.0/31", "s1", "l1", "10.91.11.1/31"],
    ["l1", "s2", "10.91.12.0/31", "s2", "l1", "10.91.12.1/31"],
    ["l2", "s1", "10.91.21.0/31", "s1", "l2", "10.91.21.1/31"],
    ["l2", "s2", "10.91.22.0/31", "s2", "l2", "10.91.22.1/31"],
];

const ROUTES: [(&str, &str); 8] = [
    ("h1", "default via 10.91.1.1"),
    ("h2", "default via 10.91.2.1"),
    ("l1", "10.91.2.0/24 nexthop via 10.91.11.1 nexthop via 10.91.12.1"),
    ("l2", "10.91.1.0/24 nexthop via 10.91.21.1 nexthop via 10.91.22.1"),
    ("s1", "10.91.1.0/24 via 10.91.11.0"),
    ("s1", "10.91.2.0/24 via 10.91.21.0"),
    ("s2", "10.91.1.0/24 via 10.91.12.0"),
    ("s2", "10.91.2.0/24 via 10.91.22.0"),
];

/// The two paths: the addresses at which each hop receives the packets.
const PATHS: [[&str; 4]; 2] = [
    ["10.91.1.1", "10.91.11.1", "10.91.21.0", "10.91.2.2"],
    ["10.91.1.1", "10.91.12.1", "10.91.22.0", "10.91.2.2"],
];

/// The network, and a copy of the program that any user can run. Both are removed at the end.
struct Network {
    prefix: String,
    directory: PathBuf,
}

impl Network {
    /// Makes the network. Returns the reason if that isn't possible here.
    fn new() -> Result<Network, String> {
        let prefix = format!("adverb-route-{}", std::process::id());
        let directory = std::env::temp_dir().join(&prefix);
        let network = Network { prefix, directory };
        std::fs::create_dir_all(&network.directory).map_err(|error| error.to_string())?;
        std::fs::copy(env!("CARGO_BIN_EXE_adverb"), network.program()).map_err(|error| error.to_string())?;
        for path in [&network.directory, &network.program()] {
            let permissions = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, permissions).map_err(|error| error.to_string())?;
        }
        run(&["setpriv", "--version"])?;
        for node in NODES {
            run(&["ip", "netns", "add", &network.namespace(node)])?;
            network.set(node, "net.ipv4.conf.all.rp_filter=0")?;
            network.set(node, "net.ipv4.conf.default.rp_filter=0")?;
            network.run_in(node, &["ip", "link", "set", "lo", "up"])?;
            if !node.starts_with('h') {
                network.set(node, "net.ipv4.ip_forward=1")?;
                network.set(node, "net.ipv4.fib_multipath_hash_policy=1")?;
                // Routers then report from the address of the interface that received the packet, as switches do.
                network.set(node, "net.ipv4.icmp_errors_use_inbound_ifaddr=1")?;
            }
        }
        for [node, name, address, peer, peer_name, peer_address] in LINKS {
            let (near, far) = (network.namespace(node), network.namespace(peer));
            run(&[
                "ip", "link", "add", name, "netns", &near, "type", "veth", "peer", "name", peer_name,
                "netns", &far,
            ])?;
            for (node, name, address) in [(node, name, address), (peer, peer_name, peer_address)] {
                network.run_in(node, &["ip", "address", "add", address, "dev", name])?;
                network.run_in(node, &["ip", "link", "set", name, "up"])?;
            }
        }
        for (node, route) in ROUTES {
            let words: Vec<&str> = ["ip", "route", "add"].into_iter().chain(route.split(' ')).collect();
            network.run_in(node, &words)?;
        }
        Ok(network)
    }

    fn namespace(&self, node: &str) -> String {
        format!("{}-{node}", self.prefix)
    }

    fn program(&self) -> PathBuf {
        self.directory.join("adverb")
    }

    /// Sets a kernel parameter in all nodes' namespaces, or only in that of `node`.
    fn set(&self, node: &str, parameter: &str) -> Result<String, String> {
        self.run_in(node, &["sysctl", "-qw", parameter])
    }

    fn run_in(&self, node: &str, words: &[&str]) -> Result<String, String> {
        let namespace = self.namespace(node);
        let words: Vec<&str> =
            ["ip", "netns", "exec", &namespace].into_iter().chain(words.iter().copied()).collect();
        run(&words)
    }

    /// Runs `adverb traceroute` as nobody on h1.
    fn traceroute(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace("h1"), "setpriv", "--reuid=65534", "--regid=65534"]);
        command.arg("--clear-groups").arg(self.program()).arg("traceroute").args(arguments);
        command.output().expect("ip can be run")
    }

    /// Returns the spine's address that the leaf chooses for a source port, by the kernel's route lookup.
    fn spine_of(&self, source_port: u64) -> String {
        let port = source_port.to_string();
        let route = self.run_in(
            "l1",
            &[
                "ip",
                "route",
                "get",
                "10.91.2.2",
                "from",
                "10.91.1.2",
                "iif",
                "host",
                "ipproto",
                "udp",
                "sport",
                &port,
                "dport",
                "4791",
            ],
        );
        let route = route.unwrap();
        let mut words = route.split_whitespace().skip_while(|word| *word != "via");
        words.nth(1).unwrap_or_else(|| panic!("no next hop: {route}")).to_owned()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in NODES {
            let _ = run(&["ip", "netns", "delete", &self.namespace(node)]);
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Runs a program, and returns its output or the reason of its failure.
fn run(words: &[&str]) -> Result<String, String> {
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| format!("`{}`: {error}", words.join(" ")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{}`: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}

#[test]
fn all_hops_of_all_paths_are_named_in_a_leaf_spine_network() {
    let network = match Network::new() {
        Ok(network) => network,
        Err(reason) => {
            eprintln!("skipped: no network namespaces with routing: {reason}");
            return;
        }
    };
    for limit in [None, Some("0")] {
        for node in NODES {
            if let Some(limit) = limit {
                network.set(node, &format!("net.ipv4.icmp_ratelimit={limit}")).unwrap();
            }
        }
        // The kernel's hash of ports differs after every boot: with 8 source ports it sends all of them by one spine on
        // 1 of 128 boots, with 16 on 1 of 32,768.
        let output = network.traceroute(&["10.91.2.2", "--paths", "16", "--dscp", "26", "--json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert_eq!(error, "", "progress is shown on terminals only");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let paths = report["paths"].as_array().unwrap();
        let found: BTreeSet<Vec<&str>> = paths
            .iter()
            .map(|path| {
                path["hops"].as_array().unwrap().iter().map(|hop| hop["address"].as_str().unwrap_or("*"))
            })
            .map(Iterator::collect)
            .collect();
        let expected: BTreeSet<Vec<&str>> = PATHS.map(Vec::from).into_iter().collect();
        assert_eq!(found, expected, "with icmp_ratelimit {limit:?}: {report}");
        for path in paths {
            for port in path["source_ports"].as_array().unwrap() {
                let spine = network.spine_of(port.as_u64().unwrap());
                assert_eq!(path["hops"][1]["address"], Value::from(spine), "source port {port}: {report}");
            }
        }
        eprintln!("icmp_ratelimit {}: {} s", limit.unwrap_or("default"), report["seconds"]);
    }

    // The text, and the exit status of a destination that no router knows.
    let output = network.traceroute(&["10.91.2.2"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("10.91.2.2  ") && text.contains("destination"),
        "{text}"
    );
    let output = network.traceroute(&["10.91.3.1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("the last hop reported: network unreachable"), "{text}");
}
