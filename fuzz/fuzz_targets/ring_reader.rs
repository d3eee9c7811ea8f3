//! Checks that the reader reads no message outside the memory of a ring, and stops, if the writer violates the format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_soft::link::fuzzing::hostile_writer(bytes));
