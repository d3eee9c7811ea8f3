//! Packets as a capture file for Wireshark (pcapng, draft-ietf-opsawg-pcapng).

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use adverb_proto::trace::DropReason;
use adverb_wire::{
    Flow, Frame, ICRC_LEN, IpHeader, MAX_HEADER_LEN, MAX_OUTER_HEADER_LEN, MAX_PACKET_LEN, ROCE_PORT,
};

use crate::clock::Clocks;
use crate::comment::Comments;
use crate::model::{Device, DeviceId, Direction, Packet, PacketId, PacketRole, Trace};

impl Trace {
    /// Writes the packets as a capture in pcapng format, which Wireshark and `tshark -r FILE` read.
    ///
    /// Each device is an interface. Each packet has a comment that names its request (see
    /// [`packet_comments`](Trace::packet_comments)). The display filter `frame.comment` selects packets with a comment,
    /// and `tshark -T fields -e frame.comment` prints the comments.
    /// The packets of devices that [share a clock](Trace::is_clock_shared) are in the order of their times; those of other
    /// devices follow.
    ///
    /// The headers are those of the recorded packets. The capture differs from the packets on the wire as follows:
    ///
    /// - Zeros take the place of payload that was not recorded, and of the ICRC of such a packet. A message of the
    ///   connection manager without recorded payload has the first bytes of its header nevertheless, because Wireshark
    ///   needs them.
    /// - The ICRC is computed for IP ID 0. It is zero if the addresses or the UDP ports are unknown, or if the packet was
    ///   dropped because its ICRC was wrong.
    /// - The other fields of the IP header that a recording lacks have default values: traffic class 0, 64 hops. The UDP
    ///   checksum is 0.
    /// - Unknown addresses are replaced by documentation addresses: 192.0.2.1 or 2001:db8::1 for the first device,
    ///   192.0.2.2 or 2001:db8::2 for the second, and so on, and 192.0.2.254 or 2001:db8::fe for a peer that was not
    ///   recorded. The receiver of a connection's packet does not know the source port; without a recording of the sender,
    ///   the port is 0.
    ///
    /// The comment of a packet names these replacements, except for the default values.
    ///
    /// Wireshark takes SENDs of up to 12 bytes for malformed messages of the protocol RPCoRDMA, in this and in any other
    /// capture. `tshark --disable-protocol rpcordma` shows them correctly; Wireshark has a menu for enabled protocols.
    ///
    /// ```
    /// # mod adverb { pub use adverb_trace as trace; }
    /// use adverb::trace::Trace;
    ///
    /// fn save(trace: &Trace) -> std::io::Result<()> {
    ///     trace.write_pcapng(&mut std::fs::File::create("trace.pcapng")?)
    /// }
    /// # let mut file = Vec::new();
    /// # Trace::default().write_pcapng(&mut file)?;
    /// # assert_eq!(file[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    /// # std::io::Result::Ok(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if writing to `out` fails.
    pub fn write_pcapng(&self, out: &mut impl Write) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, out);
        let mut options = Vec::new();
        append_option(&mut options, USER_APPLICATION, b"adverb-trace");
        append_option(&mut options, END_OF_OPTIONS, &[]);
        write_block(&mut out, SECTION, &[&SECTION_CONTENT, &options])?;
        for device in self.devices() {
            write_interface(&mut out, device)?;
        }
        let clocks = Clocks::new(self);
        let comments = Comments::new(self);
        let mut frame = Vec::new();
        let mut comment = String::new();
        for id in packets_in_order(self, &clocks) {
            let packet = &self.packets[id.0];
            comment.clear();
            comments.write(id, &mut comment);
            let addresses = Addresses::of(self, packet);
            write_notes(packet, &addresses, &mut comment);
            frame.clear();
            write_frame(packet, &addresses, &mut frame);
            let nanos = clocks.unix_nanos(self, packet.device, packet.time);
            write_enhanced_packet(&mut out, packet, nanos, &frame, &comment)?;
        }
        out.flush()
    }
}

/// Returns the packets: those of each clock in the order of their times.
fn packets_in_order(trace: &Trace, clocks: &Clocks) -> impl Iterator<Item = PacketId> {
    let keys = trace.packets().iter().enumerate().map(|(index, packet)| {
        (clocks.of(packet.device), trace.host_nanos(packet.device, packet.time), index)
    });
    let mut keys: Vec<(usize, u64, usize)> = keys.collect();
    keys.sort();
    keys.into_iter().map(|(.., index)| PacketId(index))
}

/// The addresses of a packet.
struct Addresses {
    source: SocketAddr,
    destination: SocketAddr,
    ip: IpHeader,
    /// Whether both addresses and both ports are those of the packet, so that its ICRC can be computed.
    are_known: bool,
    /// The end of the packet's comment, if the addresses or ports are unknown.
    note: &'static str,
}

