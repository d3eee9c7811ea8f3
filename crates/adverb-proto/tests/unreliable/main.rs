//! The rules of unreliable connections and datagrams, one test each.

#[path = "../harness/mod.rs"]
mod harness;

mod datagrams;
mod hostile;
mod multicast;
mod uc_requester;
mod uc_responder;
mod ud_receive;
