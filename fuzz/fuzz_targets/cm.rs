//! Checks that a connection manager keeps its bounds, and sends no more replies than it must, for any messages of a
//! peer and any actions of its owner.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) = adverb_sim::attack_cm_from_bytes(bytes) {
        panic!("{violation}");
    }
});