impl Addresses {
    fn of(trace: &Trace, packet: &Packet) -> Addresses {
        let (source, destination) = (packet.source, packet.destination);
        if let (Some(source), Some(destination)) = (source, destination)
            && let Some(ip) = IpHeader::new(source.ip(), destination.ip())
        {
            let are_known = source.port() != 0 && destination.port() != 0;
            let note = if are_known { "" } else { ", UDP port unknown" };
            return Addresses { source, destination, ip, are_known, note };
        }
        let peer = packet.peer_packet.and_then(|peer| trace.packet(peer)).map(|peer| peer.device);
        let (sender, receiver) = match packet.direction {
            Direction::Out => (Some(packet.device), peer),
            Direction::In => (peer, Some(packet.device)),
        };
        // A known address is kept, unless the other one is of another family.
        let mut known = [source, destination].into_iter().flatten().peekable();
        let is_v6 = known.peek().is_some() && known.all(|addr| addr.is_ipv6());
        let resolve = |addr: Option<SocketAddr>, device, port| {
            let kept = addr.filter(|addr| addr.is_ipv6() == is_v6);
            kept.unwrap_or_else(|| SocketAddr::new(placeholder(device, is_v6), port))
        };
        let source = resolve(source, sender, PLACEHOLDER_PORT);
        let destination = resolve(destination, receiver, ROCE_PORT);
        let ip = IpHeader::new(source.ip(), destination.ip()).expect("addresses of one family");
        let note = ", addresses unknown: placeholders";
        Addresses { source, destination, ip, are_known: false, note }
    }
}

/// Returns a documentation address (RFC 5737, RFC 3849) for a device, or for a peer that was not recorded.
fn placeholder(device: Option<DeviceId>, is_v6: bool) -> IpAddr {
    let host =
        device.map_or(UNRECORDED_HOST, |device| (device.0 % usize::from(UNRECORDED_HOST - 1)) as u8 + 1);
    if is_v6 {
        IpAddr::V6(Ipv6Addr::new(0x2001, 0x0db8, 0, 0, 0, 0, 0, host.into()))
    } else {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, host))
    }
}

/// The last octet of the address of a peer that was not recorded.
const UNRECORDED_HOST: u8 = 254;

/// The source port of packets whose source is unknown: the first port of RoCEv2 senders.
const PLACEHOLDER_PORT: u16 = 0xc000;

/// Appends the IP datagram of a packet to `frame`.
///
/// Zeros take the place of bytes that are unknown. The captured length could also be shorter than the original length,
/// but then Wireshark 4.0 replaces the description of the packet by "Invalid Packet Length from LRH! [Malformed Packet]".
fn write_frame(packet: &Packet, addresses: &Addresses, frame: &mut Vec<u8>) {
    // No device sends packets that are longer, but a recording can be forged.
    let payload_len = (packet.payload_len as usize).min(MAX_PACKET_LEN - MAX_HEADER_LEN - ICRC_LEN);
    let recorded = recorded_payload(packet);
    let recorded = &recorded[..recorded.len().min(payload_len)];
    let mut head = [0; MAX_HEADER_LEN];
    let header_len = packet.header.emit(payload_len, &mut head);
    let packet_len = (header_len + payload_len).next_multiple_of(4) + ICRC_LEN;
    let mut outer = [0; MAX_OUTER_HEADER_LEN];
    let outer_len = Frame::emit_outer(&addresses.ip, addresses.source.port(), packet_len, &mut outer);
    outer[outer_len - 6..outer_len - 4].copy_from_slice(&addresses.destination.port().to_be_bytes());
    frame.extend_from_slice(&outer[..outer_len]);
    frame.extend_from_slice(&head[..header_len]);
    match packet.role {
        PacketRole::Cm { .. } if recorded.is_empty() => {
            frame.extend_from_slice(&CM_HEADER[..payload_len.min(CM_HEADER.len())]);
        }
        _ => frame.extend_from_slice(recorded),
    }
    frame.resize(outer_len + packet_len - ICRC_LEN, 0);
    let icrc = if is_icrc_known(packet, addresses) { icrc(packet, addresses) } else { None };
    frame.extend_from_slice(&icrc.unwrap_or_default());
}

/// The start of a connection manager's message: its base version, class, class version and method. Wireshark needs it to
/// dissect the message.
const CM_HEADER: [u8; 4] = [1, 7, 2, 3];

/// Computes the ICRC of a packet whose payload was recorded.
fn icrc(packet: &Packet, addresses: &Addresses) -> Option<[u8; ICRC_LEN]> {
    let flow = Flow::new(addresses.source, addresses.destination)?;
    let emitted = flow.emit(&packet.header, 0, &[recorded_payload(packet)], &mut [0; MAX_HEADER_LEN]).ok()?;
    emitted.trailer.last_chunk().copied()
}

