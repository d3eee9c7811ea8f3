//! The invariant CRC (ICRC): the last four bytes of a packet, covering every field that routers don't change.
//!
//! The ICRC is CRC-32 over eight bytes of ones, the IP and UDP headers, and the packet, with the fields that may
//! change in transit replaced by ones (Annex A17.3.3; `rxe_icrc.c`). A [`Flow`] caches the part that depends only
//! on the addresses and ports; the remaining header fields cost a few table lookups per packet.

use core::fmt;
use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::crc;
use crate::header::{BTH_LEN, Header, MAX_HEADER_LEN, pad_len};
use crate::packet::{EmitError, ICRC_LEN, MAX_PACKET_LEN, Packet};

/// A flow: the packets from one address and port to another. Its methods write packet headers, and compute and check
/// ICRCs.
///
/// ```
/// use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, Rc, Send, MAX_HEADER_LEN};
///
/// let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
/// let header = Header::new(Qpn::truncate(0x12), Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
///
/// // Send: headers, payload in any number of slices, trailer.
/// let payload: [&[u8]; 2] = [b"hello, ", b"world"];
/// let mut head = [0; MAX_HEADER_LEN];
/// let emitted = flow.emit(&header, 0, &payload, &mut head).unwrap();
/// let packet = [&head[..emitted.header_len], payload[0], payload[1], &emitted.trailer[..]].concat();
///
/// // Receive.
/// let packet = Packet::parse(&packet).unwrap();
/// assert_eq!(packet.header(), &header);
/// assert_eq!(packet.payload(), b"hello, world");
/// flow.verify(&packet, 0).unwrap();
/// ```
///
/// # The IPv4 identification (IP ID)
///
/// The ICRC covers the identification field of the IPv4 header, which a UDP socket neither sets nor reports. A sender
/// passes 0, because an unconnected UDP socket with path MTU discovery always sends 0. A receiver calls
/// [`recover_ip_id`](Flow::recover_ip_id), which computes the IP ID that makes the ICRC match. Because this method
/// accepts any of 65,536 IP IDs, one corrupt packet in 2¹⁶ passes, compared with one in 2³² for
/// [`verify`](Flow::verify). IPv6 has no such field, so both methods are equally strong there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The CRC state after the base transport header, as if the lengths, the IP ID and that header (except for its
    /// masked byte) were 0. Because CRC is linear, their contribution is looked up and added per packet.
    state: u32,
    family: Family,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

impl Flow {
    /// Creates the flow between two IPv4 addresses, with the "don't fragment" flag that RoCE senders set.
    pub fn v4(source: SocketAddrV4, destination: SocketAddrV4) -> Flow {
        Flow::v4_with_flags(source, destination, DONT_FRAGMENT)
    }

    /// Creates the flow between two IPv4 addresses whose headers carry this flags and fragment offset word.
    pub(crate) fn v4_with_flags(source: SocketAddrV4, destination: SocketAddrV4, flags: u16) -> Flow {
        let [f0, f1] = flags.to_be_bytes();
        let [a, b, c, d] = source.ip().octets();
        let [e, f, g, h] = destination.ip().octets();
        let [s0, s1] = source.port().to_be_bytes();
        let [d0, d1] = destination.port().to_be_bytes();
        let header = [
            [0x45, 0xff, 0, 0],
            [0, 0, f0, f1],
            [0xff, 17, 0xff, 0xff],
            [a, b, c, d],
            [e, f, g, h],
            [s0, s1, d0, d1],
            [0, 0, 0xff, 0xff],
        ];
        Flow { state: state_after(&header), family: Family::V4 }
    }

    /// Creates the flow between two IPv6 addresses.
    pub fn v6(source: SocketAddrV6, destination: SocketAddrV6) -> Flow {
        let [s0, s1] = source.port().to_be_bytes();
        let [d0, d1] = destination.port().to_be_bytes();
        let mut header = [[0xff; 4]; 12];
        header[0][0] = 0x6f;
        header[1] = [0, 0, 17, 0xff];
        let octets = source.ip().octets().into_iter().chain(destination.ip().octets());
        header[2..10].as_flattened_mut().iter_mut().zip(octets).for_each(|(byte, octet)| *byte = octet);
        header[10] = [s0, s1, d0, d1];
        header[11] = [0, 0, 0xff, 0xff];
        Flow { state: state_after(&header), family: Family::V6 }
    }

