//! Probes of RDMA paths: loss, and the delays of the network and of both hosts.
//!
//! Programs depend on `adverb`, which re-exports this crate as `adverb::probe` with the feature `probe`.
//!
//! A prober sends a probe, an unreliable datagram of 96 bytes, to a responder. The responder answers with ACK1, and
//! after ACK1's send completion with ACK2, which carries the responder's timestamps. From six timestamps, the prober
//! computes the round-trip time of the network separately from the delays of both hosts, without synchronized clocks.
//!
//! | stamp | event | clock |
//! |---|---|---|
//! | T1 | the prober posts the probe | prober's process |
//! | T2 | send completion of the probe | prober's NIC or kernel |
//! | T3 | receive completion of the probe | responder's NIC or kernel |
//! | T4 | send completion of ACK1, carried by ACK2 | responder's NIC or kernel |
//! | T5 | receive completion of ACK1 | prober's NIC or kernel |
//! | T6 | the prober processes ACK1 | prober's process |
//!
//! A [`Responder`] answers probes in a thread of its own; a [`Prober`] sends them and reports their results. Both work on
//! RDMA NICs and on the software NIC. With the feature `tokio`, `AsyncProber` is the prober for tasks. [`Responder`] has an
//! example of both. The commands `adverb ping`, `adverb respond`, `adverb traceroute` and `adverb mesh host` use this crate,
//! and the manual of `adverb` describes them in the chapter `fabric_health`.
//!
//! | modules | contents |
//! |---|---|
//! | [`mod@format`], [`session`], [`answer`] | the protocol: packets, the prober's state machine, the responder's |
//! | [`stamp`], [`figures`], [`histogram`] | timestamps, the delays of one probe, and results of many probes |
//! | [`paths`], [`loss`], [`route`] | source ports that cover all paths, the path that loses packets, and the routers of a path |
//! | [`mesh`] | the diagnosis of members that probe each other |
//! | [`ud_queue`] | the queue of datagrams under probers and responders |
//!
//! All modules except [`ud_queue`] and a part of [`route`] do no I/O.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("adverb-probe needs Linux: adverb-wire and adverb-proto work everywhere");

pub mod answer;
#[cfg(feature = "tokio")]
mod async_prober;
mod error;
pub mod figures;
pub mod format;
#[cfg(all(any(test, fuzzing), feature = "soft"))]
#[cfg_attr(fuzzing, doc(hidden))]
pub mod fuzzing;
pub mod histogram;
mod key;
pub mod loss;
pub mod mesh;
pub mod paths;
mod prober;
mod responder;
pub mod route;
pub mod session;
pub mod stamp;
pub mod ud_queue;

pub use adverb_verbs::Key;
#[cfg(feature = "tokio")]
pub use async_prober::AsyncProber;
pub use error::ProbeError;
pub use prober::{DEFAULT_LOOKUP_TIMEOUT, Peer, ProbePath, Prober, ProberOptions, Strays};
pub use responder::{DEFAULT_PORT, Responder, ResponderOptions, ResponderStats};

/// Returns random bytes.
fn random<const N: usize>() -> Result<[u8; N], ProbeError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| ProbeError::System {
        action: "reading random bytes".into(),
        source: std::io::Error::other(error),
    })?;
    Ok(bytes)
}
