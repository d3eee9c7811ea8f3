//! Processes of several users, and of users in user namespaces, at one address. The tests start processes of this program
//! as other users, so they run only as root.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, IoSliceMut, Read};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use adverb_soft::link::{AddressShare, Link, UdpConfig, UdpLink};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect,
    listen, recvmsg, send, socket,
};
use nix::unistd::{dup, geteuid};

use support::open_loopback;

const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// The maximum time that a process sleeps.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The environment variables of a process that a test starts: its role, and the address of the device.
const ROLE: &str = "ADVERB_TEST_ROLE";
const ADDRESS: &str = "ADVERB_TEST_ADDRESS";

/// The users of the tests, which need not exist.
const ALICE: u32 = 12_001;
const MALLORY: u32 = 12_002;

/// The ID of users without an ID.
const OVERFLOW: u32 = 65_534;

/// Whether this process can start processes of other users. Prints the reason if it can't.
fn can_change_users() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("skipped: only root can start processes of other users");
    }
    is_root
}

/// A process of this program. It ends when the value is dropped.
struct Process {
    child: std::process::Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a process of a user. With `namespace_uid`, the process is in a user namespace in which the user has this ID,
    /// and the other users have none.
    fn start(uid: u32, namespace_uid: Option<u32>, role: &str, address: IpAddr) -> Process {
        // Other users may have no access to the directory of this program, so they get its open file.
        static PROGRAM: OnceLock<OwnedFd> = OnceLock::new();
        let open = || dup(File::open("/proc/self/exe").unwrap()).unwrap();
        let program = format!("/proc/self/fd/{}", PROGRAM.get_or_init(open).as_raw_fd());
        let mut command = match namespace_uid {
            Some(id) => {
                let mut command = Command::new("unshare");
                command.arg(format!("--map-user={id}")).arg(&program);
                command
            }
            None => Command::new(&program),
        };
        let mut child = command
            .args(["--exact", "a_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ADDRESS, address.to_string())
            .current_dir("/")
            .uid(uid)
            .gid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness prints the name of the test at the start of the line.
                if let Some((_, text)) = line.split_once("process: ") {
                    let _ = sender.send(text.to_owned());
                }
            }
        });
        Process { child, lines }
    }

    /// Returns the next line that the process prints.
    fn next_line(&self) -> String {
        self.lines.recv_timeout(TEST_DEADLINE).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a process that a test has started.
#[test]
#[ignore = "run by the other tests"]
fn a_process() {
    let (Ok(role), Ok(address)) = (std::env::var(ROLE), std::env::var(ADDRESS)) else { return };
    let address = address.parse().unwrap();
    // The process ends with its parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    match role.as_str() {
        "open" => open(address),
        "squat" => squat(address),
        "flood" => flood(address),
        "request" => println!("process: {}", request_sockets(address, 0)),
        "request 1" => println!("process: {}", request_sockets(address, 1)),
        _ => panic!("{role}"),
    }
}

/// Opens a link, prints its share of the address, and a line for each packet that it receives: the number of packets that it
/// has passed on.
fn open(address: IpAddr) {
    let mut config = UdpConfig::new(address);
    config.shared = true;
    match UdpLink::open(&config) {
        Ok(mut link) => {
            println!("process: {:?}", link.address_share().map(|share| share.index()));
            loop {
                let mut count = 0;
                link.receive(256, &mut |_| count += 1).unwrap();
                (0..count).for_each(|_| println!("process: passed on {}", link.statistics().passed_on));
                let time = link.deadline().map(|time| time.saturating_duration_since(Instant::now()));
                let time = time.map_or(MAX_WAIT, |time| time.min(MAX_WAIT)) + Duration::from_micros(999);
                let fd = link.readiness_fd().unwrap();
                poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::try_from(time).unwrap())
                    .unwrap();
            }
        }
        Err(error) => println!("process: {:?}", error.kind()),
    }
}