    /// Creates the flow between two addresses. Returns `None` if one address is IPv4 and the other IPv6.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Flow> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some(Flow::v4(source, destination)),
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some(Flow::v6(source, destination)),
            _ => None,
        }
    }

    /// Writes a packet's headers into `head` and computes its trailer, for a payload in any number of slices.
    ///
    /// The payload is read once and never copied. The packet consists of the first [`header_len`](Emitted::header_len)
    /// bytes of `head`, the payload slices, and the [`trailer`](Emitted::trailer). `ip_id` is the identification of the
    /// IPv4 header. A sender with a UDP socket passes 0. For IPv6, this method ignores `ip_id`.
    ///
    /// # Errors
    ///
    /// Returns [`EmitError::TooLong`] if the packet exceeds a UDP datagram, and [`EmitError::InvalidPayloadLength`] if
    /// the opcode doesn't allow a payload of this length.
    pub fn emit(
        &self,
        header: &Header,
        ip_id: u16,
        payload: &[&[u8]],
        head: &mut [u8; MAX_HEADER_LEN],
    ) -> Result<Emitted, EmitError> {
        let payload_len = payload.iter().map(|piece| piece.len()).sum();
        let mut icrc = self.begin_emit(header, ip_id, payload_len, head)?;
        for piece in payload {
            icrc.update(piece);
        }
        Ok(icrc.finish())
    }

    /// Writes a packet's headers into `head` and starts its ICRC. The caller then passes all `payload_len` bytes of
    /// the payload to [`IcrcHasher::update`].
    ///
    /// Use this method if the sender has no slices of the payload, or copies the payload while hashing it.
    /// Otherwise, [`emit`](Flow::emit) is simpler.
    ///
    /// # Errors
    ///
    /// Returns [`EmitError::TooLong`] if the packet exceeds a UDP datagram, and [`EmitError::InvalidPayloadLength`] if
    /// the opcode doesn't allow a payload of this length.
    #[inline]
    pub fn begin_emit(
        &self,
        header: &Header,
        ip_id: u16,
        payload_len: usize,
        head: &mut [u8; MAX_HEADER_LEN],
    ) -> Result<IcrcHasher, EmitError> {
        let opcode = header.opcode();
        if !opcode.payload_rule().allows(payload_len) {
            return Err(EmitError::InvalidPayloadLength { opcode, payload_len });
        }
        let header_len = header.emit(payload_len, head);
        let pad_len = pad_len(payload_len);
        let packet_len = payload_len.saturating_add(header_len + usize::from(pad_len) + ICRC_LEN);
        let packet_len = match u16::try_from(packet_len) {
            Ok(len) if packet_len <= MAX_PACKET_LEN => len,
            _ => return Err(EmitError::TooLong { payload_len }),
        };
        let state = self.state_after_bth(ip_id, packet_len, head);
        let state = append(state, head.get(BTH_LEN..header_len).unwrap_or_default());
        Ok(IcrcHasher { state, header_len, pad_len })
    }

    /// Checks the ICRC of a packet received in this flow with a known IP ID. For IPv6, this method ignores `ip_id`.
    ///
    /// # Errors
    ///
    /// Returns [`IcrcMismatch`] if the packet is corrupt or belongs to another flow.
    #[inline]
    pub fn verify(&self, packet: &Packet<'_>, ip_id: u16) -> Result<(), IcrcMismatch> {
        let computed = self.icrc(packet, ip_id);
        if computed == packet.icrc() { Ok(()) } else { Err(IcrcMismatch { computed, found: packet.icrc() }) }
    }

    /// Checks the ICRC of a packet whose IP ID is unknown, and returns the recovered IP ID.
    ///
    /// CRC is linear, so the XOR of the received ICRC and the ICRC for IP ID 0 is the contribution of the IP ID alone.
    /// Reversing the CRC over the bytes after that field yields the field. If the result has more than 16 bits, the
    /// packet is corrupt. IPv6 has no IP ID: the result is 0 if the ICRC matches.
    ///
    /// # Errors
    ///
    /// Returns [`IcrcMismatch`] if no IP ID makes the ICRC match.
    pub fn recover_ip_id(&self, packet: &Packet<'_>) -> Result<u16, IcrcMismatch> {
        let computed = self.icrc(packet, 0);
        let difference = computed ^ packet.icrc();
        if difference == 0 {
            return Ok(0);
        }
        let mismatch = IcrcMismatch { computed, found: packet.icrc() };
        match self.family {
            Family::V4 => {
                let words = words_from_ip_id(packet.as_bytes().len());
                match crc::remove_zero_words(difference, words).to_le_bytes() {
                    [i0, i1, 0, 0] => Ok(u16::from_be_bytes([i0, i1])),
                    _ => Err(mismatch),
                }
            }
            Family::V6 => Err(mismatch),
        }
    }

    /// Returns the XOR of the ICRCs, in wire order, of an IPv4 packet with this IP ID and the same packet with IP ID 0.
    /// `packet_len` includes the ICRC.
    ///
    /// Use this method if the kernel assigns IP IDs after the ICRCs were computed, as it does for segmentation offload
    /// (GSO).
    ///
    /// ```
    /// use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, Qpn, Ud};
    ///
    /// let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    /// let datagram = Ud { qkey: 0x1111_1111, source_qp: Qpn::truncate(0x42), immediate: None };
    /// let header = Header::new(Qpn::truncate(0x11), Psn::ZERO, Operation::Ud(datagram));
    /// let mut head = [0; MAX_HEADER_LEN];
    /// let emitted = flow.emit(&header, 0, &[b"ping"], &mut head).unwrap();
    /// let mut bytes = [&head[..emitted.header_len], b"ping", &emitted.trailer].concat();
    ///
    /// let delta = Flow::ip_id_delta(3, bytes.len());
    /// bytes.last_chunk_mut::<4>().unwrap().iter_mut().zip(delta).for_each(|(byte, delta)| *byte ^= delta);
    /// assert!(flow.verify(&Packet::parse(&bytes).unwrap(), 3).is_ok());
    /// ```
    #[inline]
    pub fn ip_id_delta(ip_id: u16, packet_len: usize) -> [u8; ICRC_LEN] {
        let [i0, i1] = ip_id.to_be_bytes();
        crc::append_zero_words(u32::from_le_bytes([i0, i1, 0, 0]), words_from_ip_id(packet_len)).to_le_bytes()
    }

    /// Computes the ICRC that `packet` should have.
    #[inline]
    fn icrc(&self, packet: &Packet<'_>, ip_id: u16) -> u32 {
        let bytes = packet.as_bytes();
        let covered = bytes.get(..bytes.len() - ICRC_LEN).unwrap_or_default();
        let state = self.state_after_bth(ip_id, packet_len(bytes), covered);
        !append(state, covered.get(BTH_LEN..).unwrap_or_default())
    }

    /// Returns the CRC's state after the IP and UDP headers and the base transport header at the start of `packet`.
    ///
    /// The rest is usually a multiple of 16 bytes, the fastest case of `crc32fast`.
    #[inline]
    fn state_after_bth(&self, ip_id: u16, packet_len: u16, packet: &[u8]) -> u32 {
        // A packet's length is at most MAX_PACKET_LEN, so these sums don't wrap.
        let udp_len = packet_len.wrapping_add(8);
        let fields = match self.family {
            Family::V4 => V4_TOTAL_LEN.of(udp_len.wrapping_add(20)) ^ V4_IP_ID.of(ip_id),
            Family::V6 => V6_PAYLOAD_LEN.of(udp_len),
        } ^ UDP_LEN.of(udp_len);
        let mut bth = packet.first_chunk().copied().unwrap_or([0; BTH_LEN]);
        bth[CONGESTION_BYTE] = 0;
        self.state ^ fields ^ crc::state_of_twelve_bytes(bth)
    }
}

