//! Connections that are established, and fail or refuse an operation.

use std::thread::{scope, sleep};
use std::time::Duration;

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{
    ConnectError, ConnectionError, Options, RecvError, RemoteAccess, RemoteErrorKind, SendErrorKind,
};

use crate::process::{Process, wait_for_parent};
use crate::{SHORT_TIMEOUT, options, show};

pub(crate) fn show_all() {
    show("15: the peer was killed", lose_peer());
    show_closed();
    show("17: the peer violated the protocol", crate::violation::violate());
    show_long_message();
    show_remote();
    show("20: reconnecting failed", fail_to_reconnect());
}

/// Returns both ends of a connection.
fn pair(left: &Options, right: &Options) -> (Connection, Connection) {
    let listener = Listener::builder().options(right).bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    scope(|scope| {
        let left = scope.spawn(|| Connector::new().options(left).connect(address).unwrap());
        let right = listener.accept().unwrap();
        (left.join().unwrap(), right)
    })
}

/// The role of a peer that is killed.
pub(crate) fn be_killed(role: &str) {
    let options = if role == "reconnect" { reconnecting_options() } else { options() };
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").unwrap();
    println!("listening {}", listener.local_addr());
    let connection = listener.accept().unwrap();
    connection.send(b"accepted").unwrap();
    wait_for_parent();
}

/// Connects to a process with the role of a peer.
fn connect_to_process(role: &str, options: &Options) -> (Process, Connection) {
    let mut process = Process::start(&format!("peer {role}"));
    let address = process.wait_for_line("listening ");
    let connection = Connector::new().options(options).connect(&*address).unwrap();
    assert_eq!(&connection.recv().unwrap().unwrap()[..], b"accepted");
    (process, connection)
}

