//! Sockets that trace the path of packets.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg};

use super::clock::Clock;
use super::interface::Interface;
use super::ports::HopLimits;
use super::{SendFailure, message, socket};
use crate::link::TxPacket;

/// A socket that sends packets with any hop limit from one source port, and receives the ICMP messages about packets
/// from this port.
///
/// The socket may be a link's own
/// ([`SourcePorts::path_socket`](crate::link::SourcePorts::path_socket)). It needs no privileges.
///
/// ```no_run
/// use adverb_soft::link::PathSocket;
///
/// let mut socket = PathSocket::bind("192.0.2.1:50000".parse().unwrap())?;
/// socket.send("198.51.100.1:4791".parse().unwrap(), 0, 3, 0, b"a packet")?;
/// std::thread::sleep(std::time::Duration::from_secs(1));
/// let mut quoted = [0; 64];
/// while let Some(error) = socket.receive_error(&mut quoted)? {
///     println!("ICMP type {} from {:?}: {:?}", error.kind, error.from, &quoted[..error.quoted_len]);
/// }
/// # std::io::Result::Ok(())
/// ```
#[derive(Debug)]
pub struct PathSocket {
    socket: UdpSocket,
    local: SocketAddr,
    clock: Clock,
    /// Whether a link uses the same socket.
    is_shared: bool,
}

/// An ICMP or ICMPv6 message about a packet that a [`PathSocket`] sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct IcmpError {
    /// The sender of the message, a router or the destination, or `None` if the kernel doesn't report it.
    pub from: Option<IpAddr>,
    /// The type of the message.
    pub kind: u8,
    /// The code of the message.
    pub code: u8,
    /// The time at which the kernel received the message.
    pub received_at: Instant,
    /// The number of bytes of the packet, from the base transport header on, that the message contains and that fit in
    /// the caller's buffer. It may be 0, because routers may send only the IP and UDP headers.
    pub quoted_len: usize,
}

/// The maximum number of failed sends of one packet because of pending ICMP messages.
const MAX_PENDING_ERRORS: u32 = 8;

impl PathSocket {
    /// Opens a socket at a local address and source port.
    ///
    /// # Errors
    ///
    /// - Returns `AddrInUse` if another socket is bound to the port at this address.
    /// - Returns `AddrNotAvailable` if the address doesn't belong to this machine.
    pub fn bind(local: SocketAddr) -> io::Result<PathSocket> {
        let socket = socket::bind(local)?;
        let interface = Interface::of(local.ip()).map_or(0, |interface| interface.index);
        socket::set_send_options(&socket, local.ip(), interface)?;
        PathSocket::new(socket, local, false)
    }

    /// Creates a path socket that receives ICMP messages with `socket`. `is_shared` is whether a link uses the socket,
    /// too.
    pub(super) fn new(socket: UdpSocket, local: SocketAddr, is_shared: bool) -> io::Result<PathSocket> {
        socket::set_icmp_errors(&socket, local.is_ipv4(), true)?;
        Ok(PathSocket { socket, local, clock: Clock::new(), is_shared })
    }

