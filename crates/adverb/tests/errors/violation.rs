//! A peer that violates the protocol.

use adverb::net::{ConnectionError, RecvError};

use crate::attacker::HostilePeer;
use crate::connections::device;
use crate::options;

pub(crate) fn violate() -> RecvError {
    let device = device();
    let options = options().device(&device).allow_foreign_gid(true);
    let (connection, mut peer) = HostilePeer::new(&device, &options);
    // A frame of an unknown kind.
    assert_eq!(peer.write(&[0xff; 16]), None);
    let error = connection.recv().unwrap_err();
    let RecvError::ConnectionLost(ConnectionError::ProtocolViolation { .. }) = error else {
        panic!("{error:?}")
    };
    assert!(!error.is_retryable());
    error
}
