//! Traces as text.

mod harness;

use adverb_proto::trace::{RecorderOptions, StopOn, TraceEvent};
use adverb_proto::types::{ArmFor, RemoteAddress, SendFlags, SendOperation, Status, Transport};
use adverb_trace::Trace;
use harness::{Faults, World};

/// Runs a SEND, a WRITE, a READ, an atomic, and a WRITE with a wrong key.
fn run_operations() -> World {
    let mut world = World::connected(Transport::Rc, Faults::NONE, 1, 0x10);
    let remote = world.sides[1].remote_address(4096);
    let wrong = RemoteAddress { rkey: remote.rkey ^ 0xff, ..remote };
    let operations = [
        (SendOperation::Send, 64),
        (SendOperation::Write(remote), 4096),
        (SendOperation::Read(remote), 1024),
        (SendOperation::CompareSwap { remote, compare: 0, swap: 1 }, 8),
        (SendOperation::Write(wrong), 64),
    ];
    let now = world.now;
    let cq = world.sides[1].cq;
    world.sides[1].device.arm_cq(cq, ArmFor::Any);
    world.sides[1].recv(now, 5, 0x55, 1024);
    for ((operation, length), wr_id) in operations.into_iter().zip(1..) {
        let segments = [world.sides[0].segment(0, length)];
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        let now = world.now;
        world.sides[0].send(now, (wr_id, 0x100 + wr_id), operation, flags, &segments);
        world.run();
        world.advance_clock(500);
        let now = world.now;
        while world.sides[0].poll(now).is_some() {}
        while world.sides[1].poll(now).is_some() {}
        while let Some(cq) = world.sides[1].device.poll_cq_event() {
            world.sides[1].device.record(now, || TraceEvent::CqEventDelivered { cq });
        }
    }
    world
}

type Sink = fn(&Trace, &mut Vec<u8>) -> std::io::Result<()>;

