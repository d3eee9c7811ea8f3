//! The rules of reliable connections, one test each.

mod arrival;
mod credits;
mod harness;
mod hostile;
mod memory;
mod posting;
mod recovery;
mod requester;
mod responder;
mod states;
mod transfer;
mod watching;
