//! The rules of the connection manager. Each test checks one rule.

mod connecting;
mod disconnecting;
mod duplicates;
mod harness;
mod hostile;
mod loss;
mod peer_to_peer;
mod private_data;
mod rejecting;
mod sidr;
mod timewait;