/// Appends bytes to the CRC's state.
#[inline]
fn append(state: u32, bytes: &[u8]) -> u32 {
    match bytes {
        [] => state,
        // The headers of an acknowledgement. `crc32fast` first checks which instructions the CPU has.
        [a, b, c, d] => crc::append_four_bytes(state, [*a, *b, *c, *d]),
        _ => {
            let mut hasher = crc32fast::Hasher::new_with_initial(!state);
            hasher.update(bytes);
            !hasher.finalize()
        }
    }
}

/// Returns the number of 4-byte words that the ICRC covers from the word with the IP ID on, in a packet of `packet_len`
/// bytes.
fn words_from_ip_id(packet_len: usize) -> usize {
    // The ICRC covers the word itself, 12 more bytes of the IPv4 header, 8 of UDP, and the packet without its ICRC:
    // 4 + 12 + 8 + (packet_len - 4) bytes.
    packet_len.saturating_add(12 + 8) / 4
}

/// An incremental ICRC computation, started by [`Flow::begin_emit`].
#[derive(Clone, Debug)]
pub struct IcrcHasher {
    /// The CRC's state, which is the complement of the CRC.
    state: u32,
    header_len: usize,
    pad_len: u8,
}

impl IcrcHasher {
    /// Adds the next bytes of the payload.
    #[inline]
    pub fn update(&mut self, payload: &[u8]) {
        self.state = append(self.state, payload);
    }

