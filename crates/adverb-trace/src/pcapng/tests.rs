use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::sample;
use crate::sample::{CLIENT, FAR, SERVER};

/// An enhanced packet block.
struct Captured {
    interface: u32,
    nanos: u64,
    bytes: Vec<u8>,
    comment: String,
    direction: u32,
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// Returns the blocks of a file, by kind and content.
fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
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

/// Returns the options of a block.
fn options(mut bytes: &[u8]) -> HashMap<u16, Vec<u8>> {
    let mut options = HashMap::new();
    while !bytes.is_empty() {
        let (code, length) = (word(bytes) as u16, (word(bytes) >> 16) as usize);
        options.insert(code, bytes[4..4 + length].to_vec());
        bytes = &bytes[4 + length.next_multiple_of(4)..];
    }
    options
}

fn captured_packets(file: &[u8]) -> Vec<Captured> {
    let packets = blocks(file).into_iter().filter(|(kind, _)| *kind == ENHANCED_PACKET);
    let parse = |(_, content): (u32, &[u8])| {
        let len = word(&content[12..]) as usize;
        assert_eq!(word(&content[16..]) as usize, len, "the captured and the original length");
        let options = options(&content[20 + len.next_multiple_of(4)..]);
        Captured {
            interface: word(content),
            nanos: u64::from(word(&content[4..])) << 32 | u64::from(word(&content[8..])),
            bytes: content[20..20 + len].to_vec(),
            comment: String::from_utf8(options[&COMMENT].clone()).unwrap(),
            direction: word(&options[&PACKET_FLAGS]),
        }
    };
    packets.map(parse).collect()
}

fn file(trace: &Trace) -> Vec<u8> {
    let mut file = Vec::new();
    trace.write_pcapng(&mut file).unwrap();
    file
}

#[test]
fn each_device_is_an_interface() {
    let file = file(&sample::trace());
    let blocks = blocks(&file);
    let kinds: Vec<u32> = blocks[..5].iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE, INTERFACE, ENHANCED_PACKET]);
    let interfaces: Vec<_> = blocks[1..4].iter().map(|(_, content)| options(&content[8..])).collect();
    for (options, name) in interfaces.iter().zip(["soft0", "soft1", "far \"2\""]) {
        assert_eq!(options[&INTERFACE_NAME], name.as_bytes());
        assert_eq!(options[&TIMESTAMP_RESOLUTION], [9]);
    }
    assert!(!interfaces[0].contains_key(&COMMENT));
    assert!(String::from_utf8_lossy(&interfaces[2][&COMMENT]).contains("overwrote 3 events"));
}

#[test]
fn packets_are_in_the_order_of_each_clock() {
    let trace = sample::trace();
    let captured = captured_packets(&file(&trace));
    assert_eq!(captured.len(), trace.packets().len());
    let (near, far) = captured.split_at(captured.len() - 4);
    assert!(near.iter().all(|packet| packet.interface < 2));
    assert!(far.iter().all(|packet| packet.interface == 2));
    assert!(near.is_sorted_by_key(|packet| packet.nanos));
    assert!(far.is_sorted_by_key(|packet| packet.nanos));
    // The first packet is sent at 12 µs of the client's clock and received 3 µs later, on the same clock.
    assert_eq!(near[0].nanos, 1_700_000_000_000_001_000 + 12_000);
    assert_eq!((near[0].interface, near[0].direction), (0, OUTBOUND));
    assert_eq!(near[1].nanos, near[0].nanos + 3000);
    assert_eq!((near[1].interface, near[1].direction), (1, INBOUND));
    assert_eq!(far[0].nanos, 1_700_000_000_000_000_009);
}

#[test]
fn whole_packets_are_those_on_the_wire() {
    let trace = sample::trace();
    let mut whole_count = 0;
    for packet in captured_packets(&file(&trace)) {
        let frame = Frame::parse(&packet.bytes).unwrap();
        let is_whole = !packet.comment.contains("zeros");
        assert_eq!(frame.verify().is_ok(), is_whole, "{}", packet.comment);
        if !is_whole {
            assert_eq!(frame.packet().icrc(), 0);
            continue;
        }
        whole_count += 1;
        let recorded = trace.packets().iter().find(|recorded| {
            recorded.header == *frame.packet().header()
                && Some(frame.source().ip()) == recorded.source.map(|addr| addr.ip())
        });
        let payload = recorded.unwrap().payload.as_deref().unwrap_or_default();
        assert_eq!(frame.packet().payload(), payload);
    }
    let is_whole = |packet: &&Packet| {
        packet.payload_len as usize == packet.payload.as_ref().map_or(0, |payload| payload.len())
            && packet.device != FAR
            && packet.dropped != Some(DropReason::WrongIcrc)
    };
    assert_eq!(whole_count, trace.packets().iter().filter(is_whole).count());
}

