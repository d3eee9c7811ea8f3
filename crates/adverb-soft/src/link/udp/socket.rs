//! Opening sockets.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use nix::libc;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, SetBool, SetStruct, SndBuf};
use nix::sys::socket::{getsockopt, setsockopt};

use super::UdpConfig;

/// The first of the UDP source ports of RoCEv2 (Annex A17.9: the upper two bits are 1).
pub(super) const FIRST_SOURCE_PORT: u16 = 0xc000;

/// How much may wait to be sent from one socket.
const SEND_BUFFER: usize = 4 << 20;

/// The socket that receives, and how large its buffer became.
pub(super) fn receiving(local: SocketAddr, config: &UdpConfig) -> io::Result<(UdpSocket, usize)> {
    let socket = bind(local)?;
    let buffer = config.receive_buffer;
    // Beyond the system's limit only with a privilege.
    if setsockopt(&socket, RcvBufForce, &buffer).is_err() {
        setsockopt(&socket, RcvBuf, &buffer)?;
    }
    if local.is_ipv4() {
        setsockopt(&socket, ReceiveTos, &true)?;
        setsockopt(&socket, ReceiveTtl, &true)?;
    } else {
        setsockopt(&socket, ReceiveTrafficClass, &true)?;
        setsockopt(&socket, ReceiveHopLimit, &true)?;
        // The packets of others have no UDP checksum, because the ICRC is stronger.
        setsockopt(&socket, NoChecksum6, &true)?;
    }
    setsockopt(&socket, CountOverflows, &true)?;
    if config.segmentation {
        // Before Linux 5.0 there is no such thing; trains are then taken apart before they come.
        let _ = setsockopt(&socket, ReceiveTrains, &true);
    }
    let buffer = getsockopt(&socket, RcvBuf)?;
    Ok((socket, buffer))
}

/// The sockets that send, with their ports.
pub(super) fn sending(at: impl Fn(u16) -> SocketAddr, count: u16) -> io::Result<Vec<(u16, UdpSocket)>> {
    let mut sockets = Vec::with_capacity(usize::from(count));
    // The ports are also those that the system gives to whoever asks for any: others may have some of them.
    for port in FIRST_SOURCE_PORT..=u16::MAX {
        if sockets.len() == usize::from(count) {
            break;
        }
        match bind(at(port)) {
            Ok(socket) => {
                if at(port).is_ipv4() {
                    // Not what ICMP claims about the path, but what the interface can do. And see the module's
                    // documentation.
                    setsockopt(&socket, MtuDiscover, &libc::IP_PMTUDISC_PROBE)?;
                } else {
                    setsockopt(&socket, MtuDiscover6, &libc::IPV6_PMTUDISC_PROBE)?;
                }
                setsockopt(&socket, SndBuf, &SEND_BUFFER)?;
                sockets.push((port, socket));
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    if sockets.is_empty() {
        let text = format!("every UDP port of {} from {FIRST_SOURCE_PORT} on is taken", at(0).ip());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    Ok(sockets)
}

/// Leaves a socket that only sends as little room as possible for what it receives, which nobody will read.
pub(super) fn deafen(socket: &UdpSocket) {
    // It only saves memory.
    let _ = setsockopt(socket, RcvBuf, &0);
}

fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "; another software device has this address, or the kernel's soft-RoCE (rdma_rxe) has the port: take \
                 another address (any in 127.0.0.0/8 will do within this machine), or another network namespace"
            }
            io::ErrorKind::AddrNotAvailable => "; it must be an address of this machine (see `ip address`)",
            _ => "",
        };
        io::Error::new(error.kind(), format!("can't bind UDP {address}: {error}{hint}"))
    })?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

macro_rules! options {
    ($($name:ident: $level:ident $option:ident $type:ty, $setter:ty;)*) => {
        $(
            #[derive(Clone, Copy)]
            struct $name;
            nix::setsockopt_impl!($name, libc::$level, libc::$option, $type, $setter);
        )*
    };
}

options! {
    MtuDiscover: IPPROTO_IP IP_MTU_DISCOVER i32, SetStruct<'_, i32>;
    MtuDiscover6: IPPROTO_IPV6 IPV6_MTU_DISCOVER i32, SetStruct<'_, i32>;
    ReceiveTos: IPPROTO_IP IP_RECVTOS bool, SetBool;
    ReceiveTtl: IPPROTO_IP IP_RECVTTL bool, SetBool;
    ReceiveTrafficClass: IPPROTO_IPV6 IPV6_RECVTCLASS bool, SetBool;
    ReceiveHopLimit: IPPROTO_IPV6 IPV6_RECVHOPLIMIT bool, SetBool;
    NoChecksum6: IPPROTO_UDP UDP_NO_CHECK6_RX bool, SetBool;
    ReceiveTrains: SOL_UDP UDP_GRO bool, SetBool;
    CountOverflows: SOL_SOCKET SO_RXQ_OVFL bool, SetBool;
}
