//! Checks that a connection keeps its credits and bounds, and releases its memory, for any bytes that a peer writes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = adverb_sim::net_attack_from_bytes(bytes) {
        panic!("{violation}");
    }
});
