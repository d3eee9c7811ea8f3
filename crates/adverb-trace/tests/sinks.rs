//! The files of a trace of many operations over a lossy network: tshark reads the capture, and the comments, headers and
//! directions that it shows are those of the packets on the network.

mod harness;

use std::collections::HashSet;
use std::process::Command;

use adverb_proto::types::{CompletedOperation, SendFlags, SendOperation, Transport};
use adverb_trace::{PacketRole, Trace};
use harness::{Faults, Seen, World};

/// Runs `count` operations of each side over a network that loses, duplicates and reorders packets.
fn drive(count: u64) -> World {
    let faults = Faults { loss: 3, duplication: 2, reordering: 3 };
    let mut world = World::connected(Transport::Rc, faults, 5, 0xff_fe00);
    let (mut posted, mut outstanding) = ([0; 2], [0; 2]);
    while posted.iter().any(|posted| *posted < count)
        || outstanding.iter().any(|outstanding| *outstanding > 0)
    {
        for from in 0..2 {
            while posted[from] < count && outstanding[from] < 16 {
                let (now, tag) = (world.now, posted[from]);
                let remote = world.sides[1 - from].remote_address(100_000);
                let (operation, length) = match tag % 5 {
                    0 => (SendOperation::Send, 100),
                    1 => (SendOperation::Write(remote), 3000),
                    2 => (SendOperation::Read(remote), 2500),
                    3 => (SendOperation::FetchAdd { remote, add: 1 }, 8),
                    _ => (SendOperation::WriteWithImm(remote, 7), 0),
                };
                if matches!(operation, SendOperation::Send | SendOperation::WriteWithImm(..)) {
                    world.sides[1 - from].recv(now, tag, tag, 4096);
                }
                let side = &mut world.sides[from];
                let segments = [side.segment(200_000, length)];
                let segments = &segments[..usize::from(length > 0)];
                side.send(now, (tag, tag), operation, SendFlags::SIGNALED, segments);
                posted[from] += 1;
                outstanding[from] += 1;
            }
        }
        world.transmit();
        world.handle_next_event();
        for (side, outstanding) in world.sides.iter_mut().zip(&mut outstanding) {
            while let Some(completion) = side.poll(world.now) {
                let operation = completion.outcome.unwrap().operation;
                let is_recv = matches!(
                    operation,
                    CompletedOperation::Recv { .. } | CompletedOperation::RecvWrite { .. }
                );
                *outstanding -= u64::from(!is_recv);
            }
        }
    }
    world.run();
    world
}

