//! Exhaustive tests: every opcode and length, every IP ID, and millions of corrupt packets.
//!
//! The longest tests run only with `cargo xtask exhaustive`, which optimizes; a plain `cargo test` ignores them, and tests
//! a sample of IP IDs and lengths.

use adverb_wire::{
    Flow, Header, ICRC_LEN, MAX_HEADER_LEN, Opcode, Operation, Packet, ParseError, Psn, Qpn, Rc, Send,
    Syndrome,
};

use adverb_wire::random::SplitMix64;

/// The maximum tested length of headers and payload: each opcode has a payload in some packets, because no headers are
/// longer than `MAX_HEADER_LEN`.
const MAX_TESTED_LEN: usize = MAX_HEADER_LEN + 8;

#[test]
fn every_opcode_pad_count_and_length_parses_within_bounds_or_is_rejected() {
    let mut random = SplitMix64(1);
    let (mut parsed, mut rejected) = (0u32, 0u32);
    for opcode in 0..=255 {
        for pad in 0..4 {
            for len in 0..=MAX_TESTED_LEN + ICRC_LEN + 4 {
                // The bodies are all zeros, all ones, or random.
                for body in 0..18 {
                    let mut bytes = vec![0; len];
                    match body {
                        0 => {}
                        1 => bytes.fill(0xff),
                        _ => random.fill(&mut bytes),
                    }
                    if let [first, flags, ..] = &mut bytes[..] {
                        *first = opcode;
                        *flags = *flags & 0xc0 | pad << 4;
                    }
                    match check(&bytes) {
                        Ok(()) => parsed += 1,
                        Err(_) => rejected += 1,
                    }
                }
            }
        }
    }
    println!("{parsed} packets parsed, {rejected} rejected, none out of bounds");
    assert!(parsed > 10_000, "too few packets parsed: {parsed}");
}

#[test]
fn every_header_version_but_0_is_rejected() {
    for opcode in Opcode::ALL {
        for version in 1..16 {
            let mut bytes = [0; 64];
            bytes[0] = opcode.byte();
            bytes[1] = version;
            assert_eq!(Packet::parse(&bytes).unwrap_err(), ParseError::UnknownVersion(version));
        }
    }
}

