//! The list of this crate's error messages, `messages.txt`; they are causes in errors of adverb-verbs.

use std::fmt;

use adverb_net_proto::EndReason;
use adverb_verbs::{Error, Gid};
use messages::samples;

use crate::bootstrap::explain;
use crate::message::SendError;
use crate::protocol::handshake::{Flaw, MAX_REASON_LEN};

/// The cause in an [`Error::HandshakeRejected`].
struct HandshakeRejected(Flaw);

impl fmt::Display for HandshakeRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&explain(&self.0))
    }
}

#[test]
fn error_messages_are_as_listed() {
    let addr = [192, 0, 2, 7].into();
    let lists = [
        samples!(SendError { SendError { .. } => Error::WouldBlock { action: "sending a message" }.into(), }),
        samples!(HandshakeRejected {
            HandshakeRejected(Flaw::NotAdverb) => HandshakeRejected(Flaw::NotAdverb),
            HandshakeRejected(Flaw::Version(_)) => HandshakeRejected(Flaw::Version(7)),
            HandshakeRejected(Flaw::Malformed) => HandshakeRejected(Flaw::Malformed),
            HandshakeRejected(Flaw::ConnectorHasNoKey) => HandshakeRejected(Flaw::ConnectorHasNoKey),
            HandshakeRejected(Flaw::ListenerHasNoKey) => HandshakeRejected(Flaw::ListenerHasNoKey),
            HandshakeRejected(Flaw::KeyWrong) => HandshakeRejected(Flaw::KeyWrong),
            HandshakeRejected(Flaw::AddressNotServed(_)) => HandshakeRejected(Flaw::AddressNotServed(addr)),
            HandshakeRejected(Flaw::ForeignGid(_)) => HandshakeRejected(Flaw::ForeignGid(Gid::from(addr))),
        }),
    ];
    messages::check(concat!(env!("CARGO_MANIFEST_DIR"), "/messages.txt"), &lists);
}

#[test]
fn causes_fit_in_a_rejection() {
    let address = "2001:db8:1234:5678:9abc:def0:1234:5678".parse().unwrap();
    let long = [
        Flaw::Version(u16::MAX),
        Flaw::ConnectorHasNoKey,
        Flaw::ListenerHasNoKey,
        Flaw::AddressNotServed(address),
        Flaw::ForeignGid(Gid::from(address)),
    ];
    for flaw in long {
        let reason = explain(&flaw);
        assert!(reason.len() <= MAX_REASON_LEN, "{} bytes: {reason}", reason.len());
    }
    assert!(EndReason::SessionUnknown.to_string().len() <= MAX_REASON_LEN);
}
