//! Whatever a peer sends and an owner does, a device touches only what it may, and holds only what it must.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(what) = adverb_sim::attack_from_bytes(bytes) {
        panic!("{what}");
    }
});
