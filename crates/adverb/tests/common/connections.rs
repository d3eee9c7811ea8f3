//! The device and options of connections under test, and connected pairs.

#![allow(dead_code, reason = "each test uses its part")]

use std::thread::scope;
use std::time::Duration;

use adverb::net::{Options, blocking};
use adverb::verbs::Device;

/// Opens the software NIC, or the device that `ADVERB_DEVICE` names.
pub(crate) fn device() -> Device {
    Device::open(&std::env::var("ADVERB_DEVICE").unwrap_or("soft".to_owned())).unwrap()
}

/// Returns options for the software NIC, or the device that `ADVERB_DEVICE` names.
pub(crate) fn options() -> Options {
    // TCP uses loopback, and the device may have another address.
    Options::new().device(&device()).timeout(Duration::from_secs(60)).allow_foreign_gid(true)
}

/// The minimum ring size and number of outstanding writes, so that all indices wrap often.
pub(crate) fn minimal(options: Options) -> Options {
    options.recv_ring_size(512).max_outstanding_writes(4)
}

/// Returns both ends of a blocking connection.
pub(crate) fn blocking_pair(
    client: &Options,
    server: &Options,
) -> (blocking::Connection, blocking::Connection) {
    let listener = blocking::Listener::builder().options(server).bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    scope(|scope| {
        let client = scope.spawn(|| blocking::Connector::new().options(client).connect(address).unwrap());
        let server = listener.accept().unwrap();
        (client.join().unwrap(), server)
    })
}
