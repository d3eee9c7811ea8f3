//! What is written into rings: frames, one after the other.

use super::{LONGEST_MESSAGE, UNIT, Violation};

/// The length of a frame's header.
pub(crate) const HEADER_LEN: usize = 16;
/// How many bytes of an offer follow the header.
pub(crate) const OFFER_LEN: usize = 16;

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    /// The 32 bits beside a message.
    pub(crate) immediate: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameKind {
    /// A message of this length, which follows.
    Message { len: u32 },
    /// A message of this length, which the peer is to read from where it is.
    Offer { len: u32, addr: u64, rkey: u32 },
    /// Memory that the peer may reach, under a name of `name_len` bytes, which follows what is here.
    Announcement { name_len: u32, memory: Announced },
    /// No more messages come.
    End,
    /// No more messages come, and none are taken: the last frame.
    Gone,
}

impl FrameKind {
    /// Whether it is counted, so that it can be said which the peer has: announcements are made anew over every lane.
    pub(crate) fn is_numbered(&self) -> bool {
        !matches!(self, FrameKind::Announcement { .. })
    }
}

/// Memory that a peer may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Announced {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) rkey: u32,
    /// What may be done to it: bits.
    pub(crate) rights: u8,
    /// Over which queue pairs of a connection's it can be reached: those after so many others. Isn't said, but known.
    pub(crate) generation: u32,
}

/// How many bytes of an announcement follow the header, before the name.
pub(crate) const ANNOUNCEMENT_LEN: usize = 32;
/// The longest name of memory.
pub(crate) const LONGEST_NAME: usize = 64;

const MESSAGE: u8 = 1;
const OFFER: u8 = 2;
const END: u8 = 3;
const GONE: u8 = 4;
const ANNOUNCEMENT: u8 = 5;
const HAS_IMMEDIATE: u8 = 1;
/// The bits that rights may have.
const RIGHTS: u8 = 0b1111;

/// How many bytes a frame takes with `body` bytes behind its header.
pub(crate) fn frame_len(body: usize) -> usize {
    (HEADER_LEN + body).next_multiple_of(UNIT as usize)
}

impl Frame {
    /// Puts the header, and what of the body belongs to the protocol, at the beginning of `out`.
    pub(crate) fn emit(&self, out: &mut [u8]) {
        let (kind, len) = match self.kind {
            FrameKind::Message { len } => (MESSAGE, len),
            FrameKind::Offer { len, addr, rkey } => {
                let body = &mut out[HEADER_LEN..HEADER_LEN + OFFER_LEN];
                body[..8].copy_from_slice(&addr.to_le_bytes());
                body[8..12].copy_from_slice(&rkey.to_le_bytes());
                body[12..].fill(0);
                (OFFER, len)
            }
            FrameKind::Announcement { name_len, memory: Announced { addr, len, rkey, rights, .. } } => {
                let body = &mut out[HEADER_LEN..HEADER_LEN + ANNOUNCEMENT_LEN];
                body.fill(0);
                body[..8].copy_from_slice(&addr.to_le_bytes());
                body[8..16].copy_from_slice(&len.to_le_bytes());
                body[16..20].copy_from_slice(&rkey.to_le_bytes());
                body[20] = rights;
                (ANNOUNCEMENT, name_len)
            }
            FrameKind::End => (END, 0),
            FrameKind::Gone => (GONE, 0),
        };
        let flags = if self.immediate.is_some() { HAS_IMMEDIATE } else { 0 };
        out[..4].copy_from_slice(&[kind, flags, 0, 0]);
        out[4..8].copy_from_slice(&len.to_le_bytes());
        out[8..12].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        out[12..16].fill(0);
    }

    /// The frame that `bytes` begin with.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Frame, Violation> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Violation("it sent a truncated frame"))?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let meaningless = Violation("it sent a frame with reserved bits set");
        let (len, has_immediate) = (word(4), header[1] & HAS_IMMEDIATE != 0);
        let is_message = matches!(header[0], MESSAGE | OFFER);
        if header[2] != 0 || header[3] != 0 || word(12) != 0 || header[1] & !HAS_IMMEDIATE != 0 {
            return Err(meaningless);
        }
        if has_immediate && !is_message || !has_immediate && word(8) != 0 {
            return Err(meaningless);
        }
        if len > LONGEST_MESSAGE {
            return Err(Violation("it sent a message that is too long"));
        }
        let body = &bytes[HEADER_LEN..];
        let kind = match header[0] {
            MESSAGE if body.len() < len as usize => return Err(Violation("it sent a truncated message")),
            MESSAGE => FrameKind::Message { len },
            OFFER => {
                let body: &[u8; OFFER_LEN] =
                    body.first_chunk().ok_or(Violation("it sent a truncated rendezvous frame"))?;
                let addr = u64::from_le_bytes(std::array::from_fn(|n| body[n]));
                let rkey = u32::from_le_bytes(std::array::from_fn(|n| body[8 + n]));
                if body[12..] != [0; 4] {
                    return Err(meaningless);
                }
                FrameKind::Offer { len, addr, rkey }
            }
            ANNOUNCEMENT => {
                let cut = Violation("it sent a truncated expose frame");
                let (body, name) = body.split_first_chunk::<ANNOUNCEMENT_LEN>().ok_or(cut)?;
                if name.len() < len as usize {
                    return Err(cut);
                }
                if len as usize > LONGEST_NAME || body[20] & !RIGHTS != 0 || body[21..] != [0; 11] {
                    return Err(Violation("it sent a malformed expose frame"));
                }
                let [addr, length] =
                    [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|n| body[at + n])));
                let rkey = u32::from_le_bytes(std::array::from_fn(|n| body[16 + n]));
                let memory = Announced { addr, len: length, rkey, rights: body[20], generation: 0 };
                FrameKind::Announcement { name_len: len, memory }
            }
            END if len == 0 => FrameKind::End,
            GONE if len == 0 => FrameKind::Gone,
            _ => return Err(Violation("it sent a frame of an unknown kind")),
        };
        Ok(Frame { kind, immediate: has_immediate.then(|| word(8)) })
    }

    /// How many bytes the frame takes, with all that follows its header.
    pub(crate) fn len(&self) -> usize {
        frame_len(match self.kind {
            FrameKind::Message { len } => len as usize,
            FrameKind::Offer { .. } => OFFER_LEN,
            FrameKind::Announcement { name_len, .. } => ANNOUNCEMENT_LEN + name_len as usize,
            FrameKind::End | FrameKind::Gone => 0,
        })
    }
}
