//! Two paths between two network namespaces. One of them goes down.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::Options;
use adverb::net::blocking::{Connector, Listener};
use adverb::verbs::Device;

use crate::child::Process;
use crate::{MAX_LEN, Messages, number};

const PORT: u16 = 7471;
/// The prefix of the namespaces' names. The process id follows.
const NAMESPACE: &str = "adverb-paths-";

/// Returns options without a device, so that each path determines it.
fn options() -> Options {
    let options = Options::new().keepalive(Duration::from_millis(500)).timeout(Duration::from_secs(60));
    options.reconnect(Duration::from_secs(30)).connect_timeout(Duration::from_secs(10))
}

fn ip(line: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(line.split_whitespace()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// Returns the address of a path's near end (1) or far end (2), in a benchmark network that depends on the process id:
/// otherwise two runs at the same time would connect to each other.
fn end(path: u32, end: u32) -> Ipv4Addr {
    let network = std::process::id() % (1 << 14) * 2 + path - 1;
    Ipv4Addr::from_bits(Ipv4Addr::new(198, 18, 0, 0).to_bits() + network * 4 + end)
}

/// Two veth pairs between this namespace and another, which are deleted when this value is dropped.
struct VethPairs {
    namespace: String,
}

impl VethPairs {
    fn new() -> Result<VethPairs, String> {
        VethPairs::delete_stale_namespaces();
        let veth_pairs = VethPairs { namespace: format!("{NAMESPACE}{}", std::process::id()) };
        let namespace = &veth_pairs.namespace;
        ip(&format!("netns add {namespace}"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        for path in 1..=2 {
            let (near_name, far) = (veth_pairs.near_name(path), format!("avf{path}"));
            ip(&format!("link add {near_name} type veth peer name {far} netns {namespace}"))?;
            ip(&format!("addr add {}/30 dev {near_name}", end(path, 1)))?;
            ip(&format!("link set {near_name} up"))?;
            ip(&format!("-n {namespace} addr add {}/30 dev {far}", end(path, 2)))?;
            ip(&format!("-n {namespace} link set {far} up"))?;
        }
        Ok(veth_pairs)
    }

    /// Deletes the namespaces of killed processes. (That also deletes the veth pairs, whose far ends are in them.)
    fn delete_stale_namespaces() {
        let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let id = name.strip_prefix(NAMESPACE).and_then(|id| id.parse::<u32>().ok());
            if id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
                println!("deleted {name}: {:?}", ip(&format!("netns del {name}")));
            }
        }
    }

    fn near_name(&self, path: u32) -> String {
        format!("av{path}-{}", std::process::id())
    }

    fn set_link(&self, path: u32, state: &str) {
        ip(&format!("link set {} {state}", self.near_name(path))).unwrap();
    }
}

impl Drop for VethPairs {
    fn drop(&mut self) {
        for path in 1..=2 {
            let _ = ip(&format!("link del {}", self.near_name(path)));
        }
        let _ = ip(&format!("netns del {}", self.namespace));
    }
}

/// The other process: receives messages, checks every byte, and replies with its longest waits in milliseconds.
pub(crate) fn receive() {
    // A wildcard listener serves routable addresses only on software devices that are already open.
    let interfaces =
        Command::new("ip").args(["-4", "-o", "addr", "show", "scope", "global"]).output().unwrap();
    let interfaces = String::from_utf8(interfaces.stdout).unwrap();
    let addrs =
        interfaces.lines().map(|line| line.split_whitespace().nth(3).unwrap().split('/').next().unwrap());
    let _devices: Vec<Device> = addrs.map(|addr| Device::open(&format!("soft:{addr}")).unwrap()).collect();
    let listener = Listener::builder().options(&options()).bind(("0.0.0.0", PORT)).unwrap();
    println!("listening {}", listener.local_addr());
    scope(|scope| {
        let connection = listener.accept().unwrap();
        scope.spawn(|| listener.accept().map(drop));
        let (messages, mut count, mut gaps, mut last) = (Messages::new(), 0, Vec::new(), Instant::now());
        while let Some(message) = connection.recv().unwrap() {
            assert!(message[..] == *messages.message(count, len(count)), "message {count}");
            count += 1;
            if last.elapsed() > Duration::from_millis(200) {
                gaps.push(last.elapsed().as_millis());
            }
            last = Instant::now();
        }
        connection.send(format!("{count} messages, gaps of {gaps:?} ms").as_bytes()).unwrap();
        connection.close().unwrap();
        std::process::exit(0);
    });
}

fn len(number: usize) -> usize {
    if number.is_multiple_of(4) { MAX_LEN } else { number % 1500 }
}

#[test]
fn a_connection_resumes_over_the_other_path_and_back() {
    let _guard = crate::share_process();
    let veth_pairs = match VethPairs::new() {
        Ok(veth_pairs) => veth_pairs,
        Err(error) => return println!("skipped: network namespaces are not available: {error}"),
    };
    let mut process = Process::start_in(&veth_pairs.namespace, "paths");
    process.wait_for_line("listening ");
    let [one, other] = [1, 2].map(|path| IpAddr::from(end(path, 2)));
    let connector = Connector::new().options(&options()).alternate_addr(format!("{other}:{PORT}"));
    let connection = connector.connect((one, PORT)).unwrap();
    assert_eq!(connection.peer_addr().ip(), one);
    let (seconds, start, messages) = (number("ADVERB_SECONDS", 2), Instant::now(), Messages::new());
    let pause = Duration::from_secs(seconds as u64);
    let paths = scope(|scope| {
        let faults = scope.spawn(|| {
            let mut paths = vec![connection.peer_addr().ip()];
            for path in [1, 2] {
                sleep(pause);
                veth_pairs.set_link(path, "down");
                // The failure must be detected, and the connection resumed over the other path.
                let (down, before) = (Instant::now(), connection.peer_addr());
                while connection.peer_addr() == before && down.elapsed() < Duration::from_secs(30) {
                    sleep(Duration::from_millis(10));
                }
                println!("path {path} went down; resumed over the other after {:?}", down.elapsed());
                paths.push(connection.peer_addr().ip());
                sleep(pause);
                veth_pairs.set_link(path, "up");
            }
            sleep(pause);
            paths
        });
        let mut number = 0;
        while !faults.is_finished() {
            connection.send(messages.message(number, len(number))).unwrap();
            number += 1;
        }
        connection.shutdown().unwrap();
        let bytes: usize = (0..number).map(len).sum();
        println!("{number} messages, {} MB in {:?}", bytes / 1_000_000, start.elapsed());
        faults.join().unwrap()
    });
    let reply = connection.recv().unwrap().unwrap();
    println!("{}", String::from_utf8_lossy(&reply));
    assert_eq!(paths, [one, other, one]);
}
