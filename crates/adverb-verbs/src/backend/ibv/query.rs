//! Queries of queue pairs.

use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, PathMtu, PeerAttributes, Psn, QpState, Qpn, QueuePairAttributes};
use adverb_sys::{self as sys, ibv_qp_attr};

use super::{QueuePair, check};
use crate::error::Result;

impl QueuePair {
    pub(in crate::backend) fn state(&self) -> Result<QpState> {
        Ok(state(&self.query_attributes(sys::IBV_QP_STATE)?))
    }

    pub(in crate::backend) fn query(&self) -> Result<QueuePairAttributes> {
        let attr = self.query_attributes(ALL_ATTRIBUTES)?;
        let (path, grh) = (&attr.ah_attr, &attr.ah_attr.grh);
        let state = state(&attr);
        let is_connected = !matches!(state, QpState::Reset | QpState::Init);
        let mut attributes = QueuePairAttributes::new(state);
        attributes.port = attr.port_num;
        attributes.pkey_index = attr.pkey_index;
        attributes.qkey = attr.qkey;
        attributes.send_psn = Psn::wrapping(attr.sq_psn);
        // A queue pair that failed before it was connected has no peer.
        if is_connected && attr.dest_qp_num != 0 {
            let gid = if path.is_global == 0 { Gid::ZERO } else { Gid::new(grh.dgid.octets()) };
            let mut peer = PeerAttributes::new(Qpn::truncate(attr.dest_qp_num), gid);
            peer.lid = path.dlid;
            peer.recv_psn = Psn::wrapping(attr.rq_psn);
            peer.mtu =
                u8::try_from(attr.path_mtu).ok().and_then(PathMtu::from_code).unwrap_or(PathMtu::Mtu256);
            peer.traffic_class = grh.traffic_class;
            peer.flow_label = grh.flow_label;
            peer.hop_limit = grh.hop_limit;
            peer.service_level = path.sl;
            peer.ack_timeout = attr.timeout;
            peer.retry_count = attr.retry_cnt;
            peer.rnr_retry = attr.rnr_retry;
            peer.min_rnr_timer = attr.min_rnr_timer;
            peer.max_rd_atomic = attr.max_rd_atomic;
            peer.max_dest_rd_atomic = attr.max_dest_rd_atomic;
            attributes.peer = Some(peer);
        }
        Ok(attributes)
    }

    fn query_attributes(&self, mask: libc::c_int) -> Result<ibv_qp_attr> {
        let handle = self.live_handle()?;
        let mut attr = ibv_qp_attr::zeroed();
        let mut init = sys::ibv_qp_init_attr::zeroed();
        let library = self.domain.device.library;
        // SAFETY: the queue pair exists, and both values may be written.
        let code = unsafe { library.ibv_query_qp(handle, &mut attr, mask, &mut init) };
        check(Call::Query, code, || format!("querying queue pair {}", self.qpn))?;
        Ok(attr)
    }
}

/// All attributes that [`query`](QueuePair::query) returns. Devices fill in those that they support.
const ALL_ATTRIBUTES: libc::c_int = sys::IBV_QP_STATE
    | sys::IBV_QP_PORT
    | sys::IBV_QP_PKEY_INDEX
    | sys::IBV_QP_QKEY
    | sys::IBV_QP_AV
    | sys::IBV_QP_PATH_MTU
    | sys::IBV_QP_DEST_QPN
    | sys::IBV_QP_RQ_PSN
    | sys::IBV_QP_SQ_PSN
    | sys::IBV_QP_TIMEOUT
    | sys::IBV_QP_RETRY_CNT
    | sys::IBV_QP_RNR_RETRY
    | sys::IBV_QP_MIN_RNR_TIMER
    | sys::IBV_QP_MAX_QP_RD_ATOMIC
    | sys::IBV_QP_MAX_DEST_RD_ATOMIC;

fn state(attr: &ibv_qp_attr) -> QpState {
    match attr.qp_state {
        sys::IBV_QPS_RESET => QpState::Reset,
        sys::IBV_QPS_INIT => QpState::Init,
        sys::IBV_QPS_RTR => QpState::ReadyToReceive,
        sys::IBV_QPS_RTS => QpState::ReadyToSend,
        sys::IBV_QPS_SQD => QpState::SendQueueDrained,
        sys::IBV_QPS_SQE => QpState::SendQueueError,
        _ => QpState::Error,
    }
}