/// Whether all bytes that the ICRC covers are known, and the packet had a correct ICRC.
fn is_icrc_known(packet: &Packet, addresses: &Addresses) -> bool {
    recorded_payload(packet).len() == packet.payload_len as usize
        && addresses.are_known
        && packet.dropped != Some(DropReason::WrongIcrc)
}

/// Returns the part of a packet's payload that was recorded.
fn recorded_payload(packet: &Packet) -> &[u8] {
    let recorded = packet.payload.as_deref().unwrap_or_default();
    &recorded[..recorded.len().min(packet.payload_len as usize)]
}

/// Appends the differences from the packet on the wire to its comment.
fn write_notes(packet: &Packet, addresses: &Addresses, comment: &mut String) {
    match recorded_payload(packet).len() {
        len if len == packet.payload_len as usize => {
            if !is_icrc_known(packet, addresses) {
                comment.push_str(", ICRC unknown: zeros");
            }
        }
        0 if matches!(packet.role, PacketRole::Cm { .. }) => {
            comment.push_str(", payload and ICRC not recorded: empty CM message and zeros");
        }
        0 => comment.push_str(", payload and ICRC not recorded: zeros"),
        // Writing to a string doesn't fail.
        len => _ = write!(comment, ", recorded up to byte {len} of the payload: zeros after it"),
    }
    comment.push_str(addresses.note);
}

/// Writes the description of a device.
fn write_interface(out: &mut impl Write, device: &Device) -> io::Result<()> {
    let mut content = Vec::new();
    content.extend_from_slice(&LINK_TYPE.to_le_bytes());
    content.extend_from_slice(&[0; 6]); // reserved; packets of any length
    append_option(&mut content, INTERFACE_NAME, truncated(&device.name, 1000));
    if device.lost_count > 0 {
        let lost = device.lost_count;
        let comment = format!("the recorder overwrote {lost} events, so packets can be missing");
        append_option(&mut content, COMMENT, comment.as_bytes());
    }
    append_option(&mut content, TIMESTAMP_RESOLUTION, &[9]); // 10⁻⁹ s
    append_option(&mut content, END_OF_OPTIONS, &[]);
    write_block(out, INTERFACE, &[&content])
}

fn write_enhanced_packet(
    out: &mut impl Write,
    packet: &Packet,
    nanos: u64,
    frame: &[u8],
    comment: &str,
) -> io::Result<()> {
    let direction = match packet.direction {
        Direction::In => INBOUND,
        Direction::Out => OUTBOUND,
    };
    let words =
        [packet.device.0 as u32, (nanos >> 32) as u32, nanos as u32, frame.len() as u32, frame.len() as u32];
    let words = words.map(u32::to_le_bytes);
    let padding = &[0; 3][..frame.len().wrapping_neg() & 3];
    let mut options = Vec::with_capacity(comment.len() + 24);
    append_option(&mut options, COMMENT, truncated(comment, MAX_COMMENT));
    append_option(&mut options, PACKET_FLAGS, &direction.to_le_bytes());
    append_option(&mut options, END_OF_OPTIONS, &[]);
    write_block(out, ENHANCED_PACKET, &[words.as_flattened(), frame, padding, &options])
}

/// Writes a block: its kind, its length, its content in 32-bit words, and its length again.
fn write_block(out: &mut impl Write, kind: u32, content: &[&[u8]]) -> io::Result<()> {
    let length = 12 + content.iter().map(|piece| piece.len()).sum::<usize>() as u32;
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    for piece in content {
        out.write_all(piece)?;
    }
    out.write_all(&length.to_le_bytes())
}

/// Appends an option of a block: its code, its length, its value in whole words.
fn append_option(content: &mut Vec<u8>, code: u16, value: &[u8]) {
    content.extend_from_slice(&code.to_le_bytes());
    content.extend_from_slice(&(value.len() as u16).to_le_bytes());
    content.extend_from_slice(value);
    content.resize(content.len().next_multiple_of(4), 0);
}

/// Returns the bytes of a text's first characters, at most `max`.
fn truncated(text: &str, max: usize) -> &[u8] {
    let mut len = text.len().min(max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text.as_bytes()[..len]
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// The byte order, version 1.0, a section of unknown length.
const SECTION_CONTENT: [u8; 16] =
    [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];

/// The link type of frames that begin with an IP header, of either version (LINKTYPE_RAW).
const LINK_TYPE: u16 = 101;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const INTERFACE_NAME: u16 = 2;
const PACKET_FLAGS: u16 = 2;
const USER_APPLICATION: u16 = 4;
const TIMESTAMP_RESOLUTION: u16 = 9;

const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// The maximum length of a comment in bytes. An option has at most 65,535.
const MAX_COMMENT: usize = 60_000;

#[cfg(test)]
mod tests;
