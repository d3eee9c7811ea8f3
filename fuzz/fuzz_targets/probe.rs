//! Any datagrams and ICMP messages to a prober, a responder and a tracer violate no invariant of theirs.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_probe::fuzzing::probe(bytes));
