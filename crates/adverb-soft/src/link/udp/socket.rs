//! Opening sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;

use adverb_wire::ROCE_PORT;
use nix::libc;
use nix::sys::socket::sockopt::{
    Ipv4RecvErr, Ipv6RecvErr, RcvBuf, RcvBufForce, ReceiveTimestampns, ReuseAddr, ReusePort, SetBool,
    SetStruct, SndBuf,
};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, getsockopt, setsockopt};

use super::UdpConfig;

/// The first of the UDP source ports of RoCEv2 (Annex A17.9: the upper two bits are 1).
pub(super) const FIRST_SOURCE_PORT: u16 = 0xc000;

/// The size of a socket's send buffer.
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// The size of the receive buffer of a socket that receives ICMP messages.
const ICMP_BUFFER_BYTES: usize = 128 << 10;

/// Opens the receiving socket, and returns it with the size of its receive buffer.
pub(super) fn open_receiving(local: SocketAddr, config: &UdpConfig) -> io::Result<(UdpSocket, usize)> {
    let socket = bind(local)?;
    let buffer = set_receive_options(&socket, local.is_ipv4(), config)?;
    Ok((socket, buffer))
}

/// Opens a receiving socket like [`open_receiving`], at an address and port that further sockets of this user may have.
pub(super) fn open_shared_receiving(local: SocketAddr, config: &UdpConfig) -> io::Result<(UdpSocket, usize)> {
    let family = if local.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(family, SockType::Datagram, flags, None)?;
    setsockopt(&socket, ReusePort, &true)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(local))
        .map_err(|error| bind_error(local, error.into()))?;
    let socket = UdpSocket::from(socket);
    let buffer = set_receive_options(&socket, local.is_ipv4(), config)?;
    Ok((socket, buffer))
}

