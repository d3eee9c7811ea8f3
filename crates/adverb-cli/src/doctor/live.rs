//! Checks that use rdma-core, open the software NIC, and send a UDP packet over loopback.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use adverb::verbs::Device;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrIn, bind, socket};

use super::facts::{Access, Facts};
use super::result::CheckResult;
use crate::report;

/// RoCE's UDP port.
pub(crate) const ROCE_PORT: u16 = 4791;
/// The time after which a packet that was sent over loopback counts as lost.
const LOOPBACK_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs the checks of rdma-core, of the software NIC and of the firewall, and returns their results.
pub(super) fn all(facts: &Facts) -> Vec<CheckResult> {
    let mut results = rdma_core(facts);
    results.push(software_nic());
    results.push(firewall(facts, loopback_delivers()));
    results
}

fn rdma_core(facts: &Facts) -> Vec<CheckResult> {
    let has_devices = !facts.devices.is_empty();
    let listed = match Device::list_hardware() {
        Ok(listed) => listed,
        Err(error @ adverb::verbs::Error::NotInstalled { .. }) if !has_devices => {
            return vec![CheckResult::not_checked(
                "rdma-core",
                format!("only RDMA devices of the kernel need it: {}", report::message(&error)),
            )];
        }
        Err(error @ adverb::verbs::Error::NotInstalled { .. }) => {
            let hint = error.hint();
            let fixes: Vec<&str> = hint.as_deref().into_iter().collect();
            return vec![CheckResult::problem("rdma-core", report::message(&error), &fixes)];
        }
        // On a machine without devices, rdma-core fails because the kernel has no RDMA support. That is no problem of
        // rdma-core.
        Err(_) if !has_devices => Vec::new(),
        Err(error) => {
            let hint = error.hint();
            let fixes: Vec<&str> = hint.as_deref().into_iter().collect();
            return vec![CheckResult::problem("rdma-core", report::message(&error), &fixes)];
        }
    };
    let mut results = vec![match library() {
        Some((path, Some(version))) => CheckResult::ok("rdma-core", format!("version {version}, {path}")),
        Some((path, None)) => CheckResult::ok("rdma-core", path),
        None => CheckResult::ok("rdma-core", "it is installed"),
    }];
    for device in facts.devices.iter().filter(|device| device.access == Access::Granted) {
        let name = &device.name;
        match listed.iter().find(|info| info.name == *name) {
            Some(info) => results.extend(info.unsupported_reason.map(|reason| {
                CheckResult::note("rdma-core", format!("Adverb does not use {name}: {reason}"))
            })),
            None => results.push(CheckResult::problem(
                "rdma-core",
                format!("it does not list {name}, because it has no driver for it"),
                &["`apt install ibverbs-providers` on Debian and Ubuntu, the package rdma-core elsewhere"],
            )),
        }
    }
    results
}

/// Returns the path of the libibverbs that this process has loaded, and the version of rdma-core if the path contains it.
fn library() -> Option<(String, Option<String>)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.contains("libibverbs.so"))?;
    Some((path.to_owned(), version_of(path)))
}

/// Returns the version of rdma-core that a path of libibverbs contains, for example 44.0 in `libibverbs.so.1.14.44.0`.
fn version_of(path: &str) -> Option<String> {
    let (_, numbers) = path.rsplit_once("libibverbs.so.")?;
    let mut numbers = numbers.split('.').skip(2);
    Some(format!("{}.{}", numbers.next()?, numbers.next()?))
}

fn software_nic() -> CheckResult {
    match Device::open("soft") {
        Ok(device) => {
            let address = device.gids().ok().and_then(|gids| Some(gids.first()?.gid.udp_addr()));
            let address = address.map(|address| format!(" at {address}")).unwrap_or_default();
            CheckResult::ok("software NIC", format!("it can be opened{address}"))
        }
        Err(error) => {
            let hint = error.hint();
            let fixes: Vec<&str> = hint.as_deref().into_iter().collect();
            CheckResult::problem("software NIC", report::message(&error), &fixes)
        }
    }
}

