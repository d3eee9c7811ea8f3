//! Checks that the writer changes only its own fields and bytes, if the reader violates the format.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| adverb_soft::link::fuzzing::hostile_reader(bytes));
