//! Probes RDMA paths: whether datagrams arrive, and how long the network and both hosts take.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::probe` with the feature `probe`.
//!
//! A prober sends a probe, an unreliable datagram of 96 bytes, to a responder. The responder answers with ACK1, and
//! after ACK1's send completion with ACK2, which carries the responder's timestamps. From six timestamps, the prober
//! computes the round-trip time of the network separately from the delays of both hosts, without synchronized clocks.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-probe needs Linux: adverb-wire and adverb-proto work everywhere");

pub mod route;
pub mod ud_queue;