fn lose_peer() -> RecvError {
    let options = options().keepalive(Duration::from_millis(100));
    let (mut process, connection) = connect_to_process("killed", &options);
    process.kill();
    let error = connection.recv().unwrap_err();
    let RecvError::ConnectionLost(ConnectionError::PeerLost { peer, has_exited: false }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(peer, connection.peer_addr());
    assert!(error.is_retryable());
    // Each operation has the same reason.
    let error = connection.send(b"late").unwrap_err().kind;
    assert!(matches!(error, SendErrorKind::ConnectionLost(ConnectionError::PeerLost { .. })), "{error:?}");
    assert!(matches!(connection.closed(), ConnectionError::PeerLost { .. }));
    connection.recv().unwrap_err()
}

fn show_closed() {
    let (left, right) = pair(&options(), &options());
    scope(|scope| {
        scope.spawn(|| right.close().unwrap());
        // The end of a closed connection is no error of a receive.
        assert!(left.recv().unwrap().is_none());
    });
    let error = left.send(b"late").unwrap_err();
    let SendErrorKind::ConnectionLost(ConnectionError::PeerClosed { .. }) = error.kind else {
        panic!("{error:?}")
    };
    show("16: the peer closed in order", error);

    let (left, right) = pair(&options(), &options());
    drop(right);
    let error = left.recv().unwrap_err();
    let RecvError::ConnectionLost(ConnectionError::PeerAborted { .. }) = error else { panic!("{error:?}") };
    show("16: the peer ended without closing", error);

    let (left, right) = pair(&options(), &options());
    left.shutdown().unwrap();
    let error = left.send(b"late").unwrap_err();
    assert!(matches!(error.kind, SendErrorKind::ShutDown { .. }), "{error:?}");
    show("This side has shut down sending", error);
    let error = left.recv_timeout(SHORT_TIMEOUT).unwrap_err();
    assert!(matches!(error, RecvError::TimedOut { timeout: SHORT_TIMEOUT, .. }), "{error:?}");
    assert!(error.is_timeout());
    show("No message arrives in time", error);
    drop(right);
}

fn show_long_message() {
    let (left, right) = pair(&options(), &options().max_message_size(1000));
    let message = left.pool().allocate(1001).unwrap();
    let error = left.send(message).unwrap_err();
    let SendErrorKind::TooLong { len: 1001, max: 1000, .. } = error.kind else { panic!("{error:?}") };
    // The caller gets the buffer back, and the connection is still usable.
    let mut message = error.buffer.expect("the buffer was not sent");
    message.resize(1000).unwrap();
    left.send(message).unwrap();
    assert_eq!(right.recv().unwrap().unwrap().len(), 1000);
    show("18: a message longer than the peer accepts", error.kind);
}

fn show_remote() {
    let (left, right) = pair(&options(), &options());
    let _memory = right.expose("memory", 4096, RemoteAccess::READ).unwrap();
    let memory = left.remote_region("memory").unwrap();
    assert_eq!((memory.name(), memory.access(), memory.len()), ("memory", RemoteAccess::READ, 4096));
    let buffer = memory.pool().allocate(8).unwrap();
    assert_eq!(memory.read_into(0, buffer).unwrap().len(), 8);
    let error = left.remote_region_timeout("other memory", SHORT_TIMEOUT).unwrap_err();
    let is_named = matches!(&error.kind, RemoteErrorKind::RegionTimedOut { name: Some(name), .. } if &**name == "other memory");
    assert!(is_named && error.is_timeout(), "{error:?}");
    show("No memory is exposed under the name in time", error);

    let error = memory.read(4090..4100).unwrap_err();
    let RemoteErrorKind::OutOfBounds { offset: 4090, len: 10, size: 4096 } = error.kind else {
        panic!("{error:?}")
    };
    show("19: remote access out of bounds", error);

    let error = memory.write(0, left.pool().allocate(8).unwrap()).unwrap_err();
    let RemoteErrorKind::NotPermitted { name: Some(name), access: RemoteAccess::WRITE } = &error.kind else {
        panic!("{error:?}")
    };
    assert_eq!(&**name, "memory");
    assert!(error.buffer.is_some());
    show("19: remote access without the permission", error);

    let error = memory.fetch_add(4, 1).unwrap_err();
    assert!(matches!(error.kind, RemoteErrorKind::Unaligned { offset: 4 }), "{error:?}");
    show("19: remote access to a word that is not aligned", error);
    // The connection is still usable.
    assert_eq!(memory.read(0..8).unwrap().len(), 8);

    // A withdrawal has no effect on the rest of a connection whose peers get memory windows.
    let (left, right) = pair(&options(), &options().shared_domain(true));
    let _memory = right.expose("memory", 4096, RemoteAccess::READ).unwrap();
    let memory = left.remote_region("memory").unwrap();
    assert!(right.withdraw("memory"));
    right.send(b"withdrawn").unwrap();
    assert_eq!(&left.recv().unwrap().unwrap()[..], b"withdrawn");
    let error = memory.read(0..8).unwrap_err();
    let RemoteErrorKind::Withdrawn { peer, name } = &error.kind else { panic!("{error:?}") };
    assert_eq!((*peer, &**name), (left.peer_addr(), "memory"));
    show("19: remote access to memory that the peer has withdrawn", error);
    left.send(b"still usable").unwrap();
    assert_eq!(&right.recv().unwrap().unwrap()[..], b"still usable");
}

fn reconnecting_options() -> Options {
    options().reconnect(Duration::from_secs(3)).keepalive(Duration::from_millis(100))
}

fn fail_to_reconnect() -> RecvError {
    let (mut process, connection) = connect_to_process("reconnect", &reconnecting_options());
    connection.send(b"acknowledged").unwrap();
    // The peer returns no credits for it, so the message may not have been received.
    sleep(Duration::from_millis(100));
    process.kill();
    connection.send(b"lost").unwrap();
    let error = connection.recv().unwrap_err();
    let RecvError::ConnectionLost(ConnectionError::ReconnectFailed { unacknowledged, source, .. }) = &error
    else {
        panic!("{error:?}")
    };
    assert!(matches!(**source, ConnectError::Refused { .. }), "{source:?}");
    let indices = Vec::from_iter(connection.take_unacknowledged().into_iter().map(|message| message.index));
    assert_eq!(indices, Vec::from_iter(unacknowledged.clone()));
    assert!(indices.contains(&1), "{indices:?}");
    error
}
