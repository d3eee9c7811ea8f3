//! The configuration of a [`UdpLink`](super::UdpLink), and its counters.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;

#[cfg(doc)]
use adverb_proto::types::Gid;
use adverb_wire::ROCE_PORT;

use crate::link::RingPeers;
#[cfg(doc)]
use crate::link::{AddressSharing, SourcePorts, UdpLink};

/// The configuration of a [`UdpLink`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UdpConfig {
    /// The local address: the destination of received packets, and the source of sent packets.
    pub address: IpAddr,
    /// The index of the interface of a link-local IPv6 address. It is 0 for other addresses.
    pub scope_id: u32,
    /// The local UDP port: 4791, the port of RoCEv2, or one of [`Gid::UDP_PORTS`], which is then also the source port. IPv6
    /// addresses other than ::1 support only 4791, because their GIDs can't encode another port.
    pub port: u16,
    /// The number of permanent source ports, at least 1, for flows without a flow label. The first port is 0xC000.
    pub source_port_count: u16,
    /// The maximum number of further source ports, which the link opens when a flow with a flow label needs them
    /// ([`SourcePorts::open_source_port`]). Each port takes a file descriptor.
    pub max_on_demand_ports: u16,
    /// The requested size of the kernel's receive buffer, in bytes. The kernel may grant less. Packets that arrive
    /// while the buffer is full are lost.
    pub receive_buffer_bytes: usize,
    /// Whether the link accepts only IPv4 packets with small IP IDs. Adverb's devices send such IDs, and other devices
    /// don't. With this restriction, the ICRC of IPv4 packets has an effective strength of 26 bits instead of 16. The
    /// ICRC of IPv6 packets always has 32 bits.
    pub adverb_peers_only: bool,
    /// Whether packets of equal length to one destination are sent as GSO batches if the kernel supports GSO. GSO
    /// batches need much less CPU time than single packets.
    pub gso: bool,
    /// Whether other processes of this user may have links at the same address and port 4791. Each of these links then
    /// has a [share](AddressSharing::address_share) of the queue pair numbers. Other ports are not shared. Packets between
    /// these links, except messages to queue pair 1, travel through shared memory ([`UdpConfig::ring_peers`]). The link isn't
    /// shared if this process can't recognize the processes of its user: its user ID is the overflow ID (65534) of a user
    /// namespace in which other users have no IDs.
    pub shared: bool,
    /// The processes with which the link exchanges packets in shared memory. A link that injects faults into its packets
    /// ([`FaultLink`](crate::link::FaultLink)) needs [`RingPeers::None`]. A process that can't recognize the processes of its
    /// user uses no shared memory.
    pub ring_peers: RingPeers,
}

impl UdpConfig {
    /// Creates the default configuration for an address: port 4791, 16 source ports and up to 256 further ones on
    /// demand, a receive buffer of 8 MiB, packets from any RoCEv2 peer, GSO, an address that isn't shared, and
    /// shared memory only with processes at a shared address.
    pub const fn new(address: IpAddr) -> UdpConfig {
        UdpConfig {
            address,
            scope_id: 0,
            port: ROCE_PORT,
            source_port_count: 16,
            max_on_demand_ports: 256,
            receive_buffer_bytes: 8 << 20,
            adverb_peers_only: false,
            gso: true,
            shared: false,
            ring_peers: RingPeers::SharedAddress,
        }
    }

    /// Whether the environment variable `ADVERB_EXCLUSIVE` requests devices that are not [shared](UdpConfig::shared): it is
    /// set, and neither empty nor 0. The programs and the library that open devices for users respect it.
    pub fn is_exclusive_requested() -> bool {
        is_set(std::env::var_os("ADVERB_EXCLUSIVE").as_deref())
    }

    /// Whether the environment variable `ADVERB_WIRE` requests devices that [use no shared memory](RingPeers::None): it is
    /// set, and neither empty nor 0. The programs and the library that open devices for users respect it.
    pub fn is_wire_only_requested() -> bool {
        is_set(std::env::var_os("ADVERB_WIRE").as_deref())
    }
}

/// Whether this is a value of an environment variable that makes a request.
fn is_set(value: Option<&OsStr>) -> bool {
    value.is_some_and(|value| !value.is_empty() && value != "0")
}

/// Counters of the packets that a [`UdpLink`] failed to send or receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct UdpStatistics {
    /// The number of packets that could not be sent: the kernel returned an error, or the source address or port
    /// doesn't belong to the link.
    pub unsendable: u64,
    /// The error of the last packet that could not be sent.
    pub last_send_error: Option<io::ErrorKind>,
    /// The number of receive errors after which the socket still works, such as errors caused by ICMP messages.
    pub receive_errors: u64,
    /// The number of datagrams lost because the receive buffer was full. A datagram is a packet or a GSO batch.
    pub overflows: u64,
    /// The number of dropped datagrams that are longer than any RoCEv2 packet.
    pub too_long: u64,
    /// The number of flows that got another source port than they requested: another program uses the port, the process
    /// has too many file descriptors, or [`UdpConfig::max_on_demand_ports`] ports are in use.
    pub source_port_fallbacks: u64,
    /// The number of packets that were passed on to other processes at a [shared](UdpConfig::shared) address: messages of
    /// connection managers, and packets of a device at another address that the kernel delivered in one GRO batch with
    /// packets of this process.
    pub passed_on: u64,
    /// The number of packets for other processes that could not be passed on, because the process doesn't read them, or has
    /// neither the file descriptor nor the memory to do so.
    pub not_passed_on: u64,
    /// The number of packets that were sent through [shared memory](UdpConfig::ring_peers) to other processes.
    pub sent_in_memory: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_value_but_0_is_a_request() {
        for (value, expected) in
            [(None, false), (Some(""), false), (Some("0"), false), (Some("1"), true), (Some("yes"), true)]
        {
            assert_eq!(is_set(value.map(OsStr::new)), expected, "{value:?}");
        }
    }
}
