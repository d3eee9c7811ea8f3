//! The check of the GID that a peer names over TCP.

use std::net::IpAddr;

use adverb_verbs::{Gid, LinkLayer, QueuePair};

use crate::options::Options;
use crate::protocol::handshake::Flaw;

/// Checks that the GID in a peer's greeting belongs to the peer of the TCP connection, so that no peer can make this
/// side send packets to a third party.
///
/// The check doesn't apply where GIDs are not addresses of an IP network: on InfiniBand, and on software devices whose
/// network is in memory.
pub(super) fn check_gid(
    gid: Gid,
    peer: IpAddr,
    queue_pair: &QueuePair,
    options: &Options,
) -> Result<(), Flaw> {
    let device = queue_pair.protection_domain().device();
    let is_exempt = || !device.is_on_ip_network() || queue_pair.link_layer() == LinkLayer::InfiniBand;
    if options.allow_foreign_gid || belongs_to(gid, peer) || is_exempt() {
        return Ok(());
    }
    Err(Flaw::ForeignGid(gid))
}

/// Whether packets to a GID go to the host of an IP address.
pub(crate) fn belongs_to(gid: Gid, peer: IpAddr) -> bool {
    let (addr, peer) = (gid.udp_addr().ip(), peer.to_canonical());
    // All loopback addresses belong to this machine, and the device may have another one than the TCP connection.
    addr == peer || addr.is_loopback() && peer.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_belongs_to_the_address_that_its_packets_go_to() {
        for (gid, peer, belongs) in [
            ("::ffff:192.0.2.7", "192.0.2.7", true),
            ("::ffff:192.0.2.7", "::ffff:192.0.2.7", true),
            ("::ffff:192.0.2.7", "192.0.2.8", false),
            // 192.0.2.7, UDP port 4792.
            ("100::12b8:c000:207", "192.0.2.7", true),
            ("100::12b8:c000:207", "192.0.2.8", false),
            // No software device uses UDP port 1, so this GID is a plain IPv6 address.
            ("100::1:c000:207", "192.0.2.7", false),
            ("2001:db8::7", "2001:db8::7", true),
            ("2001:db8::7", "192.0.2.7", false),
            ("fe80::1", "fe80::1", true),
            ("fe80::1", "2001:db8::7", false),
            ("fe80::1", "192.0.2.7", false),
            ("::ffff:127.3.4.5", "127.0.0.1", true),
            ("::1", "127.0.0.1", true),
            ("100::12b8:0:1", "::1", true),
            ("::ffff:127.0.0.1", "192.0.2.7", false),
            ("::ffff:192.0.2.7", "127.0.0.1", false),
            ("ff0e::1", "2001:db8::7", false),
            ("::", "192.0.2.7", false),
        ] {
            let (gid, peer): (IpAddr, IpAddr) = (gid.parse().unwrap(), peer.parse().unwrap());
            let gid = match gid {
                IpAddr::V6(gid) => Gid::new(gid.octets()),
                IpAddr::V4(_) => unreachable!("GIDs are written as IPv6 addresses"),
            };
            assert_eq!(belongs_to(gid, peer), belongs, "{gid} and {peer}");
        }
    }
}
