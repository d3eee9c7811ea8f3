//! Arbitrary packets to unreliable connections, datagram queue pairs, shared receive queues and windows.

use adverb_proto::types::{
    Access, QpState, Qpn, RecvRequest, SendFlags, SendOperation, Transport, WindowBind,
};
use adverb_proto::{IcrcCheck, RxMeta, TraceEvent, Transition};
use adverb_wire::{Header, Operation, Psn, Rc, Reth, Send, Uc, Ud, Write};

use crate::harness::{ADDR, End, Options, PSN, QKEY, Random, SIZE, pattern, solo_with};

fn operation(random: &mut Random, keys: &[u32]) -> Operation {
    let number = random.next() as u32;
    let immediate = if random.below(2) == 0 { None } else { Some(number) };
    let key = random.pick(keys);
    let key = random.pick(&[key, key, key ^ 1, number]);
    let reth = Reth {
        va: ADDR.wrapping_add(random.pick(&[0, 4095, 4096, 6143, 6144, SIZE - 1, SIZE, u64::MAX])),
        rkey: key,
        length: random.pick(&[0, 1, 8, 1024, 1025, 2048, 3000, 1 << 31, u32::MAX]),
    };
    match random.below(12) {
        0 => Operation::Uc(Uc::Send(Send::First)),
        1 => Operation::Uc(Uc::Send(Send::Middle)),
        2 => Operation::Uc(Uc::Send(Send::Last(immediate))),
        3 => Operation::Uc(Uc::Send(Send::Only(immediate))),
        4 => Operation::Uc(Uc::Write(Write::First(reth))),
        5 => Operation::Uc(Uc::Write(Write::Middle)),
        6 => Operation::Uc(Uc::Write(Write::Last(immediate))),
        7 => Operation::Uc(Uc::Write(Write::Only(reth, immediate))),
        8 | 9 => {
            let qkey = random.pick(&[QKEY, QKEY, number]);
            Operation::Ud(Ud { qkey, source_qp: Qpn::truncate(number), immediate })
        }
        10 => Operation::Rc(Rc::SendOnlyInvalidate(reth.rkey)),
        _ => Operation::Cnp,
    }
}

/// Delivers `packets` packets with sequence numbers near and far from the expected one, and payloads of various
/// lengths. Keeps receives posted, and discards packets to send, completions and events.
fn attack(end: &mut End, seed: u64, packets: u64, keys: &[u32]) {
    let mut random = Random(seed | 1);
    let payload = pattern(5000, 9);
    let rx_meta = RxMeta { icrc: IcrcCheck::Trusted, ..end.rx_meta() };
    for _ in 0..packets {
        let expected = end.device.query_qp(end.qpn).map_or(Psn::wrapping(PSN), |status| status.expected_psn);
        let psn = match random.below(4) {
            0 | 1 => expected,
            2 => expected + random.below(4) as u32,
            _ => Psn::wrapping(random.next() as u32),
        };
        let dest = random.pick(&[end.qpn, end.qpn, end.qpn, Qpn::MULTICAST, Qpn::truncate(5)]);
        let operation = operation(&mut random, keys);
        let length = match operation {
            Operation::Uc(Uc::Write(Write::Only(reth, _))) if reth.length <= 1024 && random.below(4) != 0 => {
                reth.length as usize
            }
            _ => random.pick(&[0, 1, 8, 476, 1024, 1024, 1024, 1028, 4096, 5000]),
        };
        let header = Header { solicited: random.below(2) == 0, ..Header::new(dest, psn, operation) };
        end.device.handle_split_packet(end.now, &rx_meta, &header, &payload[..length], &mut end.memory);
        let left = end.device.query_qp(end.qpn).map_or(0, |status| status.recv_queue_len);
        if left < 4 && end.srq.is_none() {
            let segments = [end.segment(0, random.pick(&[40, 64, 2048]))];
            let request = RecvRequest { wr_id: 1, tag: 0, segments: &segments };
            let _ = end.device.post_recv(end.now, end.qpn, &request);
        }
        if end.srq.is_some() && end.shared_queue_len() < 4 {
            end.post_shared(1, 0, random.pick(&[10, 64, 2048]));
        }
        end.transmits();
        end.completions();
        end.queue_events();
        end.device.sink_mut().clear();
    }
}

#[test]
fn unreliable_connection_tolerates_any_packets_and_never_responds() {
    for seed in 0..20 {
        let mut end = solo_with(&Options { transport: Transport::Uc, ..Options::default() });
        let key = end.key;
        attack(&mut end, 0x1234_5678 + seed, 2000, &[key]);
        assert_eq!(end.state(), QpState::ReadyToSend, "a peer can't move the queue pair to the error state");
        assert_eq!(end.device.statistics().packets_sent, 0);
    }
}

#[test]
fn datagram_queue_pair_tolerates_any_packets() {
    for seed in 0..20 {
        let mut end = solo_with(&Options { transport: Transport::Ud, ..Options::default() });
        let key = end.key;
        attack(&mut end, 0x8765_4321 + seed, 2000, &[key]);
        assert_eq!(end.state(), QpState::ReadyToSend);
        assert_eq!(end.device.statistics().packets_sent, 0);
    }
}

#[test]
fn shared_receives_are_neither_lost_nor_duplicated_by_any_packets() {
    for transport in [Transport::Uc, Transport::Ud] {
        for seed in 0..10 {
            let mut end = solo_with(&Options { transport, shared: true, ..Options::default() });
            let key = end.key;
            attack(&mut end, 0x1357_9bdf + seed, 2000, &[key]);
            let in_use = end.device.query_qp(end.qpn).unwrap().recv_queue_len;
            assert!(in_use <= 1);
            let before = end.shared_queue_len();
            end.modify(Transition::Reset);
            assert_eq!(end.shared_queue_len(), before + in_use);
        }
    }
}

#[test]
fn no_packet_exceeds_the_bounds_of_a_window() {
    let mut written = 0;
    for seed in 0..20 {
        let mut end = solo_with(&Options { transport: Transport::Uc, ..Options::default() });
        let region = end.register(Access::LOCAL_WRITE | Access::WINDOW_BIND);
        let random = end.rng();
        let window = end.device.create_window(end.pd, random).unwrap();
        let rkey = window ^ 1;
        let access = Access::REMOTE_WRITE;
        let bind = WindowBind { rkey, lkey: region, addr: ADDR + 4096, length: 2048, access };
        end.try_post(1, SendOperation::BindWindow(bind), SendFlags::SIGNALED, &[]).unwrap();
        end.transmits();
        end.completions();
        let before = end.memory.bytes(end.storage).to_vec();
        // The receive buffers are within the first 2048 bytes.
        attack(&mut end, 0x0bad_cafe + seed, 2000, &[rkey, region, window]);
        let after = end.memory.bytes(end.storage);
        assert!(before[2048..4096] == after[2048..4096], "bytes before the window are unchanged");
        assert!(before[6144..] == after[6144..], "bytes after the window are unchanged");
        written += u32::from(before[4096..6144] != after[4096..6144]);
    }
    assert!(written > 10, "only {written} of 20 windows were written, too few for this test");
}

#[test]
fn dropped_packets_generate_events() {
    let mut end = solo_with(&Options { transport: Transport::Uc, ..Options::default() });
    end.receive_uc(0, Uc::Send(Send::Only(None)), b"x");
    let is_drop = |(_, event): &(adverb_proto::Time, TraceEvent)| matches!(event, TraceEvent::Dropped { .. });
    assert!(end.device.sink().iter().any(is_drop));
    assert_eq!(end.device.statistics().packets_dropped, 1);
}
