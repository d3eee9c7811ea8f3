//! Checks that a broker, its calls and its keys keep their invariants and bounded memory, for any messages of a peer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = adverb_sim::cluster_attack_from_bytes(bytes) {
        panic!("{violation}");
    }
});
