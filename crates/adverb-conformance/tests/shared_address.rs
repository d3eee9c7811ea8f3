//! Processes with software devices at one address, of which some are killed. Each test starts processes of this program.

#![cfg(target_os = "linux")]

#[path = "../examples/shared_address/churn.rs"]
mod churn;
#[path = "../examples/shared_address/coordinator.rs"]
mod coordinator;
#[path = "../examples/shared_address/unreliable.rs"]
mod unreliable;
#[path = "../examples/shared_address/worker.rs"]
mod worker;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use adverb::verbs::Transport;
use churn::Role;
use coordinator::Plan;

/// The environment variable with the address, for a process that a test starts.
const ADDRESS: &str = "ADVERB_TEST_SHARED_ADDRESS";

/// Returns the address of a test, which no other test uses.
fn address(test: u8) -> IpAddr {
    let process = std::process::id();
    let network = 84 + 2 * ((process >> 16) as u8 % 8) + test;
    IpAddr::V4(Ipv4Addr::new(127, network, (process >> 8) as u8, process as u8))
}

/// Returns the command of a process: one of the ignored tests.
fn process(test: &str, address: IpAddr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(ADDRESS, address.to_string());
    command
}

/// Returns the address of the device of a process, or `None` if no test has started it.
fn given_address() -> Option<IpAddr> {
    std::env::var(ADDRESS).ok().map(|address| address.parse().unwrap())
}

#[test]
fn processes_at_one_address_connect_and_leave_nothing_behind() {
    let address = address(0);
    let plan = Plan { processes: 8, at_once: 4, seed: 1, address };
    let counts = coordinator::run(&plan, &|| process("a_worker", address)).unwrap();
    println!("{counts}");
    assert_eq!((counts.started, counts.killed + counts.ended), (8, 8));
}

#[test]
fn no_message_is_lost_while_other_processes_join_and_leave() {
    let address = address(1);
    let plan = churn::Plan { pairs: 6, visitors: 2, seed: 1, address };
    let counts = churn::run(&plan, &|role| {
        let test = match role {
            Role::Visitor => "a_visitor",
            Role::Uc => "one_of_a_uc_pair",
            Role::Ud => "one_of_a_ud_pair",
        };
        process(test, address)
    });
    let counts = counts.unwrap();
    println!("{counts}");
    assert_eq!((counts.pairs, counts.failed), (6, 0));
    assert!(counts.visitors > counts.killed && counts.killed > 0, "{counts}");
}

/// Runs a process of a test above. This is not a test by itself, like those below.
#[test]
#[ignore = "run by processes_at_one_address_connect_and_leave_nothing_behind"]
fn a_worker() {
    given_address().map_or(Ok(()), worker::run).unwrap();
}

#[test]
#[ignore = "run by no_message_is_lost_while_other_processes_join_and_leave"]
fn a_visitor() {
    given_address().map_or(Ok(()), unreliable::visit).unwrap();
}

#[test]
#[ignore = "run by no_message_is_lost_while_other_processes_join_and_leave"]
fn one_of_a_uc_pair() {
    given_address().map_or(Ok(()), |address| unreliable::run(address, Transport::Uc)).unwrap();
}

#[test]
#[ignore = "run by no_message_is_lost_while_other_processes_join_and_leave"]
fn one_of_a_ud_pair() {
    given_address().map_or(Ok(()), |address| unreliable::run(address, Transport::Ud)).unwrap();
}