    /// Returns the local address and source port.
    pub const fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends a packet: the bytes of a UDP datagram, whose ICRC must have been computed for IP ID 0. `flow_label` is used
    /// only with IPv6.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if the send buffer is full, and the kernel's error if the packet can't be sent.
    pub fn send(
        &self,
        destination: SocketAddr,
        traffic_class: u8,
        hop_limit: u8,
        flow_label: u32,
        bytes: &[u8],
    ) -> io::Result<()> {
        let source = self.local;
        let packet = TxPacket { source, destination, traffic_class, hop_limit, flow_label, bytes };
        let mut pending = 0;
        loop {
            let error = match message::send(self.socket.as_fd(), &[packet], false, None, HopLimits::default())
            {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match SendFailure::of(&error) {
                SendFailure::Interrupted => {}
                // The error may be an ICMP message about an earlier packet, which the kernel reports once.
                SendFailure::Packet if pending < MAX_PENDING_ERRORS => pending += 1,
                _ => return Err(error),
            }
        }
    }

    /// Returns the next ICMP message without blocking, and copies the quoted bytes of the packet to `quoted`.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket no longer works.
    pub fn receive_error(&mut self, quoted: &mut [u8]) -> io::Result<Option<IcmpError>> {
        // The largest control messages: an error with an IPv6 address, and a timestamp.
        let mut controls = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6, libc::timespec);
        loop {
            let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
            let mut pieces = [IoSliceMut::new(quoted)];
            let descriptor = self.socket.as_raw_fd();
            let called_at = Instant::now();
            let message = match recvmsg::<SockaddrStorage>(
                descriptor,
                &mut pieces,
                Some(controls.as_mut_slice()),
                flags,
            ) {
                Ok(message) => message,
                Err(Errno::EAGAIN) => {
                    self.clock.record_empty_queue(called_at);
                    return Ok(None);
                }
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let read_at = Instant::now();
            let (mut found, mut received_at) = (None, None);
            for control in message.cmsgs()? {
                match control {
                    ControlMessageOwned::Ipv4RecvErr(error, from) => {
                        let from = from.map(|from| IpAddr::from(from.sin_addr.s_addr.to_ne_bytes()));
                        found = (error.ee_origin == libc::SO_EE_ORIGIN_ICMP).then_some((error, from));
                    }
                    ControlMessageOwned::Ipv6RecvErr(error, from) => {
                        let from = from.map(|from| IpAddr::from(from.sin6_addr.s6_addr));
                        found = (error.ee_origin == libc::SO_EE_ORIGIN_ICMP6).then_some((error, from));
                    }
                    ControlMessageOwned::ScmTimestampns(time) => received_at = since_1970(time),
                    _ => {}
                }
            }
            // Other entries, such as transmit timestamps, are not about the path.
            let Some((error, from)) = found else { continue };
            let received_at = received_at.map_or(read_at, |time| self.clock.convert(time, read_at));
            let quoted_len = message.bytes;
            return Ok(Some(IcmpError {
                from,
                kind: error.ee_type,
                code: error.ee_code,
                received_at,
                quoted_len,
            }));
        }
    }
}

impl AsFd for PathSocket {
    /// Returns the file descriptor. Its error condition (`POLLERR`) shows that ICMP messages are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PathSocket {
    fn drop(&mut self) {
        if self.is_shared {
            // Otherwise ICMP messages about the link's packets would accumulate.
            let _ = socket::set_icmp_errors(&self.socket, self.local.is_ipv4(), false);
        }
    }
}

/// Returns the time of a timestamp since 1970.
fn since_1970(time: nix::sys::time::TimeSpec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(Duration::new(seconds, u32::try_from(time.tv_nsec()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::{UdpConfig, UdpLink};
    use super::*;
    use crate::link::{Link, RxPacket, SourcePorts};

    const TEST_DEADLINE: Duration = Duration::from_secs(10);

    /// Waits for the next ICMP message.
    fn next_error(socket: &mut PathSocket, quoted: &mut [u8]) -> IcmpError {
        let start = Instant::now();
        loop {
            if let Some(error) = socket.receive_error(quoted).unwrap() {
                return error;
            }
            assert!(start.elapsed() < TEST_DEADLINE, "no ICMP message arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_closed_port_is_reported_with_the_packet() {
        for (local, closed, unreachable) in
            [("127.91.0.1:50001", "127.91.0.2:4791", (3, 3)), ("[::1]:50001", "[::1]:4790", (1, 4))]
        {
            let (local, closed): (SocketAddr, SocketAddr) = (local.parse().unwrap(), closed.parse().unwrap());
            let mut socket = match PathSocket::bind(local) {
                Ok(socket) => socket,
                Err(error) if local.is_ipv6() => {
                    eprintln!("skipped: no IPv6: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(socket.local_addr(), local);
            // Each ICMP message makes the kernel reject the next packet once. `send` hides this from the caller.
            for number in 0..4_u8 {
                let sent_at = Instant::now();
                socket.send(closed, 26 << 2, 1, 0x123, &[number; 40]).unwrap();
                let mut quoted = [0; 64];
                let error = next_error(&mut socket, &mut quoted);
                assert_eq!((error.kind, error.code), unreachable);
                assert_eq!(error.from, Some(closed.ip()));
                assert_eq!(&quoted[..error.quoted_len], [number; 40]);
                assert!(sent_at <= error.received_at && error.received_at <= Instant::now());
            }
            // The buffer may be shorter than the quoted packet.
            socket.send(closed, 0, 1, 0, b"a longer packet").unwrap();
            let mut quoted = [0; 8];
            assert_eq!(next_error(&mut socket, &mut quoted).quoted_len, 8);
            assert_eq!(&quoted, b"a longer");
        }
    }

    #[test]
    fn a_link_still_sends_from_a_port_that_is_traced() {
        let [here, there] = ["127.91.1.1", "127.91.1.2"].map(|text| text.parse::<IpAddr>().unwrap());
        let mut link = UdpLink::open(&UdpConfig::new(here)).unwrap();
        let mut peer = UdpLink::open(&UdpConfig::new(there)).unwrap();
        for port in [0xd123, link.source_port(here, 0)] {
            let mut socket = link.path_socket(here, port).unwrap();
            assert_eq!(socket.local_addr(), SocketAddr::new(here, port));
            assert_eq!(link.open_source_port(here, port), port, "the link has the port, too");
            let closed = SocketAddr::new(there, 4790);
            socket.send(closed, 0, 1, 0, b"to a closed port").unwrap();
            let mut quoted = [0; 64];
            let start = Instant::now();
            while socket.socket.take_error().unwrap().is_none() {
                assert!(start.elapsed() < TEST_DEADLINE);
            }
            // The second message stays pending, so the link's next send fails.
            socket.send(closed, 0, 1, 0, b"to a closed port").unwrap();
            std::thread::sleep(Duration::from_millis(10));
            let source = SocketAddr::new(here, port);
            let destination = peer.local_addr();
            let bytes = &b"twelve bytes"[..];
            let packet =
                TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes };
            assert_eq!(link.send(&[packet; 3]).unwrap(), 3);
            let mut count = 0;
            while count < 3 {
                let mut each = |packet: &RxPacket<'_>| count += usize::from(packet.source == source);
                peer.receive(usize::MAX, &mut each).unwrap();
                assert!(start.elapsed() < TEST_DEADLINE);
            }
            assert!(link.is_gso_enabled(), "the message says nothing about GSO");
            assert_eq!(link.statistics().unsendable, 0);
            assert_eq!(next_error(&mut socket, &mut quoted).from, Some(there));
            // The link keeps the port when the socket is dropped, and no longer gets messages.
            drop(socket);
            assert_eq!(link.send(&[packet]).unwrap(), 1);
            link.close_source_port(here, port);
        }
    }

    #[test]
    fn a_port_of_another_program_is_rejected() {
        let mut link = UdpLink::open(&UdpConfig::new("127.91.2.1".parse().unwrap())).unwrap();
        let _other = UdpSocket::bind("127.91.2.1:55555").unwrap();
        let error = link.path_socket(link.local_addr().ip(), 55555).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
