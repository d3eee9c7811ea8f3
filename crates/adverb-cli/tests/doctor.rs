//! `adverb doctor` on healthy and broken set-ups.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use support::leaf_spine::{H1, H2, LeafSpine};

fn doctor(options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_adverb")).arg("doctor").args(options).output().expect("it runs")
}

/// Returns the messages of the problems in JSON.
fn problems(output: &Output) -> Vec<String> {
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["version"], &report["command"]), (&1.into(), &"doctor".into()));
    let results = report["results"].as_array().expect("results");
    let problems = results.iter().filter(|result| result["verdict"] == "problem");
    let problems: Vec<String> =
        problems.map(|result| result["message"].as_str().unwrap().to_owned()).collect();
    assert_eq!(report["problem_count"], problems.len());
    assert_eq!(output.status.code(), Some(i32::from(!problems.is_empty())));
    problems
}

/// A directory with the files of a machine, which is removed on drop.
struct Machine(PathBuf);

impl Machine {
    /// Creates the files of a healthy machine with a RoCE NIC.
    fn new(test: &str) -> Machine {
        let machine =
            Machine(std::env::temp_dir().join(format!("adverb-doctor-{test}-{}", std::process::id())));
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        let net = "sys/class/net/eth2";
        for (path, text) in [
            (format!("{port}/state"), "4: ACTIVE\n"),
            (format!("{port}/link_layer"), "Ethernet\n"),
            (format!("{port}/gids/0"), "fe80:0000:0000:0000:0e42:a1ff:fe12:3456\n"),
            (format!("{port}/gids/1"), "0000:0000:0000:0000:0000:ffff:c000:0207\n"),
            (format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (format!("{port}/gid_attrs/types/0"), "RoCE v2\n"),
            (format!("{port}/gid_attrs/types/1"), "RoCE v2\n"),
            (format!("{port}/gid_attrs/ndevs/0"), "eth2\n"),
            (format!("{port}/gid_attrs/ndevs/1"), "eth2\n"),
            (format!("{net}/flags"), "0x1003\n"),
            (format!("{net}/carrier"), "1\n"),
            (format!("{net}/mtu"), "9000\n"),
            ("sys/class/infiniband/mlx5_0/node_type".to_owned(), "1: CA\n"),
            ("sys/class/infiniband/mlx5_0/fw_ver".to_owned(), "28.39.1002\n"),
            ("sys/class/infiniband_verbs/uverbs0/ibdev".to_owned(), "mlx5_0\n"),
            ("sys/module/ib_core/parameters/netns_mode".to_owned(), "Y\n"),
            ("dev/infiniband/uverbs0".to_owned(), ""),
            ("dev/infiniband/rdma_cm".to_owned(), ""),
            ("proc/self/cgroup".to_owned(), "0::/slice\n"),
            (
                "proc/self/limits".to_owned(),
                "Max locked memory  unlimited unlimited bytes\nMax open files 1024 4096 files\n",
            ),
        ] {
            machine.write(&path, text);
        }
        machine.link("sys/class/infiniband/mlx5_0/device/driver", "/sys/bus/pci/drivers/mlx5_core");
        machine
    }

    fn write(&self, path: &str, text: &str) -> &Machine {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(&self, path: &str, target: &str) -> &Machine {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    fn remove(&self, path: &str) -> &Machine {
        fs::remove_file(self.0.join(path)).unwrap();
        self
    }

    fn problems(&self) -> Vec<String> {
        problems(&doctor(&["--json", "--root", self.0.to_str().unwrap()]))
    }

    /// Returns the report for people.
    fn text(&self) -> String {
        let output = doctor(&["--root", self.0.to_str().unwrap()]);
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that there is one problem, whose message contains `expected`.
#[track_caller]
fn assert_problem(problems: &[String], expected: &str) {
    assert!(matches!(problems, [problem] if problem.contains(expected)), "{problems:?} for {expected}");
}

#[test]
fn a_healthy_machine_has_no_problem() {
    assert_eq!(problems(&doctor(&["--json"])), [""; 0]);
    let machine = Machine::new("healthy");
    assert_eq!(machine.problems(), [""; 0]);
    let text = machine.text();
    for expected in
        ["mlx5_0 (mlx5_core, firmware 28.39.1002)", "has 192.0.2.7 for RoCE v2", "no problem was found"]
    {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn nothing_is_invented_about_unusual_machines() {
    // A NIC that a virtual machine uses.
    let machine = Machine::new("unusual");
    let nic = "sys/bus/pci/devices/0000:41:00.1";
    machine.write(&format!("{nic}/vendor"), "0x15b3\n").write(&format!("{nic}/class"), "0x020000\n");
    machine.link(&format!("{nic}/driver"), "/sys/bus/pci/drivers/vfio-pci");
    assert_eq!(machine.problems(), [""; 0]);
    // An iWARP device has no GIDs for RoCE.
    machine.write("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n");
    for index in 0..2 {
        let types = "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types";
        machine.write(&format!("{types}/{index}"), "IB/RoCE v1\n");
    }
    assert_eq!(machine.problems(), [""; 0]);
    // A container with an interface of its own on the port, beside that of the host.
    let container = Machine::new("container");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    container.write(&format!("{port}/gids/3"), "0000:0000:0000:0000:0000:ffff:c000:0208\n");
    container.write(&format!("{port}/gid_attrs/types/3"), "RoCE v2\n");
    container.write(&format!("{port}/gid_attrs/ndevs/3"), "net1\n");
    fs::rename(container.0.join("sys/class/net/eth2"), container.0.join("sys/class/net/net1")).unwrap();
    assert_eq!(container.problems(), [""; 0]);
    assert!(container.text().contains("has 192.0.2.8 for RoCE v2"), "{}", container.text());
    // No device in this namespace.
    fs::remove_dir_all(container.0.join("sys/class/infiniband")).unwrap();
    container.write("sys/module/ib_core/parameters/netns_mode", "N\n");
    assert_eq!(container.problems(), [""; 0]);
    assert!(container.text().contains("rdma dev set DEVICE netns NAMESPACE"), "{}", container.text());
}

#[test]
fn each_broken_file_is_named() {
    let machine = || Machine::new("broken");
    let (port, net) = ("sys/class/infiniband/mlx5_0/ports/1", "sys/class/net/eth2");
    let down = |machine: &Machine| {
        machine.write(&format!("{port}/state"), "1: DOWN\n");
    };
    let broken = machine();
    down(&broken);
    broken.write(&format!("{net}/flags"), "0x1002\n").remove(&format!("{net}/carrier"));
    assert_problem(&broken.problems(), "mlx5_0/1 is down: its network interface eth2 is down");
    broken.write(&format!("{net}/flags"), "0x1003\n").write(&format!("{net}/carrier"), "0\n");
    assert_problem(&broken.problems(), "eth2 has no carrier");
    drop(broken);
    assert_problem(
        &machine().remove(&format!("{port}/gids/1")).problems(),
        "mlx5_0/1 has only link-local GIDs",
    );
    let types = format!("{port}/gid_attrs/types");
    let v1 = machine();
    v1.write(&format!("{types}/0"), "IB/RoCE v1\n").write(&format!("{types}/1"), "IB/RoCE v1\n");
    assert_problem(&v1.problems(), "RoCE v1 only");
    drop(v1);
    assert_problem(
        &machine().write(&format!("{net}/mtu"), "600\n").problems(),
        "packets carry 512 bytes at most",
    );
    assert_problem(
        &machine().remove("dev/infiniband/uverbs0").problems(),
        "/dev/infiniband/uverbs0 does not exist",
    );
    assert_problem(&machine().remove("dev/infiniband/rdma_cm").problems(), "rdma_cm does not exist");
    let limits = "Max locked memory  65536  65536  bytes\nMax open files  1024  4096  files\n";
    assert_problem(&machine().write("proc/self/limits", limits).problems(), "may lock only 64 KiB");
    assert_problem(
        &machine().write("sys/fs/cgroup/slice/rdma.max", "mlx5_0 hca_handle=0 hca_object=max\n").problems(),
        "/sys/fs/cgroup/slice/rdma.max limits mlx5_0 to 0 open devices (hca_handle), of which 0 are used",
    );
    // A limit of the cgroup above, which other processes have used up.
    let cgroup = machine();
    cgroup.write("sys/fs/cgroup/rdma.max", "mlx5_0 hca_handle=9 hca_object=100\n");
    assert_eq!(cgroup.problems(), [""; 0]);
    cgroup.write("sys/fs/cgroup/rdma.current", "mlx5_0 hca_handle=2 hca_object=99\n");
    assert_problem(&cgroup.problems(), "to 100 objects (hca_object), of which 99 are used");
    drop(cgroup);
    let nic = machine();
    let path = "sys/bus/pci/devices/0000:41:00.1";
    nic.write(&format!("{path}/vendor"), "0x15b3\n").write(&format!("{path}/class"), "0x020000\n");
    assert_problem(
        &nic.problems(),
        "PCI address 0000:41:00.1 supports RDMA, but has no RDMA device: it has no driver",
    );
    nic.link(&format!("{path}/driver"), "/sys/bus/pci/drivers/mlx5_core");
    assert_problem(&nic.problems(), "the RDMA part of its driver is not loaded");
}

#[test]
fn ports_without_addresses_here_are_named() {
    let machine = Machine::new("addresses");
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    fs::remove_dir_all(machine.0.join("sys/class/net/eth2")).unwrap();
    assert_problem(
        &machine.problems(),
        "has 192.0.2.7 for RoCE v2, but its network interface eth2 is in another network namespace",
    );
    for index in 0..3 {
        machine.remove(&format!("{port}/gids/{index}"));
    }
    assert_problem(&machine.problems(), "mlx5_0/1 has no GID: INTERFACE has no address");
    // The PCI device names the interface.
    machine.write("sys/class/infiniband/mlx5_0/device/net/eth2/mtu", "");
    machine.write("sys/class/net/eth2/mtu", "1500\n").write("sys/class/net/eth2/flags", "0x1002\n");
    assert_problem(&machine.problems(), "mlx5_0/1 has no GID: eth2 has no address");
    machine.write(&format!("{port}/state"), "1: DOWN\n");
    let problems = machine.problems();
    assert!(problems[0].contains("is down: its network interface eth2 is down"), "{problems:?}");
}

#[test]
fn too_few_file_descriptors_are_named() {
    let script = format!("ulimit -n 48 && exec {} doctor --json", env!("CARGO_BIN_EXE_adverb"));
    let output = Command::new("sh").args(["-c", &script]).output().expect("it runs");
    assert_problem(&problems(&output), "48 file descriptors");
}

#[test]
fn a_host_without_rdma_is_named_and_a_responder_found() {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = |number: u8| format!("127.{}.{low}.{number}", 128 | high & 0x7f);
    let (from, to) = (format!("soft:{}", address(11)), address(12));
    let path = |to: &str| problems(&doctor(&["--json", "--device", &from, to]));
    assert_problem(&path(&to), "rejects RoCE packets (UDP port 4791): no program or device receives them");
    let mut command = Command::new(env!("CARGO_BIN_EXE_adverb"));
    let responder = Responder::start(command.args(["respond", "--device", &format!("soft:{to}")]));
    assert_eq!(path(&to), [""; 0]);
    drop(responder);
    assert_problem(&path("no-such-host.invalid"), "no-such-host.invalid could not be resolved");
}

/// A responder, which ends with the test.
struct Responder(Child);

impl Responder {
    fn start(command: &mut Command) -> Responder {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("its output")).read_line(&mut line).expect("a line");
        Responder(child)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[test]
fn a_small_mtu_and_a_firewall_on_the_path_are_named() {
    let network = match LeafSpine::new(&format!("adverb-doctor-{}", std::process::id()), false) {
        Ok(network) => network,
        Err(reason) => return eprintln!("skipped: no network namespaces with routing: {reason}"),
    };
    let adverb = |node: &str| {
        let mut command = network.command(node);
        command.arg(env!("CARGO_BIN_EXE_adverb"));
        command
    };
    let set_mtu = |mtu: &str| {
        for (node, interface) in [("h1", "leaf"), ("h2", "leaf"), ("l1", "host"), ("l2", "host")] {
            network.run_in(node, &["ip", "link", "set", interface, "mtu", mtu]).expect("the MTU can be set");
        }
    };
    let responder = Responder::start(adverb("h2").args(["respond", "--device", &format!("soft:{H2}")]));
    let examine = || {
        problems(
            &adverb("h1")
                .args(["doctor", "--json", "--device", &format!("soft:{H1}"), H2])
                .output()
                .expect("it runs"),
        )
    };
    assert_eq!(examine(), [""; 0]);
    // Both ends then permit packets of 4096 bytes, and the links between the leaves and the spines those of 1024 bytes.
    set_mtu("9000");
    assert_problem(
        &examine(),
        "packets of 4096 bytes, which soft:10.91.1.2 permits, are lost on the path to 10.91.2.2",
    );
    set_mtu("1500");
    if let Err(reason) = network.run_in("h2", &["nft", "add", "table", "inet", "filter"]) {
        return eprintln!("skipped: no firewall: {reason}");
    }
    let chain = "{ type filter hook input priority 0; }";
    network.run_in("h2", &["nft", "add", "chain", "inet", "filter", "input", chain]).expect("a chain");
    network
        .run_in("h2", &["nft", "add", "rule", "inet", "filter", "input", "udp", "dport", "4791", "drop"])
        .expect("a rule");
    assert_problem(&examine(), "TCP reaches 10.91.2.2, but RoCE packets (UDP port 4791) get no answer");
    let local = || problems(&adverb("h2").args(["doctor", "--json"]).output().expect("it runs"));
    assert_problem(&local(), "drops UDP packets to port 4791 over loopback");
    // Soft-RoCE has the port at all addresses, as this program.
    let script = "import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                  s.bind(('0.0.0.0', 4791)); print(flush=True); time.sleep(60)";
    drop(responder);
    let _holder = Responder::start(network.command("h2").args(["python3", "-c", script]));
    assert_problem(&local(), "drops UDP packets to port 4791 over loopback");
    network.run_in("h2", &["nft", "flush", "ruleset"]).expect("no rules");
    assert_eq!(local(), [""; 0]);
}
