//! Queue pairs.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_proto::explain::Call;
use adverb_proto::types::{ExtendedOperation, Qpn, SendRequest, Transport};
use adverb_sys::{self as sys, ibv_qp, ibv_qp_attr, ibv_send_wr};

use super::address_handle::encode_address;
use super::operation::{self, ExtendedPosting};
use super::request_list::{Chain, RecvList, SendList, SendSlot};
use super::{CompletionQueue, ProtectionDomain, check};
use crate::backend::{
    self, Init, PostErrno, QueuePairLimits, QueuePairOptions, ReadyToReceive, ReadyToSend, StateChange,
};
use crate::error::{Result, call_failed};

pub(crate) struct QueuePair {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) handle: NonNull<ibv_qp>,
    pub(super) qpn: Qpn,
    destroyed: AtomicBool,
    /// The functions for operations that `ibv_post_send` can't post, if the device has such operations.
    extended: Option<ExtendedPosting>,
    // The queues exist as long as the queue pair, whose requests complete into them.
    _send_cq: Arc<CompletionQueue>,
    _recv_cq: Arc<CompletionQueue>,
    _shared: Option<Arc<backend::SharedReceiveQueue>>,
}

// SAFETY: libibverbs' queue pairs may be used from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above. Posting locks its shared state.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    pub(in crate::backend) fn new(
        domain: &Arc<ProtectionDomain>,
        send_cq: &Arc<CompletionQueue>,
        recv_cq: &Arc<CompletionQueue>,
        shared: Option<&Arc<backend::SharedReceiveQueue>>,
        options: &QueuePairOptions,
    ) -> Result<(QueuePair, QueuePairLimits)> {
        let device = &domain.device;
        let shared = match shared.map(|shared| (shared, &**shared)) {
            None => None,
            Some((shared, backend::SharedReceiveQueue::Ibv(queue))) => Some((shared, queue)),
            #[cfg(feature = "soft")]
            Some(_) => return Err(backend::device_mismatch()),
        };
        if [send_cq, recv_cq].iter().any(|queue| !Arc::ptr_eq(&queue.device, device))
            || shared.is_some_and(|(_, queue)| !Arc::ptr_eq(&queue.domain.device, device))
        {
            return Err(backend::device_mismatch());
        }
        let mut attr = sys::ibv_qp_init_attr::zeroed();
        attr.send_cq = send_cq.handle.as_ptr();
        attr.recv_cq = recv_cq.handle.as_ptr();
        if let Some((_, queue)) = shared {
            attr.srq = queue.handle.as_ptr();
        }
        attr.cap.max_send_wr = options.send_depth;
        attr.cap.max_recv_wr = options.recv_depth;
        attr.cap.max_send_sge = options.send_segments;
        attr.cap.max_recv_sge = options.recv_segments;
        attr.cap.max_inline_data = options.inline;
        attr.qp_type = match options.transport {
            Transport::Rc => sys::IBV_QPT_RC,
            Transport::Uc => sys::IBV_QPT_UC,
            Transport::Ud => sys::IBV_QPT_UD,
        };
        // ATOMIC WRITE and FLUSH require RC.
        let operations = if options.transport == Transport::Rc { device.extended_operations } else { 0 };
        // SAFETY: the domain and both completion queues exist and belong to one context. The attributes may be written.
        let (handle, extended) =
            unsafe { operation::create_queue_pair(device, domain, &mut attr, operations) };
        let action = || format!("creating a {} queue pair on {}", options.transport, device.name);
        let handle = NonNull::new(handle)
            .ok_or_else(|| call_failed(Call::Create, action(), io::Error::last_os_error()))?;
        // SAFETY: the queue pair was just created, and its number doesn't change.
        let qpn = Qpn::truncate(unsafe { (*handle.as_ptr()).qp_num });
        let limits = QueuePairLimits {
            send_segments: attr.cap.max_send_sge,
            recv_segments: attr.cap.max_recv_sge,
            inline: attr.cap.max_inline_data,
        };
        let queue_pair = QueuePair {
            domain: Arc::clone(domain),
            handle,
            qpn,
            destroyed: AtomicBool::new(false),
            extended,
            _send_cq: Arc::clone(send_cq),
            _recv_cq: Arc::clone(recv_cq),
            _shared: shared.map(|(shared, _)| Arc::clone(shared)),
        };
        Ok((queue_pair, limits))
    }

    pub(in crate::backend) fn qpn(&self) -> Qpn {
        self.qpn
    }

    pub(in crate::backend) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Relaxed)
    }

    /// Returns the library's object, or an error if it was destroyed early. (Posting doesn't need this check, because
    /// it checks the state.)
    pub(super) fn live_handle(&self) -> Result<*mut ibv_qp> {
        if self.is_destroyed() {
            return Err(backend::queue_pair_destroyed());
        }
        Ok(self.handle.as_ptr())
    }

    pub(in crate::backend) fn modify(&self, change: &StateChange) -> Result<()> {
        let handle = self.live_handle()?;
        let mut attr = ibv_qp_attr::zeroed();
        let (mask, state_name) = match change {
            StateChange::Reset => {
                attr.qp_state = sys::IBV_QPS_RESET;
                (sys::IBV_QP_STATE, "reset")
            }
            StateChange::Init(init) => (set_init_attributes(&mut attr, init), "init"),
            StateChange::ReadyToReceive(ready) => (set_rtr_attributes(&mut attr, ready), "ready to receive"),
            StateChange::ReadyToSend(ready) => (set_rts_attributes(&mut attr, ready), "ready to send"),
            StateChange::Access(access) => {
                attr.qp_state = sys::IBV_QPS_RTS;
                attr.qp_access_flags = access.bits();
                (sys::IBV_QP_STATE | sys::IBV_QP_ACCESS_FLAGS, "ready to send")
            }
            StateChange::Error => {
                attr.qp_state = sys::IBV_QPS_ERR;
                (sys::IBV_QP_STATE, "error")
            }
        };
        // SAFETY: the queue pair exists, and all attributes in the mask are set.
        let code = unsafe { self.domain.device.library.ibv_modify_qp(handle, &mut attr, mask) };
        let call = match change {
            StateChange::ReadyToReceive(_) => Call::ResolvePeer,
            _ => Call::ModifyQueuePair,
        };
        check(call, code, || {
            format!("moving queue pair {} of {} to “{state_name}”", self.qpn, self.domain.device.name)
        })
    }

    /// Posts one request, which it puts into the slot.
    #[inline(always)]
    pub(in crate::backend) fn post_send(
        &self,
        slot: &mut SendSlot,
        request: &SendRequest<'_, &backend::AddressHandle>,
    ) -> Result<(), PostErrno> {
        slot.post(request, |chain| self.post_chain(chain))
    }

    /// Posts requests with one doorbell.
    #[inline]
    pub(in crate::backend) fn post_sends(&self, list: &mut SendList) -> Result<(), PostErrno> {
        list.requests.post(|chain| self.post_chain(chain))
    }

    #[inline(always)]
    fn post_chain(&self, Chain { first, bad }: Chain<'_, ibv_send_wr>) -> libc::c_int {
        // SAFETY: the queue pair exists. The chain, and the memory that it refers to, are valid for the library.
        unsafe { sys::ibv_post_send(self.handle.as_ptr(), first, bad) }
    }

    /// Whether the installed library can post an operation that `ibv_post_send` can't post.
    pub(in crate::backend) fn can_post(&self, operation: ExtendedOperation) -> bool {
        self.extended.as_ref().is_some_and(|extended| extended.has(operation))
    }

    /// Posts the requests one by one, because `ibv_post_send` can't post some of them. Each has its own doorbell.
    #[cold]
    pub(in crate::backend) fn post_extended_sends(&self, list: &mut SendList) -> Result<(), PostErrno> {
        list.post_each(|operation, chain| match (operation.extended(), &self.extended) {
            (None, _) => self.post_chain(chain),
            // SAFETY: the queue pair exists, and the caller holds the lock of its send queue. The request belongs to the
            // chain. After a failure `bad` stays null, because librxe may have accepted a request whose doorbell failed.
            (Some(operation), Some(extended)) => unsafe { extended.post(operation, &*chain.first) },
            (Some(_), None) => libc::EOPNOTSUPP,
        })
    }

    #[inline]
    pub(crate) fn post_recvs(&self, list: &mut RecvList) -> Result<(), PostErrno> {
        list.post(|Chain { first, bad }| {
            // SAFETY: as in `post_chain`.
            unsafe { sys::ibv_post_recv(self.handle.as_ptr(), first, bad) }
        })
    }

    pub(in crate::backend) fn destroy(&self) -> Result<()> {
        if !self.domain.device.is_owned() || self.destroyed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: the flag makes sure that the queue pair is destroyed once. It isn't used afterwards: `live_handle`
        // checks the flag, and posting checks the state.
        let code = unsafe { self.domain.device.library.ibv_destroy_qp(self.handle.as_ptr()) };
        check(Call::Destroy, code, || format!("destroying queue pair {}", self.qpn))
    }
}

