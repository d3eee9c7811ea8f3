//! Checks that any bytes parse as an IP datagram with a packet, or result in an error.
#![no_main]

use adverb_wire::{Frame, GRH_LEN, IpHeader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(frame) = Frame::parse(bytes) {
        assert!(frame.packet().as_bytes().len() <= bytes.len());
        assert!(!frame.to_string().is_empty());
        let _ = frame.verify();
    }
    if let Some(grh) = bytes.first_chunk::<GRH_LEN>()
        && let Some(ip) = IpHeader::from_grh(grh)
    {
        assert_eq!(IpHeader::from_grh(&ip.to_grh(64)), Some(ip));
    }
});
