//! Processes of several users, and of users in user namespaces, at one address, and at several addresses with packets in memory.
//! The tests start processes of this program as other users, so they run only as root.

#![cfg(target_os = "linux")]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use adverb_soft::link::{AddressShare, Link, ReceiveTimestamps, RingPeers, TxPacket, UdpConfig, UdpLink};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{Linger, RcvBuf, SndBuf};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    accept, bind, connect, listen, recv, recvmsg, send, sendmsg, setsockopt, socket,
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
    let role = match role.strip_suffix(OLD_KERNEL) {
        Some(role) => {
            emulate_old_kernel();
            role
        }
        None => &role,
    };
    // The process ends with its parent.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    match role {
        "open" => open(address),
        "close" => close(address),
        "pass files" => pass_files(address),
        "squat" => squat(address),
        "flood" => flood(address),
        "request" => println!("process: {}", request_sockets(address, 0)),
        "request 1" => println!("process: {}", request_sockets(address, 1)),
        "local" => local(address, None),
        "hold" => hold(address),
        "greet" => println!("process: {}", greet(address)),
        role if let Some(target) = role.strip_prefix("local to ") => {
            local(address, Some(target.parse().unwrap()));
        }
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

/// Opens a link, and closes it some time after there is a connection that it has not accepted. Prints the time that this
/// took, and the share of another link that is opened then. The process then ends.
fn close(address: IpAddr) {
    let mut config = UdpConfig::new(address);
    config.shared = true;
    let link = UdpLink::open(&config).unwrap();
    println!("process: {:?}", link.address_share().map(|share| share.index()));
    let fd = link.readiness_fd().unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::NONE).unwrap();
    std::thread::sleep(MAX_WAIT);
    let start = Instant::now();
    drop(link);
    println!("process: {}", start.elapsed().as_millis());
    let link = UdpLink::open(&config).unwrap();
    println!("process: {:?}", link.address_share().map(|share| share.index()));
}

/// The end of the role of a process that runs as on Linux before 6.16.
const OLD_KERNEL: &str = " on an old kernel";

/// The option `SO_PASSRIGHTS` of sockets, by which Linux 6.16 and newer reject files.
const PASS_RIGHTS: u32 = 83;

/// Whether the kernel has the option [`PASS_RIGHTS`].
fn kernel_rejects_files() -> bool {
    let (socket, value) = (unix_socket(), 0_i32);
    // SAFETY: the kernel reads the value, whose size is given.
    let status = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            PASS_RIGHTS as i32,
            value,
            size_of::<i32>() as u32,
        )
    };
    status == 0
}

/// Makes the kernel reject the option [`PASS_RIGHTS`] for this thread, and those that it starts.
fn emulate_old_kernel() {
    let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let offset_of_option = 16 + 2 * 8 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, libc::SYS_setsockopt as u32),
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset_of_option),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, PASS_RIGHTS),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(status, 0, "{}", Errno::last());
}

/// The time that closing a [lingering socket](lingering_socket) takes.
const LINGER: Duration = Duration::from_secs(10);

/// Returns a TCP socket with unsent data, whose last `close` takes [`LINGER`], and the other end, which reads nothing.
fn lingering_socket() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    setsockopt(&listener, RcvBuf, &4096).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    setsockopt(&socket, SndBuf, &4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    // The other end may acknowledge data late.
    for _ in 0..10 {
        while socket.write(&[0; 4096]).is_ok() {}
        std::thread::sleep(Duration::from_millis(1));
    }
    let linger = libc::linger { l_onoff: 1, l_linger: LINGER.as_secs() as i32 };
    setsockopt(&socket, Linger, &linger).unwrap();
    (socket, peer)
}

