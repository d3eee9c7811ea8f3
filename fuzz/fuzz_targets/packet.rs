//! Checks that any bytes parse as a packet or result in an error, and that an emitted packet parses as the same packet.
#![no_main]

use adverb_wire::{Flow, ICRC_LEN, MAX_HEADER_LEN, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(packet) = Packet::parse(bytes) else { return };
    let header = packet.header();
    assert_eq!(header.len() + packet.payload().len() + packet.pad_len() + ICRC_LEN, bytes.len());
    assert!(!packet.to_string().is_empty());

    let flow = Flow::v4("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap());
    let _ = (flow.verify(&packet, 0), flow.recover_ip_id(&packet));

    let mut head = [0; MAX_HEADER_LEN];
    let emitted = flow.emit(header, 0x1234, &[packet.payload()], &mut head).expect("a parsed packet fits");
    let again = [&head[..emitted.header_len], packet.payload(), &emitted.trailer].concat();
    let again = Packet::parse(&again).expect("an emitted packet can be parsed");
    assert_eq!(again.header(), header);
    assert_eq!(again.payload(), packet.payload());
    assert_eq!(flow.recover_ip_id(&again), Ok(0x1234));
});
