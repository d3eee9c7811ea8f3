//! A packet of the capture: its bytes, what tshark should show of them, and what adverb-wire should read from
//! them.

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
    /// The kind of packet, by which [`notes`](super::notes) speak of it.
    pub(super) kind: &'static str,
    /// What sets it apart from others of its kind.
    pub(super) details: String,
    /// The IP datagram.
    pub(super) frame: Vec<u8>,
    /// Where in it the packet itself begins.
    pub(super) transport: usize,
    /// What tshark should show.
    pub(super) expected: Expected,
    /// What adverb-wire should read.
    pub(super) own: Own,
}

/// What adverb-wire should make of a packet.
pub(super) enum Own {
    /// It reads just what was put in.
    Reads(Box<Contents>),
    /// It refuses the packet, because this opcode doesn't carry so much payload.
    Refuses {
        /// The opcode.
        opcode: Opcode,
        /// How many bytes are there, by the pad count.
        payload_len: usize,
    },
}

/// What was put into a packet.
pub(super) struct Contents {
    /// The headers around it.
    pub(super) outer: Outer,
    /// Its headers.
    pub(super) header: Header,
    /// Its payload.
    pub(super) payload: Vec<u8>,
    /// The message that is its payload, if it is one of the connection manager's.
    pub(super) mad: Option<Mad>,
}

impl Case {
    /// A packet as adverb-wire emits it. Fields of the payload aren't expected yet: that is its maker's to
    /// add.
    pub(super) fn emitted(kind: &'static str, contents: Contents) -> Result<Case> {
        let Contents { outer, header, payload, .. } = &contents;
        let pad = padding(payload.len());
        let headers = Headers::of(header, pad);
        // In pieces, as an emitter may be given it.
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
        let own = Own::Reads(Box::new(contents));
        Ok(Case { kind, details: String::new(), frame, transport, expected, own })
    }

    /// A packet that adverb-wire doesn't emit, because its opcode has no padding to speak of: emitted
    /// without, and then given a pad count and a word behind the headers, or in an ATOMIC WRITE only the pad
    /// count.
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
        let own = Own::Refuses { opcode: header.opcode(), payload_len: body_len - usize::from(pad) };
        Ok(Case { kind, details: String::new(), frame, transport, expected, own })
    }

    /// With more about what it is.
    pub(super) fn details(self, details: String) -> Case {
        Case { details, ..self }
    }

    /// The ICRC that the packet should have, computed bit by bit, as tshark shows it: the bytes in their
    /// order.
    pub(super) fn icrc(&self) -> u32 {
        icrc::reference(&self.frame, self.transport - 8).swap_bytes()
    }

    /// Whether adverb-wire reads from the frame what was put in.
    pub(super) fn check_own(&self) -> Vec<Mismatch> {
        let mut mismatches = Vec::new();
        let parsed = Frame::parse(&self.frame);
        let mut check = |what: &str, right: bool, found: String| {
            if !right {
                let (field, expected) = (format!("adverb-wire's {what}"), "what was put in".to_owned());
                mismatches.push(Mismatch { field, expected, found });
            }
        };
        match (&self.own, &parsed) {
            (Own::Reads(contents), Ok(frame)) => {
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
                    let solved =
                        Flow::new(outer.source(), outer.destination()).map(|flow| flow.recover_ip_id(packet));
                    let right = solved == Some(Ok(outer.identification()));
                    check("solver of the identification", right, format!("{solved:?}"));
                }
                if let Some(mad) = mad {
                    let parsed = Mad::parse(packet.payload());
                    check("message", parsed == Ok(*mad), format!("{parsed:?}"));
                }
            }
            (Own::Refuses { opcode, payload_len }, Err(FrameError::Packet(refusal))) => {
                let right = ParseError::Payload { opcode: *opcode, payload_len: *payload_len };
                check("refusal", *refusal == right, format!("{refusal:?}"));
            }
            (Own::Refuses { .. }, _) | (Own::Reads(_), Err(_)) => {
                check("parser", false, format!("{parsed:?}"));
            }
        }
        mismatches
    }
}

/// What a forged packet has where its opcode has no payload.
pub(super) const FORGED_WORD: [u8; 4] = [0xf0, 0xf1, 0xf2, 0xf3];

/// How many bytes are missing to whole words.
pub(super) fn padding(payload_len: usize) -> u8 {
    match payload_len % 4 {
        1 => 3,
        2 => 2,
        3 => 1,
        _ => 0,
    }
}

/// A packet as adverb-wire emits it, and where its trailer begins.
fn emit(outer: &Outer, header: &Header, payload: &[&[u8]]) -> Result<(Vec<u8>, usize)> {
    let flow = Flow::new(outer.source(), outer.destination()).context("addresses of two families")?;
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(header, outer.identification(), payload, &mut head)?;
    let mut packet = head[..emitted.header_len].to_vec();
    payload.iter().for_each(|piece| packet.extend(*piece));
    let trailer_at = packet.len();
    packet.extend(&*emitted.trailer);
    Ok((packet, trailer_at))
}

/// Gives a frame the ICRC that it should have.
fn put_icrc(frame: &mut [u8], outer: &Outer) {
    let icrc = icrc::reference(frame, outer.ip_len());
    let at = frame.len() - 4;
    frame[at..].copy_from_slice(&icrc.to_le_bytes());
}

/// A packet with the headers around it.
fn in_frame(outer: &Outer, packet: &[u8]) -> Vec<u8> {
    let mut head = [0; MAX_OUTER_HEADER_LEN];
    let len = Frame::emit_outer(&outer.ip, outer.source_port, packet.len(), &mut head);
    [&head[..len], packet].concat()
}
