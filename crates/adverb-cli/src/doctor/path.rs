//! Checks of the path to another host: TCP, RoCE packets and the path MTU.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use adverb::probe::format::MAX_PROBE_LEN;
use adverb::probe::session::ProbeResult;
use adverb::probe::{ProbeError, ProbePath, ProberOptions};
use adverb::verbs::{self, Device};

use super::live::ROCE_PORT;
use super::result::{CheckResult, Verdict};
use crate::prose::HINT;
use crate::{ping, report};

/// The time for an answer of the other host.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The number of probes of a length that must be lost before the length counts as too long.
const PROBES_PER_LENGTH: u32 = 5;
/// The path MTUs of RDMA that are also valid lengths of probes.
const MTUS: [usize; 5] = [MAX_PROBE_LEN, 2048, 1024, 512, 256];

/// Returns the results of all checks of the path.
pub(super) fn all(host: &str, port: u16, device: Option<&str>) -> Vec<CheckResult> {
    let addr = match resolve(host, port) {
        Ok(addr) => addr,
        Err(result) => return vec![result],
    };
    let mut tcp = tcp(addr);
    let roce = roce(addr, device, tcp.verdict == Verdict::Ok);
    // A firewall may permit RoCE packets only.
    if tcp.verdict == Verdict::Problem && roce.iter().any(|result| result.verdict == Verdict::Ok) {
        tcp = CheckResult::note("TCP", format!("{}, which RDMA itself does not need", tcp.message));
    }
    [vec![tcp], roce].concat()
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, CheckResult> {
    let addrs = (host, port).to_socket_addrs();
    addrs.map(|mut addrs| addrs.next()).unwrap_or(None).ok_or_else(|| {
        let message = format!("the name {host} could not be resolved to an address");
        CheckResult::problem("name", message, &[&format!("check the name: `getent hosts {host}`")])
    })
}

/// Checks that the host answers TCP. Any answer will do, also a refusal.
fn tcp(addr: SocketAddr) -> CheckResult {
    let ip = addr.ip();
    match TcpStream::connect_timeout(&addr, TIMEOUT) {
        Ok(_) => CheckResult::ok("TCP", format!("{ip} accepts connections")),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            CheckResult::ok("TCP", format!("{ip} answers"))
        }
        Err(error) => CheckResult::problem(
            "TCP",
            format!("{ip} does not answer TCP at port {} ({error})", addr.port()),
            &[format!("check the route and the host: `ip route get {ip}`, `ping {ip}`")],
        ),
    }
}

fn roce(addr: SocketAddr, name: Option<&str>, has_tcp: bool) -> Vec<CheckResult> {
    let device = match ping::open_device(name, None, addr) {
        Ok(device) => device,
        Err(error) => return vec![failure(error)],
    };
    let local = ping::local_addr_of(&device, addr);
    let max = port_mtu(&device).min(MAX_PROBE_LEN);
    let (ip, from) = (addr.ip(), device.name());
    let answers_ok = || CheckResult::ok("RoCE", format!("packets from {from} to {ip} are answered"));
    for mtu in MTUS.into_iter().filter(|&mtu| mtu <= max) {
        match probe(&device, local, addr, mtu) {
            Ok(Answers::Some) if mtu == max => {
                return vec![
                    answers_ok(),
                    CheckResult::ok("path MTU", format!("packets of {mtu} bytes arrive")),
                ];
            }
            Ok(Answers::Some) => return vec![answers_ok(), small_mtu(ip, from, mtu, max)],
            Ok(Answers::None) => {}
            Ok(Answers::Rejected) => {
                let reason =
                    format!("no responder at port {} of {ip}: start `adverb respond` there", addr.port());
                return vec![answers_ok(), CheckResult::not_checked("path MTU", reason)];
            }
            Ok(Answers::NoResponder) => return vec![no_answer(addr, has_tcp)],
            Err(error) => return vec![failure(error.into())],
        }
    }
    vec![CheckResult::problem(
        "RoCE",
        format!("the responder at {ip} was found, but probes of any length are lost"),
        &[
            "compare the keys of both hosts: without `--key-file`, a responder answers no probe of another one",
            &format!("trace the path: `adverb traceroute {ip}`"),
        ],
    )]
}

