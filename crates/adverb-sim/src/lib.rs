//! A deterministic simulator for `adverb-proto`: a fabric that loses, delays, reorders and corrupts packets, and
//! oracles that check the protocol engine.
//!
//! A seed determines a [`Scenario`]: devices, connections between them, the requests of each side, and the faults of
//! the fabric. [`run`] executes the scenario in virtual time, with real packets: `adverb-wire` emits and parses them,
//! and verifies their ICRCs. The same seed always produces the same packets.
//!
//! The oracles of every run check that
//!
//! - each posted request completes exactly once, in order, and only after its effect is visible;
//! - the bytes at both ends match a model;
//! - no request accesses memory outside a memory region or without the region's access rights;
//! - atomics on a word are serialized, and each of them is executed exactly once;
//! - the engine rejects exactly the invalid requests;
//! - every failure results from an injected fault or an action of the scenario, such as an invalid request;
//! - after the faults end, every request completes, successfully or with an error;
//! - a queue pair in the error state flushes all its requests;
//! - the device frees all resources of a destroyed queue pair;
//! - each message of an unreliable transport arrives complete and unaltered, or is lost;
//! - messages on an unreliable connection arrive in order;
//! - the device's statistics include every lost message of an unreliable transport;
//! - each receive of a shared receive queue is consumed once and in order;
//! - shared receive queues generate their limit events;
//! - no request accesses memory outside a memory window, with a stale key, over another connection, or through an
//!   invalidated window.
//!
//! [`run_congestion`] runs several senders over one slow link, and checks that they reduce their rates and recover.
//! [`run_cm`] runs connection managers over a fabric with faults. [`run_cluster`] runs the brokers of a cluster on
//! modeled queue pairs, with calls and segments, and [`cluster_attack_from_bytes`] sends arbitrary messages to a
//! broker. [`run_net`] runs the two sides of a connection on modeled queue pairs or on devices, [`explore_net`] visits
//! all states of a small connection, and [`net_attack_from_bytes`] sends arbitrary data to a connection. [`attack`]
//! sends malformed and hostile packets to a device, and [`attack_cm`] sends hostile messages to a connection manager.
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
mod cluster;
mod cm;
mod congestion;
mod fabric;
mod hostile;
mod messages;
mod model;
mod net;
mod node;
mod oracle;
mod random;
mod rc_model;
mod runner;
mod scenario;
mod scenario_run;
mod schedule;
mod setup;
mod world;

pub use cluster::{
    ClusterOutcome, ClusterScale, ClusterTotals, LayerCounts, cluster_attack_from_bytes, run_cluster,
    run_cluster_scale, run_cluster_seeds,
};
pub use cm::{
    CM_ATTACK_TCP_SERVICE_ID, CM_ATTACK_UDP_SERVICE_ID, CmAttackReport, CmMessageGenerator, CmOutcome,
    attack_cm, attack_cm_from_bytes, run_cm,
};
pub use congestion::{CongestionReport, run_congestion};
pub use fabric::{Bottleneck, FaultCounts, Faults, Partition, Stall};
pub use hostile::decisions::DecisionSource;
pub use hostile::generator::{AttackerState, ForgedPacket, MemoryRange, PacketGenerator, TargetInfo};
pub use hostile::{AttackReport, attack, attack_from_bytes};
pub use messages::{EndpointPlan, MessageAction, MessagePlan, MessageStep};
pub use net::{
    DEVICE_SEED_INTERVAL, NetExploration, NetOutcome, NetPlan, NetSearch, NetTotals, explore_net,
    explore_net_plans, net_attack_from_bytes, run_net, run_net_seeds,
};
pub use random::Random;
pub use runner::{CONGESTION_SEED_INTERVAL, PACKETS_PER_ATTACK, Totals, run_attacks, run_seeds, shrink};
pub use scenario::{Action, Connection, InvalidRequest, Program, Scenario, Step};
pub use scenario_run::{Outcome, run};
