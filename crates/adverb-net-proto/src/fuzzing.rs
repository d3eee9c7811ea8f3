//! The parts of the protocol that a fuzzer drives: messages of a peer, and both ends of a ring.

use std::collections::VecDeque;

use crate::frame::{Frame, FrameKind, HEADER_LEN};
use crate::hello::Hello;
use crate::immediate::Immediate;
use crate::ring::{RecvRing, SendRing, max_write_len};
use crate::{MAX_MESSAGE_SIZE, MAX_RING_SIZE};

/// Parses bytes as a hello, as frames and as immediate data.
///
/// # Panics
///
/// Panics if a parsed hello or immediate data are emitted with other bytes, or an emitted frame is parsed differently.
pub fn parse(bytes: &[u8]) {
    if let Ok(hello) = Hello::parse(bytes) {
        assert_eq!(hello.emit(), bytes);
        assert!(hello.max_message_size <= MAX_MESSAGE_SIZE && hello.ring.len <= u64::from(MAX_RING_SIZE));
    }
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(frame) = Frame::parse(rest) else { break };
        let (len, mut emitted) = (frame.frame_len(), vec![0; frame.frame_len()]);
        frame.emit(&mut emitted);
        match frame.kind {
            FrameKind::Message { len } => assert!(len as usize <= rest.len() - HEADER_LEN),
            FrameKind::Expose { .. } => {}
            _ => assert_eq!(Frame::parse(&emitted), Ok(frame)),
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    for word in bytes.chunks_exact(4) {
        let bits = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        if let Ok(immediate) = Immediate::parse(bits) {
            assert_eq!(immediate.emit(), bits);
        }
    }
}

/// Writes into rings, reads them and grants credits, in the order that the bytes select.
///
/// # Panics
///
/// Panics if the place of a write exceeds its ring.
pub fn rings(bytes: impl IntoIterator<Item = u8>) {
    let mut bytes: VecDeque<u8> = bytes.into_iter().collect();
    let mut next = || bytes.pop_front().map(u32::from);
    let Some((first, second)) = next().zip(next()) else { return };
    let size = 512 + first * 16;
    let mut own = RecvRing::new(size, 4 + second % 253);
    let mut peer = SendRing::new(size, 4);
    while let (Some(action), Some(high), Some(low)) = (next(), next(), next()) {
        let value = high << 8 | low;
        match action % 4 {
            0 if own.add_write(value).is_err() => return,
            1 => {
                if let Some((offset, len)) = own.unread() {
                    assert!(offset.checked_add(len).is_some_and(|end| end <= size));
                    own.free();
                }
            }
            2 => {
                let len = value % max_write_len(size) + 1;
                if let Some(offset) = peer.place(len) {
                    assert!(offset + len <= size);
                }
            }
            3 => {
                if let Ok(Immediate::Credits(credits)) = Immediate::parse(1 << 30 | value)
                    && peer.add_credits(credits).is_err()
                {
                    return;
                }
            }
            _ => {}
        }
    }
}
