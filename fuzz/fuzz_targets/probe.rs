//! Checks that no datagrams and ICMP messages violate an invariant of a prober, a responder or a tracer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_probe::fuzzing::probe(bytes));