/// Passes lingering sockets to the process with share 0 in the first messages of connections, again and again, and prints
/// the number of sockets that were passed each time.
fn pass_files(address: IpAddr) {
    let share = name(address, "share/0");
    let mut open = Vec::new();
    loop {
        let sockets: Vec<_> = (0..4).map(|_| (lingering_socket(), unix_socket())).collect();
        // The process closes these connections first, a few at a time. Meanwhile it becomes the only owner of the others'
        // files.
        let decoys: Vec<_> = (0..64).map(|_| unix_socket()).collect();
        decoys.iter().for_each(|decoy| _ = connect(decoy.as_raw_fd(), &share));
        let mut count = 0;
        for ((socket, peer), connection) in sockets {
            let files = [socket.as_raw_fd()];
            let rights = [ControlMessage::ScmRights(&files)];
            let message = [IoSlice::new(&[7, 5])];
            let passed = connect(connection.as_raw_fd(), &share).and_then(|()| {
                sendmsg::<()>(connection.as_raw_fd(), &message, &rights, MsgFlags::MSG_NOSIGNAL, None)
            });
            count += u32::from(passed.is_ok());
            // If the process isn't an owner, this takes long.
            std::thread::spawn(move || drop(socket));
            // Every second connection is closed by this process, too.
            open.push((peer, (count % 2 == 0).then_some(connection)));
        }
        println!("process: {count}");
        std::thread::sleep(Duration::from_millis(300));
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
    for message in [&[7, 5][..], &[1]] {
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

/// Opens a link that uses memory for all processes of its user. Prints a line for each packet that it receives: whether the packet
/// was in memory. Sends a packet to the target every few milliseconds.
fn local(address: IpAddr, target: Option<IpAddr>) {
    let mut config = UdpConfig::new(address);
    config.ring_peers = RingPeers::AllLocal;
    let start = Instant::now();
    let mut link = UdpLink::open(&config).unwrap();
    link.set_timestamps(true).unwrap();
    println!("process: ready {}", start.elapsed().as_millis());
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&0x1_0000_u32.to_be_bytes());
    loop {
        link.receive(256, &mut |packet| {
            println!("process: {}", if packet.received_at.is_none() { "memory" } else { "UDP" });
        })
        .unwrap();
        if let Some(target) = target {
            let (source, destination) = (link.source_addr(0xc000), (target, 4791).into());
            let packet = TxPacket {
                source,
                destination,
                traffic_class: 0,
                hop_limit: 0,
                flow_label: 0,
                bytes: &bytes,
            };
            link.send(&[packet]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Claims the name of a device that has its address to itself, and prints a line for each connection.
fn hold(address: IpAddr) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &name(address, "device")).unwrap();
    listen(&listener, Backlog::new(100).unwrap()).unwrap();
    println!("process: ready");
    while accept(listener.as_raw_fd()).is_ok() {
        println!("process: connected");
    }
}

/// Sends the first message of a connection to a device that has its address to itself, with another version of the protocol.
/// Returns the device's response as text.
fn greet(address: IpAddr) -> String {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    if let Err(error) = connect(socket.as_raw_fd(), &name(address, "device")) {
        return format!("not connected: {error}");
    }
    let mut response = [0; 8];
    let received = send(socket.as_raw_fd(), &[7, 99], MsgFlags::MSG_NOSIGNAL)
        .and_then(|_| recv(socket.as_raw_fd(), &mut response, MsgFlags::empty()));
    match received {
        Ok(0) => "refused".to_owned(),
        Ok(length) => format!("{:?}", &response[..length]),
        Err(error) => format!("refused: {error}"),
    }
}

/// The time for which packets must arrive over UDP. The sender would offer memory again within this time.
const UDP_TIME: Duration = Duration::from_millis(1500);

/// Checks that a process gets packets over UDP only.
fn assert_over_udp(process: &Process) {
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < UDP_TIME || count < 10 {
        assert_eq!(process.next_line(), "UDP");
        count += 1;
    }
}

/// Waits until a process gets a packet in memory.
fn await_memory(process: &Process) {
    let start = Instant::now();
    while process.next_line() != "memory" {
        assert!(start.elapsed() < TEST_DEADLINE, "all packets arrive over UDP");
    }
}

#[test]
fn another_user_sends_and_receives_nothing_in_memory() {
    if !can_change_users() {
        return;
    }
    let addresses = [(); 3].map(|()| unused_address());
    let to_first = format!("local to {}", addresses[0]);
    let first = Process::start(ALICE, None, "local", addresses[0]);
    assert!(first.next_line().starts_with("ready"));
    for namespace_uid in [None, Some(0), Some(1000)] {
        let second = Process::start(ALICE, namespace_uid, &to_first, addresses[1]);
        assert!(second.next_line().starts_with("ready"));
        await_memory(&first);
        drop(second);
        while first.lines.recv_timeout(Duration::from_millis(200)).is_ok() {}
    }
    assert_eq!(Process::start(ALICE, None, "greet", addresses[0]).next_line(), "[7, 5]");
    for namespace_uid in [None, Some(0), Some(OVERFLOW), Some(ALICE)] {
        let attacker = Process::start(MALLORY, namespace_uid, "greet", addresses[0]);
        let line = attacker.next_line();
        assert!(line.starts_with("refused"), "{namespace_uid:?}: {line}");
    }
    let attacker = Process::start(MALLORY, None, &to_first, addresses[2]);
    assert!(attacker.next_line().starts_with("ready"));
    assert_over_udp(&first);
    let second = Process::start(ALICE, None, &format!("local to {}", addresses[2]), addresses[1]);
    assert!(second.next_line().starts_with("ready"));
    assert_over_udp(&attacker);
}

#[test]
fn a_user_with_the_overflow_id_of_a_namespace_uses_no_memory() {
    if !can_change_users() {
        return;
    }
    let addresses = [(); 2].map(|()| unused_address());
    let first = Process::start(ALICE, Some(OVERFLOW), "local", addresses[0]);
    assert!(first.next_line().starts_with("ready"));
    let attacker = Process::start(MALLORY, None, "greet", addresses[0]);
    assert!(attacker.next_line().starts_with("not connected"));
    let second = Process::start(ALICE, None, &format!("local to {}", addresses[0]), addresses[1]);
    assert!(second.next_line().starts_with("ready"));
    assert_over_udp(&first);
}

#[test]
fn a_name_that_another_user_holds_leaves_the_packets_on_udp() {
    if !can_change_users() {
        return;
    }
    let addresses = [(); 2].map(|()| unused_address());
    let attacker = Process::start(MALLORY, None, "hold", addresses[0]);
    assert_eq!(attacker.next_line(), "ready");
    let first = Process::start(ALICE, None, &format!("local to {}", addresses[1]), addresses[0]);
    let line = first.next_line();
    let time: u32 = line.strip_prefix("ready ").unwrap().parse().unwrap();
    assert!(time < 1000, "opening took {time} ms");
    let second = Process::start(ALICE, None, &format!("local to {}", addresses[0]), addresses[1]);
    assert!(second.next_line().starts_with("ready"));
    // Only the other direction is affected.
    await_memory(&second);
    while first.lines.try_recv().is_ok() {}
    assert_over_udp(&first);
    // The next device gets the name.
    drop((attacker, first));
    let first = Process::start(ALICE, None, "local", addresses[0]);
    assert!(first.next_line().starts_with("ready"));
    await_memory(&first);
    // A name that another user takes afterwards has no packets in memory either.
    drop(first);
    let attacker = Process::start(MALLORY, None, "hold", addresses[0]);
    assert_eq!(attacker.next_line(), "ready");
    let first = Process::start(ALICE, None, "local", addresses[0]);
    assert!(first.next_line().starts_with("ready"));
    while first.next_line() != "UDP" {}
    assert_over_udp(&first);
}

#[test]
fn names_that_others_hold_cost_few_lookups() {
    if !can_change_users() {
        return;
    }
    let address = unused_address();
    let attacker = Process::start(MALLORY, None, "hold", address);
    assert_eq!(attacker.next_line(), "ready");
    let mut link = open_loopback(|config| config.ring_peers = RingPeers::AllLocal);
    let (source, destination) = (link.source_addr(0xc000), (address, 4791).into());
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&0x1_0000_u32.to_be_bytes());
    let packet =
        TxPacket { source, destination, traffic_class: 0, hop_limit: 0, flow_label: 0, bytes: &bytes };
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        sent += link.send(&[packet]).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    let connections = attacker.lines.try_iter().count();
    println!("{connections} lookups for {sent} packets");
    // After 0, 1, 3, 7 ms and so on up to 1,023 ms.
    assert!((1..=12).contains(&connections), "{connections} lookups for {sent} packets");
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

/// The maximum delay of a process that another user passes files to. On a busy machine, a process waits for the processor.
const MAX_DELAY: Duration = Duration::from_millis(LINGER.as_millis() as u64 / 4);

/// Sends packets to a process for some seconds, and returns the maximum time until the process has received one.
fn max_packet_delay(process: &Process, address: IpAddr, share: u8) -> Duration {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut bytes = [0; 60];
    bytes[4..8].copy_from_slice(&AddressShare::new(share).unwrap().qpn(0x1_0000).to_be_bytes());
    let delays = (0..100).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let start = Instant::now();
        peer.send_to(&bytes, (address, 4791)).unwrap();
        let line = process.lines.recv_timeout(MAX_DELAY);
        assert_eq!(line.expect("the packet isn't delayed"), "passed on 0");
        start.elapsed()
    });
    delays.max().unwrap()
}

#[test]
fn files_that_another_user_passes_delay_no_process() {
    if !can_change_users() {
        return;
    }
    for kernel in ["", OLD_KERNEL] {
        let address = unused_address();
        let first = Process::start(ALICE, None, &format!("open{kernel}"), address);
        assert_eq!(first.next_line(), "Some(0)");
        let attacker = Process::start(MALLORY, None, "pass files", address);
        println!("{} files were passed{kernel}", attacker.next_line());
        let delay = max_packet_delay(&first, address, 0);
        println!("the maximum delay is {delay:?}{kernel}");
        // Another process joins meanwhile.
        let second = Process::start(ALICE, None, &format!("open{kernel}"), address);
        assert_eq!(second.next_line(), "Some(1)", "{kernel}");
        let delay = max_packet_delay(&second, address, 1);
        println!("the maximum delay of another process is {delay:?}{kernel}");
    }
}

#[test]
fn files_that_another_user_passes_do_not_delay_the_end_of_a_device() {
    if !can_change_users() {
        return;
    }
    for kernel in ["", OLD_KERNEL] {
        let rejects_files = kernel.is_empty() && kernel_rejects_files();
        let address = unused_address();
        let mut process = Process::start(ALICE, None, &format!("close{kernel}"), address);
        assert_eq!(process.next_line(), "Some(0)");
        let attacker = Process::start(MALLORY, None, "pass files", address);
        println!("{} files were passed{kernel}", attacker.next_line());
        let time = process.lines.recv_timeout(MAX_WAIT + MAX_DELAY);
        let time =
            time.unwrap_or_else(|_| panic!("closing the device takes longer than {MAX_DELAY:?}{kernel}"));
        println!("closing took {time} ms{kernel}");
        // The name is free. Before Linux 6.16, it stays in use if the connections are too many for the thread that closes them.
        let share = process.next_line();
        assert!(share == "Some(0)" || !rejects_files && share == "Some(1)", "{share}{kernel}");
        let start = Instant::now();
        process.child.wait().unwrap();
        let time = start.elapsed();
        assert!(time < MAX_DELAY, "the end of the process took {time:?}{kernel}");
    }
}