    /// Adds the padding, and returns the header length and the trailer of the packet.
    #[inline]
    pub fn finish(self) -> Emitted {
        let padding = [0; 3];
        let padding = padding.get(..usize::from(self.pad_len)).unwrap_or_default();
        let icrc_value = !append(self.state, padding);
        // One store of all bytes, which the copy into the packet then loads at once.
        let bytes = (u64::from(icrc_value) << 32).to_le_bytes();
        Emitted { header_len: self.header_len, trailer: Trailer { bytes, pad_len: self.pad_len } }
    }
}

/// The result of [`Flow::emit`]: the parts of a packet around its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emitted {
    /// The length of the headers in bytes.
    pub header_len: usize,
    /// The padding and ICRC that follow the payload.
    pub trailer: Trailer,
}

/// The end of a packet: zero to three bytes of padding, then the ICRC. A trailer dereferences to its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// Four zero bytes, of which the last `pad_len` are sent, then the ICRC.
    bytes: [u8; 8],
    pad_len: u8,
}

impl core::ops::Deref for Trailer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(ICRC_LEN - usize::from(self.pad_len)..).unwrap_or_default()
    }
}

impl AsRef<[u8]> for Trailer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// The error for a packet whose ICRC doesn't match its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcMismatch {
    /// The ICRC computed from the bytes, for IP ID 0 if the IP ID is unknown.
    pub computed: u32,
    /// The ICRC in the packet.
    pub found: u32,
}

impl fmt::Display for IcrcMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [found, computed] = [self.found, self.computed].map(u32::swap_bytes);
        write!(f, "ICRC is {found:#010x}, but the packet's bytes give {computed:#010x}")?;
        f.write_str(": corrupt in transit, or sent between other addresses (NAT changes them)")
    }
}

impl core::error::Error for IcrcMismatch {}

/// Returns the length of a parsed packet, which is at most [`MAX_PACKET_LEN`].
#[expect(clippy::cast_possible_truncation, reason = "checked when the packet was parsed")]
const fn packet_len(bytes: &[u8]) -> u16 {
    bytes.len() as u16
}

/// The flags word of an IPv4 header with only "don't fragment" set.
const DONT_FRAGMENT: u16 = 0x4000;

/// The byte of the base transport header (FECN, BECN and six reserved bits) that may change in transit.
const CONGESTION_BYTE: usize = 4;

/// Returns the CRC state after these IP and UDP headers and a base transport header of zeros, except for the masked
/// byte.
fn state_after(header: &[[u8; 4]]) -> u32 {
    const MASKED_BTH: [[u8; 4]; 3] = [[0; 4], [0xff, 0, 0, 0], [0; 4]];
    let words = [[0xff; 4]; 2].iter().chain(header).chain(&MASKED_BTH);
    words.fold(!0, |state, word| crc::append_four_bytes(state, *word))
}

/// The contribution of a 16-bit header field to the CRC state after the base transport header.
struct FieldEffect(crc::Effect, crc::Effect);

impl FieldEffect {
    const fn followed_by(bytes_after: usize) -> FieldEffect {
        FieldEffect(crc::Effect::followed_by(bytes_after + 1), crc::Effect::followed_by(bytes_after))
    }

    #[inline]
    fn of(&self, field: u16) -> u32 {
        let [high, low] = field.to_be_bytes();
        self.0.of(high) ^ self.1.of(low)
    }
}

const UDP_AND_BTH_LEN: usize = 8 + BTH_LEN;
static V4_TOTAL_LEN: FieldEffect = FieldEffect::followed_by(16 + UDP_AND_BTH_LEN);
static V4_IP_ID: FieldEffect = FieldEffect::followed_by(14 + UDP_AND_BTH_LEN);
static V6_PAYLOAD_LEN: FieldEffect = FieldEffect::followed_by(34 + UDP_AND_BTH_LEN);
static UDP_LEN: FieldEffect = FieldEffect::followed_by(2 + BTH_LEN);
