//! Whatever a peer writes to a connection, the connection keeps its credits and bounds, and releases its memory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = adverb_sim::net_attack_from_bytes(bytes) {
        panic!("{what}");
    }
});
