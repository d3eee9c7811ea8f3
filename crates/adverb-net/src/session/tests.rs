//! The redialer without connections to reconnect.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::sync::Weak;
use std::time::Duration;

use adverb_verbs::Device;

use super::Paths;
use super::redial::PAUSE;
use super::redialer;
use crate::driver::LaneRequest;
use crate::options::Options;

/// The time limit of reconnecting, which no test reaches.
pub(crate) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns options for connections of a device that reconnect.
pub(crate) fn options(device: &Device) -> Options {
    let options = Options::new().device(device).allow_foreign_gid(true).timeout(RECONNECT_TIMEOUT);
    options.keepalive(Duration::from_millis(100)).reconnect(RECONNECT_TIMEOUT)
}

/// Makes the redialer dial an address, without a connection to reconnect.
pub(crate) fn redial(peer: SocketAddr) -> impl LaneRequest {
    let options = options(&Device::open("soft").unwrap());
    let paths = Paths::new(vec![peer], &[], &options);
    redialer::redial(Weak::new(), 0, paths, RECONNECT_TIMEOUT).unwrap()
}

#[test]
fn dropping_a_handle_cancels_its_dial() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let handle = redial(silent.local_addr().unwrap());
    let (mut stream, _) = silent.accept().unwrap();
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"adverb\r\n");
    drop(handle);
    // The redialer closes the socket,
    while stream.read(&mut greeting).is_ok_and(|len| len > 0) {}
    // and does not dial again after a pause.
    std::thread::sleep(4 * PAUSE);
    silent.set_nonblocking(true).unwrap();
    assert_eq!(silent.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_host_name_is_resolved_by_a_thread_of_its_own() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let options = options(&Device::open("soft").unwrap());
    let names = [format!("does-not-exist.invalid:{port}"), format!("localhost:{port}")];
    let paths = Paths::new(Vec::new(), &names, &options);
    let _handle = redialer::redial(Weak::new(), 0, paths, RECONNECT_TIMEOUT).unwrap();
    silent.accept().unwrap();
}