/// Opens a socket that receives the packets of a multicast group on an interface. Other sockets may join the same
/// group.
pub(super) fn open_group(
    group: IpAddr,
    local: IpAddr,
    interface: u32,
    config: &UdpConfig,
) -> io::Result<UdpSocket> {
    let family = if group.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(family, SockType::Datagram, flags, None)?;
    // Other programs may join the group, too.
    setsockopt(&socket, ReuseAddr, &true)?;
    let address = match group {
        IpAddr::V4(group) => SocketAddr::V4(SocketAddrV4::new(group, ROCE_PORT)),
        IpAddr::V6(group) => SocketAddr::V6(SocketAddrV6::new(group, ROCE_PORT, 0, interface)),
    };
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    let socket = UdpSocket::from(socket);
    match (group, local) {
        (IpAddr::V4(group), IpAddr::V4(local)) => {
            socket.join_multicast_v4(&group, &local)?;
            // Without this, the socket also receives groups that other sockets joined on other interfaces.
            setsockopt(&socket, MulticastAll, &false)?;
        }
        (IpAddr::V6(group), IpAddr::V6(_)) => {
            socket.join_multicast_v6(&group, interface)?;
            // Linux before 4.20 doesn't have this option.
            let _ = setsockopt(&socket, MulticastAll6, &false);
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    set_receive_options(&socket, group.is_ipv4(), config)?;
    Ok(socket)
}

/// Sets the options of a receiving socket, and returns the size of its receive buffer.
fn set_receive_options(socket: &UdpSocket, is_ipv4: bool, config: &UdpConfig) -> io::Result<usize> {
    set_receive_buffer(socket, config)?;
    if is_ipv4 {
        setsockopt(socket, ReceiveTos, &true)?;
        setsockopt(socket, ReceiveTtl, &true)?;
    } else {
        setsockopt(socket, ReceiveTrafficClass, &true)?;
        setsockopt(socket, ReceiveHopLimit, &true)?;
        setsockopt(socket, ReceiveFlowLabel, &true)?;
        // Other devices' packets have no UDP checksum, because the ICRC is stronger.
        setsockopt(socket, NoChecksum6, &true)?;
    }
    setsockopt(socket, CountOverflows, &true)?;
    if config.gso {
        // Linux before 5.0 has no GRO for UDP, and segments GSO batches before delivery.
        let _ = setsockopt(socket, ReceiveGroBatches, &true);
    }
    Ok(getsockopt(socket, RcvBuf)?)
}

/// Sets the size of a receiving socket's buffer.
pub(super) fn set_receive_buffer(socket: &UdpSocket, config: &UdpConfig) -> io::Result<()> {
    let buffer = config.receive_buffer_bytes;
    // Exceeding the system's limit needs a privilege.
    if setsockopt(socket, RcvBufForce, &buffer).is_err() {
        setsockopt(socket, RcvBuf, &buffer)?;
    }
    Ok(())
}

/// Sets the options of a sending socket. It sends multicast packets on `interface`.
pub(super) fn set_send_options(socket: &UdpSocket, local: IpAddr, interface: u32) -> io::Result<()> {
    if let IpAddr::V4(local) = local {
        let local = libc::in_addr { s_addr: u32::from_ne_bytes(local.octets()) };
        setsockopt(socket, MulticastInterface, &local)?;
        // The interface's MTU applies, not the path MTU that ICMP reports. The IP ID is then 0: see the module `udp`.
        setsockopt(socket, MtuDiscover, &libc::IP_PMTUDISC_PROBE)?;
    } else {
        setsockopt(socket, MulticastInterface6, &interface.cast_signed())?;
        setsockopt(socket, MtuDiscover6, &libc::IPV6_PMTUDISC_PROBE)?;
    }
    Ok(setsockopt(socket, SndBuf, &SEND_BUFFER_BYTES)?)
}

/// Sets whether the kernel delivers the time at which it received a datagram.
///
/// `SO_TIMESTAMPNS` gives the same time as `SO_TIMESTAMPING` with `SOF_TIMESTAMPING_RX_SOFTWARE`, in 16 bytes instead of
/// 48. A datagram that arrived before the kernel began to stamp packets gets the time at which it is read.
pub(super) fn set_timestamps(socket: &UdpSocket, enabled: bool) -> io::Result<()> {
    Ok(setsockopt(socket, ReceiveTimestampns, &enabled)?)
}

/// Makes the kernel return the send times of datagrams that request them ([`SEND_TIME`]) through the socket's error
/// queue, each with a number: 0 for the first, 1 for the second, and so on.
pub(super) fn enable_send_times(socket: &UdpSocket) -> io::Result<()> {
    // Without `TSONLY`, the kernel returns the datagram too.
    let flags =
        libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    // Setting `OPT_ID` again restarts the numbers.
    setsockopt(socket, Timestamping, &0)?;
    Ok(setsockopt(socket, Timestamping, &flags)?)
}

/// The value of a control message `SO_TIMESTAMPING` that requests the time at which the kernel passes the datagram to
/// the network interface.
pub(super) const SEND_TIME: u32 = libc::SOF_TIMESTAMPING_TX_SOFTWARE;

/// Sets whether the kernel queues the ICMP messages about packets that the socket sent, with their times.
pub(super) fn set_icmp_errors(socket: &UdpSocket, is_ipv4: bool, enabled: bool) -> io::Result<()> {
    if is_ipv4 {
        setsockopt(socket, Ipv4RecvErr, &enabled)?;
    } else {
        setsockopt(socket, Ipv6RecvErr, &enabled)?;
    }
    set_timestamps(socket, enabled)?;
    // The queued messages count as received data.
    Ok(setsockopt(socket, RcvBuf, &if enabled { ICMP_BUFFER_BYTES } else { 0 })?)
}

/// Minimizes the receive buffer of a socket that no thread reads.
pub(super) fn minimize_receive_buffer(socket: &UdpSocket) {
    // A failure only costs memory.
    let _ = setsockopt(socket, RcvBuf, &0);
}

/// Opens a socket at an address and port.
pub(super) fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).map_err(|error| bind_error(address, error))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Returns the error of a socket that can't be bound, with a hint.
fn bind_error(address: SocketAddr, error: io::Error) -> io::Error {
    // Callers recognize the limit of file descriptors by its number. The address has nothing to do with it.
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        return error;
    }
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "; another software device has this address, or the kernel's soft-RoCE (rdma_rxe) has the port: use \
             another address (any in 127.0.0.0/8 within this machine), or another network namespace"
        }
        io::ErrorKind::AddrNotAvailable => "; use an address of this machine (`ip address` lists them)",
        _ => "",
    };
    io::Error::new(error.kind(), format!("binding a UDP socket to {address} failed: {error}{hint}"))
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
    ReceiveFlowLabel: IPPROTO_IPV6 IPV6_FLOWINFO bool, SetBool;
    NoChecksum6: IPPROTO_UDP UDP_NO_CHECK6_RX bool, SetBool;
    ReceiveGroBatches: SOL_UDP UDP_GRO bool, SetBool;
    CountOverflows: SOL_SOCKET SO_RXQ_OVFL bool, SetBool;
    MulticastInterface: IPPROTO_IP IP_MULTICAST_IF libc::in_addr, SetStruct<'_, libc::in_addr>;
    MulticastInterface6: IPPROTO_IPV6 IPV6_MULTICAST_IF i32, SetStruct<'_, i32>;
    MulticastAll: IPPROTO_IP IP_MULTICAST_ALL bool, SetBool;
    MulticastAll6: IPPROTO_IPV6 IPV6_MULTICAST_ALL bool, SetBool;
    Timestamping: SOL_SOCKET SO_TIMESTAMPING u32, SetStruct<'_, u32>;
}
