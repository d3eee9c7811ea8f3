//! The functions and types of librdmacm.

use libc::{c_char, c_int, c_void, size_t, sockaddr};

use crate::errno::set_errno;
use crate::{__be16, ibv_ece, ibv_event_type, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex};

pub(crate) mod addrinfo;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod route;

pub use addrinfo::*;
pub use event::*;
pub use id::*;
pub use route::*;

symbols! {
    /// The loaded librdmacm.
    ///
    /// As in [`Ibverbs`](crate::Ibverbs), each field is a symbol that the library exports, and the method of the same
    /// name calls the symbol. Unless documented otherwise, a function returns 0 on success; on failure it returns -1
    /// and sets errno.
    pub struct RdmaCm from "librdmacm.so.1";

    called {
        /// Creates an event channel. Returns NULL and sets errno on failure, for example if the kernel has no
        /// connection manager.
        ///
        /// # Safety
        ///
        /// There are no requirements.
        fn rdma_create_event_channel() -> *mut rdma_event_channel;

        /// Destroys an event channel.
        ///
        /// # Safety
        ///
        /// `channel` is alive, no identifier uses the channel, all its events are acknowledged, and the channel isn't
        /// used afterwards.
        fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);

        /// Creates an identifier, the connection manager's counterpart of a socket. If `channel` is NULL, calls on
        /// the identifier block until they complete.
        ///
        /// # Safety
        ///
        /// `channel` is NULL or alive, and `id` is valid for writes.
        fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut c_void,
            ps: rdma_port_space,
        ) -> c_int;

        /// Destroys an identifier, after waiting until its events are acknowledged.
        ///
        /// # Safety
        ///
        /// `id` is alive, its queue pair is destroyed, and `id` isn't used afterwards.
        fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;

        /// Binds an identifier to a local address.
        ///
        /// # Safety
        ///
        /// `id` is alive, and `addr` points to a complete socket address of its address family.
        fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;

        /// Resolves an address to a local device and port.
        ///
        /// # Safety
        ///
        /// `id` is alive, `src_addr` is NULL or points to a socket address, and `dst_addr` points to a socket address.
        fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            src_addr: *mut sockaddr,
            dst_addr: *mut sockaddr,
            timeout_ms: c_int,
        ) -> c_int;

        /// Resolves the route to the resolved address.
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;

        /// Creates a queue pair on an identifier. The library performs the queue pair's state transitions.
        ///
        /// # Safety
        ///
        /// `id` is alive and has a device. `pd` is NULL, or alive and created on that device. `qp_init_attr` is valid
        /// for reads and writes, and the objects that it refers to are alive.
        fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;

        /// Creates a queue pair on an identifier with extended attributes.
        ///
        /// # Safety
        ///
        /// The requirements are those of [`rdma_create_qp`](Self::rdma_create_qp).
        fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;

        /// Destroys the queue pair created on an identifier.
        ///
        /// # Safety
        ///
        /// `id` is alive and has a queue pair, which isn't used afterwards.
        fn rdma_destroy_qp(id: *mut rdma_cm_id);

        /// Sends a connection request. For datagrams, the function requests the peer's queue pair number and Q_Key.
        ///
        /// # Safety
        ///
        /// `id` is alive. `conn_param` is NULL, or both `conn_param` and its private data are valid for reads.
        fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

        /// Listens for connection requests.
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;

        /// Accepts a connection request.
        ///
        /// # Safety
        ///
        /// `id` is alive and is the identifier of the connection request. `conn_param` is NULL, or both `conn_param`
        /// and its private data are valid for reads.
        fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

        /// Rejects a connection request.
        ///
        /// # Safety
        ///
        /// `id` is alive and is the identifier of the connection request, and `private_data` is valid for reads of
        /// `private_data_len` bytes.
        fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;

        /// Notifies the connection manager of a queue pair's event, such as
        /// [`IBV_EVENT_COMM_EST`](crate::IBV_EVENT_COMM_EST).
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;

        /// Disconnects a connection, and moves the queue pair created on its identifier to the error state.
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;

        /// Joins a multicast group.
        ///
        /// # Safety
        ///
        /// `id` is alive, and `addr` points to a socket address.
        fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;

        /// Leaves a multicast group.
        ///
        /// # Safety
        ///
        /// `id` is alive, and `addr` points to a socket address.
        fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;

        /// Reads the next event, and waits for it unless the channel's file descriptor is non-blocking.
        ///
        /// # Safety
        ///
        /// `channel` is alive, `event` is valid for writes, and each event that was read is acknowledged
        /// once.
        fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;

        /// Acknowledges and frees an event.
        ///
        /// # Safety
        ///
        /// `event` was returned by [`rdma_get_cm_event`](Self::rdma_get_cm_event), and neither the event nor its
        /// private data is used afterwards.
        fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;

        /// Returns the local port, or zero if the identifier has no local address.
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;

        /// Returns the peer's port, or zero if the identifier has no peer address.
        ///
        /// # Safety
        ///
        /// `id` is alive.
        fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;

        /// Returns a description of an event.
        ///
        /// # Safety
        ///
        /// There are no requirements: the library returns a constant string for every value.
        fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;

        /// Sets an option of an identifier.
        ///
        /// # Safety
        ///
        /// `id` is alive, and `optval` is valid for reads of `optlen` bytes, which contain a value of the option's
        /// type.
        fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: c_int,
            optname: c_int,
            optval: *mut c_void,
            optlen: size_t,
        ) -> c_int;

        /// Moves an identifier to another channel, after waiting until its events are acknowledged.
        ///
        /// # Safety
        ///
        /// `id` is alive, and `channel` is NULL or alive.
        fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    }

    redirected {}

    optional {
        rdma_establish: unsafe extern "C" fn(*mut rdma_cm_id) -> c_int;
        rdma_init_qp_attr: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
        rdma_join_multicast_ex:
            unsafe extern "C" fn(*mut rdma_cm_id, *mut rdma_cm_join_mc_attr_ex, *mut c_void) -> c_int;
        rdma_reject_ece: unsafe extern "C" fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_set_local_ece: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int;
        rdma_get_remote_ece: unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_ece) -> c_int;
    }
}

