//! A leaf-spine network of network namespaces: two racks, two spines, ECMP by ports.
//!
//! ```text
//!  h1 ─ l1 ┬ s1 ┬ l2 ─ h2
//!          └ s2 ┘
//! ```
//!
//! Creating the namespaces requires root. Dropping [`LeafSpine`] removes them.

use std::process::{Command, Stdio};

/// The nodes: two hosts, two leaves, two spines.
pub const NODES: [&str; 6] = ["h1", "h2", "l1", "l2", "s1", "s2"];

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

/// The IPv6 addresses: node, interface, address. A router sends an ICMPv6 error from an address of the interface
/// towards the source of the packet, and l2 chooses that interface by ECMP. So its interfaces to the spines have
/// link-local addresses only, and l2 always sends errors from the same address.
const ADDRESSES_V6: [[&str; 3]; 12] = [
    ["h1", "leaf", "fd91:1::2/64"],
    ["l1", "host", "fd91:1::1/64"],
    ["h2", "leaf", "fd91:2::2/64"],
    ["l2", "host", "fd91:2::1/64"],
    ["l1", "s1", "fd91:11::1/64"],
    ["s1", "l1", "fd91:11::2/64"],
    ["l1", "s2", "fd91:12::1/64"],
    ["s2", "l1", "fd91:12::2/64"],
    ["l2", "s1", "fe80::1:1/64"],
    ["s1", "l2", "fe80::1:2/64"],
    ["l2", "s2", "fe80::2:1/64"],
    ["s2", "l2", "fe80::2:2/64"],
];

const ROUTES_V6: [(&str, &str); 8] = [
    ("h1", "default via fd91:1::1"),
    ("h2", "default via fd91:2::1"),
    ("l1", "fd91:2::/64 nexthop via fd91:11::2 dev s1 nexthop via fd91:12::2 dev s2"),
    ("l2", "fd91:1::/64 nexthop via fe80::1:2 dev s1 nexthop via fe80::2:2 dev s2"),
    ("s1", "fd91:1::/64 via fd91:11::1"),
    ("s2", "fd91:1::/64 via fd91:12::1"),
    ("s1", "fd91:2::/64 via fe80::1:1 dev l2"),
    ("s2", "fd91:2::/64 via fe80::2:1 dev l2"),
];

/// The address of h1.
pub const H1: &str = "10.91.1.2";
/// The address of h2.
pub const H2: &str = "10.91.2.2";
/// The IPv6 address of h1.
pub const H1_V6: &str = "fd91:1::2";
/// The IPv6 address of h2.
pub const H2_V6: &str = "fd91:2::2";

/// The two paths from h1 to h2: the address from which each hop responds to probes.
pub const PATHS: [[&str; 4]; 2] = [
    ["10.91.1.1", "10.91.11.1", "10.91.21.0", "10.91.2.2"],
    ["10.91.1.1", "10.91.12.1", "10.91.22.0", "10.91.2.2"],
];
/// The two paths with IPv6.
pub const PATHS_V6: [[&str; 4]; 2] = [
    ["fd91:1::1", "fd91:11::2", "fd91:2::1", "fd91:2::2"],
    ["fd91:1::1", "fd91:12::2", "fd91:2::1", "fd91:2::2"],
];

/// The network.
#[derive(Debug)]
pub struct LeafSpine {
    prefix: String,
}