/// Returns the problem of an error, with its hint as the fix.
fn failure(error: anyhow::Error) -> CheckResult {
    let text = report::format_error(error);
    let (causes, hint) = text.split_once(HINT).map_or((&*text, None), |(causes, hint)| (causes, Some(hint)));
    let fixes: Vec<&str> = hint.into_iter().collect();
    CheckResult::problem("RoCE", causes.trim_end().replace("\n  cause: ", ": "), &fixes)
}

fn small_mtu(ip: IpAddr, from: &str, mtu: usize, max: usize) -> CheckResult {
    CheckResult::problem(
        "path MTU",
        format!(
            "packets of {max} bytes, which {from} permits, are lost on the path to {ip}; packets of {mtu} bytes arrive"
        ),
        &[
            &format!(
                "find the link: `tracepath -n {ip}`, and raise its MTU: `ip link set INTERFACE mtu 9000` on a router"
            ),
            "or lower the MTU of the interfaces at both ends: `ip link set INTERFACE mtu 1500`",
        ],
    )
}

/// Returns the result if no responder was found.
fn no_answer(addr: SocketAddr, has_tcp: bool) -> CheckResult {
    let ip = addr.ip();
    let start = format!(
        "start a responder on {ip}: `adverb respond --device soft:{ip}`, or with the name of its RDMA device, which \
         `adverb devices` lists there"
    );
    let permit = "permit UDP port 4791 in the firewalls between the hosts; for the software NIC and soft-RoCE also in those \
                  of the hosts (`nft list ruleset`), which RDMA NICs bypass";
    if !has_tcp {
        CheckResult::not_checked("RoCE", format!("packets to {ip} get no answer, and neither does TCP"))
    } else if is_port_closed(addr) {
        CheckResult::problem(
            "RoCE",
            format!(
                "{ip} rejects RoCE packets (UDP port {ROCE_PORT}): no program or device receives them, or a firewall rejects \
                 them"
            ),
            &[&start, permit],
        )
    } else {
        CheckResult::problem(
            "RoCE",
            format!(
                "TCP reaches {ip}, but RoCE packets (UDP port {ROCE_PORT}) get no answer: they are dropped, or no responder \
                 runs at port {}",
                addr.port()
            ),
            &[&start, permit],
        )
    }
}

/// Whether the host reports that its UDP port has no receiver. It does so if it has neither an RDMA NIC nor soft-RoCE
/// nor the software NIC.
fn is_port_closed(addr: SocketAddr) -> bool {
    let any: IpAddr = match addr {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let try_send = || -> io::Result<()> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        socket.connect((addr.ip(), ROCE_PORT))?;
        socket.send(b"adverb doctor")?;
        socket.recv(&mut [0; 16]).map(|_| ())
    };
    matches!(try_send(), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

fn port_mtu(device: &Device) -> usize {
    let ports = device.ports().unwrap_or_default();
    ports.first().map_or(0, |port| port.active_mtu.bytes().into())
}

/// The answers to probes of a length.
enum Answers {
    /// A probe arrived.
    Some,
    None,
    /// The host has no responder at the port, but answered the lookup.
    Rejected,
    /// The lookup of the responder got no answer.
    NoResponder,
}

fn probe(
    device: &Device,
    local: Option<IpAddr>,
    addr: SocketAddr,
    len: usize,
) -> Result<Answers, ProbeError> {
    let mut options =
        ProberOptions::new().timeout(TIMEOUT / 4).grace(TIMEOUT / 4).lookup_timeout(TIMEOUT).probe_len(len);
    if let Some(local) = local {
        options = options.local_addr(local);
    }
    let device = device.clone();
    let mut prober = options.open(move || Ok(device.clone()))?;
    let peer = match prober.connect(addr) {
        Ok(peer) => peer,
        Err(ProbeError::Verbs(verbs::Error::CmRejected { .. })) => return Ok(Answers::Rejected),
        Err(ProbeError::Verbs(verbs::Error::Unreachable { .. })) => return Ok(Answers::NoResponder),
        Err(error) => return Err(error),
    };
    for _ in 0..PROBES_PER_LENGTH {
        let result = prober.probe_on(&peer, ProbePath { flow_label: 0, dscp: 0 })?;
        if !matches!(
            result,
            ProbeResult::Lost | ProbeResult::Unreachable | ProbeResult::NotSent | ProbeResult::Ended
        ) {
            return Ok(Answers::Some);
        }
    }
    Ok(Answers::None)
}
