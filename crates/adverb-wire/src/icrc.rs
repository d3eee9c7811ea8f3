//! The invariant CRC: four bytes at a packet's end over all that no router may change.
//!
//! It is CRC-32 over eight bytes of ones, the IP and UDP headers, and the packet, with the fields that may
//! change on the way replaced by ones (Annex A17.3.3; `rxe_icrc.c`). A [`Flow`] holds the part that two
//! addresses and two ports decide; the rest of the headers costs a few table look-ups a packet.

use core::fmt;
use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::crc;
use crate::header::{BTH_LEN, Header, MAX_HEADER_LEN, pad_len};
use crate::packet::{EmitError, ICRC_LEN, MAX_PACKET_LEN, Packet};

/// The ICRC of the packets that go from one address and port to another.
///
/// ```
/// use adverb_wire::{Flow, Header, Operation, Packet, Psn, Qpn, Rc, Send, MAX_HEADER_LEN};
///
/// let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
/// let header = Header::new(Qpn::truncate(0x12), Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
///
/// // Sending: headers, payload in any number of pieces, trailer.
/// let payload: [&[u8]; 2] = [b"hello, ", b"world"];
/// let mut head = [0; MAX_HEADER_LEN];
/// let emitted = flow.emit(&header, 0, &payload, &mut head).unwrap();
/// let packet = [&head[..emitted.header_len], payload[0], payload[1], &emitted.trailer[..]].concat();
///
/// // Receiving.
/// let packet = Packet::parse(&packet).unwrap();
/// assert_eq!(packet.header(), &header);
/// assert_eq!(packet.payload(), b"hello, world");
/// flow.verify(&packet, 0).unwrap();
/// ```
///
/// # The IPv4 identification
///
/// The ICRC covers the identification of the IPv4 header, which a UDP socket neither sets nor shows. As a
/// sender, an unconnected UDP socket with path MTU discovery on always uses 0, and that is what to pass. As a
/// receiver, [`recover_ip_id`](Flow::recover_ip_id) finds the identification that makes the ICRC right; it accepts any of
/// 65,536 values, so that one damaged packet in 65,536 gets through where [`verify`](Flow::verify) lets one
/// in four thousand million pass. IPv6 has no such field, and both are equally strong there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The CRC state behind the base transport header, as if lengths, identification and that header were 0.
    /// What they add is added a packet, which takes no more than looking it up: CRC is linear.
    state: u32,
    family: Family,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    V4,
    V6,
}

impl Flow {
    /// The flow between two IPv4 addresses, with the "don't fragment" flag that RoCE senders set.
    pub fn v4(source: SocketAddrV4, destination: SocketAddrV4) -> Flow {
        Flow::v4_with_flags(source, destination, DONT_FRAGMENT)
    }

