//! Whatever a peer of `net` says is understood or refused; and only who has the key, and is heard as it spoke, is met.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb::net::fuzzing::meeting(bytes));