/// Parses `bytes`, calls every method of the packet, and checks that all its parts lie within `bytes`.
fn check(bytes: &[u8]) -> Result<(), ParseError> {
    let packet = Packet::parse(bytes)?;
    let header_len = packet.header().len();
    let payload = packet.payload();
    assert_eq!(header_len + payload.len() + packet.pad_len() + ICRC_LEN, bytes.len());
    assert!(packet.pad_len() < 4);
    assert_eq!(&bytes[header_len..header_len + payload.len()], payload);
    assert!(packet.opcode().payload_rule().allows(payload.len()));
    assert!(!packet.to_string().is_empty());
    let flow = Flow::v4("10.0.0.1:4791".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let _ = (flow.verify(&packet, 0), flow.recover_ip_id(&packet));
    Ok(())
}

#[test]
#[ignore = "takes minutes: run `cargo xtask exhaustive`"]
fn every_ip_id_is_recovered_at_every_length() {
    assert_ip_ids_recovered(0..=u16::MAX, 4);
}

#[test]
fn a_sample_of_ip_ids_is_recovered_at_a_sample_of_lengths() {
    // Multiples of 257 have two equal bytes, so the sample has every value of each byte.
    assert_ip_ids_recovered((0..=u16::MAX).step_by(257), 4 * 17);
}

/// Checks that [`Flow::recover_ip_id`] recovers each of the IP IDs in datagrams of lengths that are `step` bytes apart.
fn assert_ip_ids_recovered(ip_ids: impl Iterator<Item = u16> + Clone + std::marker::Send, step: usize) {
    let lengths: Vec<usize> = (44..=9000).step_by(step).collect();
    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let halves = lengths.chunks(lengths.len().div_ceil(2));
    let recovered: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = halves
            .map(|half| {
                let ip_ids = ip_ids.clone();
                scope.spawn(move || {
                    let count = |len: &usize| count_recovered(&flow, *len, ip_ids.clone());
                    half.iter().map(count).sum::<usize>()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
    });
    println!("{recovered} IP IDs recovered at {} lengths from 44 to 9000", lengths.len());
    assert_eq!(recovered, lengths.len() * ip_ids.count());
}

/// Counts the IP IDs that [`Flow::recover_ip_id`] recovers in a datagram of `total_len` bytes, including the IPv4
/// header.
fn count_recovered(flow: &Flow, total_len: usize, ip_ids: impl Iterator<Item = u16>) -> usize {
    let header = Header::new(Qpn::truncate(7), Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
    let mut payload = vec![0; total_len - 44];
    SplitMix64(total_len as u64).fill(&mut payload);
    let mut head = [0; MAX_HEADER_LEN];
    let mut bytes = Vec::new();
    ip_ids
        .filter(|ip_id| {
            let emitted = flow.emit(&header, *ip_id, &[&payload], &mut head).expect("a packet that fits");
            if bytes.is_empty() {
                bytes = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
            }
            let icrc_at = bytes.len() - ICRC_LEN;
            bytes[icrc_at..].copy_from_slice(&emitted.trailer);
            let packet = Packet::parse(&bytes).expect("a packet");
            flow.recover_ip_id(&packet) == Ok(*ip_id)
        })
        .count()
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "takes half a minute without optimization: run `cargo xtask exhaustive`"
)]
fn one_corrupt_packet_in_65536_passes_ip_id_recovery_and_none_passes_verify() {
    const PACKETS: u32 = 1 << 24;
    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let header = Header::new(Qpn::truncate(7), Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
    let mut head = [0; MAX_HEADER_LEN];
    let mut random = SplitMix64(2);
    let (mut recovered, mut verified) = (0u32, 0u32);
    for _ in 0..PACKETS / 64 {
        let mut payload = [0; 64];
        random.fill(&mut payload);
        let emitted = flow.emit(&header, 0, &[&payload], &mut head).expect("a packet that fits");
        for at in 0..64 {
            // Eight bytes are corrupted: more than the 32 bits within which a CRC detects every error.
            let mut corrupt = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
            let change = (random.next_u64() | 1).to_le_bytes();
            let at = 12 + at % 57;
            corrupt[at..at + 8].iter_mut().zip(change).for_each(|(byte, change)| *byte ^= change);
            let packet = Packet::parse(&corrupt).expect("only the payload is corrupt");
            recovered += u32::from(flow.recover_ip_id(&packet).is_ok());
            verified += u32::from(flow.verify(&packet, 0).is_ok());
        }
    }
    let expected = PACKETS / 65_536;
    println!(
        "{PACKETS} corrupt packets: recover_ip_id accepted {recovered} (1 in {}; 1 in 65536 expected), \
         verify accepted {verified}",
        PACKETS.checked_div(recovered).unwrap_or(0)
    );
    // Five standard deviations of a Poisson distribution around 256: 80.
    assert!(recovered.abs_diff(expected) < 80, "{recovered} accepted, {expected} expected");
    assert_eq!(verified, 0);
}

#[test]
fn every_flipped_bit_after_the_headers_is_detected() {
    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let header = Header::new(Qpn::truncate(7), Psn::ZERO, Operation::Rc(Rc::Send(Send::Only(None))));
    let payload = [0x5a; 4096];
    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(&header, 0x1234, &[&payload], &mut head).expect("a packet that fits");
    let mut bytes = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
    assert_eq!(flow.recover_ip_id(&Packet::parse(&bytes).expect("a packet")), Ok(0x1234));
    for at in emitted.header_len * 8..bytes.len() * 8 {
        bytes[at / 8] ^= 1 << (at % 8);
        let packet = Packet::parse(&bytes).expect("the headers are whole");
        assert!(flow.recover_ip_id(&packet).is_err(), "bit {at}");
        bytes[at / 8] ^= 1 << (at % 8);
    }
}

#[test]
fn every_psn_distance_from_five_starts_is_correct() {
    for start in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
        let start = Psn::wrapping(start);
        for distance in -0x80_0000i32..0x80_0000 {
            let psn =
                if distance < 0 { start - distance.unsigned_abs() } else { start + distance.unsigned_abs() };
            assert_eq!(psn.since(start), distance);
        }
    }
}

#[test]
fn every_syndrome_prints() {
    for byte in 0..=255 {
        assert!(!Syndrome::from_byte(byte).to_string().is_empty());
    }
}
