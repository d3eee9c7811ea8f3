//! `cargo xtask device-tests`: the tests that need an RDMA device, on soft-RoCE in a virtual machine.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use support::{process, programs};

use crate::{Cli, cluster, probe_vm};

/// The test programs whose tests all run. On a machine without a device, the tests print that and pass.
const PROGRAMS: [&str; 7] = ["cm", "poller", "windows", "misuse", "tiers", "recording", "net_attackers"];

/// The setting for tests against C programs: pairs of addresses (C program/software NIC), then the command that enters
/// the C programs' network namespace. The software NIC is in the namespace `peer`.
const C_PROGRAMS: &str = "10.77.0.1/10.77.0.2 fd77::1/fd77::2 nsenter --net=/proc/1/ns/net";

/// Creates a second soft-RoCE device in the guest, `rxe1`, on a link without a peer.
const SECOND_DEVICE: &str = "ip link add w0 type veth peer name w1 && ip link set w0 up && \
                             rdma link add rxe1 type rxe netdev w0";

/// Number of probes in each direction between the software NIC and soft-RoCE: see `cargo xtask probe-vm`.
const PROBES: u32 = 200;

/// The shell function for `adverb doctor`.
const DOCTOR: &str = include_str!("doctor.sh");

/// Lines of the exporter's metrics in the guest, as patterns of grep.
const EXPORTED: &[&str] = &[
    "^adverb_rdma_port_active{device=\"rxe0\",port=\"1\"} 1$",
    "^adverb_rdma_packets_total{device=\"rxe0\",port=\"1\",direction=\"tx\"} [1-9]",
    "^adverb_rdma_errors_total{device=\"rxe0\",port=\"1\",counter=\"out_of_seq_request\"} ",
    "^adverb_rdma_events_total{device=\"rxe0\",port=\"1\",counter=\"rdma_sends\"} [1-9]",
    "^adverb_netdev_discards_total{netdev=.*counter=\"rx_dropped\"} ",
    "^adverb_exporter_read_errors_total{source=\"ethtool\"} 0$",
];

/// Builds the test programs and runs them in one guest, on soft-RoCE. The connection manager's tests against C programs
/// run there too, on the software NIC.
pub(crate) fn run() -> Result<ExitCode> {
    let mut words: Vec<String> = ["xtask", "vm", "--timeout", "600"].map(str::to_owned).into();
    let paths = programs::tests(PROGRAMS)?;
    let [domains, net_shared, net_life, errors] =
        programs::tests(["domains", "net_shared", "net_life", "errors"])?;
    for (program, path) in PROGRAMS.iter().zip(&paths) {
        // Connection tests use the software NIC unless ADVERB_DEVICE names another device.
        let device = if program.starts_with("net") { "env ADVERB_DEVICE=rxe0 " } else { "" };
        words.extend(["--run".to_owned(), format!("{device}{}", process::quote(path))]);
        if *program == "cm" {
            let test = format!("{} --test-threads 1 ucmatose rping udaddy", process::quote(path));
            let line = format!("ip netns exec peer env ADVERB_C_PROGRAMS='{C_PROGRAMS}' {test}");
            words.extend(["--run".to_owned(), line]);
        }
    }
    // Memory regions of one device, used on another device.
    let devices = "env ADVERB_DEVICE=rxe0 ADVERB_SECOND_DEVICE=rxe1";
    words.extend(["--run".to_owned(), SECOND_DEVICE.to_owned()]);
    words.extend(["--run".to_owned(), format!("{devices} {} --nocapture", process::quote(&domains))]);
    words.extend(["--run".to_owned(), "rdma link delete rxe1".to_owned()]);
    // Connections whose queue pairs fail, and shared regions: the library's unit tests reach into connections.
    let path = process::build("test -p adverb-net --release --no-run --lib")?;
    let line = format!("env ADVERB_DEVICE=rxe0 {} --test-threads 1 tests::lanes", process::quote(&path));
    words.extend(["--run".to_owned(), line]);
    // One region, and many connections.
    let line = format!("env ADVERB_DEVICE=rxe0 {} --nocapture", process::quote(&net_shared));
    words.extend(["--run".to_owned(), line]);
    // Datagrams with slots.
    let path = process::build("test -p adverb-probe --release --no-run --test device")?;
    let line = format!("env ADVERB_DEVICE=rxe0 {} --nocapture", process::quote(&path));
    words.extend(["--run".to_owned(), line]);
    // Processes that are killed.
    let line = format!("env ADVERB_DEVICE=rxe0 {} --nocapture killed_peers", process::quote(&net_life));
    words.extend(["--run".to_owned(), line]);
    // Clusters of three processes.
    words.extend(["--run".to_owned(), cluster::short_command(&cluster::build()?)]);
    // The exporter, which reads the device's counters from sysfs.
    let path = programs::adverb()?;
    words.extend(["--run".to_owned(), format!("{} exporter --once > /tmp/metrics", process::quote(&path))]);
    words
        .extend(EXPORTED.iter().flat_map(|line| ["--run".to_owned(), format!("grep '{line}' /tmp/metrics")]));
    words.extend(["--run".to_owned(), probe_vm::command(&path, PROBES)]);
    // It sets the device's interface down, so it runs late.
    words.extend(["--run".to_owned(), format!("{DOCTOR}\ndoctor_vm {}", process::quote(&path))]);
    // Errors of devices. The test removes the device and creates it again, so it runs last.
    let line = format!("env ADVERB_DEVICE=rxe0 {} --nocapture of_a_device", process::quote(&errors));
    words.extend(["--run".to_owned(), line]);
    // Run it through the command-line parser, so that a developer can type the same command.
    Cli::try_parse_from(words)?.command.run()
}
