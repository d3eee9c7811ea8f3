//! The members of the mesh: addresses on the command line, in a file, or of this host's devices.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use adverb::probe::mesh::Member;
use adverb::verbs::Device;
use anyhow::{Context, Result, bail, ensure};

/// The maximum number of members.
const MAX_MEMBERS: usize = 64;

/// Returns the members: the addresses of the command line and of the file, or all addresses of this host's devices if
/// neither is given.
pub(super) fn members(addresses: &[IpAddr], file: Option<&Path>) -> Result<Vec<Member>> {
    let mut rails: BTreeMap<IpAddr, Option<String>> =
        addresses.iter().map(|&address| (address, None)).collect();
    if let Some(path) = file {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?;
        rails.extend(parse(&text).with_context(|| format!("could not read {}", path.display()))?);
    }
    if addresses.is_empty() && file.is_none() {
        rails.extend(host_addresses().into_iter().map(|address| (address, None)));
        if rails.len() < 2 {
            bail!(
                "this host's RDMA devices have {} addresses, and a mesh needs at least 2: name addresses, which can \
                 be those of any network interface: `adverb mesh host 192.0.2.1 192.0.2.2`",
                rails.len()
            );
        }
    }
    ensure!(rails.len() >= 2, "a mesh needs at least 2 addresses");
    ensure!(rails.len() <= MAX_MEMBERS, "a mesh can have at most {MAX_MEMBERS} addresses");
    let mut remote = 0;
    let member = |(address, rail): (IpAddr, Option<String>)| {
        // This process serves all local addresses. Each other address has a process of its own.
        let process = match is_local(address) {
            true => LOCAL_PROCESS,
            false => {
                remote += 1;
                remote
            }
        };
        Member { address, process, rail }
    };
    let members: Vec<Member> = rails.into_iter().map(member).collect();
    ensure!(
        members.iter().any(|member| member.process == LOCAL_PROCESS),
        "none of the addresses is an address of this host, so no probes can be sent"
    );
    Ok(members)
}

/// The identifier of this process.
pub(super) const LOCAL_PROCESS: u64 = 0;

/// Parses a file: an address per line, and optionally the name of its rail, which is the switch or subnet that several
/// NICs share.
fn parse(text: &str) -> Result<BTreeMap<IpAddr, Option<String>>> {
    let mut members = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(address) = words.next() else { continue };
        let address =
            address.parse().with_context(|| format!("line {}: {address} is not an address", n + 1))?;
        let rail = words.next().map(str::to_owned);
        ensure!(words.next().is_none(), "line {}: expected an address and at most one rail", n + 1);
        members.insert(address, rail);
    }
    Ok(members)
}

/// Returns the IPv4 addresses of this host's devices, except loopback addresses.
fn host_addresses() -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for name in crate::devices::usable().unwrap_or_default() {
        let Ok(gids) = Device::open(&name).and_then(|device| device.gids()) else { continue };
        let ips = gids.iter().map(|entry| entry.gid.udp_addr().ip());
        addresses.extend(ips.filter(|ip| ip.is_ipv4() && !ip.is_loopback() && is_local(*ip)));
    }
    addresses
}

/// Whether the address is one of this host's.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_addresses_and_rails() {
        let parsed = parse("# rack 7\n10.0.0.1 a\n\n10.0.0.2  b # spare\nfd00::1\n").unwrap();
        let expected = [("10.0.0.1", Some("a")), ("10.0.0.2", Some("b")), ("fd00::1", None)];
        let expected = expected.map(|(ip, rail)| (ip.parse().unwrap(), rail.map(str::to_owned)));
        assert_eq!(parsed, BTreeMap::from(expected));
    }

    #[test]
    fn errors_of_a_file_name_the_line() {
        for (text, error) in [("10.0.0.1\nhost", "line 2: host is not"), ("10.0.0.1 a b", "line 1: expected")]
        {
            assert!(parse(text).unwrap_err().to_string().starts_with(error), "{text}");
        }
    }

    #[test]
    fn loopback_is_local_and_a_documentation_address_is_not() {
        let addresses = ["127.0.0.1", "203.0.113.1"].map(|address| address.parse().unwrap());
        let members = members(&addresses, None).unwrap();
        assert_eq!(members.iter().map(|member| member.process).collect::<Vec<_>>(), [LOCAL_PROCESS, 1]);
        assert!(super::members(&addresses[1..], None).is_err());
    }
}
