//! Frames: the content of writes into a ring.

use std::ops::Range;

use crate::{MAX_MESSAGE_SIZE, RING_ALIGN, Violation};

/// The length of a frame's header.
pub(crate) const HEADER_LEN: usize = 16;
/// The length of a rendezvous frame's body.
pub(crate) const RENDEZVOUS_LEN: usize = 16;
/// The length of an expose frame's body, without the name.
pub(crate) const EXPOSE_LEN: usize = 32;
/// The maximum length of a region's name.
pub const MAX_NAME_LEN: usize = 64;

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Frame {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The immediate data of a message.
    pub immediate: Option<u32>,
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FrameKind {
    /// An eager message, which follows the header.
    Message {
        /// The length of the message.
        len: u32,
    },
    /// A message that the receiver reads from the sender's memory.
    Rendezvous {
        /// The length of the message.
        len: u32,
        /// The address of the message.
        addr: u64,
        /// The remote key of the message.
        rkey: u32,
    },
    /// Memory that the receiver may access.
    Expose {
        /// The length of the region's name, which follows.
        name_len: u32,
        /// The region.
        region: ExposedRegion,
    },
    /// The receiver may no longer access the memory that the sender exposed under a name.
    Withdraw {
        /// The length of the region's name, which follows.
        name_len: u32,
    },
    /// The sender sends no more messages.
    Shutdown,
    /// The sender sends no more frames, and accepts none.
    Close,
}

impl FrameKind {
    /// Whether the frame counts as a message of the session. Exposed memory is announced again over each lane instead.
    pub fn is_numbered(&self) -> bool {
        !matches!(self, FrameKind::Expose { .. } | FrameKind::Withdraw { .. })
    }

    /// Returns the range of the region's name in a frame that has one.
    pub(crate) fn name_range(&self) -> Option<Range<usize>> {
        let (start, len) = match *self {
            FrameKind::Expose { name_len, .. } => (HEADER_LEN + EXPOSE_LEN, name_len),
            FrameKind::Withdraw { name_len } => (HEADER_LEN, name_len),
            _ => return None,
        };
        Some(start..start + len as usize)
    }
}

/// Memory that a peer exposes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExposedRegion {
    /// The address of the region.
    pub addr: u64,
    /// The length of the region.
    pub len: u64,
    /// The remote key of the region.
    pub rkey: u32,
    /// The rights: bit 0 read, bit 1 write, bit 2 atomics; bit 3 if the region is found by its addresses.
    pub rights: u8,
}

const MESSAGE: u8 = 1;
const RENDEZVOUS: u8 = 2;
const SHUTDOWN: u8 = 3;
const CLOSE: u8 = 4;
const EXPOSE: u8 = 5;
const WITHDRAW: u8 = 6;
const HAS_IMMEDIATE: u8 = 1;
/// The right of a region that is found by its addresses.
pub(crate) const BY_ADDRESS: u8 = 0b1000;
const ALL_RIGHTS: u8 = 0b1111;

/// Returns the length of a frame whose body has `body` bytes.
pub(crate) fn frame_len(body: usize) -> usize {
    (HEADER_LEN + body).next_multiple_of(RING_ALIGN as usize)
}

/// Whether a write of this side contains a message among its `frames`.
pub(crate) fn has_message(mut frames: &[u8]) -> bool {
    while let Ok(frame) = Frame::parse(frames) {
        if let FrameKind::Message { .. } | FrameKind::Rendezvous { .. } = frame.kind {
            return true;
        }
        frames = frames.get(frame.frame_len()..).unwrap_or(&[]);
    }
    false
}

/// Returns a function that copies these bytes.
pub(crate) fn copy(bytes: &[u8]) -> impl FnOnce(&mut [u8]) + '_ {
    |out| out.copy_from_slice(bytes)
}

impl Frame {
    /// Writes the header, and the fields of the body, to the start of `out`.
    ///
    /// # Panics
    ///
    /// Panics if `out` is shorter than the header and the fields.
    pub fn emit(&self, out: &mut [u8]) {
        let (kind, len) = match self.kind {
            FrameKind::Message { len } => (MESSAGE, len),
            FrameKind::Rendezvous { len, addr, rkey } => {
                let body = &mut out[HEADER_LEN..HEADER_LEN + RENDEZVOUS_LEN];
                body[..8].copy_from_slice(&addr.to_le_bytes());
                body[8..12].copy_from_slice(&rkey.to_le_bytes());
                body[12..].fill(0);
                (RENDEZVOUS, len)
            }
            FrameKind::Expose { name_len, region } => {
                let body = &mut out[HEADER_LEN..HEADER_LEN + EXPOSE_LEN];
                body.fill(0);
                body[..8].copy_from_slice(&region.addr.to_le_bytes());
                body[8..16].copy_from_slice(&region.len.to_le_bytes());
                body[16..20].copy_from_slice(&region.rkey.to_le_bytes());
                body[20] = region.rights;
                (EXPOSE, name_len)
            }
            FrameKind::Withdraw { name_len } => (WITHDRAW, name_len),
            FrameKind::Shutdown => (SHUTDOWN, 0),
            FrameKind::Close => (CLOSE, 0),
        };
        let flags = if self.immediate.is_some() { HAS_IMMEDIATE } else { 0 };
        out[..4].copy_from_slice(&[kind, flags, 0, 0]);
        out[4..8].copy_from_slice(&len.to_le_bytes());
        out[8..12].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        out[12..16].fill(0);
    }

