//! Listeners that can't be bound, or are stopped.

use adverb::net::blocking::Listener;
use adverb::net::{AcceptError, BindError};

use crate::show;

pub(crate) fn show_all() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let error = Listener::bind(address).unwrap_err();
    assert!(matches!(error, BindError::AddrInUse { address: used, .. } if used == address), "{error:?}");
    assert!(error.is_retryable());
    show("12: port in use", error);

    let error = Listener::bind("192.0.2.1:7471").unwrap_err();
    let BindError::AddrNotAvailable { address: foreign, .. } = error else { panic!("{error:?}") };
    assert_eq!(foreign, "192.0.2.1:7471".parse().unwrap());
    show("13: address not local", error);

    let error = Listener::bind("no-such-host.invalid:7471").unwrap_err();
    assert!(matches!(error, BindError::Resolve { .. }), "{error:?}");
    show("13: the host name is unknown", error);

    listener.stop();
    let error = listener.accept().unwrap_err();
    assert!(matches!(error, AcceptError::Stopped { address: stopped } if stopped == address), "{error:?}");
    show("The listener is stopped", error);
}

/// Listens in a network namespace whose interfaces are down.
pub(crate) fn listen_without_a_device() {
    let error = Listener::bind("0.0.0.0:7471").unwrap_err();
    assert!(matches!(error, BindError::NoDevice { .. }), "{error:?}");
    show("14: wildcard without a usable device", error);
}