/// Returns the lines of tshark for a file: the values of these fields, separated by `|`. Returns `None` if there is no
/// tshark here.
fn tshark(file: &[u8], fields: &[&str]) -> Option<Vec<String>> {
    if let Err(error) = Command::new("tshark").arg("--version").output() {
        println!("skipped: no tshark here ({error}); on Debian it is in the package of that name");
        return None;
    }
    let path = std::env::temp_dir().join(format!("adverb-trace-sinks-{}.pcapng", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=|"]);
    // tshark takes SENDs of up to 12 bytes for malformed messages of this protocol.
    command.args(["--disable-protocol", "rpcordma"]);
    let output = command.args(fields.iter().flat_map(|field| ["-e", field])).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

/// Returns the values that tshark should show for a packet: the interface, an empty value because the packet is not
/// malformed, the direction, opcode, destination, sequence number, and length of the IP datagram.
fn expected(seen: &Seen) -> String {
    let (name, direction) = (["soft0", "soft1"][seen.side], if seen.is_received { 1_u32 } else { 2 });
    let header = &seen.header;
    let len = 20 + 8 + (header.len() + seen.payload_len).next_multiple_of(4) + 4;
    let (opcode, qpn, psn) = (header.opcode().byte(), header.dest_qp, header.psn);
    format!("{name}||{direction:#010x}|{opcode}|{qpn}|{psn}|{len}")
}

#[test]
fn tshark_agrees_with_the_network_on_every_packet() {
    let world = drive(5000);
    let trace = Trace::new(world.recordings(1));
    assert_eq!(trace.packets().len(), world.seen.len());
    let mut file = Vec::new();
    trace.write_pcapng(&mut file).unwrap();
    let fields = [
        "frame.interface_name",
        "_ws.malformed",
        "frame.packet_flags_direction",
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "infiniband.bth.psn",
        "frame.len",
        "_ws.col.Info",
        "frame.comment",
    ];
    let Some(lines) = tshark(&file, &fields) else { return };
    assert_eq!(lines.len(), world.seen.len());
    for side in 0..2 {
        let seen: Vec<&Seen> = world.seen.iter().filter(|seen| seen.side == side).collect();
        let lines = lines.iter().filter(|line| line.starts_with(["soft0", "soft1"][side]));
        let lines: Vec<&String> = lines.collect();
        assert_eq!(lines.len(), seen.len());
        for (line, seen) in lines.iter().zip(seen) {
            assert!(line.starts_with(&format!("{}|", expected(seen))), "{line}, not {}", expected(seen));
        }
    }
    assert!(!lines.iter().any(|line| line.contains("Malformed")));
    let shown: Vec<&str> = lines.iter().map(|line| line.splitn(9, '|').nth(8).unwrap()).collect();
    // The sides have one clock, so the file is in the order of their times.
    let mut order: Vec<(u64, usize)> =
        trace.packets().iter().enumerate().map(|(index, packet)| (packet.time.as_nanos(), index)).collect();
    order.sort_unstable();
    // The recorders kept no payload.
    let note = |len: u32| if len > 0 { ", payload and ICRC not recorded: zeros" } else { "" };
    let comments: Vec<String> = (trace.packets().iter().zip(trace.packet_comments()))
        .map(|(packet, comment)| comment + note(packet.payload_len))
        .collect();
    let comments: Vec<&str> = order.iter().map(|(_, index)| comments[*index].as_str()).collect();
    assert!(shown == comments, "{:?}", shown.iter().zip(&comments).find(|(shown, comment)| shown != comment));
    println!("tshark agrees on {} packets", comments.len());
    // Each comment names a request by its queue pair and its number, unless the packet is an ACK of nothing new.
    let names = [0, 1].map(|side| format!("soft{side} qp {} send #", world.sides[side].qpn));
    for (comment, (_, index)) in comments.iter().zip(&order) {
        let is_old_ack = matches!(&trace.packets()[*index].role, PacketRole::Ack { acked_psns: None, .. });
        assert!(is_old_ack || names.iter().any(|name| comment.contains(name)), "{comment}");
    }
    // Every send request is named, and the comments contain all causes of retransmissions but RNR NAKs.
    let named: HashSet<&str> =
        comments.iter().filter_map(|comment| comment.split_once(" tag ")).map(|(name, _)| name).collect();
    assert_eq!(named.iter().filter(|name| !name.contains("NAK")).count(), 10_000);
    for cause in ["(timeout)", "(PSN sequence error NAK)", "(missing response)"] {
        assert!(comments.iter().any(|comment| comment.contains(cause)), "no retransmission {cause}");
    }
}

#[test]
fn json_has_every_request_and_packet() {
    let world = drive(200);
    let trace = Trace::new(world.recordings(1));
    let mut lines = Vec::new();
    trace.write_json_lines(&mut lines).unwrap();
    let lines = String::from_utf8(lines).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((count("packet"), count("request")), (world.seen.len(), trace.requests().len()));
    assert_eq!(count("other_event"), trace.other_events().len());
    // The packets of each request name the request.
    let packets: Vec<&serde_json::Value> = lines.iter().filter(|line| line["type"] == "packet").collect();
    for request in lines.iter().filter(|line| line["type"] == "request" && line["queue"] == "send") {
        assert_ne!(request["packets"], serde_json::json!([]));
        for packet in request["packets"].as_array().unwrap() {
            assert_eq!(packets[packet.as_u64().unwrap() as usize]["request"], request["request"]);
        }
    }
}

#[test]
fn timeline_has_every_request_and_an_arrow_for_most_packets() {
    let world = drive(200);
    let trace = Trace::new(world.recordings(1));
    let mut text = Vec::new();
    trace.write_perfetto(&mut text).unwrap();
    let parsed: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let events = parsed["traceEvents"].as_array().unwrap();
    let with_phase = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let ids: HashSet<&str> = with_phase("b").iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), trace.requests().len());
    assert_eq!(with_phase("b").len(), with_phase("e").len());
    let (starts, ends) = (with_phase("s"), with_phase("f"));
    assert_eq!(starts.len(), ends.len());
    let starts: std::collections::HashMap<u64, f64> =
        starts.iter().map(|event| (event["id"].as_u64().unwrap(), event["ts"].as_f64().unwrap())).collect();
    for end in &ends {
        // The network takes at least 5 µs.
        assert!(end["ts"].as_f64().unwrap() - starts[&end["id"].as_u64().unwrap()] >= 4.9);
    }
    let arrived = world.seen.iter().filter(|seen| seen.is_received).count();
    assert!(ends.len() > arrived * 9 / 10, "{} arrows for {arrived} packets", ends.len());
}