#[test]
fn zeros_take_the_place_of_unknown_bytes() {
    let trace = sample::trace();
    let captured = captured_packets(&file(&trace));
    let find = |comment: &str| captured.iter().find(|packet| packet.comment.contains(comment)).unwrap();
    let first = find("packet 1 of 3");
    let note = ", recorded up to byte 64 of the payload: zeros after it";
    assert!(first.comment.ends_with(note), "{}", first.comment);
    let (headers, payload) = first.bytes.split_at(20 + 8 + 12 + 16);
    assert_eq!(headers[2..4], (first.bytes.len() as u16).to_be_bytes());
    assert_eq!(payload, [[0xee; 64].as_slice(), &[0; 1024 - 64 + 4]].concat());
    let response = find("response 2 of 2");
    assert!(response.comment.ends_with(", payload and ICRC not recorded: zeros"), "{}", response.comment);
    assert_eq!(response.bytes.len(), 20 + 8 + 12 + 4 + 476 + 4);
    assert_eq!(response.bytes[20 + 8 + 12 + 4..], [0; 476 + 4]);
    let wrong_icrc = find("dropped: the ICRC is wrong, ICRC unknown: zeros");
    assert_eq!(wrong_icrc.bytes.last_chunk(), Some(&[0; 4]));
}

#[test]
fn packet_of_an_impossible_length_is_cut() {
    let mut trace = sample::trace();
    trace.packets[0].payload_len = u32::MAX;
    let max_len = captured_packets(&file(&trace)).iter().map(|packet| packet.bytes.len()).max();
    assert!(max_len.unwrap() <= 65_535);
}

