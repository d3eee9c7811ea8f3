//! The capture file of a trace, compared with the captures of the devices' links.

#![cfg(all(feature = "soft", feature = "trace"))]

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use adverb::trace::Trace;
use adverb::verbs::cm::{Connection, Connector, Listener};
use adverb::verbs::{
    Access, CompletionQueue, ConnectOptions, Device, ProtectionDomain, QueuePair, RequestId, SendRequest,
    SoftDevice, Switch,
};

/// The timeout of every operation, far longer than any of them takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum length of a message.
const LEN: usize = 3000;

/// One side of a connection, with its posted receive.
struct Side {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receive: RequestId,
}

impl Side {
    fn new(path: &adverb::verbs::cm::Path) -> adverb::verbs::Result<(QueuePair, Side)> {
        let domain = path.open_device()?.create_protection_domain()?;
        let completions = path.open_device()?.completion_queue(16).events().create()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let queue_pair =
            path.queue_pair(&domain)?.completion_queue(&completions).access(access).depth(4, 4).create()?;
        let receive = queue_pair.post_recv(domain.allocate_buffer(LEN)?)?;
        Ok((queue_pair, Side { domain, completions, receive }))
    }

    fn run(&self, connection: &Connection, request: SendRequest) {
        let id = connection.queue_pair().post_send(request).unwrap();
        self.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
    }
}

/// Connects two devices with the connection manager. The client sends, writes and reads.
fn exercise(from: IpAddr, to: IpAddr) -> impl Sized {
    let listener = Listener::bind(SocketAddr::new(to, 0)).unwrap();
    let peer = listener.local_addr();
    let client = thread::spawn(move || {
        let mut side = None;
        // The ACK timeout is about a second, for busy machines. Only this side sends requests.
        let options = ConnectOptions::new().ack_timeout(18);
        let connector =
            Connector::new().timeout(TIMEOUT).options(options).local_addr(SocketAddr::new(from, 0));
        let connection = connector.connect(peer, |path| {
            let (queue_pair, created) = Side::new(path)?;
            side = Some(created);
            Ok(queue_pair)
        });
        (connection.unwrap(), side.unwrap())
    });
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    let (queue_pair, server) = Side::new(request.path()).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = server.domain.allocate_region(LEN, access).unwrap();
    let accepted = request.accept(queue_pair, b"").unwrap();
    let (connection, client) = client.join().unwrap();
    let buffer = || {
        let mut buffer = client.domain.allocate_buffer(LEN).unwrap();
        (0..).zip(buffer.iter_mut()).for_each(|(index, byte): (usize, _)| *byte = index as u8);
        buffer
    };
    client.run(&connection, SendRequest::send(buffer()).tag(0x51));
    server.completions.wait(server.receive, TIMEOUT).unwrap().result().unwrap();
    client.run(&connection, SendRequest::write(buffer(), region.remote().at(0)).tag(0x52));
    client.run(&connection, SendRequest::read(buffer(), region.remote().at(0)).tag(0x53));
    (connection, client, accepted, server, region)
}

/// A packet of a capture: the bytes after its IP header, and its comment.
struct Captured {
    interface: u32,
    direction: u32,
    udp: Vec<u8>,
    comment: String,
}

impl Captured {
    /// Returns the bytes that were recorded: the first 36 bytes of a connection manager's message, and all bytes of
    /// other packets.
    fn recorded(&self) -> &[u8] {
        let is_cm = self.comment.ends_with(", recorded up to byte 36 of the payload: zeros after it");
        assert_eq!(is_cm, self.comment.starts_with("CM "), "{}", self.comment);
        if is_cm { &self.udp[..8 + 12 + 8 + 36] } else { &self.udp }
    }
}

/// Returns the packets of a capture (draft-ietf-opsawg-pcapng, 4.3), which have IPv4 headers.
fn packets(bytes: &[u8]) -> Vec<Captured> {
    const ENHANCED_PACKET: u32 = 6;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut packets) = (0, Vec::new());
    while at + 12 <= bytes.len() {
        let next = at + word(at + 4) as usize;
        if word(at) == ENHANCED_PACKET {
            let captured = word(at + 20) as usize;
            let mut packet = Captured {
                interface: word(at + 8),
                direction: 0,
                udp: bytes[at + 28 + 20..at + 28 + captured].to_vec(),
                comment: String::new(),
            };
            let mut option = at + 28 + captured.next_multiple_of(4);
            while option < next - 4 {
                let (code, len) = (word(option) & 0xffff, (word(option) >> 16) as usize);
                match code {
                    1 => packet.comment = String::from_utf8(bytes[option + 4..][..len].to_vec()).unwrap(),
                    2 => packet.direction = word(option + 4),
                    _ => {}
                }
                option += 4 + len.next_multiple_of(4);
            }
            packets.push(packet);
        }
        at = next;
    }
    packets
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-{name}-{}.pcapng", std::process::id()))
}

