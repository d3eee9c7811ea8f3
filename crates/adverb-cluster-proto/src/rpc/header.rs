//! The frames of a message between two [`Rpc`](super::Rpc)s, and their headers.
//!
//! A message has one or more frames. All numbers are in little endian, and bytes without a meaning are zero.
//!
//! | bytes of a frame | request | reply | failure | cancel |
//! |---|---|---|---|---|
//! | 0 | 1 | 2 | 3 | 4 |
//! | 1 | – | – | code of the failure | – |
//! | 2–3 | method | – | code of the application | – |
//! | 4–7 | timeout in µs, or 0 | – | – | – |
//! | 8–11 | generation | generation | generation | generation |
//! | 12–13 | index | index | index | index |
//! | 14–15 | length of the frame if another one follows, otherwise 0 | the same | the same | the same |
//! | from 16 | data | data | – | – |

use core::fmt;
use core::time::Duration;

/// The length of a frame's header in bytes.
pub const HEADER_LEN: usize = 16;

/// The position of a frame's length in its header.
const LENGTH_AT: usize = 14;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const FAILURE: u8 = 3;
const CANCEL: u8 = 4;

const NO_REPLY: u8 = 1;
const OVERLOADED: u8 = 2;
const UNKNOWN_METHOD: u8 = 3;
const APPLICATION: u8 = 4;

/// The number of a call in the messages of a session.
///
/// The index is that of the caller's table of calls. It is also that of the callee's table of requests, so neither side
/// searches. The generation counts the uses of the index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WireId {
    /// The index in the table.
    pub index: u16,
    /// The number of calls with this index so far.
    pub generation: u32,
}

/// The failure of a request, which its callee reports instead of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The callee dropped the request.
    NoReply,
    /// The callee has the maximum number of requests from this peer.
    Overloaded,
    /// The callee has no such method.
    UnknownMethod,
    /// The callee's application refused the request with this code.
    Application(u16),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoReply => f.write_str("the peer dropped the request without a reply"),
            Failure::Overloaded => f.write_str("the peer has too many requests of this member"),
            Failure::UnknownMethod => f.write_str("the peer has no such method"),
            Failure::Application(code) => write!(f, "the peer refused the request with code {code}"),
        }
    }
}

impl std::error::Error for Failure {}

/// The header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// A request, followed by its data.
    Request {
        /// The id.
        id: WireId,
        /// The method.
        method: u16,
        /// The time until the caller stops waiting, if it ever does.
        timeout: Option<Duration>,
    },
    /// The reply to a request, followed by its data.
    Reply {
        /// The id of the request.
        id: WireId,
    },
    /// The failure of a request.
    Failure {
        /// The id of the request.
        id: WireId,
        /// The cause.
        failure: Failure,
    },
    /// The caller doesn't wait for a reply anymore.
    Cancel {
        /// The id of the request.
        id: WireId,
    },
}

impl Header {
    /// Returns the byte representation. A timeout is rounded up to microseconds, and limited to 71 minutes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let (kind, code, number, micros, id) = match *self {
            Header::Request { id, method, timeout } => {
                let micros = timeout.map_or(0, |timeout| {
                    u32::try_from(timeout.as_nanos().div_ceil(1000)).unwrap_or(u32::MAX).max(1)
                });
                (REQUEST, 0, method, micros, id)
            }
            Header::Reply { id } => (REPLY, 0, 0, 0, id),
            Header::Failure { id, failure } => match failure {
                Failure::NoReply => (FAILURE, NO_REPLY, 0, 0, id),
                Failure::Overloaded => (FAILURE, OVERLOADED, 0, 0, id),
                Failure::UnknownMethod => (FAILURE, UNKNOWN_METHOD, 0, 0, id),
                Failure::Application(code) => (FAILURE, APPLICATION, code, 0, id),
            },
            Header::Cancel { id } => (CANCEL, 0, 0, 0, id),
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = kind;
        bytes[1] = code;
        bytes[2..4].copy_from_slice(&number.to_le_bytes());
        bytes[4..8].copy_from_slice(&micros.to_le_bytes());
        bytes[8..12].copy_from_slice(&id.generation.to_le_bytes());
        bytes[12..14].copy_from_slice(&id.index.to_le_bytes());
        bytes
    }

    /// Splits a frame, which may come from any peer, into its header and its data. Returns `None` if the frame is too
    /// short, if its length differs from the one in its header, if a number has no meaning, or if a failure or
    /// cancellation has data.
    pub fn parse(frame: &[u8]) -> Option<(Header, &[u8])> {
        let (header, data) = frame.split_first_chunk::<HEADER_LEN>()?;
        let [kind, code, n0, n1, t0, t1, t2, t3, g0, g1, g2, g3, i0, i1, l0, l1] = *header;
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        if length != 0 && length != frame.len() {
            return None;
        }
        let number = u16::from_le_bytes([n0, n1]);
        let micros = u32::from_le_bytes([t0, t1, t2, t3]);
        let generation = u32::from_le_bytes([g0, g1, g2, g3]);
        let id = WireId { index: u16::from_le_bytes([i0, i1]), generation };
        let header = match (kind, code, number, micros) {
            (REQUEST, 0, method, micros) => {
                let timeout = (micros > 0).then(|| Duration::from_micros(u64::from(micros)));
                Header::Request { id, method, timeout }
            }
            (REPLY, 0, 0, 0) => Header::Reply { id },
            (FAILURE, code, number, 0) => {
                let failure = match (code, number) {
                    (NO_REPLY, 0) => Failure::NoReply,
                    (OVERLOADED, 0) => Failure::Overloaded,
                    (UNKNOWN_METHOD, 0) => Failure::UnknownMethod,
                    (APPLICATION, code) => Failure::Application(code),
                    _ => return None,
                };
                Header::Failure { id, failure }
            }
            (CANCEL, 0, 0, 0) => Header::Cancel { id },
            _ => return None,
        };
        let has_data = matches!(header, Header::Request { .. } | Header::Reply { .. });
        (has_data || data.is_empty()).then_some((header, data))
    }
}

/// Splits the first frame from a message, which may come from any peer. The rest is empty after the last frame.
///
/// A frame with an impossible length is returned with all bytes behind it, and [`Header::parse`] refuses it.
pub fn split_frame(message: &[u8]) -> (&[u8], &[u8]) {
    match message.get(LENGTH_AT..HEADER_LEN) {
        Some(&[l0, l1]) => match usize::from(u16::from_le_bytes([l0, l1])) {
            length if length >= HEADER_LEN && length < message.len() => message.split_at(length),
            _ => (message, &[]),
        },
        _ => (message, &[]),
    }
}

/// Writes the length of a frame to its header, so that another frame can follow. Returns `false` if the frame is too
/// long for that, or too short to be a frame.
#[must_use]
pub fn set_frame_len(frame: &mut [u8]) -> bool {
    let Ok(length) = u16::try_from(frame.len()) else { return false };
    let Some(place) = frame.get_mut(LENGTH_AT..HEADER_LEN) else { return false };
    place.copy_from_slice(&length.to_le_bytes());
    true
}