/// Returns a name of a device.
fn name(address: IpAddr, name: &str) -> UnixAddr {
    UnixAddr::new_abstract(format!("adverb/{address}:4791/{name}").as_bytes()).unwrap()
}

/// Returns a Unix socket.
fn unix_socket() -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap()
}

/// Claims names of a device: some accept connections, some have a full queue, and some don't listen.
fn squat(address: IpAddr) {
    let mut sockets = Vec::new();
    let names = ["joining", "share/0", "share/1", "share/3"];
    for (index, text) in names.into_iter().chain(["share/4", "share/6"]).enumerate() {
        let (listener, connection) = (unix_socket(), unix_socket());
        bind(listener.as_raw_fd(), &name(address, text)).unwrap();
        if index % 3 < 2 {
            listen(&listener, Backlog::new(0).unwrap()).unwrap();
        }
        if index % 3 == 1 {
            connect(connection.as_raw_fd(), &name(address, text)).unwrap();
            assert_eq!(connect(unix_socket().as_raw_fd(), &name(address, text)), Err(Errno::EAGAIN));
        }
        sockets.push((listener, connection));
    }
    println!("process: ready");
    std::thread::sleep(TEST_DEADLINE);
}

/// Connects to names of a device as often as possible, and prints the number of connections in the first second.
fn flood(address: IpAddr) {
    let names = [name(address, "share/0"), name(address, "joining")];
    println!("process: ready");
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(1) {
        count += u32::from(connect(unix_socket().as_raw_fd(), &names[0]).is_ok());
    }
    println!("process: {count} {}", start.elapsed().as_millis());
    loop {
        for name in &names {
            let _ = connect(unix_socket().as_raw_fd(), name);
        }
    }
}

/// Requests the sockets of the process with a share, as a joining process does. Returns the result as text.
fn request_sockets(address: IpAddr, share: u8) -> String {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    if let Err(error) = connect(socket.as_raw_fd(), &name(address, &format!("share/{share}"))) {
        return format!("not connected: {error}");
    }
    // The version of the protocol, and the request.
    for message in [&[7, 3][..], &[1]] {
        if let Err(error) = send(socket.as_raw_fd(), message, MsgFlags::MSG_NOSIGNAL) {
            return format!("refused: {error}");
        }
    }
    let (mut bytes, mut control) = ([0; 16], nix::cmsg_space!([i32; 8]));
    let mut pieces = [IoSliceMut::new(&mut bytes)];
    let message = match recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut control), MsgFlags::empty())
    {
        Ok(message) => message,
        Err(error) => return format!("refused: {error}"),
    };
    let count: usize = message
        .cmsgs()
        .unwrap()
        .map(|control| match control {
            ControlMessageOwned::ScmRights(files) => files.len(),
            _ => 0,
        })
        .sum();
    if message.bytes == 0 { "refused".to_owned() } else { format!("{count} sockets") }
}

/// Returns an address that no process uses.
fn unused_address() -> IpAddr {
    open_loopback(|_| ()).local_addr().ip()
}

#[test]
fn a_user_with_the_overflow_id_of_a_namespace_shares_with_no_process() {
    if !can_change_users() {
        return;
    }
    let address = unused_address();
    let victim = Process::start(ALICE, Some(OVERFLOW), "open", address);
    assert_eq!(victim.next_line(), "None", "the device is not shared");
    let attacker = Process::start(MALLORY, None, "request", address);
    assert!(attacker.next_line().starts_with("not connected"));
    // A process of the same user doesn't share the port either.
    let other = Process::start(ALICE, None, "open", address);
    assert_eq!(other.next_line(), "AddrInUse");
}