#[test]
fn unknown_addresses_are_placeholders_by_device() {
    let trace = sample::trace();
    let captured = captured_packets(&file(&trace));
    let far: Vec<&Captured> = captured.iter().filter(|packet| packet.interface == 2).collect();
    for packet in &far {
        let note = ", ICRC unknown: zeros, addresses unknown: placeholders";
        assert!(packet.comment.ends_with(note), "{}", packet.comment);
    }
    let v4 = |packet: &Captured| (packet.bytes[12..16].to_vec(), packet.bytes[16..20].to_vec());
    assert_eq!(v4(far[0]), (vec![192, 0, 2, 254], vec![192, 0, 2, 3]));
    assert_eq!(far[1].bytes[8..24], "2001:db8::fe".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(far[1].bytes[24..40], "fd77::1".parse::<Ipv6Addr>().unwrap().octets());
    // Addresses of two families: the IPv4 address is kept.
    assert_eq!(v4(far[2]), (vec![192, 0, 2, 254], vec![10, 9, 9, 9]));
    assert_eq!(v4(far[3]), (vec![192, 0, 2, 3], vec![192, 0, 2, 254]));
}

#[test]
fn packet_without_its_source_port_has_no_icrc() {
    let mut trace = sample::trace();
    trace.packets[0].source = Some("10.0.0.1:0".parse().unwrap());
    let captured = captured_packets(&file(&trace));
    let note = "packet 1 of 1, ICRC unknown: zeros, UDP port unknown";
    assert!(captured[0].comment.ends_with(note), "{}", captured[0].comment);
    assert_eq!(captured[0].bytes.last_chunk(), Some(&[0; 4]));
    assert_ne!(captured[1].bytes.last_chunk(), Some(&[0; 4]));
}

#[test]
fn comments_name_the_request() {
    let trace = sample::trace();
    let comments: Vec<String> = trace.packet_comments().collect();
    let comments_of = |device: DeviceId| {
        let comments =
            trace.packets().iter().zip(&comments).filter(move |(packet, _)| packet.device == device);
        comments.map(|(_, comment)| comment.as_str()).collect::<Vec<_>>()
    };
    let write = "soft0 qp 0x000012 send #1 RDMA WRITE 2500 bytes tag 0x8";
    let read = "soft0 qp 0x000012 send #2 RDMA READ 1500 bytes tag 0x9";
    let swap = "soft0 qp 0x000012 send #3 COMPARE SWAP 8 bytes tag 0xa";
    let rejected = "soft0 qp 0x000012 send #4 RDMA WRITE 0 bytes tag 0xb";
    let client = [
        "soft0 qp 0x000012 send #0 SEND with immediate 5 bytes tag 0x7, packet 1 of 1",
        "ACK of psn 16777215: soft0 qp 0x000012 send #0",
        &format!("{write}, packet 1 of 3"),
        &format!("{write}, packet 2 of 3"),
        &format!("{write}, packet 3 of 3"),
        &format!(
            "NAK of psn 1: PSN sequence error, requests retransmission of {write}; \
             acknowledges psn 0: soft0 qp 0x000012 send #1"
        ),
        &format!("{write}, packet 2 of 3, retransmission (PSN sequence error NAK)"),
        &format!("{write}, packet 3 of 3, retransmission (timeout)"),
        "ACK of psn 1..2: soft0 qp 0x000012 send #1",
        read,
        &format!("{read}, response 1 of 2"),
        &format!("{read}, response 2 of 2"),
        &format!("{swap}, packet 1 of 1"),
        &format!("{swap}, response 1 of 1"),
        &format!("{rejected}, packet 1 of 1"),
        &format!("RNR NAK of psn 6: no receive is posted, wait 1.28ms, delays {rejected}"),
        &format!("NAK of psn 6: remote access error, rejects {rejected}"),
        "CM REQ",
        "CM message",
        "CNP: a switch marked packets of qp 0x000012 as congested",
        "ACK of psn 5, nothing new, dropped: the ICRC is wrong",
        "ACK of psn 16777215..6: soft0 qp 0x000012 send #0..#4",
    ];
    assert_eq!(comments_of(CLIENT), client);
    let mut server: Vec<&str> = client.to_vec();
    server.remove(3); // lost
    let dropped = format!("{write}, packet 3 of 3, dropped: an earlier packet is missing");
    server[3] = &dropped;
    server[19] = "ACK of psn 5, nothing new";
    assert_eq!(comments_of(SERVER), server);
    let received =
        "requester not recorded, received by far \"2\" qp 0x000077 recv #9 RECEIVE 4096 bytes tag 0x3";
    assert_eq!(
        comments_of(FAR),
        [
            &*format!("RC SEND only psn 0, {received}"),
            "RC SEND only psn 1, requester not recorded",
            "RC SEND only psn 2, requester not recorded",
            "RC SEND only psn 3, requester not recorded",
        ]
    );
}

#[test]
fn long_comments_are_cut_between_characters() {
    assert_eq!(truncated("aé", 3), "aé".as_bytes());
    assert_eq!(truncated("aé", 2), b"a");
    let mut trace = sample::trace();
    trace.devices[0].name = "é".repeat(40_000);
    let file = file(&trace);
    assert!(captured_packets(&file).iter().all(|packet| packet.comment.len() <= MAX_COMMENT));
}

#[test]
fn tshark_shows_the_comments_and_no_malformed_packets() {
    if let Err(error) = Command::new("tshark").arg("--version").output() {
        println!("skipped: no tshark here ({error}); on Debian it is in the package of that name");
        return;
    }
    let trace = sample::trace();
    let path = std::env::temp_dir().join(format!("adverb-trace-{}.pcapng", std::process::id()));
    let file = file(&trace);
    std::fs::write(&path, &file).unwrap();
    let lines = |fields: &[&str]| tshark(&path, fields);
    let comments = lines(&["frame.comment"]);
    let summary = lines(&[
        "frame.interface_name",
        "_ws.malformed",
        "infiniband.bth.opcode",
        "frame.len",
        "_ws.col.Info",
    ]);
    std::fs::remove_file(&path).unwrap();
    let captured = captured_packets(&file);
    let expected: Vec<&str> = captured.iter().map(|packet| packet.comment.as_str()).collect();
    assert_eq!(comments, expected);
    for (line, packet) in summary.iter().zip(&captured) {
        let name = &trace.devices()[packet.interface as usize].name;
        let outer_len = if packet.bytes[0] >> 4 == 6 { 48 } else { 28 };
        let expected = format!("{name}||{}|{}|", packet.bytes[outer_len], packet.bytes.len());
        assert!(line.starts_with(&expected), "{line} is not {expected}: {}", packet.comment);
        assert!(!line.contains("Malformed"), "{line}: {}", packet.comment);
    }
    assert_eq!(summary.len(), captured.len());
}

/// Returns a line for each packet of a file, with tshark's values of these fields.
fn tshark(path: &PathBuf, fields: &[&str]) -> Vec<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(path).args(["-T", "fields", "-E", "separator=|"]);
    // tshark takes SENDs of up to 12 bytes for malformed messages of this protocol.
    command.args(["--disable-protocol", "rpcordma"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}
