//! Sockets that send arbitrary packets.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use adverb_proto::types::Gid;
use nix::libc;
use nix::sys::socket::sockopt::SetStruct;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt};

/// A socket of an attacker.
pub(super) struct Sender {
    socket: UdpSocket,
    pub(super) address: SocketAddr,
}

impl Sender {
    /// Opens a socket whose multicast packets stay on this machine.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Sender> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        if address.is_ipv4() {
            let loopback = libc::in_addr { s_addr: u32::from_ne_bytes(Ipv4Addr::LOCALHOST.octets()) };
            setsockopt(&socket, MulticastInterface, &loopback)?;
        } else {
            let loopback = nix::net::if_::if_nametoindex("lo")?;
            setsockopt(&socket, MulticastInterface6, &loopback.cast_signed())?;
        }
        let address = socket.local_addr()?;
        Ok(Sender { socket, address })
    }

    /// Sends a packet up to `count` times, as one GSO batch if that is more than once. Returns the number of packets
    /// sent, or 0 if the kernel rejected them.
    pub(super) fn send(&self, bytes: &[u8], count: usize, destination: SocketAddr) -> usize {
        let count = count.min(MAX_BATCH_BYTES / bytes.len().max(1)).max(1);
        let batch = bytes.repeat(count);
        let length = bytes.len() as u16;
        let segments = [ControlMessage::UdpGsoSegments(&length)];
        let controls = if count > 1 && length > 0 { &segments[..] } else { &[] };
        let destination = SockaddrStorage::from(destination);
        let pieces = [IoSlice::new(&batch)];
        let flags = MsgFlags::MSG_DONTWAIT;
        match sendmsg(self.socket.as_raw_fd(), &pieces, controls, flags, Some(&destination)) {
            Ok(_) => count,
            Err(_) => 0,
        }
    }

    /// Receives a datagram, and returns it with its source.
    pub(super) fn receive(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let mut bytes = [0; 8 << 10];
        let (length, source) = self.socket.recv_from(&mut bytes).ok()?;
        Some((bytes[..length].to_vec(), source))
    }

    /// Returns the address that the NIC responds to.
    pub(super) fn gid(&self) -> IpAddr {
        Gid::from(self.address).ip()
    }
}

/// The maximum number of bytes of a GSO batch, below the maximum length of an IP packet.
const MAX_BATCH_BYTES: usize = 60_000;

#[derive(Clone, Copy)]
struct MulticastInterface;
nix::setsockopt_impl!(
    MulticastInterface,
    libc::IPPROTO_IP,
    libc::IP_MULTICAST_IF,
    libc::in_addr,
    SetStruct<'_, libc::in_addr>
);

#[derive(Clone, Copy)]
struct MulticastInterface6;
nix::setsockopt_impl!(
    MulticastInterface6,
    libc::IPPROTO_IPV6,
    libc::IPV6_MULTICAST_IF,
    i32,
    SetStruct<'_, i32>
);
