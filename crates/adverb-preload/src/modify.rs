//! Modifying and querying queue pairs.

use adverb_proto::types::{Access, PathMtu, Psn, QpState, Qpn, Transport};
use adverb_proto::{Init, Path, ReadyToReceive, ReadyToSend, Transition};
use adverb_sys::*;
use adverb_wire::cm::Timeout;
use adverb_wire::{DEFAULT_PKEY, RnrTimer};
use libc::c_int;

use crate::calls::invalid;
use crate::entry::{errno_of, errno_result};
use crate::nic::OpenPath;
use crate::qp::QueuePair;

/// The attributes that a queue pair was modified with.
#[derive(Default)]
pub(crate) struct Attributes {
    attr: ibv_qp_attr,
    /// The path to the peer, whose source port stays open.
    pub(crate) path: Option<OpenPath>,
}

impl Attributes {
    /// Stores the attributes that a mask names.
    fn store(&mut self, attr: &ibv_qp_attr, mask: c_int) {
        macro_rules! store {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask & $bit != 0 {
                    $(self.attr.$field = attr.$field;)+
                })*
            };
        }
        store! {
            IBV_QP_EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_SQ_PSN: sq_psn;
        }
    }
}

/// Returns the state with rdma-core's number, or `None` if there is none.
fn state_of(number: ibv_qp_state) -> Option<QpState> {
    Some(match number {
        IBV_QPS_RESET => QpState::Reset,
        IBV_QPS_INIT => QpState::Init,
        IBV_QPS_RTR => QpState::ReadyToReceive,
        IBV_QPS_RTS => QpState::ReadyToSend,
        IBV_QPS_SQD => QpState::SendQueueDrained,
        IBV_QPS_SQE => QpState::SendQueueError,
        IBV_QPS_ERR => QpState::Error,
        _ => return None,
    })
}

/// Returns rdma-core's number of a state.
fn number_of(state: QpState) -> ibv_qp_state {
    match state {
        QpState::Reset => IBV_QPS_RESET,
        QpState::Init => IBV_QPS_INIT,
        QpState::ReadyToReceive => IBV_QPS_RTR,
        QpState::ReadyToSend => IBV_QPS_RTS,
        QpState::SendQueueDrained => IBV_QPS_SQD,
        QpState::SendQueueError => IBV_QPS_SQE,
        QpState::Error => IBV_QPS_ERR,
    }
}

/// Returns the attributes that a transition requires (vol. 1, table 91), besides the state.
fn required(from: QpState, to: QpState, transport: Transport) -> c_int {
    let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    match (from, to, transport) {
        (QpState::Reset, QpState::Init, Transport::Ud) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        (QpState::Reset, QpState::Init, _) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        (QpState::Init, QpState::ReadyToReceive, Transport::Rc) => {
            connected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER
        }
        (QpState::Init, QpState::ReadyToReceive, Transport::Uc) => connected,
        (QpState::ReadyToReceive, QpState::ReadyToSend, Transport::Rc) => {
            IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC
        }
        (QpState::ReadyToReceive, QpState::ReadyToSend, _) => IBV_QP_SQ_PSN,
        _ => 0,
    }
}

