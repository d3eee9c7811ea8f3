//! A packet of the capture: its bytes, the fields that tshark should show, and the result that adverb-wire should
//! parse.

use adverb_wire::cm::Mad;
use adverb_wire::{
    Flow, Frame, FrameError, Header, MAX_HEADER_LEN, MAX_OUTER_HEADER_LEN, Opcode, ParseError,
};
use anyhow::{Context, Result};

use super::field::{Expected, Mismatch};
use super::headers::Headers;
use super::icrc;
use super::outer::Outer;

/// A packet of the capture.
pub(super) struct Case {
    /// The kind of packet, as [`notes`](super::notes) name it.
    pub(super) kind: &'static str,
    /// The differences from other packets of its kind.
    pub(super) details: String,
    /// The IP datagram.
    pub(super) frame: Vec<u8>,
    /// The offset of the base transport header in the datagram.
    pub(super) transport: usize,
    /// The fields that tshark should show.
    pub(super) expected: Expected,
    /// The result that adverb-wire should parse.
    pub(super) own: Own,
}

/// The expected result of adverb-wire's parser.
pub(super) enum Own {
    /// The parser returns the original values.
    Parses(Box<Contents>),
    /// The parser rejects the packet, because the opcode doesn't allow a payload of this length.
    Rejects {
        /// The opcode.
        opcode: Opcode,
        /// The length of the payload, according to the pad count.
        payload_len: usize,
    },
}

/// The values of a packet.
pub(super) struct Contents {
    /// The IP and UDP headers.
    pub(super) outer: Outer,
    /// The packet's headers.
    pub(super) header: Header,
    /// The payload.
    pub(super) payload: Vec<u8>,
    /// The connection manager's message in the payload, if any.
    pub(super) mad: Option<Mad>,
}

impl Case {
    /// Creates a packet as adverb-wire emits it. The caller adds the expected fields of the payload.
    pub(super) fn emitted(kind: &'static str, contents: Contents) -> Result<Case> {
        let Contents { outer, header, payload, .. } = &contents;
        let pad = padding(payload.len());
        let headers = Headers::of(header, pad);
        // The payload is emitted in several slices, one of them empty, because the emitter accepts any number of
        // slices.
        let (first, second) = payload.split_at(payload.len() / 2);
        let (packet, _) = emit(outer, header, &[first, &[], second])?;
        let mut frame = in_frame(outer, &packet);
        if !outer.is_as_flow_emits() {
            put_icrc(&mut frame, outer);
        }
        let len = headers.len + u16::try_from(payload.len())? + u16::from(pad) + 4;
        let mut expected = outer.expected(len);
        expected.append(headers.expected);
        let transport = outer.ip_len() + 8;
        let own = Own::Parses(Box::new(contents));
        Ok(Case { kind, details: String::new(), frame, transport, expected, own })
    }

    /// Creates a packet that adverb-wire never emits: one with a pad count, although its opcode allows no padding. It
    /// is emitted without padding, and then gets the pad count and a word after the headers; an ATOMIC WRITE gets only
    /// the pad count.
    pub(super) fn forged(kind: &'static str, contents: Contents, pad: u8) -> Result<Case> {
        let Contents { outer, header, payload, .. } = &contents;
        let headers = Headers::of(header, pad);
        let (mut packet, trailer_at) = emit(outer, header, &[payload])?;
        packet[1] |= pad << 4;
        packet.truncate(trailer_at);
        if payload.is_empty() {
            packet.extend(FORGED_WORD);
        }
        let body_len = packet.len() - usize::from(headers.len);
        packet.extend([0; 4]);
        let mut frame = in_frame(outer, &packet);
        put_icrc(&mut frame, outer);
        let mut expected = outer.expected(headers.len + u16::try_from(body_len)? + 4);
        expected.append(headers.expected);
        let transport = outer.ip_len() + 8;
        let own = Own::Rejects { opcode: header.opcode(), payload_len: body_len - usize::from(pad) };
        Ok(Case { kind, details: String::new(), frame, transport, expected, own })
    }

