//! A fabric that loses, delays, reorders and corrupts on purpose, reproducibly, and oracles that watch what the
//! engine of `adverb-proto` makes of it.
//!
//! A [`Scenario`] follows from a seed: some devices, connections between them, what each side does, and how the
//! fabric between them fails. [`run`] runs it in virtual time, with real packets that are written and parsed by
//! `adverb-wire` and whose ICRCs are checked. The same seed gives the same run, to the byte.
//!
//! Every run checks that
//!
//! - each posted request completes once, in order, and not before its effect is there;
//! - bytes at both ends are those of a model, and nothing outside the bounds or rights of a region was touched;
//! - atomics on one word happened one after the other, each once;
//! - what must be refused is, and nothing else; failures have a reason;
//! - after the fabric has healed everything finishes or reports an error;
//! - a queue pair in error gives everything back, and one that is destroyed leaves nothing behind;
//! - messages of unreliable transports are whole or absent, never altered, in order on a connection, and what is lost is
//!   counted; shared receives are used once and in order, and limits are told; nothing is touched outside a window, with
//!   an old key, through another connection, or after it was invalidated.
//!
//! [`run_congestion`] has several senders share a link that is too slow for them, and checks that they slow down, and
//! recover. [`run_cm`] has connection managers connect in a fabric that fails. And [`attack`] is a peer that keeps no rule
//! at all.
//!
//! ```
//! use adverb_sim::{Scenario, run};
//!
//! let outcome = run(&Scenario::new(7), false);
//! assert_eq!(outcome.violation, None);
//! assert_eq!(run(&Scenario::new(7), false).digest, outcome.digest);
//! ```

#![forbid(unsafe_code)]

mod actor;
mod area;
mod atomics;
mod cm;
mod congestion;
mod fabric;
mod hostile;
mod messages;
mod model;
mod oracle;
mod random;
mod runner;
mod scenario;
mod schedule;
mod setup;
mod world;

pub use cm::{
    CM_FORGE_TCP, CM_FORGE_UDP, CmAttackReport, CmForge, CmOutcome, attack_cm, attack_cm_from_bytes, run_cm,
};
pub use congestion::{CongestionReport, run_congestion};
pub use fabric::{Bottleneck, FaultCounts, Faults, Partition, Stall};
pub use hostile::choices::Choices;
pub use hostile::forge::{ConversationState, Forge, ForgedPacket, MemoryRange, TargetInfo};
pub use hostile::{AttackReport, attack, attack_from_bytes};
pub use messages::{EndpointPlan, MessageAction, MessagePlan, MessageStep};
pub use random::Random;
pub use runner::{ATTACK_PACKETS, CONGESTION_EVERY, Totals, run_attacks, run_seeds, shrink};
pub use scenario::{Action, Connection, InvalidRequest, Program, Scenario, Step};
pub use world::{Outcome, run};
