//! Tests of the library as a C program uses it. A test that ends a process, or whose failure would crash or block it, runs
//! a part of itself in a process of its own.

mod backlog;
mod children;
mod closing;
mod exits;
mod forks;
mod reports;

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use adverb_sys::*;

use crate::context::ibv_open_device;
use crate::cq::{ibv_create_cq, poll_cq};
use crate::modify::ibv_modify_qp;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};
use crate::pd::ibv_alloc_pd;
use crate::post::post_send;
use crate::qp::ibv_create_qp;
use crate::query::ibv_query_gid;

/// The time limit of things that take milliseconds on an idle machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// A context with a queue pair.
struct End {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

const WRITABLE: i32 = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) as i32;

impl End {
    fn new() -> End {
        // SAFETY: all objects are alive.
        unsafe {
            let context = ibv_open_device(crate::device::device());
            assert!(!context.is_null());
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
            let mut init = ibv_qp_init_attr::zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (8, 8);
            (init.cap.max_send_sge, init.cap.max_recv_sge) = (1, 1);
            let qp = ibv_create_qp(pd, &raw mut init);
            assert!(!qp.is_null());
            End { context, pd, cq, qp }
        }
    }

    /// Connects the queue pair to another one of this process.
    fn connect(&self, peer: &End) {
        // SAFETY: all objects are alive.
        unsafe {
            let mut attr = ibv_qp_attr::zeroed();
            (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
            attr.qp_access_flags = WRITABLE as u32;
            let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            assert_eq!(ibv_modify_qp(self.qp, &raw mut attr, mask), 0);
            let mut gid = ibv_gid::zeroed();
            assert_eq!(ibv_query_gid(self.context, 1, 0, &raw mut gid), 0);
            attr.qp_state = IBV_QPS_RTR;
            (attr.path_mtu, attr.dest_qp_num) = (IBV_MTU_1024, (*peer.qp).qp_num);
            (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
            (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.grh.dgid) = (1, 1, gid);
            let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            let mask = mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            assert_eq!(ibv_modify_qp(self.qp, &raw mut attr, mask), 0);
            attr.qp_state = IBV_QPS_RTS;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (10, 2, 2, 1);
            let mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            let mask = mask | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
            assert_eq!(ibv_modify_qp(self.qp, &raw mut attr, mask), 0);
        }
    }

    /// Writes to an address of the peer, and returns the status of the completion.
    fn write(&self, data: &mut [u8], remote_addr: u64, rkey: u32) -> u32 {
        let mr = self.post_write(data, remote_addr, rkey);
        let (start, mut wc) = (Instant::now(), ibv_wc::zeroed());
        // SAFETY: the queue is alive.
        while unsafe { poll_cq(self.cq, 1, &raw mut wc) } == 0 {
            assert!(start.elapsed() < DEADLINE, "the WRITE did not complete");
        }
        // SAFETY: the request is complete.
        assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
        wc.status
    }

    /// Posts a WRITE to an address of the peer, and returns the memory region of the data.
    fn post_write(&self, data: &mut [u8], remote_addr: u64, rkey: u32) -> *mut ibv_mr {
        // SAFETY: all objects and the data are alive.
        unsafe {
            let mr = ibv_reg_mr(self.pd, data.as_mut_ptr().cast(), data.len(), WRITABLE);
            let mut sge = ibv_sge { addr: data.as_ptr() as u64, length: data.len() as u32, lkey: (*mr).lkey };
            let mut wr = ibv_send_wr::zeroed();
            (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut sge, 1, IBV_WR_RDMA_WRITE);
            wr.send_flags = IBV_SEND_SIGNALED;
            wr.wr.rdma.remote_addr = remote_addr;
            wr.wr.rdma.rkey = rkey;
            let mut bad = null_mut();
            assert_eq!(post_send(self.qp, &raw mut wr, &raw mut bad), 0);
            mr
        }
    }
}

/// Returns the address of the device, with port 0.
fn own_addr() -> libc::sockaddr_in {
    let ip = crate::nic::OpenNic::get().unwrap().gid(0).unwrap().udp_addr().ip();
    let std::net::IpAddr::V4(ip) = ip else { panic!("the device is at {ip}") };
    // SAFETY: all bytes of the struct may be zero.
    let mut addr: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
    addr
}