/// Sets the attributes of the init state, and returns their mask.
fn set_init_attributes(attr: &mut ibv_qp_attr, init: &Init) -> libc::c_int {
    attr.qp_state = sys::IBV_QPS_INIT;
    attr.port_num = init.port;
    attr.pkey_index = init.pkey_index;
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_PORT | sys::IBV_QP_PKEY_INDEX;
    if init.transport == Transport::Ud {
        attr.qkey = init.qkey;
        mask | sys::IBV_QP_QKEY
    } else {
        attr.qp_access_flags = init.access.bits();
        mask | sys::IBV_QP_ACCESS_FLAGS
    }
}

/// Sets the attributes of the state RTR, and returns their mask.
fn set_rtr_attributes(attr: &mut ibv_qp_attr, ready: &ReadyToReceive) -> libc::c_int {
    attr.qp_state = sys::IBV_QPS_RTR;
    let Some(connection) = &ready.connection else { return sys::IBV_QP_STATE };
    attr.path_mtu = connection.mtu.code().into();
    attr.dest_qp_num = connection.qpn.get();
    attr.rq_psn = connection.psn.get();
    attr.ah_attr = encode_address(&connection.address);
    let mask =
        sys::IBV_QP_STATE | sys::IBV_QP_AV | sys::IBV_QP_PATH_MTU | sys::IBV_QP_DEST_QPN | sys::IBV_QP_RQ_PSN;
    if ready.transport != Transport::Rc {
        return mask;
    }
    attr.max_dest_rd_atomic = connection.max_dest_rd_atomic;
    attr.min_rnr_timer = connection.min_rnr_timer;
    mask | sys::IBV_QP_MAX_DEST_RD_ATOMIC | sys::IBV_QP_MIN_RNR_TIMER
}

/// Sets the attributes of the state RTS, and returns their mask.
fn set_rts_attributes(attr: &mut ibv_qp_attr, ready: &ReadyToSend) -> libc::c_int {
    attr.qp_state = sys::IBV_QPS_RTS;
    attr.sq_psn = ready.psn.get();
    let mask = sys::IBV_QP_STATE | sys::IBV_QP_SQ_PSN;
    if ready.transport != Transport::Rc {
        return mask;
    }
    attr.timeout = ready.timeout;
    attr.retry_cnt = ready.retry_count;
    attr.rnr_retry = ready.rnr_retry;
    attr.max_rd_atomic = ready.max_rd_atomic;
    mask | sys::IBV_QP_TIMEOUT | sys::IBV_QP_RETRY_CNT | sys::IBV_QP_RNR_RETRY | sys::IBV_QP_MAX_QP_RD_ATOMIC
}
