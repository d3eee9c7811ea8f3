//! Valid and malformed bytes of a peer, at the bounds of each field.

use adverb_proto::types::RemoteMemory;

use crate::frame::{HEADER_LEN, has_message};
use crate::immediate::Immediate;
use crate::*;

const REGION: ExposedRegion =
    ExposedRegion { addr: 0x0102_0304_0506_0708, len: 0x1112_1314_1516_1718, rkey: 0x2122_2324, rights: 7 };

/// Returns the bytes of a frame, whose content is zeros.
fn emit(kind: FrameKind, immediate: Option<u32>) -> Vec<u8> {
    let frame = Frame { kind, immediate };
    let mut bytes = vec![0; frame.frame_len()];
    frame.emit(&mut bytes);
    bytes
}

fn kinds() -> [FrameKind; 6] {
    [
        FrameKind::Message { len: 5 },
        FrameKind::Rendezvous { len: 5, addr: 0x0102_0304_0506_0708, rkey: 0x2122_2324 },
        FrameKind::Expose { name_len: 5, region: REGION },
        FrameKind::Withdraw { name_len: 5 },
        FrameKind::Shutdown,
        FrameKind::Close,
    ]
}

/// Whether a frame is accepted with another byte at a place.
fn is_accepted_with(kind: FrameKind, at: usize, byte: u8) -> bool {
    let mut bytes = emit(kind, None);
    bytes[at] = byte;
    Frame::parse(&bytes).is_ok()
}

#[test]
fn frames_of_all_kinds_are_parsed() {
    for (kind, len) in kinds().into_iter().zip([32, 32, 64, 32, 16, 16]) {
        let bytes = emit(kind, None);
        assert_eq!(bytes.len(), len, "{kind:?}");
        assert_eq!(Frame::parse(&bytes), Ok(Frame { kind, immediate: None }));
        let is_message = matches!(kind, FrameKind::Message { .. } | FrameKind::Rendezvous { .. });
        assert_eq!(has_message(&bytes), is_message, "{kind:?}");
        assert_eq!(Frame::parse(&emit(kind, Some(9))).is_ok(), is_message, "{kind:?} with an immediate");
    }
    let frames = kinds().into_iter().rev().flat_map(|kind| emit(kind, None)).collect::<Vec<_>>();
    assert!(has_message(&frames) && !has_message(&frames[..128]) && !has_message(&[]));
}

#[test]
fn reserved_bits_of_frames_are_zero() {
    for kind in kinds() {
        for at in [1, 2, 3, 8, 11, 12, 15] {
            assert!(!is_accepted_with(kind, at, 2), "{kind:?}, byte {at}");
        }
    }
    for (kind, places) in [(kinds()[1], 28..32), (kinds()[2], 37..48)] {
        for at in places {
            assert!(!is_accepted_with(kind, at, 2), "{kind:?}, byte {at}");
        }
    }
    // Kinds that don't exist, and a length that is not used.
    assert!([0, 7].iter().all(|byte| !is_accepted_with(FrameKind::Close, 0, *byte)));
    assert!(!is_accepted_with(FrameKind::Shutdown, 4, 1) && !is_accepted_with(FrameKind::Close, 4, 1));
}

#[test]
fn lengths_of_frames_are_bounded() {
    let rendezvous = |len| Frame::parse(&emit(FrameKind::Rendezvous { len, addr: 1, rkey: 2 }, None));
    assert!(rendezvous(MAX_MESSAGE_SIZE).is_ok() && rendezvous(MAX_MESSAGE_SIZE + 1).is_err());
    // The padding may be missing, but not the content.
    for (kind, len) in kinds().into_iter().zip([21, 32, 53, 21, 16, 16]) {
        let bytes = emit(kind, None);
        assert!(Frame::parse(&bytes[..len]).is_ok(), "{kind:?}");
        assert!(Frame::parse(&bytes[..len - 1]).is_err(), "{kind:?}");
    }
}

#[test]
fn names_and_rights_of_regions_are_checked() {
    let expose = |name_len, rights| {
        let region = ExposedRegion { rights, ..REGION };
        Frame::parse(&emit(FrameKind::Expose { name_len, region }, None)).is_ok()
    };
    assert!(expose(64, 7) && !expose(65, 7));
    assert!(expose(5, 0) && !expose(5, 0b1_0000));
    let withdraw = |name_len| Frame::parse(&emit(FrameKind::Withdraw { name_len }, None)).is_ok();
    assert!(withdraw(0) && withdraw(64) && !withdraw(65));
    // A region that is exposed by its address has no name.
    assert!(expose(0, 0b1111) && !expose(1, 0b1111));
}

#[test]
fn fields_of_hellos_are_bounded() {
    let hello = Hello::unknown_session();
    let is_accepted = |hello: Hello| Hello::parse(&hello.emit()) == Ok(hello);
    assert!(is_accepted(Hello { max_message_size: MAX_MESSAGE_SIZE, ..hello }));
    assert!(!is_accepted(Hello { max_message_size: MAX_MESSAGE_SIZE + 1, ..hello }));
    for (writes, accepted) in [(3, false), (4, true), (256, true), (257, false)] {
        assert_eq!(is_accepted(Hello { max_outstanding_writes: writes, ..hello }), accepted, "{writes}");
    }
    for (len, accepted) in
        [(496, false), (512, true), (520, false), (528, true), (16 << 20, true), ((16 << 20) + 16, false)]
    {
        let ring = RemoteMemory { len, ..hello.ring };
        assert_eq!(is_accepted(Hello { ring, ..hello }), accepted, "{len}");
    }
    // A new session has received nothing.
    let session = Some(SessionHello { id: [7; 16], received: Some(1 << 40) });
    let mut bytes: [u8; HELLO_LEN] = Hello { session, ..hello }.emit();
    assert_eq!(Hello::parse(&bytes), Ok(Hello { session, ..hello }));
    bytes[56] = Hello { session: Some(SessionHello { id: [7; 16], received: None }), ..hello }.emit()[56];
    assert!(Hello::parse(&bytes).is_err());
}

#[test]
fn immediates_with_invalid_counts_are_refused() {
    let parse = |kind: u32, rest: u32| Immediate::parse(kind << 30 | rest);
    assert_eq!(parse(2, 1), Ok(Immediate::RendezvousDone(1)));
    assert_eq!(parse(3, 0), Ok(Immediate::CloseAck));
    assert_eq!(parse(3, 1), Ok(Immediate::Abort));
    assert!(parse(2, 0).is_err() && parse(3, 2).is_err());
}

#[test]
fn the_padding_is_zero_in_a_reused_buffer() {
    for len in [0, 1, 3, 64, 65] {
        let frame = Frame { kind: FrameKind::Message { len }, immediate: None };
        let mut out = vec![0xff; frame.frame_len()];
        frame.emit_with(&mut out, |content| content.fill(7));
        let (content, padding) = out[HEADER_LEN..].split_at(len as usize);
        assert!(content.iter().all(|byte| *byte == 7), "{len}: {out:?}");
        assert!(padding.iter().all(|byte| *byte == 0), "{len}: {out:?}");
        assert_eq!(Frame::parse(&out), Ok(frame));
    }
}