/// Interprets the outcome of [`loopback_delivers`] as a check result.
fn firewall(facts: &Facts, delivers: io::Result<bool>) -> CheckResult {
    let check = "firewall";
    let drops = format!("this host drops UDP packets to port {ROCE_PORT} over loopback");
    let has_hardware = facts.devices.iter().any(|device| device.driver.is_some());
    let has_soft_roce = facts.devices.iter().any(|device| device.driver.is_none());
    match delivers {
        Ok(true) => CheckResult::ok(
            check,
            format!(
                "UDP packets to port {ROCE_PORT} arrive over loopback (`adverb doctor HOST` tests a network)"
            ),
        ),
        Ok(false) if has_hardware && !has_soft_roce => CheckResult::note(
            check,
            format!("{drops}, so the software NIC does not work; the RDMA NIC bypasses the firewall"),
        ),
        Ok(false) => CheckResult::problem(
            check,
            format!("{drops}, so the software NIC and soft-RoCE do not work"),
            &[
                "find the rule: `nft list ruleset`, `iptables -S`".to_owned(),
                format!(
                    "permit the port before that rule, for example with nft: \
                     `nft insert rule inet filter input udp dport {ROCE_PORT} accept`"
                ),
            ],
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => CheckResult::not_checked(
            check,
            format!("another program or soft-RoCE has UDP port {ROCE_PORT}, so only root can test it"),
        ),
        Err(error) => {
            CheckResult::not_checked(check, format!("the test with UDP port {ROCE_PORT} failed: {error}"))
        }
    }
}

/// Sends a packet over loopback to RoCE's port, and returns whether it arrived.
fn loopback_delivers() -> io::Result<bool> {
    const MESSAGE: &[u8] = b"adverb doctor";
    // The address is not 127.0.0.1, because another program may use the port there. It depends on the process ID, so that
    // two commands at the same time use different addresses.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = SocketAddrV4::new(Ipv4Addr::new(127, 91, high, low.max(1)), ROCE_PORT);
    let receiver = match UdpSocket::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => raw_socket(address)?,
        bound => bound?,
    };
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    match sender.send_to(MESSAGE, address) {
        Ok(_) => {}
        // A firewall rule for outgoing packets rejects the packet.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
        Err(error) => return Err(error),
    }
    let deadline = Instant::now() + LOOPBACK_TIMEOUT;
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(false);
        }
        receiver.set_read_timeout(Some(remaining))?;
        let mut packet = [0; 128];
        match receiver.recv(&mut packet) {
            // The packets of a raw socket begin with their headers, so only the end is compared.
            Ok(len) if packet[..len].ends_with(MESSAGE) => return Ok(true),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens a raw socket, which receives the UDP packets that are sent to an address and pass the firewall. Unlike a UDP socket,
/// a raw socket can be opened while soft-RoCE uses the port at all addresses. Only root may open a raw socket.
fn raw_socket(address: SocketAddrV4) -> io::Result<UdpSocket> {
    let socket = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Udp)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
    Ok(UdpSocket::from(socket))
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Device, Facts};
    use super::super::result::Verdict;
    use super::{firewall, version_of};

    /// RDMA NICs bypass the firewall of their host.
    #[test]
    fn a_firewall_is_no_problem_for_hardware() {
        let device = |driver: Option<&str>| Device { driver: driver.map(str::to_owned), ..Device::default() };
        let verdict =
            |devices: Vec<Device>| firewall(&Facts { devices, ..Facts::default() }, Ok(false)).verdict;
        let (nic, soft_roce) = (device(Some("mlx5_core")), device(None));
        assert_eq!(verdict(vec![]), Verdict::Problem);
        assert_eq!(verdict(vec![soft_roce.clone()]), Verdict::Problem);
        assert_eq!(verdict(vec![nic.clone(), soft_roce]), Verdict::Problem);
        assert_eq!(verdict(vec![nic]), Verdict::Note);
    }

    #[test]
    fn version_of_rdma_core_is_in_the_name_of_the_file() {
        assert_eq!(version_of("/usr/lib/libibverbs.so.1.14.44.0").as_deref(), Some("44.0"));
        assert_eq!(version_of("/usr/lib/libibverbs.so.1"), None);
    }
}
