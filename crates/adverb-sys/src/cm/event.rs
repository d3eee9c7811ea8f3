//! Connection manager events.

use libc::{c_int, c_uint, c_void};

use crate::{ibv_ah_attr, rdma_cm_id, rdma_conn_param};

shapes! {
    /// An event channel: a file descriptor that becomes readable when there is an event.
    pub struct rdma_event_channel {
        /// The file descriptor.
        pub fd: c_int,
    }

    /// The type of a connection manager event.
    pub enum rdma_cm_event_type: c_uint {
        /// The destination address was resolved to a local device and port.
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        /// The destination address couldn't be resolved.
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        /// The route was resolved.
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        /// The route couldn't be resolved.
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        /// A peer requests a connection. The event contains a new identifier for the connection.
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        /// The peer accepted a connection whose queue pair the caller manages. The caller must move the queue pair to
        /// the states RTR and RTS.
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        /// The connection couldn't be established.
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        /// The peer doesn't respond.
        RDMA_CM_EVENT_UNREACHABLE = 7,
        /// The peer rejected the connection. The field `status` is the reason.
        RDMA_CM_EVENT_REJECTED = 8,
        /// The connection is established.
        RDMA_CM_EVENT_ESTABLISHED = 9,
        /// The connection was disconnected.
        RDMA_CM_EVENT_DISCONNECTED = 10,
        /// The device is being removed.
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        /// A multicast group was joined.
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        /// A multicast group couldn't be joined, or is no longer available.
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        /// The network interface's hardware address changed.
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        /// The queue pair of a disconnected connection left time-wait and can be reused.
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    pub const rdma_cm_event_type since "60" {
        /// The address information was resolved.
        RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16,
        /// The address information couldn't be resolved.
        RDMA_CM_EVENT_ADDRINFO_ERROR = 17,
        /// An event written by the consumer.
        RDMA_CM_EVENT_USER = 18,
        /// An event internal to the library.
        RDMA_CM_EVENT_INTERNAL = 19,
    }

    /// A connection manager event.
    #[derive(Clone, Copy)]
    pub struct rdma_cm_event {
        /// The identifier. In a connection request, this is a new identifier for the connection.
        pub id: *mut rdma_cm_id,
        /// The listening identifier that received the connection request.
        pub listen_id: *mut rdma_cm_id,
        /// The type of the event.
        pub event: rdma_cm_event_type,
        /// The reject reason, a negative errno value, or zero.
        pub status: c_int,
        /// The parameters of the event.
        pub param: rdma_cm_event_param,
    }

    /// The parameters of an event. The identifier's port space determines the valid member.
    #[derive(Clone, Copy)]
    pub union rdma_cm_event_param inside rdma_cm_event.param {
        /// The parameters of a connection.
        pub conn: rdma_conn_param,
        /// The parameters of a datagram peer or a multicast group.
        pub ud: rdma_ud_param,
        /// The argument of [`RDMA_CM_EVENT_USER`].
        pub arg: u64 = since "60",
    }

    /// The address of a datagram peer.
    #[derive(Debug, Clone, Copy)]
    pub struct rdma_ud_param {
        /// The peer's private data.
        pub private_data: *const c_void,
        /// The length of the private data in bytes, including zero padding.
        pub private_data_len: u8,
        /// The attributes of an address handle for the peer.
        pub ah_attr: ibv_ah_attr,
        /// The peer's queue pair number.
        pub qp_num: u32,
        /// The peer's Q_Key.
        pub qkey: u32,
    }
}
