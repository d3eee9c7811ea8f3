//! `adverb traceroute` in a leaf-spine network of network namespaces: two racks, two spines, ECMP by ports.
//!
//! The tests need root to make the namespaces. `adverb` itself runs as an unprivileged user.
//!
//! The kernel's hash of ports differs after every boot, so the tests compare paths with the kernel's route lookup.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use support::leaf_spine::{H1, H1_V6, H2, H2_V6, LeafSpine, NODES, PATHS, PATHS_V6};

/// The network, and a copy of the program that any user can run. Both are removed at the end.
struct Network {
    inner: LeafSpine,
    directory: PathBuf,
}

impl Network {
    /// Creates the network, or prints the reason why that isn't possible here.
    fn new(test: &str, has_ipv6: bool) -> Option<Network> {
        let prefix = format!("adverb-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(&prefix);
        let prepare = || {
            LeafSpine::new(&prefix, has_ipv6).and_then(|inner| {
                inner.run_in("h1", &["setpriv", "--version"])?;
                Ok(inner)
            })
        };
        let inner = match prepare() {
            Ok(inner) => inner,
            Err(reason) => {
                eprintln!("skipped: no network namespaces with routing: {reason}");
                return None;
            }
        };
        let network = Network { inner, directory };
        std::fs::create_dir_all(&network.directory).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_adverb"), network.directory.join("adverb")).unwrap();
        for path in [network.directory.clone(), network.directory.join("adverb")] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(network)
    }

    /// Returns a command that runs `adverb` as nobody on a node.
    fn adverb(&self, node: &str) -> Command {
        let mut command = self.inner.command(node);
        command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(self.directory.join("adverb"));
        command
    }

    /// Runs `adverb traceroute` on h1.
    fn traceroute(&self, arguments: &[&str]) -> Output {
        self.adverb("h1").arg("traceroute").args(arguments).output().expect("ip can be run")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Checks that a report has the paths that the kernel's route lookup returns for its source ports, and no others.
fn assert_paths(network: &Network, report: &Value, [from, to]: [&str; 2], paths: &[[&str; 4]; 2]) {
    let mut expected = BTreeSet::new();
    for path in report["paths"].as_array().unwrap() {
        let hops = path["hops"].as_array().unwrap().iter();
        let hops: Vec<&str> = hops.map(|hop| hop["address"].as_str().unwrap_or("*")).collect();
        for port in path["source_ports"].as_array().unwrap() {
            let spine = network.inner.next_hop("l1", from, to, port.as_u64().unwrap()).unwrap();
            let path = paths.iter().find(|path| path[1] == spine).expect("the address of a spine");
            assert_eq!(hops, path, "source port {port}: {report}");
            expected.insert(path);
        }
    }
    assert_eq!(report["paths"].as_array().unwrap().len(), expected.len(), "{report}");
}

#[test]
fn all_hops_of_all_paths_are_named_in_a_leaf_spine_network() {
    let Some(network) = Network::new("route", false) else { return };
    for limit in [None, Some("0")] {
        for node in NODES {
            if let Some(limit) = limit {
                network.inner.set(node, &format!("net.ipv4.icmp_ratelimit={limit}")).unwrap();
            }
        }
        let output = network.traceroute(&[H2, "--paths", "16", "--dscp", "26", "--json"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert_eq!(error, "", "progress is shown on terminals only");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_paths(&network, &report, [H1, H2], &PATHS);
        eprintln!("icmp_ratelimit {}: {} ns", limit.unwrap_or("default"), report["elapsed_ns"]);
    }

    // The text, and the exit status of a destination that no router knows.
    let output = network.traceroute(&[H2]);
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

/// A responder on h2, which ends with the test.
struct Responder(Child);

impl Responder {
    fn start(network: &Network, address: &str, options: &[&str]) -> Responder {
        let mut command = network.adverb("h2");
        command.args(["respond", "--json", "--device", &format!("soft:{address}")]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
        let line = read_line(&mut child);
        assert_eq!(line["event"], "listening");
        Responder(child)
    }

    /// Ends the responder by SIGINT, and returns its last line.
    fn interrupt(mut self) -> Value {
        let kill = format!("kill -INT {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
        let line = read_line(&mut self.0);
        assert!(self.0.wait().expect("it ends").success());
        line
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn read_line(child: &mut Child) -> Value {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_responder_ends_the_trace_and_its_device_counts_no_error_also_with_ipv6() {
    let Some(network) = Network::new("respond", true) else { return };
    let key = network.directory.join("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef\n").unwrap();
    let key = ["--key-file", key.to_str().expect("UTF-8")];
    for ([from, to], paths) in [([H1, H2], &PATHS), ([H1_V6, H2_V6], &PATHS_V6)] {
        let responder = Responder::start(&network, to, &key);
        // A loaded machine may be slow, and nothing but a missing answer waits for the timeout.
        let output = network.traceroute(&[to, "--json", "--timeout", "20", key[0], key[1]]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_paths(&network, &report, [from, to], paths);
        assert_eq!(report["responder_port"], 18516, "{report}");

        let stopped = responder.interrupt();
        assert_eq!(stopped["event"], "stopped");
        assert!(stopped["answered"].as_u64() >= Some(1), "{stopped}");
        for error in ["rcvd_icrc_err", "rcvd_unknown_qp_err", "rcvd_address_err", "qkey_violations"] {
            assert!(stopped["device_errors"][error].is_null(), "{stopped}");
        }
        assert_eq!(stopped["invalid"], 0, "{stopped}");
    }

    // A responder with a key doesn't answer without the key.
    let responder = Responder::start(&network, H2, &key);
    let output = network.traceroute(&[H2, "--max-hops", "4", "--timeout", "0.1"]);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stdout));
    drop(responder);

    // IPv6 without a responder, with the default limit of ICMPv6 messages: 4 per second to a network of 64 bits.
    let output = network.traceroute(&[H2_V6, "--paths", "16", "--timeout", "1", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_paths(&network, &report, [H1_V6, H2_V6], &PATHS_V6);
    eprintln!("IPv6: {} ns", report["elapsed_ns"]);
}
