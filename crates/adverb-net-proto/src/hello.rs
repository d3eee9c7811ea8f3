//! The hello: the first message of each side over a lane.

use adverb_proto::types::RemoteMemory;

use crate::{
    MAX_MESSAGE_SIZE, MAX_OUTSTANDING_WRITES, MAX_RING_SIZE, MIN_OUTSTANDING_WRITES, MIN_RING_SIZE,
    RING_ALIGN, Violation,
};

/// The version of the protocol.
pub const VERSION: u16 = 2;
/// The length of a hello.
pub const HELLO_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"adverb\r\n";
const BEGINS: u8 = 1;
const RESUMES: u8 = 2;

/// The ID of a session, which the connector chooses at random.
pub type SessionId = [u8; 16];

/// The first message of a side over a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hello {
    /// The ring that the receiver of the hello may write to.
    pub ring: RemoteMemory,
    /// The maximum number of writes that are in flight or unread.
    pub max_outstanding_writes: u32,
    /// The maximum length of a message that the sender of the hello accepts.
    pub max_message_size: u32,
    /// The session, if the connection can be resumed over another lane.
    pub session: Option<SessionHello>,
}

/// The session in a hello.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionHello {
    /// The ID of the session.
    pub id: SessionId,
    /// The number of messages that this side has received, if the session resumes.
    pub received: Option<u64>,
}

impl Hello {
    /// Returns a listener's answer to a connector whose session it doesn't know.
    pub fn unknown_session() -> Hello {
        Hello {
            ring: RemoteMemory { addr: 0, rkey: 0, len: MIN_RING_SIZE.into() },
            max_outstanding_writes: MIN_OUTSTANDING_WRITES,
            max_message_size: 0,
            session: None,
        }
    }

    /// Returns the bytes of the hello.
    pub fn emit(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.max_outstanding_writes as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.ring.len as u32).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.ring.addr.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.ring.rkey.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.max_message_size.to_le_bytes());
        if let Some(SessionHello { id, received }) = self.session {
            bytes[32..48].copy_from_slice(&id);
            bytes[48..56].copy_from_slice(&received.unwrap_or(0).to_le_bytes());
            bytes[56] = if received.is_some() { RESUMES } else { BEGINS };
        }
        bytes
    }

    /// Parses a hello.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are no hello of this version, or a field is out of range.
    pub fn parse(bytes: &[u8]) -> Result<Hello, Violation> {
        let bytes: &[u8; HELLO_LEN] =
            bytes.try_into().map_err(|_| Violation("its hello has a wrong length"))?;
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if bytes[..8] != MAGIC || bytes[8..10] != VERSION.to_le_bytes() {
            return Err(Violation("its hello has a wrong magic number or another version"));
        }
        let (max_outstanding_writes, len) = (word(8) >> 16, word(12));
        if !(MIN_OUTSTANDING_WRITES..=MAX_OUTSTANDING_WRITES).contains(&max_outstanding_writes)
            || !(MIN_RING_SIZE..=MAX_RING_SIZE).contains(&len)
            || !len.is_multiple_of(RING_ALIGN)
        {
            return Err(Violation(
                "the size of its receive ring, or its maximum number of writes, is out of range",
            ));
        }
        let max_message_size = word(28);
        if max_message_size > MAX_MESSAGE_SIZE {
            return Err(Violation("its maximum message size is too large"));
        }
        let received = u64::from(word(48)) | u64::from(word(52)) << 32;
        let id = std::array::from_fn(|at| bytes[32 + at]);
        let session = match bytes[56] {
            0 if id == SessionId::default() && received == 0 => None,
            BEGINS if received == 0 => Some(SessionHello { id, received: None }),
            RESUMES => Some(SessionHello { id, received: Some(received) }),
            _ => return Err(Violation("its hello has a malformed session")),
        };
        if bytes[57..] != [0; 7] {
            return Err(Violation("its hello has reserved bits set"));
        }
        let addr = u64::from(word(16)) | u64::from(word(20)) << 32;
        let ring = RemoteMemory { addr, rkey: word(24), len: len.into() };
        Ok(Hello { ring, max_outstanding_writes, max_message_size, session })
    }
}
