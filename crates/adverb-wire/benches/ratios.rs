//! The cost of the wire format: of the ICRC, compared with bare `crc32fast` in the same run, and of parsing.
//!
//! The compared functions alternate in many short rounds, and the median round counts, so other programs on the
//! machine slow all functions alike. Run with `cargo bench -p adverb-wire`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use adverb_wire::{
    CompareSwap, Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, Qpn, Rc, Reth, Send, Ud, Write,
};

const ROUNDS: usize = 101;
const ROUND_DURATION: Duration = Duration::from_micros(500);

fn main() {
    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    println!("ICRC of a SEND, compared with crc32fast over the same bytes (IP and UDP headers included)");
    println!(
        "{:>8} {:>12} {:>12} {:>7} {:>12} {:>8} {:>12}",
        "payload", "crc32fast", "verify", "ratio", "recover", "adds", "emit"
    );
    for payload_len in [0, 64, 256, 1024, 4096] {
        measure_icrc(&flow, payload_len);
    }
    println!();
    println!("Parsing a packet with its headers");
    measure_parsing();
}

fn measure_icrc(flow: &Flow, payload_len: usize) {
    let header = header(Rc::Send(Send::Only(None)));
    let payload = vec![0x5a; payload_len];
    let bytes = emit(flow, &header, 0x1234, &payload);
    let packet = Packet::parse(&bytes).expect("a packet");
    assert_eq!(flow.recover_ip_id(&packet), Ok(0x1234));
    // The ICRC covers eight bytes of ones, 20 of IPv4 and 8 of UDP before the packet, but not itself.
    let covered = vec![0x5a; 8 + 20 + 8 + bytes.len() - 4];

    let mut head = [0; MAX_HEADER_LEN];
    let [bare, verify, recover, emit] = measure_alternating([
        &mut || _ = black_box(crc32fast::hash(black_box(&covered))),
        &mut || _ = black_box(black_box(flow).verify(black_box(&packet), 0x1234)),
        &mut || _ = black_box(black_box(flow).recover_ip_id(black_box(&packet))),
        &mut || _ = black_box(black_box(flow).emit(&header, 0, &[black_box(&payload)], &mut head)),
    ]);
    println!(
        "{payload_len:>8} {bare:>9.1} ns {verify:>9.1} ns {:>6.2}x {recover:>9.1} ns {:>5.1} ns {emit:>9.1} ns",
        verify / bare,
        recover - verify,
    );
}

fn measure_parsing() {
    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let reth = Reth { va: 0x1000, rkey: 7, length: 64 };
    let swap = CompareSwap { va: 0x1000, rkey: 7, swap: 1, compare: 2 };
    let datagram = Ud { qkey: 1, source_qp: Qpn::truncate(5), immediate: None };
    let headers = [
        header(Rc::Send(Send::Only(None))),
        header(Rc::Write(Write::Only(reth, Some(1)))),
        header(Rc::CompareSwap(swap)),
        Header::new(Qpn::truncate(7), Psn::ZERO, Operation::Ud(datagram)),
    ];
    let packets = headers.map(|header| {
        let payload: &[u8] =
            if matches!(header.operation, Operation::Rc(Rc::CompareSwap(_))) { &[] } else { &[0; 64] };
        emit(&flow, &header, 0, payload)
    });
    for (header, bytes) in headers.iter().zip(&packets) {
        let [parse] = measure_alternating([&mut || _ = black_box(&Packet::parse(black_box(bytes)))]);
        println!("{:>24} {parse:>9.1} ns", header.opcode().name());
    }
    // The branch predictor learns a single opcode too well, so this measurement mixes four.
    let mix: Vec<&Vec<u8>> =
        (0..4096u32).map(|n| &packets[(n.wrapping_mul(0x9e37_79b9) >> 30) as usize]).collect();
    let mut next = 0;
    let [parse] = measure_alternating([&mut || {
        next = (next + 1) % mix.len();
        _ = black_box(&Packet::parse(black_box(mix[next])));
    }]);
    println!("{:>24} {parse:>9.1} ns", "all four mixed");
}

fn header(operation: Rc) -> Header {
    Header::new(Qpn::truncate(7), Psn::ZERO, Operation::Rc(operation))
}

fn emit(flow: &Flow, header: &Header, ip_id: u16, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(header, ip_id, &[payload], &mut head).expect("it fits");
    [&head[..emitted.header_len], payload, &emitted.trailer].concat()
}

/// Returns the nanoseconds per call of each function: the median of many rounds, in which the functions alternate.
fn measure_alternating<const N: usize>(mut functions: [&mut dyn FnMut(); N]) -> [f64; N] {
    let calls = functions.each_mut().map(|function| {
        let (start, mut calls) = (Instant::now(), 0u32);
        while start.elapsed() < ROUND_DURATION {
            (0..100).for_each(|_| function());
            calls += 100;
        }
        calls
    });
    let mut rounds = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for ((function, calls), times) in functions.iter_mut().zip(calls).zip(&mut rounds) {
            let start = Instant::now();
            (0..calls).for_each(|_| function());
            times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(calls));
        }
    }
    rounds.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[ROUNDS / 2]
    })
}