fn write_to_string(trace: &Trace, write: Sink) -> String {
    let mut text = Vec::new();
    write(trace, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Checks that the lines occur in this order.
#[track_caller]
fn assert_lines(text: &str, lines: &[&str]) {
    let mut rest = text;
    for line in lines {
        let start = rest.find(line).unwrap_or_else(|| panic!("{line:?} is not in:\n{rest}"));
        rest = &rest[start + line.len()..];
    }
}

#[test]
fn listing_shows_requests_packets_and_completions() {
    let world = run_operations();
    let text = write_to_string(&Trace::new(world.recordings(1)), Trace::write_text);
    assert_lines(
        &text,
        &[
            "# Trace of 2 devices: soft0, soft1\n",
            "# Times are in microseconds since the first event.\n",
            "# Work Queue Entry (WQE) for SEND:\n#   Work Request ID: 0x0000000000000001\n",
            "#   Opcode: SEND (IBV_WR_SEND, 2)\n#   Send Flags: 0x06 (SIGNALED, SOLICITED)\n",
            "#   SGE[0]: Address: 0x7f0000000000, Length: 64, LKey: 0x",
            "#   Tag: 0x101\n#   Packet Sequence Numbers: 16\n#   State: COMPLETED\n#   Posted: 0.000 us\n",
            "#   First Packet: 0.050 us\n",
            "#   Received By: soft1 qp ",
            "0.050 us IP 10.0.0.1.56745 > 10.0.0.2.4791: UDP, length 80 [received by soft1 at 5.050 us]\n",
            "    Internet Protocol Version 4, Src: 10.0.0.1, Dst: 10.0.0.2\n",
            "    User Datagram Protocol, Src Port: 56745, Dst Port: 4791\n",
            "    InfiniBand: Base Transport Header (12 bytes)\n        Opcode: RC SEND only (0x04)\n",
            "        Solicited Event: 1\n        Migrated: 1\n        Pad Count: 0\n",
            "        Transport Header Version: 0\n        Partition Key: 0xffff\n",
            "        Acknowledge Request: 1\n        Packet Sequence Number: 16\n    Data: 64 bytes\n",
            "    InfiniBand: Invariant CRC (4 bytes)\n",
            "[acknowledges PSN 16] [sent by soft1 at ",
            "        Opcode: RC ACK (0x11)\n",
            "        Syndrome: 0x1f (ACK, unlimited credits)\n        Message Sequence Number: 1\n",
            "# Completion Queue Entry (CQE) for SEND:\n",
            "#   Status: IBV_WC_SUCCESS (0)\n#   Opcode: IBV_WC_SEND (0)\n#   Vendor Error: 0x00000000\n",
            "#   Byte Length: 64\n#   QP Number: 0x",
            "#   State: PROCESSED\n",
            "#   Opcode: RDMA WRITE (IBV_WR_RDMA_WRITE, 0)\n",
            "#   Remote Address: 0x00007f0000001000\n#   Remote Key: 0x",
            "#   Packet Sequence Numbers: 17 to 20\n",
            "        Opcode: RC WRITE first (0x06)\n",
            "    InfiniBand: RDMA Extended Transport Header (16 bytes)\n        Virtual Address: 0x00007f0000001000\n",
            "        DMA Length: 4096\n    Data: 1024 bytes\n",
            "        Opcode: RC WRITE middle (0x07)\n",
            "        Opcode: RC WRITE last (0x08)\n",
            "[acknowledges PSN 17 to 20]",
            "        Opcode: RC READ request (0x0c)\n",
            "        Opcode: RC READ response only (0x10)\n",
            "    Data: 1024 bytes\n",
            "#   Opcode: IBV_WC_RDMA_READ (2)\n",
            "        Opcode: RC CAS (0x13)\n",
            "    InfiniBand: Atomic Extended Transport Header (28 bytes)\n",
            "        Swap (or Add) Data: 0x0000000000000001\n        Compare Data: 0x0000000000000000\n",
            "        Opcode: RC ATOMIC ACK (0x12)\n",
            "        Original Remote Data: 0x0101010101010101\n",
            "#   State: ERROR\n",
            "[rejects PSN 23]",
            "        Opcode: RC ACK (0x11)\n",
            "        Syndrome: 0x62 (NAK: remote access error)\n",
            "#   Status: IBV_WC_REM_ACCESS_ERR (10): the peer's memory does not allow the access",
            "#   State: POLLED\n",
            "# DEVICE soft1\n",
            "# Work Queue Entry (WQE) for RECEIVE:\n#   Work Request ID: 0x0000000000000005\n",
            "#   Message Of: soft0 qp ",
            "#   Opcode: IBV_WC_RECV (128)\n",
            "(completion notification)\n",
        ],
    );
    // Each packet is listed at the request that it belongs to, so none is left over.
    assert!(!text.contains("OTHER PACKETS"), "{text}");
}

#[test]
fn listing_does_not_mix_clocks() {
    let world = run_operations();
    let trace = Trace::new(world.recordings(0));
    let text = write_to_string(&trace, Trace::write_text);
    assert_lines(&text, &["# different clocks", "#   clock 0: soft0\n#   clock 1: soft1\n"]);
    assert!(text.contains("[received by soft1]") && !text.contains("[received by soft1 at"));
    let lines = write_to_string(&trace, Trace::write_lines);
    let names: Vec<&str> = lines.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| name.starts_with("soft")).collect();
    assert!(names.is_sorted(), "the devices follow each other");
}

#[test]
fn lines_are_in_the_order_of_time() {
    let world = run_operations();
    let trace = Trace::new(world.recordings(7));
    let text = write_to_string(&trace, Trace::write_lines);
    let times: Vec<f64> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert!(times.is_sorted());
    assert_eq!(times.len(), trace.events().len());
    assert_lines(
        &text,
        &[
            "soft0  qp 0x8eec67 post send #0 SEND, 64 bytes, tag 0x101\n",
            "soft1  qp 0xfc1e42 post recv #0, 1024 bytes, tag 0x55\n",
            "soft0  qp 0x8eec67 out RC SEND only",
            "soft1  qp 0xfc1e42 in  RC SEND only, qp 0xfc1e42, psn 16, ackreq, solicited, 64 bytes, soft0 qp 0x8eec67 send #0 (SEND)\n",
        ],
    );
}

#[test]
fn summary_counts_requests_and_packets() {
    let world = run_operations();
    let text = write_to_string(&Trace::new(world.recordings(1)), Trace::write_summary);
    assert_lines(
        &text,
        &[
            "devices:         2 (soft0, soft1)\n",
            "requests:        6: 5 succeeded, 1 failed, 0 outstanding\n",
            "packets:         13 sent (0 retransmitted), 13 received (0 dropped)\n",
            "retransmissions: 0\n",
            "failed:          soft0 qp 0x8eec67 send #4 (RDMA WRITE): IBV_WC_REM_ACCESS_ERR (10), ",
            "slowest:         ",
        ],
    );
}

#[test]
fn report_names_the_peer_and_the_retransmissions() {
    let mut world = World::connected(Transport::Rc, Faults::NONE, 1, 100);
    let remote = world.sides[1].remote_address(0);
    for wr_id in 0..2 {
        let (now, segments) = (world.now, [world.sides[0].segment(0, 2000)]);
        let operation = SendOperation::Write(remote);
        world.sides[0].send(now, (wr_id, wr_id), operation, SendFlags::SIGNALED, &segments);
        world.run();
        // The peer crashes.
        world.faults.loss = 100;
    }
    let now = world.now;
    while let Some(completion) = world.sides[0].poll(now) {
        let status = completion.outcome.err().map(|failure| failure.status);
        assert_eq!(status, (completion.wr_id == 1).then_some(Status::RetryExceeded));
    }
    // The crashed peer was not recorded.
    let [recording, _] = world.recordings(1);
    let trace = Trace::new([recording]);
    let text = write_to_string(&trace, Trace::write_report);
    assert_lines(
        &text,
        &[
            "Failed: soft0 qp 0x8eec67 send #1 (RDMA WRITE)\n  work request id: 0x1\n",
            "  status:          IBV_WC_RETRY_EXC_ERR (12), vendor error 0x0\n",
            "  meaning:         the peer did not acknowledge the request (transport retries exceeded)\n",
            "  to do:           check that the peer is up",
            "  peer:            qp 0xfc1e42, 10.0.0.1:56745 > 10.0.0.2:4791\n",
            "  PSNs:            102 to 103\n",
            "  acknowledged:    all before PSN 102, last PSN 101 at ",
            "  timeouts:        8, at ",
            "  timeout:         1.048576ms",
            "  retransmissions: 7 since the last acknowledgement\n",
            "us from PSN 102: acknowledgement timeout\n",
            "  last packets on soft0:\n",
            "out RC WRITE last",
        ],
    );
    let listing = write_to_string(&trace, Trace::write_text);
    assert_lines(
        &listing,
        &["from PSN 102, cause: acknowledgement timeout\n", "[retransmission: acknowledgement timeout]\n"],
    );
    let summary = write_to_string(&trace, Trace::write_summary);
    assert_lines(&summary, &["retransmissions: 7: 7 by acknowledgement timeout\n"]);
}

#[test]
fn report_of_a_timeout_describes_the_request_that_timed_out() {
    let mut world = World::connected(Transport::Rc, Faults { loss: 100, ..Faults::NONE }, 1, 100);
    let options = RecorderOptions { stop_on: StopOn::FailureOrTimeout, ..RecorderOptions::default() };
    let now = world.now;
    let device = &mut world.sides[0].device;
    device.sink_mut().start(&options).unwrap();
    device.record_connections(now);
    let segments = [world.sides[0].segment(0, 10)];
    world.sides[0].send(now, (3, 4), SendOperation::Send, SendFlags::SIGNALED, &segments);
    world.run();
    let [recording, _] = world.recordings(0);
    let text = write_to_string(&Trace::new([recording]), Trace::write_report);
    assert_lines(
        &text,
        &[
            "Timed out: soft0 qp 0x8eec67 send #0 (SEND)\n  work request id: 0x3\n",
            "  acknowledged:    nothing since PSN 100\n",
            "  timeouts:        1, at ",
        ],
    );
}
