//! A packet with its IP and UDP headers, as in captures and on raw sockets.

use core::fmt;
use core::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::icrc::{Flow, IcrcMismatch};
use crate::ip::{IPV6_LEN, IpHeader};
use crate::packet::{Packet, ParseError, ROCE_PORT};

/// The length of a UDP header in bytes.
pub const UDP_HEADER_LEN: usize = 8;

/// The maximum length of the headers before a packet in bytes: IPv6 and UDP.
pub const MAX_OUTER_HEADER_LEN: usize = IPV6_LEN + UDP_HEADER_LEN;

/// A packet in its IP datagram, which includes every field that the ICRC covers.
///
/// ```
/// use adverb_wire::Frame;
///
/// // A congestion notification captured from a ConnectX-4 Lx.
/// let bytes = [
///     0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0a, 0x00, 0x11, 0x01, 0x0a,
///     0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xff, 0xff, 0x40, 0x00,
///     0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
///     0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xfd, 0x00, 0x2a,
/// ];
/// let frame = Frame::parse(&bytes).unwrap();
/// assert!(frame.verify().is_ok());
/// assert_eq!(frame.to_string(), "10.0.17.1.0 > 10.0.18.1.4791: CNP, qp 0x000118, psn 0, becn");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    ip: IpHeader,
    source_port: u16,
    packet: Packet<'a>,
}

impl<'a> Frame<'a> {
    /// Parses an IP datagram: IPv4 without options, or IPv6 without extension headers, with UDP to port 4791.
    ///
    /// Bytes beyond the length in the IP header are ignored, because Ethernet pads short frames.
    ///
    /// # Errors
    ///
    /// - Returns [`FrameError::NotUdp`] if the bytes aren't a complete, unfragmented UDP datagram with such an IP
    ///   header, or if the checksum of an IPv4 header is wrong.
    /// - Returns [`FrameError::OtherPort`] if the destination port isn't 4791.
    /// - Returns [`FrameError::Packet`] if the UDP payload isn't a valid packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let (ip, datagram) = IpHeader::parse(bytes).ok_or(FrameError::NotUdp)?;
        let (udp, payload) = datagram.split_first_chunk::<UDP_HEADER_LEN>().ok_or(FrameError::NotUdp)?;
        let &[s0, s1, d0, d1, l0, l1, _, _] = udp;
        let port = u16::from_be_bytes([d0, d1]);
        if port != ROCE_PORT {
            return Err(FrameError::OtherPort(port));
        }
        if usize::from(u16::from_be_bytes([l0, l1])) != datagram.len() {
            return Err(FrameError::NotUdp);
        }
        let packet = Packet::parse(payload).map_err(FrameError::Packet)?;
        Ok(Frame { ip, source_port: u16::from_be_bytes([s0, s1]), packet })
    }

    /// Writes the IP and UDP headers of a packet of `packet_len` bytes into `out`, and returns their length.
    ///
    /// The UDP checksum is 0, which means none, because the ICRC is stronger.
    ///
    /// ```
    /// use adverb_wire::{Frame, IpHeader, MAX_OUTER_HEADER_LEN};
    ///
    /// let ip = IpHeader::new("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()).unwrap();
    /// let mut outer = [0; MAX_OUTER_HEADER_LEN];
    /// assert_eq!(Frame::emit_outer(&ip, 49152, 20, &mut outer), 28);
    /// ```
    pub fn emit_outer(
        ip: &IpHeader,
        source_port: u16,
        packet_len: usize,
        out: &mut [u8; MAX_OUTER_HEADER_LEN],
    ) -> usize {
        let udp_len = u16::try_from(packet_len + UDP_HEADER_LEN).unwrap_or(u16::MAX);
        let ip_len = ip.emit(udp_len, out);
        let [s0, s1] = source_port.to_be_bytes();
        let [d0, d1] = ROCE_PORT.to_be_bytes();
        let [l0, l1] = udp_len.to_be_bytes();
        if let Some(udp) = out.get_mut(ip_len..).and_then(|rest| rest.first_chunk_mut()) {
            *udp = [s0, s1, d0, d1, l0, l1, 0, 0];
        }
        ip_len + UDP_HEADER_LEN
    }

    /// Returns the IP header.
    pub const fn ip(&self) -> &IpHeader {
        &self.ip
    }

    /// Returns the source address and port.
    pub const fn source(&self) -> SocketAddr {
        SocketAddr::new(self.ip.source(), self.source_port)
    }

    /// Returns the destination address and port.
    pub const fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.ip.destination(), ROCE_PORT)
    }

    /// Returns the packet.
    pub const fn packet(&self) -> &Packet<'a> {
        &self.packet
    }

    /// Checks the ICRC with the IP ID from the IP header.
    ///
    /// # Errors
    ///
    /// Returns [`IcrcMismatch`] if the frame is corrupt, or its addresses or ports changed in transit.
    pub fn verify(&self) -> Result<(), IcrcMismatch> {
        match &self.ip {
            IpHeader::V4(ip) => {
                let source = SocketAddrV4::new(ip.source, self.source_port);
                let destination = SocketAddrV4::new(ip.destination, ROCE_PORT);
                Flow::v4_with_flags(source, destination, ip.flags_and_offset).verify(&self.packet, ip.ip_id)
            }
            IpHeader::V6(ip) => {
                let source = SocketAddrV6::new(ip.source, self.source_port, 0, 0);
                let destination = SocketAddrV6::new(ip.destination, ROCE_PORT, 0, 0);
                Flow::v6(source, destination).verify(&self.packet, 0)
            }
        }
    }
}

/// Prints a line in the style of tcpdump, `source > destination: packet`, with ` [bad icrc]` if the ICRC is wrong.
impl fmt::Display for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let print_addr =
            |f: &mut fmt::Formatter<'_>, address: IpAddr, port: u16| write!(f, "{address}.{port}");
        print_addr(f, self.ip.source(), self.source_port)?;
        f.write_str(" > ")?;
        print_addr(f, self.ip.destination(), ROCE_PORT)?;
        write!(f, ": {}", self.packet)?;
        if self.verify().is_err() {
            f.write_str(" [bad icrc]")?;
        }
        Ok(())
    }
}

/// The error of [`Frame::parse`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FrameError {
    /// The bytes aren't a complete UDP datagram in IPv4 without options or IPv6 without extension headers.
    NotUdp,
    /// The destination port isn't 4791.
    OtherPort(u16),
    /// The UDP payload isn't a valid packet.
    Packet(ParseError),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::NotUdp => f.write_str(
                "not a complete UDP datagram in IPv4 without options or IPv6 without extension headers",
            ),
            FrameError::OtherPort(port) => write!(f, "UDP port {port} is not RoCEv2's {ROCE_PORT}"),
            FrameError::Packet(_) => f.write_str("invalid RoCEv2 packet"),
        }
    }
}

impl core::error::Error for FrameError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            FrameError::Packet(error) => Some(error),
            _ => None,
        }
    }
}
