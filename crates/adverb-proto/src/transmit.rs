//! A packet to be sent: headers, and where its payload lies.

use adverb_wire::{EmitError, Header, MAX_HEADER_LEN};

use crate::memory::{Fault, Memory, Span};
use crate::path::Path;

/// A packet to be sent. The engine hasn't touched its payload: whoever sends the packet gathers it, before anything
/// else is done with the device or its memory.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The headers.
    pub header: Header,
    /// From where, to where.
    pub path: &'a Path,
    /// The payload.
    pub payload: Payload<'a>,
    /// Whether the sender heeds congestion, so that switches may mark the packet: the IP header's ECN bits are then
    /// to be `10`, and else `00` (Annex A17.9).
    pub ecn_capable: bool,
}

/// Where a payload lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// In registered memory, in this order.
    Spans(&'a [Span]),
    /// In the queue pair: it was posted inline. The second piece follows the first.
    Inline(&'a [u8], &'a [u8]),
    /// Here: the eight bytes of an atomic write.
    Word([u8; 8]),
}

impl Payload<'_> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Spans(spans) => spans.iter().map(|span| span.length as usize).sum(),
            Payload::Inline(head, tail) => head.len() + tail.len(),
            Payload::Word(_) => 8,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes to `out`.
    ///
    /// # Errors
    ///
    /// If memory can't be read; `out` then holds some of the bytes.
    pub fn gather(&self, memory: &impl Memory, out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            Payload::Spans(spans) => {
                for span in *spans {
                    memory.append_to(*span, out)?;
                }
            }
            Payload::Inline(head, tail) => {
                out.extend_from_slice(head);
                out.extend_from_slice(tail);
            }
            Payload::Word(bytes) => out.extend_from_slice(bytes),
        }
        Ok(())
    }
}

impl Transmit<'_> {
    /// Writes the whole packet behind what `out` holds: headers, payload, padding and ICRC, as the payload of a UDP
    /// datagram. For links that need no better; others gather without copying.
    ///
    /// `identification` is that of the IPv4 header: 0 on an ordinary UDP socket.
    ///
    /// # Errors
    ///
    /// If memory can't be read. `out` is then as it was.
    pub fn write_to(
        &self,
        memory: &impl Memory,
        identification: u16,
        out: &mut Vec<u8>,
    ) -> Result<(), WriteError> {
        let start = out.len();
        let mut head = [0; MAX_HEADER_LEN];
        let payload_len = self.payload.len();
        let begun = self.path.flow().begin_emit(&self.header, identification, payload_len, &mut head);
        let mut icrc = begun.map_err(WriteError::Emit)?;
        let header_len = self.header.len();
        out.extend_from_slice(&head[..header_len]);
        if let Err(fault) = self.payload.gather(memory, out) {
            out.truncate(start);
            return Err(WriteError::Memory(fault));
        }
        icrc.update(&out[start + header_len..]);
        out.extend_from_slice(&icrc.finish().trailer);
        Ok(())
    }
}

/// The error of writing a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteError {
    /// The payload could not be read.
    Memory(Fault),
    /// The packet is invalid. This never happens for a packet that a device hands out.
    Emit(EmitError),
}

impl core::fmt::Display for WriteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WriteError::Memory(fault) => fault.fmt(f),
            WriteError::Emit(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WriteError {}
