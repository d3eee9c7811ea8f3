//! Packet captures in files that Wireshark reads.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use adverb_proto::IcrcCheck;
use adverb_wire::{Flow, Frame, IpHeader, MAX_OUTER_HEADER_LEN, Packet};
use parking_lot::Mutex;

use super::{
    AddressSharing, Link, MulticastGroups, ReceiveTimestamps, RxPacket, SourcePorts, TimedSend, TxPacket,
};

/// A packet capture in pcapng format (draft-ietf-opsawg-pcapng). Any number of links can write to a capture. Each link
/// appears as a separate interface. Wireshark and `tshark -r file` can read the file.
///
/// Packets have IP and UDP headers. In contrast to the headers on the wire, the UDP checksum is 0, as in the packets of
/// other RoCEv2 devices, and the IPv4 ID of a sent packet is 0.
///
/// ```no_run
/// use adverb_soft::link::{Capture, UdpConfig, UdpLink};
///
/// let capture = Capture::create("soft.pcapng".as_ref())?;
/// let link = UdpLink::open(&UdpConfig::new("127.0.0.2".parse().unwrap()))?;
/// let link = capture.watch("soft0", link);
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Capture {
    file: Arc<Mutex<Writer>>,
}

impl Capture {
    /// Creates a capture file, or truncates an existing one.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be created.
    pub fn create(path: &Path) -> io::Result<Capture> {
        Ok(Capture::new(BufWriter::with_capacity(1 << 20, File::create(path)?)))
    }

    /// Creates a capture that is written to `out`.
    pub fn new(out: impl Write + Send + 'static) -> Capture {
        let mut writer = Writer { out: Box::new(out), interfaces: 0, result: Ok(()) };
        writer.write_section_header();
        Capture { file: Arc::new(Mutex::new(writer)) }
    }

    /// Wraps a link. The packets that the link sends and receives are captured under the interface name `name`.
    pub fn watch<L: Link>(&self, name: &str, inner: L) -> PcapLink<L> {
        let interface = self.file.lock().add_interface(name);
        PcapLink { inner, capture: self.clone(), interface }
    }

    /// Writes buffered packets to the file. Dropping the capture and all its links also writes them.
    ///
    /// # Errors
    ///
    /// Returns an error if this or an earlier write failed. The links still send and receive packets after such an
    /// error.
    pub fn flush(&self) -> io::Result<()> {
        let mut writer = self.file.lock();
        writer.attempt(|out| out.flush());
        match &writer.result {
            Ok(()) => Ok(()),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("writing the capture failed; it is incomplete: {error}"),
            )),
        }
    }
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").finish_non_exhaustive()
    }
}

/// A link whose packets are recorded in a [`Capture`].
#[derive(Debug)]
pub struct PcapLink<L> {
    inner: L,
    capture: Capture,
    interface: u32,
}

impl<L: Link> PcapLink<L> {
    /// Returns the wrapped link.
    pub const fn inner(&self) -> &L {
        &self.inner
    }
}

impl<L: Link> Link for PcapLink<L> {
    fn send(&mut self, packets: &[TxPacket<'_>]) -> io::Result<usize> {
        let accepted = self.inner.send(packets)?;
        if accepted > 0 {
            let now = unix_nanos();
            let mut writer = self.capture.file.lock();
            for packet in &packets[..accepted] {
                writer.write_packet(self.interface, now, OUTBOUND, 0, packet);
            }
        }
        Ok(accepted)
    }

    fn is_receiver_full(&self, packet: &TxPacket<'_>) -> bool {
        self.inner.is_receiver_full(packet)
    }

    fn send_timed(&mut self, packet: &TxPacket<'_>) -> io::Result<TimedSend> {
        let sent = self.inner.send_timed(packet)?;
        if sent != TimedSend::Refused {
            self.capture.file.lock().write_packet(self.interface, unix_nanos(), OUTBOUND, 0, packet);
        }
        Ok(sent)
    }

    fn unsendable_packets(&self) -> u64 {
        self.inner.unsendable_packets()
    }

    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&RxPacket<'_>)) -> io::Result<usize> {
        let PcapLink { inner, capture, interface } = self;
        let mut now = None;
        inner.receive(max, &mut |packet| {
            let now = *now.get_or_insert_with(unix_nanos);
            let RxPacket { source, destination, traffic_class, bytes, .. } = *packet;
            let hop_limit = packet.hop_limit.unwrap_or(0);
            let flow_label = packet.flow_label;
            let as_sent = TxPacket { source, destination, traffic_class, hop_limit, flow_label, bytes };
            capture.file.lock().write_packet(*interface, now, INBOUND, ip_id_of(packet), &as_sent);
            each(packet);
        })
    }

    fn receive_buffer_bytes(&self) -> Option<usize> {
        self.inner.receive_buffer_bytes()
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.readiness_fd()
    }

    fn set_wake_interest(&mut self, enabled: bool) -> io::Result<()> {
        self.inner.set_wake_interest(enabled)
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn source_ports(&mut self) -> Option<&mut dyn SourcePorts> {
        self.inner.source_ports()
    }

    fn multicast_groups(&mut self) -> Option<&mut dyn MulticastGroups> {
        self.inner.multicast_groups()
    }

    fn receive_timestamps(&mut self) -> Option<&mut dyn ReceiveTimestamps> {
        self.inner.receive_timestamps()
    }

    fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        self.inner.address_sharing()
    }
}

