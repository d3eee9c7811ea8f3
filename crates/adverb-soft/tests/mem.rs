//! The in-memory switch.

#![cfg(target_os = "linux")]

mod support;

use adverb_proto::IcrcCheck;
use adverb_soft::link::{Link, Switch, SwitchConfig};

use support::{Packet, address, drain, is_readable, packet};

#[test]
fn packets_arrive_at_their_destination_in_order() {
    let switch = Switch::new(SwitchConfig::default());
    let mut ends = [1, 2, 3].map(|host| switch.attach(address(host)).unwrap());
    let packets = [packet(1, 2, b"a"), packet(1, 3, b"bb"), packet(1, 3, b""), packet(1, 2, b"ccc")];
    assert_eq!(ends[0].send(&packets).unwrap(), 4);
    assert_eq!(drain(&mut ends[1]), [Packet::from(&packets[0]), Packet::from(&packets[3])]);
    assert_eq!(drain(&mut ends[2]), [Packet::from(&packets[1]), Packet::from(&packets[2])]);
    assert_eq!(drain(&mut ends[0]), []);
}

#[test]
fn a_device_receives_packets_to_itself() {
    let switch = Switch::new(SwitchConfig { icrc: IcrcCheck::IpId(0), ..SwitchConfig::default() });
    let mut end = switch.attach(address(1)).unwrap();
    end.send(&[packet(1, 1, b"self")]).unwrap();
    let got = drain(&mut end);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].icrc, Some(IcrcCheck::IpId(0)));
}

#[test]
fn the_descriptor_is_readable_until_all_packets_are_received() {
    let switch = Switch::new(SwitchConfig::default());
    let mut here = switch.attach(address(1)).unwrap();
    let mut there = switch.attach(address(2)).unwrap();
    for _ in 0..3 {
        assert!(!is_readable(&there));
        here.send(&[packet(1, 2, b"x"), packet(1, 2, b"y")]).unwrap();
        here.send(&[packet(1, 2, b"z")]).unwrap();
        assert!(is_readable(&there));
        assert_eq!(drain(&mut there).len(), 3);
    }
    assert!(!is_readable(&there));
}

#[test]
fn the_descriptor_is_readable_only_while_wake_interest_is_enabled() {
    let switch = Switch::new(SwitchConfig::default());
    let mut here = switch.attach(address(1)).unwrap();
    let mut there = switch.attach(address(2)).unwrap();
    there.set_wake_interest(false).unwrap();
    here.send(&[packet(1, 2, b"x")]).unwrap();
    assert!(!is_readable(&there));
    there.set_wake_interest(true).unwrap();
    assert!(is_readable(&there), "an earlier packet does not wake the receiver");
    assert_eq!(drain(&mut there).len(), 1);
    assert!(!is_readable(&there));
    here.send(&[packet(1, 2, b"y")]).unwrap();
    assert!(is_readable(&there));
}

#[test]
fn packets_to_a_full_queue_are_dropped_and_counted() {
    let config = SwitchConfig { max_queued_packets: 3, max_queued_bytes: 10, ..SwitchConfig::default() };
    let switch = Switch::new(config);
    let mut here = switch.attach(address(1)).unwrap();
    let mut there = switch.attach(address(2)).unwrap();
    here.send(&[packet(1, 2, b"a"); 5]).unwrap();
    assert_eq!((drain(&mut there).len(), there.overflowed_packets()), (3, 2));
    here.send(&[packet(1, 2, b"123456"), packet(1, 2, b"12345"), packet(1, 2, b"1234")]).unwrap();
    assert_eq!((drain(&mut there).len(), there.overflowed_packets()), (2, 3));
    assert_eq!(here.overflowed_packets(), 0);
}

#[test]
fn an_address_is_free_after_its_device_is_detached() {
    let switch = Switch::new(SwitchConfig::default());
    let mut here = switch.attach(address(1)).unwrap();
    let there = switch.attach(address(2)).unwrap();
    assert_eq!(switch.attach(address(2)).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    here.send(&[packet(1, 2, b"before")]).unwrap();
    drop(there);
    here.send(&[packet(1, 2, b"between"), packet(1, 9, b"nowhere")]).unwrap();
    assert_eq!(here.unreachable_packets(), 2);
    let mut there = switch.attach(address(2)).unwrap();
    here.send(&[packet(1, 2, b"after")]).unwrap();
    assert_eq!(drain(&mut there), [Packet::from(&packet(1, 2, b"after"))]);
}

#[test]
fn several_threads_send_to_one_device_at_once() {
    let switch = Switch::new(SwitchConfig { max_queued_packets: 100_000, ..SwitchConfig::default() });
    let mut sink = switch.attach(address(1)).unwrap();
    let mut counts = [0_u32; 4];
    std::thread::scope(|scope| {
        for host in 2..6 {
            let mut link = switch.attach(address(host)).unwrap();
            scope.spawn(move || {
                for number in 0..5000_u32 {
                    link.send(&[packet(host, 1, &number.to_le_bytes())]).unwrap();
                }
            });
        }
        let mut total = 0;
        while total < 20_000 {
            support::wait(&sink);
            total += sink
                .receive(usize::MAX, &mut |packet| {
                    let count = &mut counts[support::host(packet.source.ip()) as usize - 2];
                    assert_eq!(packet.bytes, count.to_le_bytes());
                    *count += 1;
                })
                .unwrap();
        }
    });
    assert_eq!(counts, [5000; 4]);
    assert_eq!(sink.overflowed_packets(), 0);
}

#[test]
fn receive_passes_at_most_max_packets_and_loses_none() {
    let switch = Switch::new(SwitchConfig::default());
    let [mut here, mut there] = [1, 2].map(|host| switch.attach(address(host)).unwrap());
    let bytes: Vec<u8> = (0..100).collect();
    let packets: Vec<_> = bytes.chunks(1).map(|bytes| packet(1, 2, bytes)).collect();
    assert_eq!(here.send(&packets).unwrap(), 100);
    let mut got = Vec::new();
    for max in [1, 7, 30].into_iter().cycle() {
        let before = got.len();
        let count = there.receive(max, &mut |packet| got.extend_from_slice(packet.bytes)).unwrap();
        assert!(count == got.len() - before && count <= max, "{count} packets of {max}");
        if count == 0 {
            break;
        }
        assert_eq!(there.deadline().is_some(), got.len() < 100);
    }
    assert_eq!(got, bytes);
}
