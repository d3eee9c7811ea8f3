//! Checks that a device accesses only permitted memory, and keeps only required state, for any packets of a peer and
//! any actions of its owner.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = adverb_sim::attack_from_bytes(bytes) {
        panic!("{violation}");
    }
});
