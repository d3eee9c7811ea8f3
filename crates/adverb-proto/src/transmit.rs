//! Packets to send: their headers and the location of their payload.

use adverb_wire::{EmitError, Header, MAX_HEADER_LEN, Qpn};

use crate::memory::{Fault, Memory, Span};
use crate::path::Path;

/// A packet to send.
///
/// The engine has not read the payload. The caller must [gather](Payload::gather) it before the next call to the device
/// and before the memory changes.
#[derive(Clone, Copy, Debug)]
pub struct Transmit<'a> {
    /// The queue pair that sends the packet.
    pub qpn: Qpn,
    /// The headers.
    pub header: Header,
    /// The addresses, and the fields of the IP header.
    pub path: &'a Path,
    /// The payload.
    pub payload: Payload<'a>,
    /// Whether the queue pair reacts to congestion, so that switches may mark the packet. The ECN bits of the IP header
    /// must be `10` if this field is `true`, and `00` otherwise (Annex A17.9).
    pub ecn_capable: bool,
    /// The queue pair, if the time of sending this packet is the timestamp of its request's completion: for a datagram,
    /// or for the last packet of a message on an unreliable connection. The caller should then read its clock, send the
    /// packet without others, and call [`packet_sent`](crate::Device::packet_sent) with that time.
    pub timed: Option<Qpn>,
}

/// The location of a payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Ranges of registered memory, in the order of the payload.
    Spans(&'a [Span]),
    /// Bytes that were posted inline, in two consecutive pieces.
    Inline(&'a [u8], &'a [u8]),
    /// The eight bytes of an atomic write.
    Word([u8; 8]),
}

impl Payload<'_> {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Payload::Spans(spans) => spans.iter().map(|span| span.length as usize).sum(),
            Payload::Inline(head, tail) => head.len() + tail.len(),
            Payload::Word(_) => 8,
        }
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the payload's bytes to `out`.
    ///
    /// # Errors
    ///
    /// Returns [`Fault`] if memory is not readable. After an error, `out` may have unspecified bytes after its previous
    /// contents.
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
    /// Appends the whole packet to `out`: headers, payload, padding and ICRC, as the payload of a UDP datagram. The
    /// method copies the payload; a link with scatter/gather I/O can avoid the copy.
    ///
    /// `ip_id` is the identification (IP ID) of the IPv4 header. Linux sends 0 from a UDP socket that isn't connected
    /// and never fragments.
    ///
    /// # Errors
    ///
    /// Returns [`WriteError::Memory`] if memory is not readable. After an error, `out` is unchanged.
    pub fn write_to(&self, memory: &impl Memory, ip_id: u16, out: &mut Vec<u8>) -> Result<(), WriteError> {
        let start = out.len();
        let mut head = [0; MAX_HEADER_LEN];
        let payload_len = self.payload.len();
        let begun = self.path.flow().begin_emit(&self.header, ip_id, payload_len, &mut head);
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
    /// The packet is invalid. This error does not occur for packets that a device returned.
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
