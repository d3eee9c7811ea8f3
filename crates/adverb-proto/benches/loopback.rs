//! The cost of a request, in the memory of one process and on one core. The figures of long WRITEs and of many
//! connections have a baseline from the same run.
//!
//! `cargo bench -p adverb-proto`

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use adverb_proto::memory::{HeapMemory, Memory, Registration, RemoteInvalidate, StorageId};
use adverb_proto::types::{Access, PathMtu, RemoteAddress, Segment, SendFlags, SendOperation, SendRequest};
use adverb_proto::{
    Cq, Device, IcrcCheck, Init, Path, Payload, QpConfig, ReadyToReceive, ReadyToSend, RxMeta, Time,
    Transition,
};
use adverb_wire::cm::Timeout;
use adverb_wire::{MAX_HEADER_LEN, Packet, Psn, Qpn, RnrTimer};

/// An allocator that counts allocations.
struct CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed unchanged to the system's allocator, and counting accesses no allocated memory.
unsafe impl GlobalAlloc for CountingAllocator {
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
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BASE: u64 = 0x10_0000;
const SIZE: usize = 1 << 20;
/// The number of requests posted before their packets are transferred.
const BATCH: usize = 32;

/// The form in which packets are transferred from one device to the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Transfer {
    /// As headers and payload spans: the payload is copied only to its destination.
    Split,
    /// As bytes, without an ICRC.
    Bytes,
    /// As bytes, with an ICRC that is computed and checked.
    Checked,
}

/// A device and its memory.
struct Node {
    device: Device,
    memory: HeapMemory,
    storage: StorageId,
    key: u32,
    cq: Cq,
    qpns: Vec<Qpn>,
    address: IpAddr,
}

/// Two devices, whose queue pairs are connected in order.
struct Loopback {
    nodes: [Node; 2],
    transfer: Transfer,
    /// The packets in flight, one after the other.
    packets: Vec<u8>,
    ends: Vec<usize>,
    time: u64,
}

impl Loopback {
    fn new(pairs: usize, transfer: Transfer) -> Loopback {
        let mut state = 1u64;
        let mut random = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mut nodes = [1, 2].map(|host| {
            let mut device = Device::new(());
            let mut memory = HeapMemory::default();
            let pd = device.create_domain();
            let cq = device.create_cq(1 << 20);
            let storage = memory.add(vec![host; SIZE]);
            let registration = Registration {
                addr: BASE,
                length: SIZE as u64,
                access,
                storage,
                remote_invalidate: RemoteInvalidate::Denied,
            };
            let key = device.register(pd, registration, &mut random).unwrap();
            let config = QpConfig::rc(pd, cq, cq);
            let qpns = (0..pairs).map(|_| device.create_qp(config, &mut random).unwrap()).collect();
            let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, host));
            Node { device, memory, storage, key, cq, qpns, address }
        });
        for index in 0..2 {
            let (remote, peers) = (nodes[1 - index].address, nodes[1 - index].qpns.clone());
            let node = &mut nodes[index];
            for (qpn, remote_qpn) in node.qpns.iter().zip(peers) {
                let ready_to_receive = ReadyToReceive {
                    remote_qpn,
                    path: Path::new(node.address, remote, 0xc000).unwrap(),
                    path_mtu: PathMtu::Mtu4096,
                    psn: Psn::ZERO,
                    max_dest_rd_atomic: 16,
                    min_rnr_timer: RnrTimer::new(1).unwrap(),
                };
                let ready_to_send = ReadyToSend {
                    psn: Psn::ZERO,
                    timeout: Timeout::new(14).unwrap(),
                    retry_count: 6,
                    rnr_retry: 6,
                    max_rd_atomic: 16,
                };
                for transition in [
                    Transition::Init(Init::new(access)),
                    Transition::ReadyToReceive(ready_to_receive),
                    Transition::ReadyToSend(ready_to_send),
                ] {
                    node.device.modify_qp(Time::ZERO, *qpn, &transition).unwrap();
                }
            }
        }
        Loopback { nodes, transfer, packets: Vec::new(), ends: Vec::new(), time: 0 }
    }

    /// Posts a batch on one queue pair, transfers all packets, and polls all completions.
    fn round(&mut self, qp: usize, length: u32, signal_every: usize) -> usize {
        self.time += 1000;
        let now = Time::from_nanos(self.time);
        let rkey = self.nodes[1].key;
        let node = &mut self.nodes[0];
        for index in 0..BATCH {
            let offset = index as u64 * u64::from(length);
            let request = SendRequest::<()> {
                wr_id: index as u64,
                tag: 0,
                operation: SendOperation::Write(RemoteAddress { addr: BASE + offset, rkey }),
                flags: if (index + 1) % signal_every == 0 { SendFlags::SIGNALED } else { SendFlags::empty() },
                segments: &[Segment { addr: BASE + offset, length, lkey: node.key }],
                destination: None,
            };
            node.device.post_send(now, node.qpns[qp], &request).unwrap();
        }
        while self.transfer_packets(now, 0) | self.transfer_packets(now, 1) {}
        let mut completions = 0;
        let node = &mut self.nodes[0];
        while let Some(completion) = node.device.poll_completion(node.cq) {
            assert!(completion.outcome.is_ok());
            completions += 1;
        }
        completions
    }

    /// Transfers all packets of one device to the other. Returns whether there were any.
    fn transfer_packets(&mut self, now: Time, from: usize) -> bool {
        let [a, b] = &mut self.nodes;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let icrc = if self.transfer == Transfer::Checked { IcrcCheck::IpId(0) } else { IcrcCheck::Trusted };
        let source = SocketAddr::new(from.address, 0xc000);
        let rx_meta = RxMeta {
            source,
            destination: (to.address, 4791).into(),
            icrc,
            is_ecn_marked: false,
            route: Default::default(),
            received_at: None,
        };
        let mut any = false;
        self.packets.clear();
        self.ends.clear();
        while let Some(transmit) = from.device.poll_transmit(now) {
            any = true;
            match self.transfer {
                Transfer::Split => {
                    let payload = match transmit.payload {
                        Payload::Spans([span]) => {
                            let start = span.offset as usize;
                            &from.memory.bytes(span.storage)[start..start + span.length as usize]
                        }
                        _ => &[],
                    };
                    to.device.handle_split_packet(now, &rx_meta, &transmit.header, payload, &mut to.memory);
                }
                Transfer::Bytes => write_without_icrc(&transmit, &from.memory, &mut self.packets),
                Transfer::Checked => transmit.write_to(&from.memory, 0, &mut self.packets).unwrap(),
            }
            self.ends.push(self.packets.len());
        }
        if self.transfer != Transfer::Split {
            let mut start = 0;
            for end in &self.ends {
                let packet = Packet::parse(&self.packets[start..*end]).unwrap();
                to.device.handle_packet(now, &rx_meta, &packet, &mut to.memory);
                start = *end;
            }
        }
        any
    }
}

