//! Closing of contexts whose objects are alive, and memory that can't be registered.

use std::ptr::null_mut;

use adverb_sys::*;

use super::children::{is_part, run};
use super::{End, WRITABLE};
use crate::ah::{ibv_create_ah, ibv_destroy_ah};
use crate::context::{ibv_close_device, ibv_open_device};
use crate::cq::{
    ibv_ack_cq_events, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
    ibv_get_cq_event, ibv_resize_cq, poll_cq, req_notify_cq,
};
use crate::entry::errno;
use crate::modify::ibv_query_qp;
use crate::mr::{ibv_dereg_mr, ibv_reg_mr};
use crate::mw::{alloc_mw, dealloc_mw};
use crate::nic::OpenNic;
use crate::pd::{alloc_td, dealloc_td, ibv_alloc_pd, ibv_dealloc_pd};
use crate::post::{post_recv, post_send};
use crate::qp::{ibv_create_qp, ibv_destroy_qp};
use crate::query::ibv_query_gid;
use crate::srq::{ibv_create_srq, ibv_destroy_srq, post_srq_recv};

#[test]
fn closing_a_context_destroys_its_objects() {
    run("closing::objects_after_close");
}

#[test]
fn objects_after_close() {
    if !is_part("closing::objects_after_close") {
        return;
    }
    let peer = End::new();
    let counts = || {
        let counts = OpenNic::if_open().unwrap().nic.resource_counts();
        (
            counts.queue_pairs,
            counts.regions,
            counts.windows,
            counts.shared_receive_queues,
            counts.domain_users,
        )
    };
    let before = counts();
    let victim = End::new();
    let mut memory = vec![0_u8; 64];
    // SAFETY: the objects are alive until they are destroyed, and their memory remains after the context is closed.
    unsafe {
        let context = victim.context;
        let mr = ibv_reg_mr(victim.pd, memory.as_mut_ptr().cast(), memory.len(), WRITABLE);
        let rkey = (*mr).rkey;
        let mw = alloc_mw(victim.pd, IBV_MW_TYPE_2);
        let channel = ibv_create_comp_channel(context);
        let cq = ibv_create_cq(context, 1, null_mut(), channel, 0);
        let mut init = ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (4, 1);
        let srq = ibv_create_srq(victim.pd, &raw mut init);
        let mut attr = ibv_ah_attr::zeroed();
        (attr.is_global, attr.port_num) = (1, 1);
        assert_eq!(ibv_query_gid(context, 1, 0, &raw mut attr.grh.dgid), 0);
        let ah = ibv_create_ah(victim.pd, &raw mut attr);
        let mut td_attr = ibv_td_init_attr { comp_mask: 0 };
        let td = alloc_td(context, &raw mut td_attr);
        assert!(!mr.is_null() && !mw.is_null() && !cq.is_null() && !srq.is_null() && !ah.is_null());
        victim.connect(&peer);
        peer.connect(&victim);
        assert_eq!(peer.write(&mut [7; 64], memory.as_ptr() as u64, rkey), IBV_WC_SUCCESS);
        assert_eq!(std::ptr::read_volatile(memory.as_ptr()), 7);

        assert_eq!(ibv_close_device(context), 0);
        assert_eq!(counts(), before);
        let status = peer.write(&mut [8; 64], memory.as_ptr() as u64, rkey);
        assert_eq!(status, IBV_WC_RETRY_EXC_ERR, "the queue pair doesn't answer");
        assert_eq!(std::ptr::read_volatile(memory.as_ptr()), 7, "the memory is no longer registered");

        // The objects can't be used any more, but can be destroyed in any order.
        let mut wc = ibv_wc::zeroed();
        assert_eq!(poll_cq(victim.cq, 1, &raw mut wc), -libc::EBADF);
        assert_eq!(ibv_resize_cq(cq, 4), libc::EBADF);
        let (mut send, mut recv) = (ibv_send_wr::zeroed(), ibv_recv_wr::zeroed());
        let (mut bad_send, mut bad_recv, mut bad_srq_recv) = (null_mut(), null_mut(), null_mut());
        assert_eq!(post_send(victim.qp, &raw mut send, &raw mut bad_send), libc::EBADF);
        assert_eq!(post_recv(victim.qp, &raw mut recv, &raw mut bad_recv), libc::EBADF);
        assert_eq!(post_srq_recv(srq, &raw mut recv, &raw mut bad_srq_recv), libc::EBADF);
        assert_eq!((bad_send, bad_recv, bad_srq_recv), (&raw mut send, &raw mut recv, &raw mut recv));
        let mut attr = ibv_qp_attr::zeroed();
        assert_eq!(ibv_query_qp(victim.qp, &raw mut attr, 0, null_mut()), libc::EBADF);
        assert!(ibv_create_srq(victim.pd, &raw mut init).is_null());
        assert_eq!(errno(), libc::EBADF);
        assert_eq!(ibv_dealloc_pd(victim.pd), 0);
        assert_eq!([ibv_destroy_cq(victim.cq), ibv_destroy_cq(cq)], [0; 2]);
        assert_eq!([ibv_destroy_comp_channel(channel), ibv_destroy_srq(srq), ibv_destroy_ah(ah)], [0; 3]);
        assert_eq!([dealloc_mw(mw), ibv_dereg_mr(mr), dealloc_td(td), ibv_destroy_qp(victim.qp)], [0; 4]);
        assert_eq!(counts(), before);
    }
}

