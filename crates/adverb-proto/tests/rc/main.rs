//! The rules of reliable connections, one test each.

#[path = "../harness/mod.rs"]
mod harness;

mod arrival;
mod congestion;
mod credits;
mod forged;
mod gathering;
mod hostile;
mod long_reads;
mod memory;
mod posting;
mod recovery;
mod requester;
mod responder;
mod states;
mod transfer;
mod watching;