/// Returns the IPv4 ID of a packet. If the link doesn't know the ID, it is recovered from the ICRC.
fn ip_id_of(packet: &RxPacket<'_>) -> u16 {
    match packet.icrc {
        IcrcCheck::IpId(ip_id) => ip_id,
        IcrcCheck::Trusted => 0,
        IcrcCheck::AnyIpId | IcrcCheck::IpIdBelow(_) => {
            let flow = Flow::new(packet.source, packet.destination);
            let recovered =
                flow.zip(Packet::parse(packet.bytes).ok()).map(|(flow, packet)| flow.recover_ip_id(&packet));
            recovered.and_then(Result::ok).unwrap_or(0)
        }
    }
}

/// Returns the IP header of a packet, or `None` if one address is IPv4 and the other IPv6. No link sends such a packet.
fn ip_header(packet: &TxPacket<'_>, ip_id: u16) -> Option<IpHeader> {
    let mut ip = IpHeader::new(packet.source.ip(), packet.destination.ip())?;
    let (class, hops) = match &mut ip {
        IpHeader::V4(ip) => {
            ip.ip_id = ip_id;
            (&mut ip.tos, &mut ip.ttl)
        }
        IpHeader::V6(ip) => {
            ip.flow_label = packet.flow_label;
            (&mut ip.traffic_class, &mut ip.hop_limit)
        }
    };
    *class = packet.traffic_class;
    if packet.hop_limit != 0 {
        *hops = packet.hop_limit;
    }
    Some(ip)
}

/// Returns the nanoseconds since 1970.
fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// A writer of pcapng blocks. Each block has its kind, its length, its content in 32-bit words, and its length again.
struct Writer {
    out: Box<dyn Write + Send>,
    interfaces: u32,
    /// The result of all writes so far. The first error ends the capture.
    result: io::Result<()>,
}

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// The content of the section header: byte order, version 1.0, unknown section length.
const SECTION_CONTENT: [u8; 16] =
    [0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];

/// The link type of frames that start with an IPv4 or IPv6 header (LINKTYPE_RAW).
const LINK_TYPE: u16 = 101;

const END_OF_OPTIONS: u16 = 0;
const INTERFACE_NAME: u16 = 2;
const TIMESTAMP_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;

const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

impl Writer {
    fn write_section_header(&mut self) {
        self.write_block(SECTION, &[&SECTION_CONTENT]);
    }

    /// Writes an interface description, and returns the interface's number.
    fn add_interface(&mut self, name: &str) -> u32 {
        let mut content = Vec::new();
        content.extend_from_slice(&LINK_TYPE.to_le_bytes());
        content.extend_from_slice(&[0; 6]); // reserved, and no limit of the packet length
        let name = &name.as_bytes()[..name.len().min(1000)];
        push_option(&mut content, INTERFACE_NAME, name);
        push_option(&mut content, TIMESTAMP_RESOLUTION, &[9]); // 10⁻⁹ s
        push_option(&mut content, END_OF_OPTIONS, &[]);
        self.write_block(INTERFACE, &[&content]);
        self.interfaces += 1;
        self.interfaces - 1
    }

    fn write_packet(&mut self, interface: u32, time: u64, direction: u32, ip_id: u16, packet: &TxPacket<'_>) {
        let Some(ip) = ip_header(packet, ip_id) else { return };
        let bytes = packet.bytes;
        let mut outer = [0; MAX_OUTER_HEADER_LEN];
        let outer_len = Frame::emit_outer(&ip, packet.source.port(), bytes.len(), &mut outer);
        outer[outer_len - 6..outer_len - 4].copy_from_slice(&packet.destination.port().to_be_bytes());
        let length = ((outer_len + bytes.len()) as u32).to_le_bytes();
        let padding = &[0; 3][..(outer_len + bytes.len()).wrapping_neg() & 3];
        let [high, low] = [(time >> 32) as u32, time as u32].map(u32::to_le_bytes);
        let mut flags = [0; 12]; // with the end of options
        flags[..2].copy_from_slice(&PACKET_FLAGS.to_le_bytes());
        flags[2..4].copy_from_slice(&4_u16.to_le_bytes());
        flags[4..8].copy_from_slice(&direction.to_le_bytes());
        let pieces: [&[u8]; 9] = [
            &interface.to_le_bytes(),
            &high,
            &low,
            &length, // captured
            &length, // original
            &outer[..outer_len],
            bytes,
            padding,
            &flags,
        ];
        self.write_block(ENHANCED_PACKET, &pieces);
    }

    fn write_block(&mut self, kind: u32, content: &[&[u8]]) {
        let length = 12 + content.iter().map(|piece| piece.len()).sum::<usize>() as u32;
        self.attempt(|out| {
            out.write_all(&kind.to_le_bytes())?;
            out.write_all(&length.to_le_bytes())?;
            for piece in content {
                out.write_all(piece)?;
            }
            out.write_all(&length.to_le_bytes())
        });
    }

    fn attempt(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        if self.result.is_ok() {
            self.result = write(&mut *self.out);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.attempt(|out| out.flush());
    }
}

/// Appends an option of a block: its code, its length, and its value padded to whole words.
fn push_option(content: &mut Vec<u8>, code: u16, value: &[u8]) {
    content.extend_from_slice(&code.to_le_bytes());
    content.extend_from_slice(&(value.len() as u16).to_le_bytes());
    content.extend_from_slice(value);
    content.resize(content.len().next_multiple_of(4), 0);
}
