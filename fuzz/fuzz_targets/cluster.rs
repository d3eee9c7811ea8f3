//! Whatever a peer sends to a broker, its calls and its keys, they keep their invariants, and their memory is bounded.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = adverb_sim::cluster_attack_from_bytes(bytes) {
        panic!("{what}");
    }
});