/// Returns the names of the attributes that a transition can require.
fn names(mask: c_int) -> String {
    let names = [
        (IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (IBV_QP_PORT, "IBV_QP_PORT"),
        (IBV_QP_QKEY, "IBV_QP_QKEY"),
        (IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (IBV_QP_AV, "IBV_QP_AV"),
        (IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"),
        (IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"),
        (IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"),
        (IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"),
        (IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
    ];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| mask & bit != 0).map(|(_, name)| *name).collect();
    set.join(" | ")
}

impl QueuePair {
    fn modify(&self, attr: &ibv_qp_attr, mask: c_int) -> Result<(), c_int> {
        let status = self.nic.nic.query_qp(self.qpn).ok_or(libc::EINVAL)?;
        let from = status.state;
        if mask & IBV_QP_CUR_STATE != 0 && state_of(attr.cur_qp_state) != Some(from) {
            return Err(invalid(format_args!(
                "cur_qp_state is {}, but the state is {from:?}",
                attr.cur_qp_state
            )));
        }
        let to = match mask & IBV_QP_STATE {
            0 => from,
            _ => state_of(attr.qp_state)
                .ok_or_else(|| invalid(format_args!("qp_state is {}, which is no state", attr.qp_state)))?,
        };
        let required = required(from, to, self.transport);
        if mask & required != required {
            let missing = names(required & !mask);
            return Err(invalid(format_args!(
                "attr_mask lacks {missing} for the transition from {from:?} to {to:?}"
            )));
        }
        if mask & IBV_QP_PORT != 0 && attr.port_num != 1
            || mask & IBV_QP_PKEY_INDEX != 0 && attr.pkey_index != 0
            || mask & (IBV_QP_ALT_PATH | IBV_QP_RATE_LIMIT) != 0
        {
            return Err(invalid(format_args!(
                "attr_mask is {mask:#x} with port_num {} and pkey_index {}: the device has port 1, one P_Key, and neither \
                 alternate paths nor rate limits",
                attr.port_num, attr.pkey_index
            )));
        }
        let mut attributes = self.attributes.lock();
        let mut path = None;
        let transition = match (from, to) {
            (_, QpState::Reset) => Some(Transition::Reset),
            (_, QpState::Error) => Some(Transition::Error),
            (QpState::Reset | QpState::Init, QpState::Init) => {
                let flags = match mask & IBV_QP_ACCESS_FLAGS {
                    0 => attributes.attr.qp_access_flags,
                    _ => attr.qp_access_flags,
                };
                let qkey = if mask & IBV_QP_QKEY != 0 { attr.qkey } else { attributes.attr.qkey };
                let access = Access::from_bits_truncate(flags);
                Some(Transition::Init(Init { access, pkey: DEFAULT_PKEY, qkey }))
            }
            (QpState::Init, QpState::ReadyToReceive) => Some(match self.transport {
                Transport::Ud => Transition::ReadyToReceiveUd,
                _ => self.ready_to_receive(attr, &mut path)?,
            }),
            (QpState::ReadyToReceive, QpState::ReadyToSend) => Some(self.ready_to_send(attr)?),
            (QpState::ReadyToSend, QpState::SendQueueDrained) => Some(Transition::Drain),
            (QpState::SendQueueDrained | QpState::SendQueueError, QpState::ReadyToSend) => {
                Some(Transition::Resume)
            }
            // The other attributes that may change in these states have no effect on the software NIC.
            (from, to) if from == to => {
                let access = Access::from_bits_truncate(attr.qp_access_flags);
                (mask & IBV_QP_ACCESS_FLAGS != 0).then_some(Transition::ModifyAccess(access))
            }
            _ => return Err(invalid(format_args!("there is no transition from {from:?} to {to:?}"))),
        };
        if let Some(transition) = transition {
            let modified = self.nic.nic.modify_qp(self.qpn, &transition);
            if let Err(error) = modified {
                if let Some(path) = path {
                    path.close(self.nic);
                }
                return Err(errno_of(error));
            }
        }
        if to == QpState::Reset {
            attributes.attr = ibv_qp_attr::zeroed();
            self.discard_completions();
        }
        if (path.is_some() || to == QpState::Reset)
            && let Some(old) = std::mem::replace(&mut attributes.path, path)
        {
            old.close(self.nic);
        }
        attributes.store(attr, mask);
        Ok(())
    }

    /// Returns the transition of a connected queue pair to RTR, and opens its path.
    fn ready_to_receive(
        &self,
        attr: &ibv_qp_attr,
        opened: &mut Option<OpenPath>,
    ) -> Result<Transition, c_int> {
        let remote_qpn = Qpn::truncate(attr.dest_qp_num);
        let port = Path::source_port_between(self.qpn, remote_qpn);
        let mtu = u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code);
        let mtu =
            mtu.ok_or_else(|| invalid(format_args!("path_mtu is {}, which is no MTU", attr.path_mtu)))?;
        let psn = Psn::wrapping(attr.rq_psn);
        let timer = RnrTimer::new(attr.min_rnr_timer);
        if self.transport == Transport::Rc && timer.is_none() {
            return Err(invalid(format_args!(
                "min_rnr_timer is {}, but the maximum is 31",
                attr.min_rnr_timer
            )));
        }
        let path = self.nic.path(&attr.ah_attr, port)?;
        let path = opened.insert(path).path;
        let mut ready = ReadyToReceive::unreliable(remote_qpn, path, mtu, psn);
        if self.transport == Transport::Rc {
            ready.max_dest_rd_atomic = attr.max_dest_rd_atomic;
            ready.min_rnr_timer = timer.unwrap_or(RnrTimer::MAX);
        }
        Ok(Transition::ReadyToReceive(ready))
    }

    /// Returns the transition to RTS.
    fn ready_to_send(&self, attr: &ibv_qp_attr) -> Result<Transition, c_int> {
        let psn = Psn::wrapping(attr.sq_psn);
        let mut ready = ReadyToSend::unreliable(psn);
        if self.transport == Transport::Rc {
            ready.timeout = Timeout::new(attr.timeout)
                .ok_or_else(|| invalid(format_args!("timeout is {}, but the maximum is 31", attr.timeout)))?;
            ready.retry_count = attr.retry_cnt;
            ready.rnr_retry = attr.rnr_retry;
            ready.max_rd_atomic = attr.max_rd_atomic;
        }
        Ok(Transition::ReadyToSend(ready))
    }

    /// Returns the attributes.
    fn query(&self) -> Result<ibv_qp_attr, c_int> {
        let status = self.nic.nic.query_qp(self.qpn).ok_or(libc::EINVAL)?;
        let mut attr = self.attributes.lock().attr;
        attr.qp_state = number_of(status.state);
        attr.cur_qp_state = attr.qp_state;
        attr.path_mig_state = IBV_MIG_MIGRATED;
        attr.cap = self.init.cap;
        attr.sq_draining = u8::from(status.state == QpState::SendQueueDrained && status.send_queue_len != 0);
        if !matches!(status.state, QpState::Reset | QpState::Init) && self.transport != Transport::Ud {
            attr.rq_psn = status.expected_psn.get();
        }
        if matches!(status.state, QpState::ReadyToSend | QpState::SendQueueDrained) {
            attr.sq_psn = status.next_psn.get();
        }
        Ok(attr)
    }
}

entry! {
    /// Modifies a queue pair.
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int {
        // SAFETY: the queue pair is alive, and the attributes are valid for reads.
        let (this, attr) = unsafe { (QueuePair::of(qp), &*attr) };
        let modified = this.modify(attr, attr_mask);
        if modified.is_ok() && attr_mask & IBV_QP_STATE != 0 {
            // SAFETY: the queue pair is alive, and the program doesn't read the field meanwhile.
            unsafe { (*qp).state = attr.qp_state };
        }
        errno_result(modified)
    }

    /// Queries a queue pair.
    fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        _attr_mask: c_int,
        init_attr: *mut ibv_qp_init_attr,
    ) -> c_int {
        // SAFETY: the queue pair is alive.
        let this = unsafe { QueuePair::of(qp) };
        errno_result(this.query().map(|queried| {
            // SAFETY: the attributes are valid for writes, and the program doesn't read the state meanwhile.
            unsafe {
                attr.write(queried);
                if !init_attr.is_null() {
                    init_attr.write(this.init);
                }
                (*qp).state = queried.qp_state;
            }
        }))
    }
}