impl RdmaCm {
    /// Completes a connection whose queue pair the caller manages. The queue pair must be ready to receive.
    ///
    /// # Safety
    ///
    /// `id` is alive.
    pub unsafe fn rdma_establish(&self, id: *mut rdma_cm_id) -> c_int {
        match self.rdma_establish {
            // SAFETY: the caller vouches for the identifier.
            Some(rdma_establish) => unsafe { rdma_establish(id) },
            None => unsupported(),
        }
    }

    /// Fills in the attributes for moving a queue pair to the state in `qp_attr`.
    ///
    /// # Safety
    ///
    /// `id` is alive, `qp_attr` is valid for reads and writes, and `qp_attr_mask` is valid for writes.
    pub unsafe fn rdma_init_qp_attr(
        &self,
        id: *mut rdma_cm_id,
        qp_attr: *mut ibv_qp_attr,
        qp_attr_mask: *mut c_int,
    ) -> c_int {
        match self.rdma_init_qp_attr {
            // SAFETY: the caller upholds the requirements above.
            Some(rdma_init_qp_attr) => unsafe { rdma_init_qp_attr(id, qp_attr, qp_attr_mask) },
            None => unsupported(),
        }
    }

    /// Joins a multicast group as sender and receiver, or as sender only.
    ///
    /// # Safety
    ///
    /// `id` is alive, and `mc_join_attr` is valid for reads and contains a socket address.
    pub unsafe fn rdma_join_multicast_ex(
        &self,
        id: *mut rdma_cm_id,
        mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> c_int {
        match self.rdma_join_multicast_ex {
            // SAFETY: the caller upholds the requirements above.
            Some(rdma_join_multicast_ex) => unsafe { rdma_join_multicast_ex(id, mc_join_attr, context) },
            None => unsupported(),
        }
    }

    /// Rejects a connection request because of its enhanced connection establishment (ECE) options.
    ///
    /// # Safety
    ///
    /// The requirements are those of [`rdma_reject`](Self::rdma_reject).
    pub unsafe fn rdma_reject_ece(
        &self,
        id: *mut rdma_cm_id,
        private_data: *const c_void,
        private_data_len: u8,
    ) -> c_int {
        match self.rdma_reject_ece {
            // SAFETY: the caller upholds the requirements above.
            Some(rdma_reject_ece) => unsafe { rdma_reject_ece(id, private_data, private_data_len) },
            None => unsupported(),
        }
    }

    /// Sets the enhanced connection establishment (ECE) options of a connection request or of its acceptance.
    ///
    /// # Safety
    ///
    /// `id` is alive, and `ece` is valid for reads.
    pub unsafe fn rdma_set_local_ece(&self, id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
        match self.rdma_set_local_ece {
            // SAFETY: the caller upholds the requirements above.
            Some(rdma_set_local_ece) => unsafe { rdma_set_local_ece(id, ece) },
            None => unsupported(),
        }
    }

    /// Writes the peer's enhanced connection establishment (ECE) options to `ece`.
    ///
    /// # Safety
    ///
    /// `id` is alive, and `ece` is valid for writes.
    pub unsafe fn rdma_get_remote_ece(&self, id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
        match self.rdma_get_remote_ece {
            // SAFETY: the caller upholds the requirements above.
            Some(rdma_get_remote_ece) => unsafe { rdma_get_remote_ece(id, ece) },
            None => unsupported(),
        }
    }
}

/// Sets errno to EOPNOTSUPP and returns -1, as librdmacm's functions do.
fn unsupported() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}
