//! Messages to send: requests and replies that share a message, and those that wait.

use adverb_cluster_proto::rpc::{HEADER_LEN, Header, Output, set_frame_len};
use adverb_cluster_proto::{PeerId, PostError};

use super::{Rpc, RpcBuf};
use crate::SendBuf;

/// The messages to a peer that were not posted.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Whether messages wait for [`Event::Unblocked`](crate::Event::Unblocked).
    is_blocked: bool,
    open: Option<OpenMessage>,
    /// Whether the peer is in the list of peers with an open message.
    is_listed: bool,
}

/// A message that accepts further frames.
#[derive(Debug)]
struct OpenMessage {
    message: SendBuf,
    /// The position of the last frame.
    last_frame: usize,
    frame_count: u16,
}

impl OpenMessage {
    /// Appends a frame. Returns `false` if the message is too short for it, or if no frame can follow the last one.
    fn push(&mut self, header: Header, data: &[u8]) -> bool {
        let start = self.message.len();
        if self.frame_count > 0 && !set_frame_len(&mut self.message[self.last_frame..]) {
            return false;
        }
        if self.message.resize(start + HEADER_LEN + data.len()).is_err() {
            return false;
        }
        let (head, tail) = self.message[start..].split_at_mut(HEADER_LEN);
        head.copy_from_slice(&header.to_bytes());
        tail.copy_from_slice(data);
        self.last_frame = start;
        self.frame_count += 1;
        true
    }

    /// Whether a frame with so many bytes of data can be appended.
    fn has_room(&self, len: usize) -> bool {
        let last_len = self.message.len() - self.last_frame;
        self.message.len() + HEADER_LEN + len <= self.message.capacity() && last_len <= usize::from(u16::MAX)
    }
}

impl Rpc {
    pub(super) fn is_blocked(&self, peer: PeerId) -> bool {
        self.outgoing.get(usize::from(peer.0)).is_some_and(|outgoing| outgoing.is_blocked)
    }

    pub(super) fn set_blocked(&mut self, peer: PeerId, is_blocked: bool) {
        if let Some(outgoing) = self.outgoing.get_mut(usize::from(peer.0)) {
            outgoing.is_blocked = is_blocked;
        }
    }

    /// Checks that a message to a peer would not overtake those that wait.
    pub(super) fn check_sendable(&self, peer: PeerId) -> Result<(), PostError> {
        if !self.is_current(peer) {
            return Err(PostError::NotOpen { peer });
        }
        if self.is_blocked(peer) { Err(PostError::WouldBlock { peer }) } else { Ok(()) }
    }

    /// Makes room for a frame with so many bytes of data, in the open message or in a new one.
    pub(super) fn reserve_frame(&mut self, peer: PeerId, len: usize) -> Result<(), PostError> {
        self.check_sendable(peer)?;
        let max = self.max_data_len();
        if len > max {
            return Err(PostError::MessageTooLong { len, max });
        }
        let not_open = PostError::NotOpen { peer };
        let outgoing = self.outgoing.get(usize::from(peer.0)).ok_or(not_open)?;
        match &outgoing.open {
            // The keys of segments precede the frames that may contain pointers to them.
            Some(open) if open.has_room(len) && !self.broker.has_due_keys(peer) => return Ok(()),
            Some(_) => self.post_open_message(peer),
            None => {}
        }
        let message = self.broker.allocate_send_buf(peer)?;
        let outgoing = self.outgoing.get_mut(usize::from(peer.0)).ok_or(not_open)?;
        outgoing.open = Some(OpenMessage { message, last_frame: 0, frame_count: 0 });
        if !std::mem::replace(&mut outgoing.is_listed, true) {
            self.open_peers.push(peer);
        }
        Ok(())
    }

    /// Appends a frame, for which there is room, to the open message. Posts the message if it has as many frames as a
    /// doorbell batch has messages.
    pub(super) fn push_frame(&mut self, peer: PeerId, header: Header, data: &[u8]) {
        let batch = self.broker.config().doorbell_batch;
        let outgoing = self.outgoing.get_mut(usize::from(peer.0));
        let Some(open) = outgoing.and_then(|outgoing| outgoing.open.as_mut()) else { return };
        let is_pushed = open.push(header, data);
        debug_assert!(is_pushed);
        if open.frame_count >= batch {
            self.post_open_message(peer);
            self.broker.flush(peer);
        }
    }

    /// Posts the open message of a peer, so that no later message overtakes it.
    pub(super) fn post_open_message(&mut self, peer: PeerId) {
        let open = self.outgoing.get_mut(usize::from(peer.0)).and_then(|outgoing| outgoing.open.take());
        if let Some(open) = open.filter(|open| open.frame_count > 0) {
            // If the session has ended, the event of its end follows.
            let _ = self.broker.post_send(open.message);
        }
    }

    /// Posts the open messages of all peers.
    pub(super) fn post_open_messages(&mut self) {
        while let Some(peer) = self.open_peers.pop() {
            if let Some(outgoing) = self.outgoing.get_mut(usize::from(peer.0)) {
                outgoing.is_listed = false;
            }
            self.post_open_message(peer);
        }
    }

    /// Drops the open message of an ended session. The broker takes its slot back.
    pub(super) fn discard_open_message(&mut self, peer: PeerId) {
        if let Some(outgoing) = self.outgoing.get_mut(usize::from(peer.0)) {
            outgoing.open = None;
        }
    }

    /// Sends the messages to a peer that wait, as far as there are slots and credits.
    pub(super) fn send_waiting(&mut self, peer: PeerId) {
        // A cancellation must not overtake its request.
        self.post_open_message(peer);
        while self.is_current(peer) && !self.is_blocked(peer) && self.core.has_output(peer) {
            match self.broker.allocate_send_buf(peer).and_then(RpcBuf::new) {
                Ok(mut message) => {
                    let Some(Output { header, data }) = self.core.poll_output(peer) else { return };
                    // The length was checked. If the session has ended, the peer doesn't expect the message.
                    let sent =
                        message.write(data).and_then(|()| self.broker.post_send(message.finish(header)));
                    debug_assert!(!matches!(sent, Err(PostError::MessageTooLong { .. })));
                }
                Err(PostError::WouldBlock { .. }) => self.set_blocked(peer, true),
                // The event of the session's end follows.
                Err(_) => return,
            }
        }
    }
}