    /// Sets the details.
    pub(super) fn details(self, details: String) -> Case {
        Case { details, ..self }
    }

    /// Returns the expected ICRC as tshark shows it, in the order of the bytes, computed by the reference
    /// implementation.
    pub(super) fn icrc(&self) -> u32 {
        icrc::reference(&self.frame, self.transport - 8).swap_bytes()
    }

    /// Compares the result of adverb-wire's parser with the expected one.
    pub(super) fn check_own(&self) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        let parsed = Frame::parse(&self.frame);
        let mut check = |what: &str, right: bool, found: String| {
            if !right {
                let (field, expected) = (format!("adverb-wire's {what}"), "the original value".to_owned());
                mismatches.push(Mismatch { field, expected, found });
            }
        };
        match (&self.own, &parsed) {
            (Own::Parses(contents), Ok(frame)) => {
                let Contents { outer, header, payload, mad } = contents.as_ref();
                let packet = frame.packet();
                check("IP header", *frame.ip() == outer.ip, format!("{:?}", frame.ip()));
                check("source", frame.source() == outer.source(), frame.source().to_string());
                check(
                    "destination",
                    frame.destination() == outer.destination(),
                    frame.destination().to_string(),
                );
                check("header", packet.header() == header, format!("{:?}", packet.header()));
                check("payload", packet.payload() == payload, format!("{:?}", packet.payload()));
                let pad = usize::from(padding(payload.len()));
                check("padding", packet.pad_len() == pad, packet.pad_len().to_string());
                check("ICRC", frame.verify().is_ok(), format!("{:?}", frame.verify()));
                if outer.is_as_flow_emits() {
                    let recovered =
                        Flow::new(outer.source(), outer.destination()).map(|flow| flow.recover_ip_id(packet));
                    let right = recovered == Some(Ok(outer.ip_id()));
                    check("recovered IP ID", right, format!("{recovered:?}"));
                }
                if let Some(mad) = mad {
                    let parsed = Mad::parse(packet.payload());
                    check("message", parsed == Ok(*mad), format!("{parsed:?}"));
                }
            }
            (Own::Rejects { opcode, payload_len }, Err(FrameError::Packet(error))) => {
                let right = ParseError::InvalidPayloadLength { opcode: *opcode, payload_len: *payload_len };
                check("error", *error == right, format!("{error:?}"));
            }
            (Own::Rejects { .. }, _) | (Own::Parses(_), Err(_)) => {
                check("parser", false, format!("{parsed:?}"));
            }
        }
        mismatches
    }
}

/// The payload of a forged packet whose opcode allows none.
pub(super) const FORGED_WORD: [u8; 4] = [0xf0, 0xf1, 0xf2, 0xf3];

/// Returns the number of padding bytes after a payload.
pub(super) fn padding(payload_len: usize) -> u8 {
    match payload_len % 4 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

/// Returns a packet as adverb-wire emits it, and the offset of its trailer.
fn emit(outer: &Outer, header: &Header, payload: &[&[u8]]) -> Result<(Vec<u8>, usize)> {
    let flow = Flow::new(outer.source(), outer.destination()).context("the addresses are of two families")?;
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(header, outer.ip_id(), payload, &mut head)?;
    let mut packet = head[..emitted.header_len].to_vec();
    payload.iter().for_each(|piece| packet.extend(*piece));
    let trailer_at = packet.len();
    packet.extend(&*emitted.trailer);
    Ok((packet, trailer_at))
}

/// Writes the correct ICRC into a frame.
fn put_icrc(frame: &mut [u8], outer: &Outer) {
    let icrc = icrc::reference(frame, outer.ip_len());
    let at = frame.len() - 4;
    frame[at..].copy_from_slice(&icrc.to_le_bytes());
}

/// Returns a packet with its IP and UDP headers.
fn in_frame(outer: &Outer, packet: &[u8]) -> Vec<u8> {
    let mut head = [0; MAX_OUTER_HEADER_LEN];
    let len = Frame::emit_outer(&outer.ip, outer.source_port, packet.len(), &mut head);
    [&head[..len], packet].concat()
}
