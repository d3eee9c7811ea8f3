//! Asynchronous events: what happened to an object or a port, outside any completion queue.

use libc::{c_int, c_uint};

use crate::{ibv_cq, ibv_qp, ibv_srq, ibv_wq};

shapes! {
    /// What happened.
    pub enum ibv_event_type: c_uint {
        /// A completion queue overran, or is broken.
        IBV_EVENT_CQ_ERR = 0,
        /// A queue pair can't report its error in a completion, and is in the error state.
        IBV_EVENT_QP_FATAL = 1,
        /// A queue pair received a request that isn't valid.
        IBV_EVENT_QP_REQ_ERR = 2,
        /// A queue pair received a request that isn't allowed.
        IBV_EVENT_QP_ACCESS_ERR = 3,
        /// A queue pair that isn't ready to send yet received its first packet.
        IBV_EVENT_COMM_EST = 4,
        /// A send queue has been drained.
        IBV_EVENT_SQ_DRAINED = 5,
        /// A connection has migrated to its other path.
        IBV_EVENT_PATH_MIG = 6,
        /// A connection couldn't migrate to its other path.
        IBV_EVENT_PATH_MIG_ERR = 7,
        /// The device is broken, and has to be closed.
        IBV_EVENT_DEVICE_FATAL = 8,
        /// A port is active.
        IBV_EVENT_PORT_ACTIVE = 9,
        /// A port isn't active any more.
        IBV_EVENT_PORT_ERR = 10,
        /// A port's local identifier changed.
        IBV_EVENT_LID_CHANGE = 11,
        /// A port's P_Key table changed.
        IBV_EVENT_PKEY_CHANGE = 12,
        /// A port's subnet manager changed.
        IBV_EVENT_SM_CHANGE = 13,
        /// A shared receive queue is broken.
        IBV_EVENT_SRQ_ERR = 14,
        /// A shared receive queue is below its limit.
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        /// A queue pair in the error state takes no more from its shared receive queue.
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        /// The subnet manager wants clients to register again.
        IBV_EVENT_CLIENT_REREGISTER = 17,
        /// A port's GID table changed.
        IBV_EVENT_GID_CHANGE = 18,
        /// A work queue is broken.
        IBV_EVENT_WQ_FATAL = 19,
    }

    pub const ibv_event_type since "62" {
        /// A port's speed changed.
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }

    /// An asynchronous event.
    #[derive(Clone, Copy)]
    pub struct ibv_async_event {
        /// To what it happened.
        pub element: ibv_async_event_element,
        /// What happened.
        pub event_type: ibv_event_type,
    }

    /// To what an asynchronous event happened; which member counts follows from the event's type.
    #[derive(Clone, Copy)]
    pub union ibv_async_event_element inside ibv_async_event.element {
        /// A completion queue.
        pub cq: *mut ibv_cq,
        /// A queue pair.
        pub qp: *mut ibv_qp,
        /// A shared receive queue.
        pub srq: *mut ibv_srq,
        /// A work queue.
        pub wq: *mut ibv_wq,
        /// A port.
        pub port_num: c_int,
    }
}
