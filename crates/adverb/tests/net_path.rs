//! Connections over a path that drops some or all RoCE packets: two hosts and a router between them, in network
//! namespaces, which need root and `ip`.

#![cfg(feature = "soft")]

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use adverb::Report;
use adverb::net::blocking::{Connector, Listener};
use adverb::net::{ConnectError, Options};
use adverb::verbs::PathMtu;

/// The environment variable that selects the role of a child process.
const ROLE: &str = "ADVERB_ROLE";
const CONNECTOR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const LISTENER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const PORT: u16 = 7471;

fn options() -> Options {
    Options::new().timeout(Duration::from_secs(30))
}

fn ip(line: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(line.split_whitespace()).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Two hosts with an MTU of 9000 bytes, and a router. The namespaces are deleted when this value is dropped.
struct Network(String);

impl Network {
    /// Creates the network, or prints the reason why the test is skipped.
    fn new(test: &str) -> Option<Network> {
        let network = Network(format!("adverb-{test}-{}", std::process::id()));
        match network.create() {
            Ok(()) => Some(network),
            Err(error) => {
                println!("skipped: network namespaces are not available: {error}");
                None
            }
        }
    }

    fn node(&self, node: &str) -> String {
        format!("{}-{node}", self.0)
    }

    fn create(&self) -> Result<(), String> {
        let router = self.node("router");
        ip(&format!("netns add {router}"))?;
        ip(&format!("netns exec {router} sysctl -q net.ipv4.ip_forward=1"))?;
        for (host, addr) in [("connector", CONNECTOR), ("listener", LISTENER)] {
            let namespace = self.node(host);
            let gateway = Ipv4Addr::from_bits(addr.to_bits() - 1);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {router} link add name {host} type veth peer name host netns {namespace}"))?;
            ip(&format!("-n {router} addr add {gateway}/24 dev {host}"))?;
            ip(&format!("-n {namespace} addr add {addr}/24 dev host"))?;
            ip(&format!("-n {router} link set dev {host} mtu 9000 up"))?;
            ip(&format!("-n {namespace} link set dev host mtu 9000 up"))?;
            ip(&format!("-n {namespace} route add default via {gateway}"))?;
        }
        Ok(())
    }

    /// Starts this program in a namespace, with a role.
    fn spawn(&self, node: &str, role: &str) -> Child {
        let mut program = Command::new("ip");
        program.args(["netns", "exec", &self.node(node)]).arg(std::env::current_exe().unwrap());
        program.args(["--exact", "runs_its_role", "--nocapture"]).env(ROLE, role);
        program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a role against a listener that echoes messages. Panics unless the role succeeds.
    fn run(&self, role: &str) {
        let mut listener = self.spawn("listener", "listener");
        let mut lines = BufReader::new(listener.stdout.as_mut().unwrap()).lines();
        let is_listening = lines.any(|line| line.is_ok_and(|line| line.contains("listening")));
        let output: Output = self.spawn("connector", role).wait_with_output().unwrap();
        let _ = listener.kill();
        let log = listener.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr, log.stderr]
            .map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(is_listening, "{}", text[2]);
        assert!(output.status.success() && text[0].contains("the role was run"), "{}", text.concat());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for node in ["connector", "listener", "router"] {
            let _ = ip(&format!("netns del {}", self.node(node)));
        }
    }
}

#[test]
fn runs_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "listener" => listen(),
        "blocked" => meets_a_firewall(),
        "small-mtu" => sends_long_messages(&options()),
        "resuming" => sends_long_messages(&options().reconnect(Duration::from_secs(20))),
        "limited" => limits_its_mtu(),
        _ => panic!("unknown role {role}"),
    }
    println!("the role was run");
}

/// Echoes the messages of all connections.
fn listen() {
    let options = options().reconnect(Duration::from_secs(20));
    let listener = Listener::builder().options(&options).bind((LISTENER, PORT)).unwrap();
    println!("listening");
    loop {
        let connection = listener.accept().unwrap();
        std::thread::spawn(move || {
            while let Some(message) = connection.recv().unwrap() {
                connection.send(message).unwrap();
            }
            connection.close().unwrap();
        });
    }
}

fn meets_a_firewall() {
    let start = Instant::now();
    let error = Connector::new().options(&options()).connect((LISTENER, PORT)).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(6), "the time limit is 5 s");
    let ConnectError::RdmaUnreachable { peer, is_software: true, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*peer, (LISTENER, PORT).into());
    assert!(error.is_timeout());
    let hint = error.hint().unwrap().into_owned();
    let text = format!("{:?}", Report::from(error));
    for part in ["not over RDMA", "RoCE packets to 198.51.100.2:4791", "acknowledgements to 192.0.2.2:4791"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(hint.contains("firewalls") && hint.contains("UDP port 4791"), "{hint}");
}

/// Sends messages of all kinds of lengths: within a packet, eager and rendezvous.
fn sends_long_messages(options: &Options) {
    let connection = Connector::new().options(options).connect((LISTENER, PORT)).unwrap();
    for (number, len) in [10, 1000, 4000, 15_000, 100_000, 1 << 20].into_iter().cycle().take(60).enumerate() {
        let message = vec![number as u8; len];
        connection.send(&message[..]).unwrap();
        assert!(connection.recv().unwrap().unwrap()[..] == message[..], "message {number}");
    }
    connection.close().unwrap();
}

/// With an MTU that the path passes, connecting takes no second attempt, and so no more than a second.
fn limits_its_mtu() {
    let start = Instant::now();
    sends_long_messages(&options().mtu(PathMtu::Mtu1024).connect_timeout(Duration::from_secs(1)));
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn blocked_roce_packets_are_an_error_of_connect_that_names_them() {
    let Some(network) = Network::new("blocked") else { return };
    ip(&format!("-n {} rule add ipproto udp dport 4791 blackhole", network.node("router"))).unwrap();
    network.run("blocked");
}

#[test]
fn a_path_with_a_smaller_mtu_than_both_hosts_carries_long_messages() {
    let Some(network) = Network::new("mtu") else { return };
    ip(&format!("-n {} link set dev listener mtu 1500", network.node("router"))).unwrap();
    for role in ["small-mtu", "resuming", "limited"] {
        network.run(role);
    }
}