    /// Writes the header, the body and the padding to `out`, which has the length of the frame.
    /// `fill` writes the bytes of a message, or a region's name.
    pub(crate) fn emit_with(&self, out: &mut [u8], fill: impl FnOnce(&mut [u8])) {
        self.emit(out);
        let range = match self.kind {
            FrameKind::Message { len } => HEADER_LEN..HEADER_LEN + len as usize,
            kind => match kind.name_range() {
                Some(range) => range,
                None => return,
            },
        };
        let (content, padding) = out[range.start..].split_at_mut(range.len());
        fill(content);
        // Most messages need no padding, and a call of `memset` is not free.
        if !padding.is_empty() {
            padding.fill(0);
        }
    }

    /// Parses the frame at the start of `bytes`.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are no frame.
    pub fn parse(bytes: &[u8]) -> Result<Frame, Violation> {
        let header: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(Violation("it sent a truncated frame"))?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let reserved = Violation("it sent a frame with reserved bits set");
        let (len, has_immediate) = (word(4), header[1] & HAS_IMMEDIATE != 0);
        let is_message = matches!(header[0], MESSAGE | RENDEZVOUS);
        if header[2] != 0 || header[3] != 0 || word(12) != 0 || header[1] & !HAS_IMMEDIATE != 0 {
            return Err(reserved);
        }
        if has_immediate && !is_message || !has_immediate && word(8) != 0 {
            return Err(reserved);
        }
        if len > MAX_MESSAGE_SIZE {
            return Err(Violation("it sent a message that is too long"));
        }
        let body = &bytes[HEADER_LEN..];
        let kind = match header[0] {
            MESSAGE if body.len() < len as usize => return Err(Violation("it sent a truncated message")),
            MESSAGE => FrameKind::Message { len },
            RENDEZVOUS => {
                let body: &[u8; RENDEZVOUS_LEN] =
                    body.first_chunk().ok_or(Violation("it sent a truncated rendezvous frame"))?;
                let addr = u64::from_le_bytes(std::array::from_fn(|n| body[n]));
                let rkey = u32::from_le_bytes(std::array::from_fn(|n| body[8 + n]));
                if body[12..] != [0; 4] {
                    return Err(reserved);
                }
                FrameKind::Rendezvous { len, addr, rkey }
            }
            EXPOSE => {
                let truncated = Violation("it sent a truncated expose frame");
                let (body, name) = body.split_first_chunk::<EXPOSE_LEN>().ok_or(truncated)?;
                if name.len() < len as usize {
                    return Err(truncated);
                }
                let has_stray_name = body[20] & BY_ADDRESS != 0 && len > 0;
                if has_stray_name
                    || len as usize > MAX_NAME_LEN
                    || body[20] & !ALL_RIGHTS != 0
                    || body[21..] != [0; 11]
                {
                    return Err(Violation("it sent a malformed expose frame"));
                }
                let [addr, length] =
                    [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|n| body[at + n])));
                let rkey = u32::from_le_bytes(std::array::from_fn(|n| body[16 + n]));
                let region = ExposedRegion { addr, len: length, rkey, rights: body[20] };
                FrameKind::Expose { name_len: len, region }
            }
            WITHDRAW if len as usize > MAX_NAME_LEN || body.len() < len as usize => {
                return Err(Violation("it sent a malformed withdraw frame"));
            }
            WITHDRAW => FrameKind::Withdraw { name_len: len },
            SHUTDOWN if len == 0 => FrameKind::Shutdown,
            CLOSE if len == 0 => FrameKind::Close,
            _ => return Err(Violation("it sent a frame of an unknown kind or with a wrong length")),
        };
        Ok(Frame { kind, immediate: has_immediate.then(|| word(8)) })
    }

    /// Returns the length of the frame with its body and padding.
    pub fn frame_len(&self) -> usize {
        frame_len(match self.kind {
            FrameKind::Message { len } => len as usize,
            FrameKind::Rendezvous { .. } => RENDEZVOUS_LEN,
            FrameKind::Expose { name_len, .. } => EXPOSE_LEN + name_len as usize,
            FrameKind::Withdraw { name_len } => name_len as usize,
            FrameKind::Shutdown | FrameKind::Close => 0,
        })
    }
}
