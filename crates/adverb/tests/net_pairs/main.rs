//! Connections between two threads of a process, blocking and async: the cases that `cargo xtask net` runs between two
//! processes on different devices.

#![cfg(all(feature = "soft", feature = "tokio"))]

mod cases;
#[path = "../common/connections.rs"]
mod connections;

use std::thread::scope;

use adverb::net::Options;

use cases::{AnyListener, CASES, Opening, Role};
use connections::device;

/// Runs a case in this process with every combination of APIs, on the software NIC or the device that `ADVERB_DEVICE`
/// names.
fn run_in_process(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).expect("the case exists");
    let device = device();
    let options = |role| case.options(role, Options::new().device(&device));
    // The address of the device, at which its connection manager listens.
    let address = device.gid_for(1, None).unwrap().gid.ip();
    for (client, server) in case.apis() {
        println!("{client} with {server}");
        let listener = AnyListener::bind(server, &options(Role::Server), address).unwrap();
        scope(|scope| {
            scope.spawn(|| case.run(Role::Server, &Opening::Accept(&listener)));
            let options = options(Role::Client);
            case.run(Role::Client, &Opening::Connect(client, &options, listener.address()));
        });
    }
}
