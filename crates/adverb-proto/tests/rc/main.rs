//! The rules of reliable connections. Each test checks one rule.

#[path = "../harness/mod.rs"]
mod harness;

mod coalescing;
mod congestion;
mod credits;
mod forged;
mod hostile;
mod long_reads;
mod memory;
mod packet_checks;
mod posting;
mod recovery;
mod requester;
mod responder;
mod states;
mod trace;
mod transfer;
