//! Checks that a software NIC keeps running, and serves a well-behaved peer, for any packets of others over real
//! sockets.
#![no_main]

#[path = "../../crates/adverb-soft/examples/attack/round/mod.rs"]
mod round;

use adverb_sim::DecisionSource;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Err(violation) =
        round::attack(DecisionSource::Bytes(bytes), u64::MAX, &mut round::Report::default())
    {
        panic!("{violation}");
    }
});
