//! Checks that any handshake messages of a `net` peer are parsed or rejected, and that only a peer that has the key and
//! whose messages arrive unaltered is accepted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb::net::fuzzing::handshake(bytes));
