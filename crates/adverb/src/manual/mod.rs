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
//! | [`fabric_health`] | probing RDMA paths: is it the network, or a host |
//! | [`work_queues`] | how a work request becomes packets and a completion |
//! | [`reading_a_trace`] | seeing it: traces, and the signs of trouble in them |
//! | [`unmodified_programs`] | C and Python programs for libibverbs, without RDMA hardware |
//! | [`listings`] | differences between published packet listings and the standard |
//! | [`from_snowrdma`] | every call of SnowRDMA, and its counterpart |
//!
//! Each chapter uses [`net::blocking`](crate::net::blocking), for threads. With the feature `tokio`, which is on by default,
//! `adverb::net` has the same names and methods for tasks: add `.await`.

// Its links are to `adverb::cluster`.
#[cfg_attr(not(feature = "cluster"), allow(rustdoc::broken_intra_doc_links))]
#[doc = include_str!("clusters.md")]
pub mod clusters {}
#[doc = include_str!("devices.md")]
pub mod devices {}
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
    use std::collections::HashSet;

    /// The interface of SnowRDMA, as its README lists it.
    const CALLS: &[&str] = &[
        "rdmaServer",
        "rdmaServerStart",
        "rdmaServerStop",
        "rdmaServerRelease",
        "rdmaConn",
        "rdmaConnect",
        "rdmaConnClose",
        "rdmaRuntimeStop",
        "rdmaConnSend",
        "rdmaConnSendWithImm",
        "rdmaConnWrite",
        "rdmaConnWriteWithImm",
        "rdmaConnRead",
        "rdmaSyncWriteSignaled",
        "rdmaSyncReadSignaled",
        "rdmaPAWriteSignaled",
        "rdmaPAReadSignaled",
        "rdmaPASyncWriteSignaled",
        "rdmaPASyncReadSignaled",
    ];

    /// The types and functions of rpingmesh's package `internal/rdma`, in the order of its files.
    const RPINGMESH: &[&str] = &[
        "RNIC",
        "RDMAManager",
        "NewRDMAManager",
        "isIPv4MappedIPv6",
        "formatGIDString",
        "releaseDeviceResources",
        "OpenDevice",
        "getIPAddress",
        "getIPAddressFromInterface",
        "getIPAddressFromGID",
        "CloseDevice",
        "UDQueueType",
        "UDQueue",
        "destroyCQEx",
        "CreateUDQueue",
        "createQueuePair",
        "modifyQPToInit",
        "modifyQPToRTR",
        "modifyQPToRTS",
        "allocateMemoryResources",
        "CreateSenderAndResponderQueues",
        "getQueueTypeString",
        "CreateAddressHandle",
        "Destroy",
        "Close",
        "GoWorkCompletion",
        "ProcessedWorkCompletion",
        "CompletionType",
        "WorkCompletionEvent",
        "processCQCompletions",
        "processSingleWC",
        "handleWCError",
        "handleRecvCompletion",
        "handleSendCompletion",
        "StartCQPoller",
        "StopCQPoller",
        "parseIPv6GRHFromBytes",
        "parseIPv4GRHFromBytes",
        "ProbePacket",
        "IncomingAckInfo",
        "AckHandlerFunc",
        "PostRecvSlot",
        "PostRecv",
        "GetNextSendSlot",
        "SendProbePacket",
        "parseGRH",
        "parseIPv4GRH",
        "parseIPv6GRH",
        "deserializeProbePacket",
        "ReceivePacket",
        "SendFirstAckPacket",
        "SendSecondAckPacket",
    ];

    /// The names in RDMALib's example, and then those of its interface that the example doesn't use.
    const RDMALIB: &[&str] = &[
        "FLAGS_servers",
        "convert_hosts",
        "Host",
        "FLAGS_server_id",
        "FLAGS_rdma_port",
        "RdmaCtrl",
        "QPEndPoint",
        "NovaRDMARCStore",
        "Init",
        "GetSendBuf(server_id)",
        "PostSend",
        "wr_id",
        "FlushPendingSends(server_id)",
        "PollSQ(server_id)",
        "PollRQ(server_id)",
        "DummyNovaMsgCallback",
        "FLAGS_rdma_max_num_sends",
        "FLAGS_rdma_max_msg_size",
        "FLAGS_rdma_doorbell_batch_size",
        "rdma_backing_mem",
        "FLAGS_mem_pool_size_gb",
        "nrdma_buf_unit",
        "nrdma_buf_total",
        "NovaMemManager",
        "slabclassid",
        "ItemAlloc",
        "FreeItem",
        "NovaRDMARCBroker",
        "PostRead",
        "PostWrite",
        "FlushPendingSends()",
        "PollSQ()",
        "PostRecv",
        "FlushPendingRecvs",
        "PollRQ()",
        "GetSendBuf()",
        "thread_id",
        "NovaMsgCallback",
        "ProcessRDMAWC",
        "FreeItems",
    ];

    #[test]
    fn every_call_of_snowrdma_has_a_row() {
        let table = include_str!("from_snowrdma.md");
        for call in CALLS {
            assert!(table.contains(&format!("| `{call}` | ")), "{call} has none");
        }
    }

    #[test]
    fn every_function_of_rpingmesh_has_a_row_with_a_counterpart_that_exists() {
        check_counterparts(include_str!("fabric_health.md"), RPINGMESH);
    }

    #[test]
    fn every_call_of_rdmalib_has_a_row_with_a_counterpart_that_exists() {
        let chapter = include_str!("clusters.md");
        check_counterparts(chapter, RDMALIB);
        // Rustdoc checks the targets of links.
        for name in RDMALIB {
            let row = chapter.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let counterpart = row.and_then(|row| row.split('|').nth(2)).unwrap_or_default();
            let mut links = counterpart.split('`').skip(1).step_by(2).peekable();
            assert_eq!(links.peek().is_none(), counterpart == " no counterpart ", "{name}: {counterpart}");
            for link in links {
                let definition = format!("\n[`{link}`]: crate::cluster::{link}\n");
                let is_link = counterpart.contains(&format!("[`{link}`]")) && chapter.contains(&definition);
                assert!(is_link, "{name}: {link} is no link to its documentation");
            }
        }
    }

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
            let mut broker = Broker::new(&domain, config, 1, 1).unwrap();
            let before = broker.memory_use().state_bytes;
            broker.prepare(PeerId(0)).unwrap();
            let kib = (broker.memory_use().state_bytes - before) as f64 / 1024.0;
            let documented = row.rsplit('|').nth(1).and_then(|cell| cell.trim().strip_suffix(" KiB"));
            let documented: f64 = documented.and_then(|number| number.parse().ok()).expect("a number");
            // The state may grow by some fields.
            assert!((kib / documented - 1.0).abs() < 0.25, "{row}: {kib}");
        }
    }

    /// Checks that each name has a row in a table, and that the code in the row's second column is defined.
    fn check_counterparts(table: &str, names: &[&str]) {
        for name in names {
            assert!(table.contains(&format!("| `{name}` | ")), "{name} has none");
        }
        let sources = sources(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let defined = definitions(&sources);
        let rows =
            table.lines().filter(|line| names.iter().any(|name| line.starts_with(&format!("| `{name}` |"))));
        for row in rows {
            let counterpart = row.split('|').nth(2).unwrap_or_default();
            // Odd parts are code, such as `UdQueueBuilder::{send_slots, recv_slots}`.
            for word in counterpart.split('`').skip(1).step_by(2).flat_map(words) {
                assert!(defined.contains(word) || ["Debug", "Display"].contains(&word), "{row}: {word}");
            }
        }
    }

    /// The words of a line of code.
    fn words(code: &str) -> impl Iterator<Item = &str> {
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
    }

    /// The names that sources define: items, fields, variants with fields, other names of items, and traits that are
    /// implemented.
    fn definitions(sources: &str) -> HashSet<&str> {
        let mut defined = HashSet::new();
        for line in sources.lines() {
            let mut previous = "";
            for word in words(line) {
                if ["as", "enum", "fn", "mod", "pub", "struct"].contains(&previous) {
                    defined.insert(word);
                }
                if word == "for" {
                    defined.insert(previous);
                }
                previous = word;
            }
            let variant = line.strip_prefix("    ").and_then(|line| {
                line.strip_suffix(" {").or_else(|| line.split_once('(').map(|(variant, _)| variant))
            });
            defined.extend(variant);
        }
        defined
    }

    /// The sources of the crates that the manual names.
    fn sources(crates: &str) -> String {
        let mut text = String::new();
        let mut directories: Vec<std::path::PathBuf> =
            ["adverb-cluster", "adverb-cluster-proto", "adverb-probe", "adverb-verbs", "adverb-proto"]
                .map(|name| format!("{crates}/{name}/src").into())
                .into();
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("a directory of sources") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    text += &std::fs::read_to_string(path).expect("a source");
                }
            }
        }
        text
    }
}
