//! The rules of unreliable connections and datagrams. Each test checks one rule.

#[path = "../harness/mod.rs"]
mod harness;

mod datagrams;
mod hostile;
mod multicast;
mod uc_requester;
mod uc_responder;
mod ud_receive;