#[test]
fn a_user_in_a_namespace_joins_the_processes_outside_and_other_users_do_not() {
    if !can_change_users() {
        return;
    }
    let address = unused_address();
    let first = Process::start(ALICE, None, "open", address);
    assert_eq!(first.next_line(), "Some(0)");
    // The user has other IDs in these namespaces, and the kernel knows that it is the same user.
    for namespace_uid in [0, 1000] {
        let inside = Process::start(ALICE, Some(namespace_uid), "open", address);
        assert_eq!(inside.next_line(), "Some(1)", "{namespace_uid}");
        for (role, count) in [("request", 1), ("request 1", 2)] {
            // The user gets the sockets of the process, and those before.
            let own = Process::start(ALICE, None, role, address);
            assert_eq!(own.next_line(), format!("{count} sockets"));
            for namespace_uid in [None, Some(0), Some(OVERFLOW), Some(ALICE)] {
                let attacker = Process::start(MALLORY, namespace_uid, role, address);
                let line = attacker.next_line();
                assert!(line.starts_with("refused"), "{namespace_uid:?}: {line}");
            }
        }
    }
    // The port belongs to the first user.
    for namespace_uid in [None, Some(0), Some(OVERFLOW)] {
        let other = Process::start(MALLORY, namespace_uid, "open", address);
        assert_eq!(other.next_line(), "AddrInUse");
    }
}

#[test]
fn names_that_another_user_holds_neither_delay_nor_separate_processes() {
    if !can_change_users() {
        return;
    }
    let address = unused_address();
    let squatter = Process::start(MALLORY, None, "squat", address);
    assert_eq!(squatter.next_line(), "ready");
    let mut processes = Vec::new();
    for share in [2, 5, 7, 8] {
        let start = Instant::now();
        let process = Process::start(ALICE, None, "open", address);
        assert_eq!(process.next_line(), format!("Some({share})"));
        let time = start.elapsed();
        assert!(time < Duration::from_secs(1), "opening share {share} took {time:?}");
        processes.push((share, process));
    }
    // The kernel delivers the packets to queue pairs directly.
    for round in 0..20 {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (share, process) in &processes {
            let mut bytes = [0; 60];
            let qpn = AddressShare::new(*share).unwrap().qpn(0x1_0000 + round);
            bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
            peer.send_to(&bytes, (address, 4791)).unwrap();
            assert_eq!(process.next_line(), "passed on 0", "round {round}");
        }
    }
    // Another process receives the messages to queue pair 1 after the first one has ended.
    drop(processes.remove(0));
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&1_u32.to_be_bytes());
    let start = Instant::now();
    while !processes.iter().any(|(_, process)| process.lines.try_recv().is_ok()) {
        peer.send_to(&bytes, (address, 4791)).unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < TEST_DEADLINE, "no process received the message");
    }
    // Processes take the shares when their names are free.
    drop(squatter);
    let process = Process::start(ALICE, None, "open", address);
    assert_eq!(process.next_line(), "Some(0)");
}

#[test]
fn connections_of_another_user_keep_no_process_from_joining_or_receiving() {
    if !can_change_users() {
        return;
    }
    let address = unused_address();
    let first = Process::start(ALICE, None, "open", address);
    assert_eq!(first.next_line(), "Some(0)");
    let attacker = Process::start(MALLORY, None, "flood", address);
    assert_eq!(attacker.next_line(), "ready");
    // The process accepts a bounded number of connections, and has time for its packets.
    let line = attacker.next_line();
    let (count, milliseconds) = line.split_once(' ').unwrap();
    let (count, milliseconds): (u32, u32) = (count.parse().unwrap(), milliseconds.parse().unwrap());
    println!("{count} connections in {milliseconds} ms");
    assert!(count <= 600 + 16 * milliseconds, "{count} connections in {milliseconds} ms");
    // The kernel delivers packets to each of them directly, so each has found the others.
    let mut processes = vec![(0, first)];
    for share in [1, 2] {
        let process = Process::start(ALICE, None, "open", address);
        assert_eq!(process.next_line(), format!("Some({share})"));
        processes.push((share, process));
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (share, process) in &processes {
            let mut bytes = [0; 60];
            bytes[4..8].copy_from_slice(&AddressShare::new(*share).unwrap().qpn(0x1_0000).to_be_bytes());
            peer.send_to(&bytes, (address, 4791)).unwrap();
            assert_eq!(process.next_line(), "passed on 0");
        }
    }
}
