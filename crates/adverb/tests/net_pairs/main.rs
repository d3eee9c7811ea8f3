//! Connections between two threads of a process, and between threads and tasks: the cases that `cargo xtask net` has two
//! processes play on different devices.

#![cfg(all(feature = "soft", feature = "tokio"))]

mod cases;

use std::thread::scope;

use adverb::net::Options;
use adverb::verbs::Device;

use cases::{AnyListener, CASES, End, Role};

/// Plays a case in this process, on the software NIC unless another device is named, with every kind of ends.
fn run_in_process(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).expect("there is such a case");
    let device = Device::open(&std::env::var("ADVERB_DEVICE").unwrap_or("soft".to_owned())).unwrap();
    let options = |role| case.options(role, Options::new().device(&device));
    // Where the device is: that is where its connection manager is found.
    let address = device.gid_for(1, None).unwrap().gid.ip();
    for (client, server) in case.flavours() {
        println!("{client} with {server}");
        let listener = AnyListener::bind(server, &options(Role::Server), address).unwrap();
        scope(|scope| {
            scope.spawn(|| case.run(Role::Server, listener.accept().unwrap()));
            let end = End::connect(client, &options(Role::Client), listener.address()).unwrap();
            case.run(Role::Client, end);
        });
    }
}
