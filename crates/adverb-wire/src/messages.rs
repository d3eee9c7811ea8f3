//! The list of this crate's error messages, `messages.txt`.

use std::format;

use messages::samples;

use crate::cm::{Bits, CmaHeaderError, DataTooLong, MadError, RejectReason, SidrStatus, UnknownMtu};
use crate::{EmitError, FrameError, IcrcMismatch, Opcode, ParseError};

#[test]
fn error_messages_are_as_listed() {
    let opcode = Opcode::RcAcknowledge;
    let unknown_mtu = UnknownMtu(Bits::new(9).unwrap());
    let lists = [
        samples!(ParseError {
            ParseError::Truncated { .. } => ParseError::Truncated { needed_len: 32, found_len: 20 },
            ParseError::BadLength(_) => ParseError::BadLength(33),
            ParseError::UnknownOpcode(_) => ParseError::UnknownOpcode(0xff),
            ParseError::UnknownVersion(_) => ParseError::UnknownVersion(1),
            ParseError::InvalidPayloadLength { .. } => ParseError::InvalidPayloadLength { opcode, payload_len: 4 },
        }),
        samples!(EmitError {
            EmitError::TooLong { .. } => EmitError::TooLong { payload_len: 70_000 },
            EmitError::InvalidPayloadLength { .. } => EmitError::InvalidPayloadLength { opcode, payload_len: 4 },
        }),
        samples!(FrameError {
            FrameError::NotUdp => FrameError::NotUdp,
            FrameError::OtherPort(_) => FrameError::OtherPort(53),
            FrameError::Packet(_) => FrameError::Packet(ParseError::UnknownOpcode(0xff)),
        }),
        samples!(IcrcMismatch { IcrcMismatch { .. } => IcrcMismatch { computed: 0x1234_5678, found: 0x9abc_def0 }, }),
        samples!(MadError {
            MadError::Length(_) => MadError::Length(255),
            MadError::BaseVersion(_) => MadError::BaseVersion(2),
            MadError::Class(_) => MadError::Class(3),
            MadError::ClassVersion(_) => MadError::ClassVersion(1),
            MadError::Method(_) => MadError::Method(1),
            MadError::Attribute(0x19) => MadError::Attribute(0x19),
            MadError::Attribute(0x1a) => MadError::Attribute(0x1a),
            MadError::Attribute(_) => MadError::Attribute(0x55),
        }),
        samples!(CmaHeaderError {
            CmaHeaderError::TooShort { .. } => CmaHeaderError::TooShort { len: 20 },
            CmaHeaderError::Version(_) => CmaHeaderError::Version(0x12),
            CmaHeaderError::IpVersion(_) => CmaHeaderError::IpVersion(5),
        }),
        samples!(UnknownMtu { UnknownMtu { .. } => unknown_mtu, }),
        samples!(DataTooLong { DataTooLong { .. } => DataTooLong { len: 93, max: 92 }, }),
    ];
    let reasons = (0..40).map(RejectReason::from_code).map(|reason| format!("{reason}\n"));
    let statuses = (0..8).map(SidrStatus::from_code).map(|status| format!("{status}\n"));
    let codes = ["## RejectReason\n\n".into()].into_iter().chain(reasons);
    let codes = codes.chain(["\n## SidrStatus\n\n".into()]).chain(statuses);
    let all: std::vec::Vec<_> = lists.into_iter().chain(codes).collect();
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &all);
}