    /// The flow between two IPv4 addresses whose headers carry this flags and fragment offset word.
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
        Flow { state: state_behind(&header), family: Family::V4 }
    }

    /// The flow between two IPv6 addresses.
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
        Flow { state: state_behind(&header), family: Family::V6 }
    }

    /// The flow between two addresses, or `None` if one is IPv4 and the other IPv6.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Flow> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => Some(Flow::v4(source, destination)),
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => Some(Flow::v6(source, destination)),
            _ => None,
        }
    }

    /// Writes a packet's headers into `head` and computes its trailer, for a payload in pieces.
    ///
    /// The payload is read once and copied nowhere: what goes to the socket is the first
    /// [`header_len`](Emitted::header_len) bytes of `head`, the pieces, and the [`trailer`](Emitted::trailer).
    /// `ip_id` is that of the IPv4 header, and 0 on an ordinary UDP socket; IPv6 ignores it.
    ///
    /// # Errors
    ///
    /// If the payload is too long for a UDP datagram, or isn't what the opcode allows.
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

    /// Writes a packet's headers into `head` and begins its ICRC, for a payload of `payload_len` bytes that
    /// is to come through [`IcrcHasher::update`].
    ///
    /// For a sender that doesn't have the payload as slices, or copies it as it goes; otherwise
    /// [`emit`](Flow::emit) is simpler.
    ///
    /// # Errors
    ///
    /// If the payload is too long for a UDP datagram, or isn't what the opcode allows.
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
            return Err(EmitError::Payload { opcode, payload_len });
        }
        let header_len = header.emit(payload_len, head);
        let pad_len = pad_len(payload_len);
        let packet_len = payload_len.saturating_add(header_len + usize::from(pad_len) + ICRC_LEN);
        let packet_len = match u16::try_from(packet_len) {
            Ok(len) if packet_len <= MAX_PACKET_LEN => len,
            _ => return Err(EmitError::TooLong { payload_len }),
        };
        let mut hasher = self.hasher(ip_id, packet_len, head);
        if let Some(extension @ [_, ..]) = head.get(BTH_LEN..header_len) {
            hasher.update(extension);
        }
        Ok(IcrcHasher { hasher, header_len, pad_len })
    }

    /// Checks the ICRC of a packet that came in this flow with a known IPv4 identification; IPv6 ignores it.
    ///
    /// # Errors
    ///
    /// If the packet was damaged, or belongs to another flow.
    #[inline]
    pub fn verify(&self, packet: &Packet<'_>, ip_id: u16) -> Result<(), IcrcMismatch> {
        let computed = self.icrc(packet, ip_id);
        if computed == packet.icrc() { Ok(()) } else { Err(IcrcMismatch { computed, found: packet.icrc() }) }
    }

    /// Checks the ICRC of a packet whose IPv4 identification isn't known, and says what it must have been.
    ///
    /// CRC is linear: the difference between the ICRC found and the one computed for identification 0 is
    /// that of a packet of zeros with only the identification in it. Undoing the bytes behind that field
    /// gives the field back, and whatever doesn't fit its 16 bits was damage. In IPv6 there is nothing to
    /// solve for: the answer is 0 if the ICRC is right.
    ///
    /// # Errors
    ///
    /// If no identification makes the ICRC right.
    pub fn recover_ip_id(&self, packet: &Packet<'_>) -> Result<u16, IcrcMismatch> {
        let computed = self.icrc(packet, 0);
        let difference = computed ^ packet.icrc();
        if difference == 0 {
            return Ok(0);
        }
        let mismatch = IcrcMismatch { computed, found: packet.icrc() };
        match self.family {
            Family::V4 => {
                let words = words_behind_identification(packet.as_bytes().len());
                match crc::undo_words(difference, words).to_le_bytes() {
                    [i0, i1, 0, 0] => Ok(u16::from_be_bytes([i0, i1])),
                    _ => Err(mismatch),
                }
            }
            Family::V6 => Err(mismatch),
        }
    }

    /// By what the ICRC of an IPv4 packet of `packet_len` bytes (with that ICRC) changes if its identification isn't 0
    /// but this: the exclusive or of both, as they are sent.
    ///
    /// For a sender whose system numbers packets after their ICRCs were computed, as segmentation offload does.
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
        crc::redo_words(u32::from_le_bytes([i0, i1, 0, 0]), words_behind_identification(packet_len))
            .to_le_bytes()
    }

    /// The ICRC that `packet` should have.
    #[inline]
    fn icrc(&self, packet: &Packet<'_>, ip_id: u16) -> u32 {
        let bytes = packet.as_bytes();
        let covered = bytes.get(..bytes.len() - ICRC_LEN).unwrap_or_default();
        let mut hasher = self.hasher(ip_id, packet_len(bytes), covered);
        hasher.update(covered.get(BTH_LEN..).unwrap_or_default());
        hasher.finalize()
    }

    /// The CRC of the IP and UDP headers and the base transport header, with which `packet` begins.
    ///
    /// What follows is a multiple of 16 bytes more often than not, which `crc32fast` takes fastest.
    #[inline]
    fn hasher(&self, ip_id: u16, packet_len: u16, packet: &[u8]) -> crc32fast::Hasher {
        // A packet's length is at most MAX_PACKET_LEN, so these sums don't wrap.
        let udp_len = packet_len.wrapping_add(8);
        let fields = match self.family {
            Family::V4 => V4_TOTAL_LEN.of(udp_len.wrapping_add(20)) ^ V4_IDENTIFICATION.of(ip_id),
            Family::V6 => V6_PAYLOAD_LEN.of(udp_len),
        } ^ UDP_LEN.of(udp_len);
        let mut bth = packet.first_chunk().copied().unwrap_or([0; BTH_LEN]);
        bth[CONGESTION_BYTE] = 0;
        crc32fast::Hasher::new_with_initial(!(self.state ^ fields ^ crc::twelve_bytes(bth)))
    }
}

