//! Processes with software devices at one address, of which some are killed.

#![cfg(target_os = "linux")]

#[path = "../examples/shared_address/coordinator.rs"]
mod coordinator;
#[path = "../examples/shared_address/worker.rs"]
mod worker;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use coordinator::Plan;

/// The environment variable with the address, for a process that the test starts.
const ADDRESS: &str = "ADVERB_TEST_SHARED_ADDRESS";

#[test]
fn processes_at_one_address_connect_and_leave_nothing_behind() {
    let process = std::process::id();
    let address =
        IpAddr::V4(Ipv4Addr::new(127, 84 + (process >> 16) as u8 % 8, (process >> 8) as u8, process as u8));
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "a_worker", "--ignored", "--nocapture"]).env(ADDRESS, address.to_string());
        command
    };
    let plan = Plan { processes: 8, at_once: 4, seed: 1, address };
    let counts = coordinator::run(&plan, &start).unwrap();
    println!("{counts}");
    assert_eq!((counts.started, counts.killed + counts.ended), (8, 8));
}

/// Runs a process of the test above. This is not a test by itself.
#[test]
#[ignore = "run by processes_at_one_address_connect_and_leave_nothing_behind"]
fn a_worker() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    worker::run(address.parse().unwrap()).unwrap();
}
