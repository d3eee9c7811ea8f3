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
//! | [`listings`] | differences between published packet listings and the standard |
//! | [`from_snowrdma`] | every call of SnowRDMA, and its counterpart |
//!
//! Each chapter uses [`net::blocking`](crate::net::blocking), for threads. With the feature `tokio`, which is on by default,
//! `adverb::net` has the same names and methods for tasks: add `.await`.

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

    /// The names in RDMALib's example that are about memory.
    const RDMALIB_MEMORY: &[&str] = &[
        "rdma_backing_mem",
        "nrdma_buf_total",
        "nrdma_buf_unit",
        "NovaMemManager",
        "slabclassid",
        "ItemAlloc",
        "FreeItem",
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
        check_counterparts(include_str!("clusters.md"), RDMALIB_MEMORY);
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

    /// The names that sources define: items, fields, variants with fields, and traits that are implemented.
    fn definitions(sources: &str) -> HashSet<&str> {
        let mut defined = HashSet::new();
        for line in sources.lines() {
            let mut previous = "";
            for word in words(line) {
                if ["fn", "struct", "enum", "mod", "pub"].contains(&previous) {
                    defined.insert(word);
                }
                if word == "for" {
                    defined.insert(previous);
                }
                previous = word;
            }
            if let Some((variant, _)) = line.strip_prefix("    ").and_then(|line| line.split_once('(')) {
                defined.insert(variant);
            }
        }
        defined
    }

    /// The sources of the crates that the manual names.
    fn sources(crates: &str) -> String {
        let mut text = String::new();
        let mut directories: Vec<std::path::PathBuf> =
            ["adverb-cluster", "adverb-probe", "adverb-verbs", "adverb-proto"]
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
