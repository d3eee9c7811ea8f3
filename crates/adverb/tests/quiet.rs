//! Programs that use the software NIC print and log nothing while nothing is wrong.

#![cfg(feature = "soft")]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::{Arc, Mutex};

use adverb::verbs::{Device, SoftDevice};
use common::LogSubscriber;
use tracing::Level;

/// The environment variable that selects the role of a child process.
const ROLE: &str = "ADVERB_ROLE";

#[test]
fn a_loopback_device_at_another_port_logs_no_warning() {
    let addr =
        IpAddr::from(Ipv4Addr::new(127, 233, (std::process::id() >> 8) as u8, std::process::id() as u8));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&lines);
    let subscriber = LogSubscriber::new(Level::WARN, move |line| log.lock().unwrap().push(line));
    tracing::subscriber::with_default(subscriber, || {
        let devices = [(); 2].map(|()| SoftDevice::at_addr(addr).open().unwrap());
        let gids = devices.each_ref().map(|device| device.gids().unwrap()[0].gid);
        assert!(gids.iter().any(|gid| gid.has_udp_port()), "one device has another port: {gids:?}");
    });
    assert_eq!(*lines.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn opens_a_device_in_its_role() {
    if std::env::var(ROLE).is_ok() {
        Device::open_by_addr(Ipv4Addr::LOCALHOST.into()).unwrap();
        println!("the device was opened");
    }
}

/// libibverbs prints a warning about a low limit of locked memory, unless the user is root.
#[test]
fn a_low_limit_of_locked_memory_prints_no_warning_without_rdma_devices() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        return println!("skipped: this machine has RDMA devices");
    }
    let directory = std::env::temp_dir().join(format!("adverb-quiet-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let program = directory.join("quiet");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let line = "ulimit -l 32 && exec setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" --exact \
                opens_a_device_in_its_role --nocapture";
    let output = Command::new("sh").args(["-c", line]).arg(&program).env(ROLE, "open").output();
    std::fs::remove_dir_all(&directory).unwrap();
    let output = output.unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    if stderr.contains("setpriv") || stderr.contains("ulimit") {
        return println!("skipped: the test needs root and setpriv: {stderr}");
    }
    assert!(output.status.success() && stdout.contains("the device was opened"), "{stdout}{stderr}");
    assert!(!stderr.contains("MEMLOCK"), "{stderr}");
}
