//! What queue pairs are made with and brought into their states with.

use adverb_proto::types::{Access, Gid, PathMtu, Psn, Qpn, Transport};

/// The way to a port: what connections and address handles have in common.
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

/// What a queue pair is created with.
pub(crate) struct QueuePairOptions {
    pub(crate) transport: Transport,
    pub(crate) send_depth: u32,
    pub(crate) recv_depth: u32,
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
}

/// What a queue pair got, which may be more than was asked for.
pub(crate) struct QueuePairLimits {
    pub(crate) send_segments: u32,
    pub(crate) recv_segments: u32,
    pub(crate) inline: u32,
}

/// A change of a queue pair's state, with what that state needs.
pub(crate) enum StateChange {
    Reset,
    Init(Init),
    ReadyToReceive(ReadyToReceive),
    ReadyToSend(ReadyToSend),
    /// What the peer may do changes, and the state doesn't: it is ready to send.
    Access(Access),
    Error,
}

/// What a queue pair needs to have receives posted.
pub(crate) struct Init {
    pub(crate) transport: Transport,
    pub(crate) port: u8,
    pub(crate) pkey_index: u16,
    pub(crate) access: Access,
    /// For datagrams.
    pub(crate) qkey: u32,
}

/// What a queue pair needs to receive; without a connection, for datagrams, nothing.
pub(crate) struct ReadyToReceive {
    pub(crate) transport: Transport,
    pub(crate) connection: Option<Connection>,
}

/// The other end of a connection.
pub(crate) struct Connection {
    pub(crate) address: Address,
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) mtu: PathMtu,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
}

/// What a queue pair needs to send; only reliable connections look at what comes behind the sequence number.
pub(crate) struct ReadyToSend {
    pub(crate) transport: Transport,
    pub(crate) psn: Psn,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) max_rd_atomic: u8,
}
