//! The manual: from a first connection to handling failures.
//!
//! ```text
//!            your program
//!                 │
//!    ┌────────────┴────────────┐
//!    │ net                     │  listeners, connections, messages, streams, one-sided access
//!    ├─────────────────────────┤
//!    │ memory                  │  buffers that devices read and write
//!    ├─────────────────────────┤
//!    │ verbs                   │  devices, queue pairs, completion queues: every option
//!    └───────┬─────────┬───────┘
//!        rdma-core   a software NIC
//!            │         │
//!        hardware    UDP sockets, or memory
//! ```
//!
//! | chapter | |
//! |---|---|
//! | [`first_connection`] | two programs that exchange messages, on any machine |
//! | [`messages`] | sending and receiving, copies, flow control, cancellation |
//! | [`streams`] | byte streams for hyper, tonic and other code written for TCP |
//! | [`one_sided`] | memory that a peer reads and writes without running your code |
//! | [`failure`] | ends of connections, errors, reconnecting, several paths |
//! | [`devices`] | the device of a connection, and the choice of another device |
//! | [`security`] | authentication, and the limits of protection |
//! | [`clusters`] | servers that use each other's memory |
//! | [`doctor`] | why RDMA doesn't work on a machine, or on the path to another one |
//! | [`fabric_health`] | probing RDMA paths: is it the network, or a host |
//! | [`probes`] | probing RDMA paths in a program |
//! | [`work_queues`] | how a work request becomes packets and a completion |
//! | [`reading_a_trace`] | seeing it: traces, and the signs of trouble in them |
//! | [`unmodified_programs`] | C and Python programs for libibverbs, without RDMA hardware |
//! | [`containers`] | the image, tests in a pod, and nodes in Kubernetes |
//! | [`listings`] | differences between published packet listings and the standard |
//! | [`from_snowrdma`] | every call of SnowRDMA, and its counterpart |
//!
//! Each chapter uses [`net::blocking`](crate::net::blocking), for threads. With the feature `tokio`, which is on by default,
//! `adverb::net` has the same names and methods for tasks: add `.await`.

// The chapter links to `adverb::cluster`, which exists only with the feature.
#[cfg_attr(not(feature = "cluster"), allow(rustdoc::broken_intra_doc_links))]
#[doc = include_str!("clusters.md")]
pub mod clusters {}
#[doc = include_str!("containers.md")]
pub mod containers {}
#[doc = include_str!("devices.md")]
pub mod devices {}
#[doc = include_str!("doctor.md")]
pub mod doctor {}
#[doc = include_str!("fabric_health.md")]
pub mod fabric_health {}
#[doc = include_str!("failure.md")]
pub mod failure {}
#[doc = include_str!("first_connection.md")]
pub mod first_connection {}
#[doc = include_str!("from_snowrdma.md")]
pub mod from_snowrdma {}
#[doc = include_str!("listings.md")]
pub mod listings {}
#[doc = include_str!("messages.md")]
pub mod messages {}
#[doc = include_str!("one_sided.md")]
pub mod one_sided {}
// The chapter links to `adverb::probe`, which exists only with the feature.
#[cfg_attr(not(feature = "probe"), allow(rustdoc::broken_intra_doc_links))]
#[doc = include_str!("probes.md")]
pub mod probes {}
#[doc = include_str!("reading_a_trace.md")]
pub mod reading_a_trace {}
#[doc = include_str!("security.md")]
pub mod security {}
#[doc = include_str!("streams.md")]
pub mod streams {}
#[doc = include_str!("unmodified_programs.md")]
pub mod unmodified_programs {}
#[doc = include_str!("work_queues.md")]
pub mod work_queues {}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(feature = "cluster")]
    fn the_sizes_of_clusters_are_those_of_the_configuration() {
        use crate::cluster::BrokerConfig;

        let (_, table) = include_str!("clusters.md").split_once("| queue pairs | message slots |\n").unwrap();
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        let mut count = 0;
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [members, threads, slots, slot_size, queue_pairs, message_slots] = cells[..] else {
                panic!("{row}")
            };
            let number = |cell: &str| cell.parse::<u64>().unwrap();
            let slots = number(slots) as u16;
            let slot_size = number(slot_size) as u32;
            let config =
                BrokerConfig { send_slots: slots, recv_slots: slots, slot_size, ..BrokerConfig::default() };
            let sessions = (number(members) - 1) * number(threads);
            let bytes = sessions * config.message_bytes_per_peer();
            assert_eq!(number(queue_pairs), sessions, "{row}");
            assert_eq!(message_slots, format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)), "{row}");
            count += 1;
        }
        assert_eq!(count, 6);
    }

    /// The state of a session, in the table of heap memory. The rest of the row is a measurement.
    #[test]
    #[cfg(all(feature = "cluster", feature = "soft"))]
    fn the_states_of_sessions_have_the_documented_sizes() {
        use crate::cluster::{Broker, BrokerConfig, PeerId};
        use crate::verbs::SoftDevice;

        let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
        for (slots, queue_depth, send_queue_depth, row) in [
            (64, 128, 128, "| 64, 64 | 128, 128 | 66 KiB | 14.5 KiB |"),
            (16, 32, 32, "| 16, 16 | 32, 32 | 19 KiB | 3.7 KiB |"),
            (4, 4, 8, "| 4, 4 | 4, 8 | 7 KiB | 0.7 KiB |"),
        ] {
            assert!(include_str!("clusters.md").contains(row), "{row}");
            let config = BrokerConfig {
                send_slots: slots,
                recv_slots: slots,
                queue_depth,
                send_queue_depth,
                ..BrokerConfig::default()
            };
            let mut broker = Broker::builder(&domain).config(config).epoch(1).create().unwrap();
            let before = broker.memory_use().state_bytes;
            broker.prepare(PeerId(0)).unwrap();
            let kib = (broker.memory_use().state_bytes - before) as f64 / 1024.0;
            let documented = row.rsplit('|').nth(1).and_then(|cell| cell.trim().strip_suffix(" KiB"));
            let documented: f64 = documented.and_then(|number| number.parse().ok()).expect("a number");
            // The state may grow by some fields.
            assert!((kib / documented - 1.0).abs() < 0.25, "{row}: {kib}");
        }
    }
}
