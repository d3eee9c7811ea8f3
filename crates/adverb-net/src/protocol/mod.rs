//! The first messages of a handshake: greetings, and proofs of a key. `docs/protocol.md` specifies them.
//! adverb-net-proto has the messages that follow.

pub(super) mod handshake;
pub(super) mod proof;

#[cfg(all(test, not(loom)))]
mod tests;