#[test]
fn events_can_be_acknowledged_after_the_context_is_closed() {
    run("closing::acknowledging_after_close");
}

#[test]
fn acknowledging_after_close() {
    if !is_part("closing::acknowledging_after_close") {
        return;
    }
    let (end, mut memory) = (End::new(), [0_u8; 8]);
    // SAFETY: the objects are alive until they are destroyed.
    unsafe {
        let channel = ibv_create_comp_channel(end.context);
        let cq = ibv_create_cq(end.context, 4, null_mut(), channel, 0);
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
        let end = End { qp: ibv_create_qp(end.pd, &raw mut init), cq, ..end };
        end.connect(&end);
        assert_eq!(req_notify_cq(cq, 0), 0);
        // No memory has the key 0, so that the request fails.
        end.post_write(&mut memory, 0, 0);
        let (mut queue, mut queue_context) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(channel, &raw mut queue, &raw mut queue_context), 0);
        assert_eq!(ibv_close_device(end.context), 0);
        ibv_ack_cq_events(queue, 1);
        assert_eq!([ibv_destroy_cq(queue), ibv_destroy_comp_channel(channel)], [0; 2]);
    }
}

#[test]
fn an_event_for_a_queue_of_a_closed_context_is_dropped() {
    run("closing::event_after_close");
}

#[test]
fn event_after_close() {
    if !is_part("closing::event_after_close") {
        return;
    }
    let peer = End::new();
    // Every close races with the event that the WRITE causes at the victim.
    for _ in 0..20 {
        let victim = End::new();
        victim.connect(&peer);
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RESET;
        // SAFETY: the objects are alive; the victim's are not used after its context is closed.
        unsafe {
            assert_eq!(crate::modify::ibv_modify_qp(peer.qp, &raw mut attr, IBV_QP_STATE), 0);
            peer.connect(&victim);
            peer.post_write(&mut [1; 8], 0x1000, 0);
            assert_eq!(ibv_close_device(victim.context), 0);
        }
    }
    // The thread that distributes events still runs, and holds no lock.
    let end = End::new();
    // SAFETY: the context is open.
    unsafe { assert_eq!(ibv_close_device(end.context), 0) };
}

#[test]
fn objects_of_different_contexts_are_refused() {
    let (one, other) = (End::new(), End::new());
    let mut init = ibv_qp_init_attr::zeroed();
    (init.send_cq, init.recv_cq, init.qp_type) = (one.cq, other.cq, IBV_QPT_RC);
    // SAFETY: the objects are alive.
    unsafe {
        assert!(ibv_create_qp(one.pd, &raw mut init).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!([ibv_close_device(one.context), ibv_close_device(other.context)], [0; 2]);
    }
}

#[test]
fn memory_is_registered_only_with_the_rights_of_the_process() {
    // SAFETY: the objects are alive, and the mapping is the test's own.
    unsafe {
        let context = ibv_open_device(crate::device::device());
        let pd = ibv_alloc_pd(context);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = |rights| libc::mmap(null_mut(), 3 * 4096, rights, flags, -1, 0);
        let memory = map(libc::PROT_READ | libc::PROT_WRITE);
        let register = |access| {
            let mr = ibv_reg_mr(pd, memory, 3 * 4096, access);
            if mr.is_null() { errno() } else { ibv_dereg_mr(mr) }
        };
        assert_eq!(register(WRITABLE), 0);
        // One page in the middle is enough.
        assert_eq!(libc::mprotect(memory.byte_add(4096), 4096, libc::PROT_READ), 0);
        assert_eq!(register(WRITABLE), libc::EFAULT);
        assert_eq!(register(IBV_ACCESS_LOCAL_WRITE as i32), libc::EFAULT);
        assert_eq!(register(IBV_ACCESS_REMOTE_READ as i32), 0);
        assert_eq!(libc::mprotect(memory.byte_add(4096), 4096, libc::PROT_NONE), 0);
        assert_eq!(register(IBV_ACCESS_REMOTE_READ as i32), libc::EFAULT);
        assert_eq!(libc::munmap(memory, 3 * 4096), 0);
        assert_eq!([ibv_dealloc_pd(pd), ibv_close_device(context)], [0; 2]);
    }
}
