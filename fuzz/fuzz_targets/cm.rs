//! Whatever a peer sends and an owner does, a connection manager keeps its bounds, and answers no more than it must.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = adverb_sim::attack_cm_from_bytes(bytes) {
        panic!("{what}");
    }
});
