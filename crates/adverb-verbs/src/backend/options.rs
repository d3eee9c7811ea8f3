//! Options of queue pairs, and attributes of their state transitions.

use adverb_proto::types::{Access, Gid, PathMtu, Psn, Qpn, Transport};

/// A route to a port, as connections and address handles have it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) uses_grh: bool,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
    pub(crate) service_level: u8,
}

/// The options of a new queue pair.
pub(crate) struct QueuePairOptions {
    pub(crate) transport: Transport,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
}

/// The actual limits of a queue pair, which may be larger than the requested ones.
pub(crate) struct QueuePairLimits {
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
}

/// A state transition of a queue pair, with its attributes.
pub(crate) enum StateChange {
    Reset,
    Init(Init),
    ReadyToReceive(ReadyToReceive),
    ReadyToSend(ReadyToSend),
    /// A change of the peer's access rights. The state stays RTS.
    Access(Access),
    Error,
}

/// The attributes of the init state.
pub(crate) struct Init {
    pub(crate) transport: Transport,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) access: Access,
    /// The queue key of a UD queue pair.
    pub(crate) qkey: u32,
}

/// The attributes of the state RTR. A UD queue pair has no connection.
pub(crate) struct ReadyToReceive {
    pub(crate) transport: Transport,
    pub(crate) connection: Option<PeerEnd>,
}

/// The peer's end of a connection.
pub(crate) struct PeerEnd {
    pub(crate) address: Address,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) mtu: PathMtu,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
}

/// The attributes of the state RTS. Only reliable connections use the fields after the PSN.
pub(crate) struct ReadyToSend {
    pub(crate) transport: Transport,
    pub(crate) psn: Psn,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
}
