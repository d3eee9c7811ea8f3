//! Captures, parsed by the tests and by tshark.

#![cfg(target_os = "linux")]

mod support;

use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use adverb_proto::IcrcCheck;
use adverb_soft::link::{Capture, Link, Switch, SwitchConfig, TxPacket};
use adverb_wire::{Flow, Frame, IpHeader, ROCE_PORT};
// ThreadSanitizer doesn't see the locks of the standard library, which is not instrumented.
use parking_lot::Mutex;

use support::{datagram, drain, packet};

/// A file in memory.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends packets from one address to another, and records both ends in `capture`.
fn record(capture: &Capture, addresses: [&str; 2], ip_ids: &[u16]) {
    let switch = Switch::new(SwitchConfig { icrc: IcrcCheck::AnyIpId, ..SwitchConfig::default() });
    let [from, to]: [IpAddr; 2] = addresses.map(|address| address.parse().unwrap());
    let mut here = capture.watch("here", switch.attach(from).unwrap());
    let mut there = capture.watch("there", switch.attach(to).unwrap());
    let (source, destination) = (SocketAddr::new(from, 0xc123), SocketAddr::new(to, ROCE_PORT));
    for (index, &ip_id) in ip_ids.iter().enumerate() {
        let payload = vec![0x5a; index * 5];
        let flow = Flow::new(source, destination).unwrap();
        let bytes = datagram(&flow, ip_id, 0, &payload);
        let packet = TxPacket {
            source,
            destination,
            traffic_class: 0x6a,
            hop_limit: 17,
            flow_label: 0,
            bytes: &bytes,
        };
        assert_eq!(here.send(&[packet]).unwrap(), 1);
    }
    assert_eq!(drain(&mut there).len(), ip_ids.len());
    capture.flush().unwrap();
}

/// Returns the blocks of a file, by kind and content.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        let (kind, length) = (word(bytes), word(&bytes[4..]) as usize);
        assert_eq!(length % 4, 0);
        assert_eq!(word(&bytes[length - 4..]) as usize, length);
        blocks.push((kind, &bytes[8..length - 4]));
        bytes = &bytes[length..];
    }
    blocks
}

/// Returns the interface, the frame and the direction of each packet in a file.
fn frames(bytes: &[u8]) -> Vec<(u32, Frame<'_>, u8)> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let packets = blocks(bytes).into_iter().filter(|(kind, _)| *kind == 6);
    packets
        .map(|(_, content)| {
            let length = word(&content[12..]) as usize;
            assert_eq!(word(&content[16..]) as usize, length);
            let direction = content[content.len() - 8];
            (word(content), Frame::parse(&content[20..][..length]).unwrap(), direction)
        })
        .collect()
}

#[test]
fn captured_frames_have_the_headers_of_the_wire() {
    for addresses in [["10.0.0.1", "10.0.0.2"], ["fd77::1", "fd77::2"]] {
        let file = File::default();
        record(&Capture::new(file.clone()), addresses, &[0; 7]);
        let bytes = file.0.lock();
        let kinds: Vec<u32> = blocks(&bytes).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds[..3], [0x0a0d_0d0a, 1, 1]);
        let frames = frames(&bytes);
        assert_eq!(frames.len(), 14);
        for (index, (interface, frame, direction)) in frames.iter().enumerate() {
            frame.verify().unwrap();
            assert_eq!((*interface, *direction), if index < 7 { (0, 2) } else { (1, 1) });
            assert_eq!(frame.source(), SocketAddr::new(addresses[0].parse().unwrap(), 0xc123));
            assert_eq!(frame.destination().ip().to_string(), addresses[1]);
            assert_eq!(frame.ip().traffic_class(), 0x6a);
            assert_eq!(frame.packet().payload(), vec![0x5a; index % 7 * 5]);
            let hops = match frame.ip() {
                IpHeader::V4(ip) => ip.ttl,
                IpHeader::V6(ip) => ip.hop_limit,
            };
            assert_eq!(hops, 17);
        }
    }
}

#[test]
fn an_unknown_ip_id_is_recovered() {
    let file = File::default();
    record(&Capture::new(file.clone()), ["10.0.0.1", "10.0.0.2"], &[5829, 65_535]);
    let bytes = file.0.lock();
    let received: Vec<_> = frames(&bytes).into_iter().filter(|(interface, ..)| *interface == 1).collect();
    for ((_, frame, _), expected) in received.iter().zip([5829, 65_535]) {
        frame.verify().unwrap();
        assert!(matches!(frame.ip(), IpHeader::V4(ip) if ip.ip_id == expected));
    }
    assert_eq!(received.len(), 2);
}

#[test]
fn tshark_reads_a_capture() {
    if let Err(error) = Command::new("tshark").arg("--version").output() {
        println!("skipped: no tshark here ({error}); on Debian it is in the package of that name");
        return;
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.pcapng", std::process::id()));
    let capture = Capture::create(&path).unwrap();
    record(&capture, ["10.0.0.1", "10.0.0.2"], &[0, 0]);
    record(&capture, ["fd77::1", "fd77::2"], &[0]);
    let fields = "frame.interface_name ip.src ip.dsfield.dscp ip.ttl ip.id ipv6.dst ipv6.hlim udp.srcport udp.dstport \
                  infiniband.bth.opcode infiniband.bth.destqp infiniband.deth.srcqp frame.len";
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=,"]);
    for field in fields.split_whitespace() {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let v4 = |name, id: &str, length| {
        format!("{name},10.0.0.1,26,17,{id},,,49443,4791,100,0x000011,0x00000042,{length}")
    };
    let v6 = |name| format!("{name},,,,,fd77::2,17,49443,4791,100,0x000011,0x00000042,72");
    let (short, long) = (20 + 8 + 20 + 4, 20 + 8 + 20 + 8 + 4);
    let expected = [
        v4("here", "0x0000", short),
        v4("here", "0x0000", long),
        v4("there", "0x0000", short),
        v4("there", "0x0000", long),
        v6("here"),
        v6("there"),
    ];
    let output = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.lines().collect::<Vec<_>>(), expected, "{errors}");
}

/// A full disk.
struct FullDisk;

impl Write for FullDisk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_link() {
    let capture = Capture::new(FullDisk);
    let switch = Switch::new(SwitchConfig::default());
    let mut link = capture.watch("here", switch.attach(support::address(1)).unwrap());
    link.send(&[packet(1, 1, b"x")]).unwrap();
    assert_eq!(drain(&mut link).len(), 1);
    assert_eq!(capture.flush().unwrap_err().kind(), ErrorKind::StorageFull);
}