/// Writes headers, payload, padding, and zeros instead of an ICRC.
fn write_without_icrc(transmit: &adverb_proto::Transmit<'_>, memory: &HeapMemory, packets: &mut Vec<u8>) {
    let length = transmit.payload.len();
    let mut head = [0; MAX_HEADER_LEN];
    let header_len = transmit.header.emit(length, &mut head);
    packets.extend_from_slice(&head[..header_len]);
    if let Payload::Spans([span]) = transmit.payload {
        let start = packets.len();
        packets.resize(start + length, 0);
        memory.read(*span, &mut packets[start..]).unwrap();
    } else {
        transmit.payload.gather(memory, packets).unwrap();
    }
    packets.extend_from_slice(&[0; 8][..4 + (length.wrapping_neg() & 3)]);
}

/// Returns the nanoseconds per request: the tenth percentile of many short runs, because a run that another process
/// interrupts is not representative.
fn measure(runs: usize, mut round: impl FnMut()) -> f64 {
    let mut nanos: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                round();
            }
            start.elapsed().as_nanos() as f64 / (ROUNDS * BATCH) as f64
        })
        .collect();
    nanos.sort_unstable_by(f64::total_cmp);
    nanos[runs / 10]
}

/// The number of rounds in a run, so that a run of 8-byte WRITEs takes a few tenths of a millisecond.
const ROUNDS: usize = 50;

/// Runs a number of rounds of small WRITEs, for counting instructions.
fn run_small_writes(rounds: usize) {
    let mut small = Loopback::new(1, Transfer::Split);
    for _ in 0..rounds {
        assert_eq!(small.round(0, 8, 1), BATCH);
    }
}

fn main() {
    let mut words = std::env::args().skip_while(|word| word != "--rounds").skip(1);
    if let Some(rounds) = words.next() {
        return run_small_writes(rounds.parse().expect("a number of rounds"));
    }
    let runs = if std::env::args().any(|arg| arg == "--test") { 2 } else { 1000 };

    for transfer in [Transfer::Split, Transfer::Bytes, Transfer::Checked] {
        let mut small = Loopback::new(1, transfer);
        small.round(0, 8, 1);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let nanos = measure(runs, || {
            assert_eq!(small.round(0, 8, 1), BATCH);
        });
        // The measurements are stored in one vector.
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before - 1;
        println!(
            "8-byte WRITE, {transfer:?}: {nanos:.1} ns each, {:.2} M/s; {allocations} allocations in {} requests",
            1000.0 / nanos,
            runs * ROUNDS * BATCH
        );
    }

    // The baseline is one copy of the same bytes in memory.
    let (from, mut to) = (vec![7u8; SIZE], vec![8u8; SIZE]);
    let copy = measure(runs, || {
        for index in 0..BATCH {
            let range = index * 4096..(index + 1) * 4096;
            to[range.clone()].copy_from_slice(&from[range]);
        }
        black_box(&mut to);
    });
    for transfer in [Transfer::Split, Transfer::Bytes, Transfer::Checked] {
        let mut large = Loopback::new(1, transfer);
        let nanos = measure(runs, || {
            large.round(0, 4096, 1);
        });
        assert_eq!(large.nodes[1].memory.bytes(large.nodes[1].storage)[0], 1, "the bytes were written");
        println!(
            "4 KiB WRITE, {transfer:?}: {nanos:.1} ns each, {:.2} GB/s, {:.0} % of memcpy ({copy:.1} ns)",
            4096.0 / nanos,
            100.0 * copy / nanos
        );
    }

    let mut costs = Vec::new();
    for pairs in [10, 10_000, 100_000] {
        let mut many = Loopback::new(pairs, Transfer::Split);
        // The rings grow in the first rounds.
        for qp in 0..if runs < 100 { 2 } else { pairs } {
            many.round(qp, 8, 1);
        }
        let mut qp = 0;
        let nanos = measure(runs, || {
            qp = (qp + 7919) % pairs;
            many.round(qp, 8, 1);
        });
        costs.push(nanos);
        println!(
            "8-byte WRITE in batches of {BATCH} over {pairs} connections: {nanos:.1} ns each, {:.2} times the cost with 10",
            nanos / costs[0]
        );
    }
}