impl LeafSpine {
    /// Creates the network. The names of its namespaces begin with the prefix. With `has_ipv6`, its nodes have IPv6
    /// addresses, too.
    ///
    /// # Errors
    ///
    /// Returns the reason if a namespace, a link or a route can't be created.
    pub fn new(prefix: &str, has_ipv6: bool) -> Result<LeafSpine, String> {
        let network = LeafSpine { prefix: prefix.to_owned() };
        for node in NODES {
            run(&["ip", "netns", "add", &network.namespace(node)])?;
            network.set(node, "net.ipv4.conf.all.rp_filter=0")?;
            network.set(node, "net.ipv4.conf.default.rp_filter=0")?;
            network.run_in(node, &["ip", "link", "set", "lo", "up"])?;
            if !node.starts_with('h') {
                network.set(node, "net.ipv4.ip_forward=1")?;
                network.set(node, "net.ipv4.fib_multipath_hash_policy=1")?;
                // Routers then send ICMP errors from the address of the interface that received the packet, as switches
                // do.
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
        network.add_routes("-4", &ROUTES)?;
        if has_ipv6 {
            network.add_ipv6()?;
        }
        Ok(network)
    }

    fn add_ipv6(&self) -> Result<(), String> {
        for node in NODES.into_iter().filter(|node| !node.starts_with('h')) {
            self.set(node, "net.ipv6.conf.all.forwarding=1")?;
            self.set(node, "net.ipv6.fib_multipath_hash_policy=1")?;
        }
        for [node, name, address] in ADDRESSES_V6 {
            self.run_in(node, &["ip", "-6", "address", "add", address, "dev", name, "nodad"])?;
        }
        self.add_routes("-6", &ROUTES_V6)
    }

    fn add_routes(&self, version: &str, routes: &[(&str, &str)]) -> Result<(), String> {
        for (node, route) in routes {
            let words: Vec<&str> =
                ["ip", version, "route", "add"].into_iter().chain(route.split(' ')).collect();
            self.run_in(node, &words)?;
        }
        Ok(())
    }

    /// Returns the name of a node's namespace.
    pub fn namespace(&self, node: &str) -> String {
        format!("{}-{node}", self.prefix)
    }

    /// Sets a kernel parameter in the namespace of a node.
    ///
    /// # Errors
    ///
    /// Returns the reason of the failure.
    pub fn set(&self, node: &str, parameter: &str) -> Result<String, String> {
        self.run_in(node, &["sysctl", "-qw", parameter])
    }

    /// Returns a command that runs a program on a node.
    pub fn command(&self, node: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node)]);
        command
    }

    /// Runs a program on a node, and returns its output.
    ///
    /// # Errors
    ///
    /// Returns the reason of the failure.
    pub fn run_in(&self, node: &str, words: &[&str]) -> Result<String, String> {
        let namespace = self.namespace(node);
        let words: Vec<&str> =
            ["ip", "netns", "exec", &namespace].into_iter().chain(words.iter().copied()).collect();
        run(&words)
    }

    /// Returns the next hop that a leaf's kernel chooses for RoCE packets with this source port, from one host to
    /// another.
    ///
    /// # Errors
    ///
    /// Returns the reason of the failure.
    pub fn next_hop(&self, leaf: &str, from: &str, to: &str, source_port: u64) -> Result<String, String> {
        let port = source_port.to_string();
        let words = [
            "ip", "route", "get", to, "from", from, "iif", "host", "ipproto", "udp", "sport", &port, "dport",
            "4791",
        ];
        let route = self.run_in(leaf, &words)?;
        let mut words = route.split_whitespace().skip_while(|word| *word != "via");
        words.nth(1).map(str::to_owned).ok_or_else(|| format!("no next hop: {route}"))
    }

    /// Makes a spine drop a share of the RDMA packets that it forwards.
    ///
    /// # Errors
    ///
    /// Returns the reason of the failure.
    pub fn set_loss(&self, spine: &str, per_mille: u32) -> Result<(), String> {
        let rule = format!("numgen random mod 1000 < {per_mille} drop");
        self.run_in(spine, &["nft", "flush", "ruleset"])?;
        if per_mille > 0 {
            let hook = "{ type filter hook forward priority 0 ; }";
            self.run_in(spine, &["nft", "add", "table", "inet", "faults"])?;
            self.run_in(spine, &["nft", "add", "chain", "inet", "faults", "forward", hook])?;
            let words = ["nft", "add", "rule", "inet", "faults", "forward", "udp", "dport", "4791"];
            let words: Vec<&str> = words.into_iter().chain(rule.split(' ')).collect();
            self.run_in(spine, &words)?;
        }
        Ok(())
    }
}

impl Drop for LeafSpine {
    fn drop(&mut self) {
        for node in NODES {
            let _ = run(&["ip", "netns", "delete", &self.namespace(node)]);
        }
    }
}

/// Runs a program, and returns its output or the reason of its failure.
fn run(words: &[&str]) -> Result<String, String> {
    let output = Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{}`: {error}", words.join(" ")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`{}`: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
