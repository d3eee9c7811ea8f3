//! The first messages of two sides: greetings, and proofs of a key. `docs/protocol.md` specifies them. The messages that follow
//! are those of adverb-net-proto.

pub(super) mod handshake;
pub(super) mod proof;

#[cfg(all(test, not(loom)))]
mod tests;