/// By how many words the identification's effect on the ICRC of a packet of so many bytes has moved on.
fn words_behind_identification(packet_len: usize) -> usize {
    // Behind the word of identification and flags come 12 bytes of IPv4 header, 8 of UDP, and the packet up to its ICRC;
    // the word itself counts as much as that ICRC would.
    packet_len.saturating_add(12 + 8) / 4
}

/// The ICRC of a packet under way: see [`Flow::begin_emit`].
#[derive(Clone, Debug)]
pub struct IcrcHasher {
    hasher: crc32fast::Hasher,
    header_len: usize,
    pad_len: u8,
}

impl IcrcHasher {
    /// Takes in the next bytes of the payload.
    #[inline]
    pub fn update(&mut self, payload: &[u8]) {
        self.hasher.update(payload);
    }

    /// Takes in the padding, and gives what is to be sent around the payload.
    #[inline]
    pub fn finish(mut self) -> Emitted {
        let mut trailer = Trailer { bytes: [0; 8], pad_len: self.pad_len };
        if let Some(padding @ [_, ..]) = trailer.bytes.get(..usize::from(self.pad_len)) {
            self.hasher.update(padding);
        }
        let [_, _, _, _, icrc @ ..] = &mut trailer.bytes;
        *icrc = self.hasher.finalize().to_le_bytes();
        Emitted { header_len: self.header_len, trailer }
    }
}

/// What [`Flow::emit`] made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Emitted {
    /// How many bytes of headers there are.
    pub header_len: usize,
    /// What goes behind the payload.
    pub trailer: Trailer,
}

/// The end of a packet: up to three bytes of padding, and the ICRC. Dereferences to its bytes.
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

/// A packet's ICRC isn't that of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcMismatch {
    /// What the bytes give, for identification 0 where it isn't known.
    pub computed: u32,
    /// What the packet says.
    pub found: u32,
}

impl fmt::Display for IcrcMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [found, computed] = [self.found, self.computed].map(u32::swap_bytes);
        write!(f, "ICRC {found:#010x} doesn't fit the packet, whose bytes give {computed:#010x}")?;
        f.write_str(": damaged on the way, or sent between other addresses (a NAT changes them)")
    }
}

impl core::error::Error for IcrcMismatch {}

/// The length of a packet that was parsed, and so is at most [`MAX_PACKET_LEN`].
#[expect(clippy::cast_possible_truncation, reason = "checked when the packet was parsed")]
const fn packet_len(bytes: &[u8]) -> u16 {
    bytes.len() as u16
}

/// The flags word of an IPv4 header with only "don't fragment" set.
const DONT_FRAGMENT: u16 = 0x4000;

/// The byte of the base transport header (FECN, BECN and six reserved bits) that may change on the way.
const CONGESTION_BYTE: usize = 4;

/// The state behind these IP and UDP headers and a base transport header of zeros, but for the masked byte.
fn state_behind(header: &[[u8; 4]]) -> u32 {
    const MASKED_BTH: [[u8; 4]; 3] = [[0; 4], [0xff, 0, 0, 0], [0; 4]];
    let words = [[0xff; 4]; 2].iter().chain(header).chain(&MASKED_BTH);
    words.fold(!0, |state, word| crc::four_bytes(state, *word))
}

/// What a 16-bit field of the headers adds to the state behind the base transport header.
struct FieldEffect(crc::Effect, crc::Effect);

impl FieldEffect {
    const fn with_behind(behind: usize) -> FieldEffect {
        FieldEffect(crc::Effect::with_behind(behind + 1), crc::Effect::with_behind(behind))
    }

    #[inline]
    fn of(&self, field: u16) -> u32 {
        let [high, low] = field.to_be_bytes();
        self.0.of(high) ^ self.1.of(low)
    }
}

const UDP_AND_BTH: usize = 8 + BTH_LEN;
static V4_TOTAL_LEN: FieldEffect = FieldEffect::with_behind(16 + UDP_AND_BTH);
static V4_IDENTIFICATION: FieldEffect = FieldEffect::with_behind(14 + UDP_AND_BTH);
static V6_PAYLOAD_LEN: FieldEffect = FieldEffect::with_behind(34 + UDP_AND_BTH);
static UDP_LEN: FieldEffect = FieldEffect::with_behind(2 + BTH_LEN);
