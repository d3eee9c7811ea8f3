//! The chain of causes, and properties that all errors have.

use super::*;
use adverb_verbs as verbs;
use adverb_verbs::explain::Call;
use adverb_verbs::internal::{WithCauses, call_failed};

#[test]
fn errors_can_be_sent_to_other_threads_and_boxed() {
    fn assert_error<E: Error + Send + Sync + 'static>() {}
    assert_error::<ConnectError>();
    assert_error::<BindError>();
    assert_error::<AcceptError>();
    assert_error::<ConnectionError>();
    assert_error::<SendError>();
    assert_error::<SendErrorKind>();
    assert_error::<RecvError>();
    assert_error::<ExposeError>();
    assert_error::<RemoteError>();
    assert_error::<RemoteErrorKind>();
}

#[test]
fn a_lack_of_descriptors_is_a_variant_wherever_it_occurs() {
    let (peer, shortage) = (([192, 0, 2, 7], 7471).into(), || io::Error::from_raw_os_error(libc::EMFILE));
    for error in [
        ConnectError::resolve("host:1", shortage()),
        ConnectError::tcp(peer, HandshakeStage::Tcp, shortage()),
        ConnectError::system("waiting for a peer", shortage()),
    ] {
        assert!(matches!(error, ConnectError::DescriptorLimit { .. }), "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -n")), "{error}");
    }
    assert!(matches!(BindError::resolve("host:1", shortage()), BindError::DescriptorLimit { .. }));
    assert!(matches!(BindError::socket(peer, shortage()), BindError::DescriptorLimit { .. }));
    assert!(matches!(AcceptError::system(peer, shortage()), AcceptError::DescriptorLimit { .. }));
}

#[test]
fn a_send_error_has_the_message_and_the_cause_of_its_kind() {
    let peer = ([192, 0, 2, 7], 7471).into();
    let error = || {
        let source = io::Error::other("the cause");
        SendErrorKind::from(ConnectionError::system(peer, "waiting for an event", source))
    };
    let expected = "waiting for an event for the connection to 192.0.2.7:7471 failed: the cause";
    assert_eq!(WithCauses(&error()).to_string(), expected);
    assert_eq!(WithCauses(&SendError::from(error())).to_string(), expected);
    let io_error = io::Error::from(SendError::from(error()));
    assert_eq!(io_error.kind(), io::ErrorKind::ConnectionReset);
    assert!(io_error.get_ref().is_some_and(|inner| inner.is::<SendErrorKind>()));
}

#[test]
fn the_device_s_error_is_the_source() {
    let peer = ([192, 0, 2, 7], 7471).into();
    let cause = || verbs::Error::QueueFull { queue: "send", depth: 16 };
    let error = ConnectionError::device(peer, cause());
    let source = error.source().expect("a source").to_string();
    assert_eq!((source, error.hint()), (cause().to_string(), cause().hint()));
}

#[test]
fn the_log_line_of_a_handshake_has_the_causes_and_the_hint() {
    let denied =
        call_failed(Call::OpenDevice, "opening device rxe0", io::Error::from_raw_os_error(libc::EACCES));
    let hint = denied.hint().unwrap().into_owned();
    let cause = io::Error::from_raw_os_error(libc::EACCES);
    let expected = format!("opening device rxe0 failed: {cause} (hint: {hint})");
    assert_eq!(HandshakeError::from(denied).to_string(), expected);
}

#[test]
fn a_wait_for_a_region_names_the_region_and_the_time_limit() {
    let (peer, timeout) = (([192, 0, 2, 7], 7471).into(), std::time::Duration::from_millis(1500));
    let error = || RemoteErrorKind::TimedOut { peer, timeout, is_reconnecting: false };
    let region = error().of_region(Some("chunks"));
    assert_eq!(region.to_string(), "192.0.2.7:7471 has not exposed memory named \"chunks\" within 1.5s");
    assert!(region.hint().unwrap().starts_with("check the name"));
    assert!(region.is_timeout() && region.is_retryable());
    let addresses = error().of_region(None);
    assert_eq!(addresses.to_string(), "192.0.2.7:7471 has not exposed memory at addresses within 1.5s");
    let closed: RemoteErrorKind = ConnectionError::PeerClosed { peer }.into();
    assert!(matches!(closed.of_region(None), RemoteErrorKind::ConnectionLost(_)));
    assert_eq!(io::Error::from(region).kind(), io::ErrorKind::TimedOut);
}

#[test]
fn hints_of_connections_speak_of_the_peer() {
    let peer = ([192, 0, 2, 7], 7471).into();
    let lost = ConnectionError::PeerLost { peer, has_exited: false };
    let hint = lost.hint().unwrap();
    assert!(hint.contains("connect again") && hint.contains("`adverb doctor 192.0.2.7`"), "{hint}");
    let local = ConnectError::Authentication { peer, mismatch: KeyMismatch::LocalKeyMissing };
    assert!(local.hint().unwrap().starts_with("this side has no key"));
    let remote = ConnectError::Authentication { peer, mismatch: KeyMismatch::PeerKeyMissing };
    assert!(remote.hint().unwrap().starts_with("the peer has no key"));
}
