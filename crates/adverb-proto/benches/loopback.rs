//! What a request costs, in one device's memory and on one core; each figure beside a baseline of the same run.
//!
//! `cargo bench -p adverb-proto`

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use adverb_proto::memory::{Backing, HeapMemory, Memory, Registration, RemoteInvalidate};
use adverb_proto::vocabulary::{
    Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest,
};
use adverb_proto::{
    Arrival, Cq, Device, IcrcCheck, Init, Path, Payload, QpConfig, Receiving, Sending, Time, Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::{MAX_HEADER_LEN, Packet, Psn, Qpn, RnrTimer};

/// Counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 20;
/// Requests posted before the packets go round.
const BATCH: usize = 32;

/// A device whose queue pairs are connected in pairs to each other.
struct Loop {
    device: Device,
    memory: HeapMemory,
    backing: Backing,
    key: u32,
    cq: Cq,
    qpns: Vec<Qpn>,
    /// Packets under way: one buffer after the other.
    wire: Vec<u8>,
    ends: Vec<usize>,
    icrc: bool,
    time: u64,
}

impl Loop {
    fn new(pairs: usize, icrc: bool) -> Loop {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let mut device = Device::new(());
        let mut memory = HeapMemory::default();
        let pd = device.create_domain();
        let cq = device.create_cq(1 << 20);
        let backing = memory.add(vec![7; SIZE]);
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let registration = Registration {
            addr: BASE,
            length: SIZE as u64,
            access,
            backing,
            remote_invalidate: RemoteInvalidate::Denied,
        };
        let key = device.register(pd, registration, &mut random).unwrap();
        let qpns: Vec<Qpn> = (0..2 * pairs)
            .map(|_| device.create_qp(QpConfig::rc(pd, cq, cq), &mut random).unwrap())
            .collect();
        for (index, qpn) in qpns.iter().enumerate() {
            let receiving = Receiving {
                remote_qpn: qpns[index ^ 1],
                path: Path::new(ADDRESS, ADDRESS, 0xc000).unwrap(),
                path_mtu: PathMtu::Mtu4096,
                psn: Psn::ZERO,
                max_dest_rd_atomic: 16,
                min_rnr_timer: RnrTimer::new(1).unwrap(),
            };
            let sending = Sending {
                psn: Psn::ZERO,
                timeout: Timeout::new(14).unwrap(),
                retry_count: 6,
                rnr_retry: 6,
                max_rd_atomic: 16,
            };
            for transition in [
                Transition::Init(Init::new(access)),
                Transition::ReadyToReceive(receiving),
                Transition::ReadyToSend(sending),
            ] {
                device.modify_qp(Time::ZERO, *qpn, &transition).unwrap();
            }
        }
        Loop { device, memory, backing, key, cq, qpns, wire: Vec::new(), ends: Vec::new(), icrc, time: 0 }
    }

    /// Posts a batch on one queue pair, carries all packets, and takes all completions.
    fn round(&mut self, qp: usize, length: u32, signal_every: usize) -> usize {
        self.time += 1000;
        let now = Time::from_nanos(self.time);
        for index in 0..BATCH {
            let request = SendRequest::<()> {
                wr_id: index as u64,
                operation: SendOperation::Write(RemoteAddress {
                    addr: BASE + (SIZE / 2) as u64 + (index as u64) * u64::from(length),
                    rkey: self.key,
                }),
                flags: if (index + 1) % signal_every == 0 { SendFlags::SIGNALED } else { SendFlags::empty() },
                segments: &[Segment {
                    addr: BASE + (index as u64) * u64::from(length),
                    length,
                    lkey: self.key,
                }],
                destination: None,
            };
            self.device.post_send(now, self.qpns[qp], &request).unwrap();
        }
        let icrc = if self.icrc { IcrcCheck::Identification(0) } else { IcrcCheck::Trusted };
        let arrival = Arrival { source: SocketAddr::new(ADDRESS, 0xc000), destination: ADDRESS, icrc };
        loop {
            self.wire.clear();
            self.ends.clear();
            while let Some(transmit) = self.device.poll_transmit(now) {
                if self.icrc {
                    transmit.write_to(&self.memory, 0, &mut self.wire).unwrap();
                } else {
                    write_without_icrc(&transmit, &self.memory, &mut self.wire);
                }
                self.ends.push(self.wire.len());
            }
            if self.ends.is_empty() {
                break;
            }
            let mut start = 0;
            for end in &self.ends {
                let packet = Packet::parse(&self.wire[start..*end]).unwrap();
                self.device.handle_packet(now, &arrival, &packet, &mut self.memory);
                start = *end;
            }
        }
        let mut completions = 0;
        while let Some(completion) = self.device.poll_completion(self.cq) {
            assert!(completion.outcome.is_ok());
            completions += 1;
        }
        completions
    }
}

/// Headers, payload, padding, and zeros in place of an ICRC.
fn write_without_icrc(transmit: &adverb_proto::Transmit<'_>, memory: &HeapMemory, wire: &mut Vec<u8>) {
    let length = transmit.payload.len();
    let mut head = [0; MAX_HEADER_LEN];
    let header_len = transmit.header.emit(length, &mut head);
    wire.extend_from_slice(&head[..header_len]);
    if let Payload::Spans([span]) = transmit.payload {
        let start = wire.len();
        wire.resize(start + length, 0);
        memory.read(*span, &mut wire[start..]).unwrap();
    } else {
        transmit.payload.gather(memory, wire).unwrap();
    }
    wire.extend_from_slice(&[0; 8][..4 + (length.wrapping_neg() & 3)]);
}

/// Nanoseconds per request, the best of several runs: others use the machine too.
fn measure(rounds: usize, mut round: impl FnMut(usize)) -> f64 {
    (0..7)
        .map(|_| {
            let start = Instant::now();
            for index in 0..rounds {
                round(index);
            }
            start.elapsed().as_nanos() as f64 / (rounds * BATCH) as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn main() {
    let rounds = if std::env::args().any(|arg| arg == "--test") { 10 } else { 4000 };

    for signal_every in [1, BATCH] {
        let mut small = Loop::new(1, false);
        small.round(0, 8, signal_every);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let nanos = measure(rounds, |_| {
            assert_eq!(small.round(0, 8, signal_every), BATCH / signal_every);
        });
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        println!(
            "8-byte WRITE, one completion per {signal_every}: {nanos:.1} ns each, {:.2} M/s, {} allocations in {} requests",
            1000.0 / nanos,
            allocations,
            7 * rounds * BATCH
        );
    }
    let mut small = Loop::new(1, true);
    let nanos = measure(rounds, |_| {
        small.round(0, 8, 1);
    });
    println!("8-byte WRITE with ICRC: {nanos:.1} ns each, {:.2} M/s", 1000.0 / nanos);

    // The same bytes, copied once from the first half to the second.
    let mut bytes = vec![7u8; SIZE];
    let copy = measure(rounds / 4 + 1, |_| {
        let (from, to) = bytes.split_at_mut(SIZE / 2);
        for index in 0..BATCH {
            let range = index * 4096..(index + 1) * 4096;
            to[range.clone()].copy_from_slice(&from[range]);
        }
        black_box(&mut bytes);
    });
    for icrc in [false, true] {
        let mut large = Loop::new(1, icrc);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let nanos = measure(rounds / 4 + 1, |_| {
            large.round(0, 4096, 1);
        });
        black_box(large.memory.bytes(large.backing));
        let _ = before;
        println!(
            "4 KiB WRITE {} ICRC: {nanos:.1} ns each, {:.2} GB/s, {:.0} % of memcpy ({copy:.1} ns)",
            if icrc { "with" } else { "without" },
            4096.0 / nanos,
            100.0 * copy / nanos
        );
    }

    let mut costs = Vec::new();
    for pairs in [5, 5000, 50_000] {
        let mut many = Loop::new(pairs, false);
        // Rings grow in the first rounds.
        let warm = if rounds < 100 { 2 } else { 2 * pairs };
        for qp in 0..warm {
            many.round(qp, 8, 1);
        }
        let mut qp = 0;
        let nanos = measure(rounds, |_| {
            qp = (qp + 7919) % (2 * pairs);
            many.round(qp, 8, 1);
        });
        costs.push(nanos);
        println!(
            "8-byte WRITE in batches of {BATCH} over {} queue pairs: {nanos:.1} ns each, {:.2} times the cost with 10",
            2 * pairs,
            nanos / costs[0]
        );
    }
}