/// Runs the exercise on two devices. Returns their captures and their trace.
fn record(open: impl Fn(usize) -> (IpAddr, SoftDevice)) -> ([Vec<Captured>; 2], Trace) {
    let files = [file("client"), file("server")];
    let devices: [(IpAddr, Device); 2] = [0, 1].map(|index| {
        let (addr, device) = open(index);
        (addr, device.capture(&files[index]).open().unwrap())
    });
    let recordings =
        [0, 1].map(|index: usize| devices[index].1.recording().payload_limit(4096).start().unwrap());
    let ends = exercise(devices[0].0, devices[1].0);
    let trace = Trace::new(recordings.map(|active| active.stop()));
    drop((ends, devices));
    let captures = files.map(|file| {
        let packets = packets(&std::fs::read(&file).unwrap());
        std::fs::remove_file(file).unwrap();
        packets
    });
    (captures, trace)
}

fn check(captures: &[Vec<Captured>; 2], trace: &Trace) {
    let mut bytes = Vec::new();
    trace.write_pcapng(&mut bytes).unwrap();
    let ours = packets(&bytes);
    assert_eq!(ours.len(), trace.packets().len());
    // Each packet is one that the link sent or received, as far as its payload was recorded.
    for packet in &ours {
        let theirs = captures[packet.interface as usize].iter().find(|theirs| {
            theirs.direction == packet.direction
                && theirs.udp.len() == packet.udp.len()
                && theirs.udp.starts_with(packet.recorded())
        });
        assert!(theirs.is_some(), "no link saw this packet: {} {:x?}", packet.comment, packet.udp);
    }
    // Each packet of the requests that a link captured is in the trace.
    for (interface, theirs) in (0..).zip(captures) {
        for packet in theirs.iter().filter(|packet| packet.udp[8 + 5..8 + 8] != [0, 0, 1]) {
            let is_ours = |ours: &&Captured| {
                ours.interface == interface && ours.direction == packet.direction && ours.udp == packet.udp
            };
            // ACKs can be sent after the recording has stopped.
            let is_ack = packet.udp[8] == 0x11;
            assert!(is_ack || ours.iter().any(|ours| is_ours(&ours)), "not in the trace: {:x?}", packet.udp);
        }
    }
    let has = |text: &str| ours.iter().any(|packet| packet.comment.contains(text));
    for text in ["CM REQ", "CM REP", "CM RTU"] {
        let named = ours.iter().filter(|packet| packet.comment.starts_with(&format!("{text},")));
        assert!(named.count() >= 2, "no {text} at both ends");
    }
    for text in [
        "send #0 SEND 3000 bytes tag 0x51, packet 1 of ",
        "send #1 RDMA WRITE 3000 bytes tag 0x52, packet 1 of ",
        "send #2 RDMA READ 3000 bytes tag 0x53",
        "send #2 RDMA READ 3000 bytes tag 0x53, response 1 of ",
        "ACK of psn ",
    ] {
        assert!(has(text), "no comment has {text:?}");
    }
    check_by_tshark(&bytes, &ours);
}

fn check_by_tshark(bytes: &[u8], ours: &[Captured]) {
    let path = file("whole");
    std::fs::write(&path, bytes).unwrap();
    let lines =
        tshark(&path, &["_ws.malformed", "infiniband.invariant.crc", "_ws.col.Info", "frame.comment"]);
    std::fs::remove_file(&path).unwrap();
    let Some(lines) = lines else { return };
    assert_eq!(lines.len(), ours.len());
    for (line, packet) in lines.iter().zip(ours) {
        let mut fields = line.splitn(4, '|');
        assert_eq!(fields.next(), Some(""), "malformed: {line}");
        let icrc: String =
            packet.udp[packet.udp.len() - 4..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(fields.next(), Some(format!("0x{icrc}").as_str()), "{line}");
        assert!(!fields.next().unwrap().contains("Malformed"), "{line}");
        assert_eq!(fields.next(), Some(packet.comment.as_str()));
    }
}

/// Returns a line for each packet of a file, with tshark's values of these fields, or `None` if tshark is not
/// installed.
fn tshark(path: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=|"]);
    // Otherwise tshark decodes SENDs of up to 12 bytes as malformed messages of this protocol.
    command.args(["--disable-protocol", "rpcordma"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            println!(
                "skipped: tshark is not installed ({error}); on Debian it is in the package of that name"
            );
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn the_capture_of_a_trace_has_the_packets_of_the_links() {
    let switch = Switch::default();
    let (captures, trace) = record(|index| {
        let addr = IpAddr::from([10, 7, 0, index as u8 + 1]);
        (addr, SoftDevice::on_switch(&switch, addr))
    });
    check(&captures, &trace);
}
