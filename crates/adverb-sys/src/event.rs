//! Asynchronous events of devices, ports, queue pairs and other objects.

use libc::{c_int, c_uint};

use crate::{ibv_cq, ibv_qp, ibv_srq, ibv_wq};

shapes! {
    /// The type of an asynchronous event.
    pub enum ibv_event_type: c_uint {
        /// A completion queue overran or failed.
        IBV_EVENT_CQ_ERR = 0,
        /// A queue pair moved to the error state, and the error can't be reported in a completion.
        IBV_EVENT_QP_FATAL = 1,
        /// A queue pair received an invalid request.
        IBV_EVENT_QP_REQ_ERR = 2,
        /// A queue pair received a request with an access violation.
        IBV_EVENT_QP_ACCESS_ERR = 3,
        /// A queue pair in the state RTR received its first packet.
        IBV_EVENT_COMM_EST = 4,
        /// A send queue was drained.
        IBV_EVENT_SQ_DRAINED = 5,
        /// A connection migrated to its alternate path.
        IBV_EVENT_PATH_MIG = 6,
        /// A connection failed to migrate to its alternate path.
        IBV_EVENT_PATH_MIG_ERR = 7,
        /// The device failed and must be closed.
        IBV_EVENT_DEVICE_FATAL = 8,
        /// A port became active.
        IBV_EVENT_PORT_ACTIVE = 9,
        /// A port became inactive.
        IBV_EVENT_PORT_ERR = 10,
        /// A port's LID changed.
        IBV_EVENT_LID_CHANGE = 11,
        /// A port's P_Key table changed.
        IBV_EVENT_PKEY_CHANGE = 12,
        /// A port's subnet manager changed.
        IBV_EVENT_SM_CHANGE = 13,
        /// A shared receive queue failed.
        IBV_EVENT_SRQ_ERR = 14,
        /// The number of requests in a shared receive queue fell below its limit.
        IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        /// A queue pair in the error state consumes no more requests of its shared receive queue.
        IBV_EVENT_QP_LAST_WQE_REACHED = 16,
        /// The subnet manager requests clients to reregister.
        IBV_EVENT_CLIENT_REREGISTER = 17,
        /// A port's GID table changed.
        IBV_EVENT_GID_CHANGE = 18,
        /// A work queue failed.
        IBV_EVENT_WQ_FATAL = 19,
    }

    pub const ibv_event_type since "62" {
        /// A port's speed changed.
        IBV_EVENT_DEVICE_SPEED_CHANGE = 20,
    }

    /// An asynchronous event.
    #[derive(Clone, Copy)]
    pub struct ibv_async_event {
        /// The affected object.
        pub element: ibv_async_event_element,
        /// The type of the event.
        pub event_type: ibv_event_type,
    }

    /// The affected object of an asynchronous event. The event type determines the valid member.
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
        /// The number of a port.
        pub port_num: c_int,
    }
}
