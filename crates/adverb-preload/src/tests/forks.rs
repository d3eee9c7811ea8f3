//! Calls in a forked child, while other threads of its parent hold every lock.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use adverb_sys::*;
use libc::c_int;

use super::children::{is_part, run};
use super::{DEADLINE, End, WRITABLE};
use crate::context::{ibv_close_device, ibv_open_device};
use crate::nic::{OPEN, OpenNic};
use crate::rdmacm::MANAGER;
use crate::{ah, cq, cq_ex, event, modify, mr, mw, pd, post, qp, qp_ex, query, rdmacm, srq};

#[test]
fn a_forked_child_waits_for_no_lock_of_its_parent() {
    run("forks::calls_in_child");
}

#[test]
fn every_exported_function_is_called_or_takes_no_lock() {
    let exported = [include_str!("../../libibverbs.map"), include_str!("../../librdmacm.map")];
    let names =
        exported.iter().flat_map(|map| map.split_whitespace()).filter_map(|word| word.strip_suffix(';'));
    let names = names
        .filter(|name| name.starts_with("ibv_") || name.starts_with("rdma_") || name.starts_with("_ibv"));
    let called: Vec<&str> = CALLS.iter().map(|(name, _)| *name).collect();
    let mut count = 0;
    for name in names {
        assert!(
            called.contains(&name) != WITHOUT_OBJECTS.contains(&name),
            "{name} must be in one of the lists: it is called in a forked child, or takes no object"
        );
        count += 1;
    }
    assert!(count > 100, "only {count} functions were found");
}

/// Exported functions none of whose arguments is an object of a process.
const WITHOUT_OBJECTS: &[&str] = &[
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_get_sysfs_path",
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_is_fork_initialized",
    "ibv_node_type_str",
    "ibv_open_device",
    "ibv_port_state_str",
    "ibv_rate_to_mbps",
    "ibv_rate_to_mult",
    "ibv_read_sysfs_file",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_unimport_dm",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
    "ibv_wc_status_str",
    "rdma_create_event_channel",
    "rdma_event_str",
    "rdma_free_devices",
    "rdma_freeaddrinfo",
    "rdma_get_devices",
    "rdma_getaddrinfo",
    "rdma_create_ep",
];

/// The objects of the parent.
#[derive(Clone, Copy)]
struct Objects {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    mw: *mut ibv_mw,
    srq: *mut ibv_srq,
    ah: *mut ibv_ah,
    channel: *mut ibv_comp_channel,
    cm_channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
    event: *mut rdma_cm_event,
}

/// A call, which returns whether it failed in the right way.
type Call = unsafe fn(Objects) -> bool;

/// Returns whether a function failed with EPERM.
trait Refused {
    fn refused(self) -> bool;
}

impl Refused for c_int {
    fn refused(self) -> bool {
        self == libc::EPERM || self < 0 && crate::entry::errno() == libc::EPERM
    }
}

impl Refused for isize {
    fn refused(self) -> bool {
        self == -(libc::EPERM as isize)
    }
}

impl<T> Refused for *mut T {
    fn refused(self) -> bool {
        self.is_null() && crate::entry::errno() == libc::EPERM
    }
}

impl Refused for rdmacm::Status {
    fn refused(self) -> bool {
        self != rdmacm::Status::SUCCESS && crate::entry::errno() == libc::EPERM
    }
}

/// Functions without a result, and with numbers.
impl Refused for () {
    fn refused(self) -> bool {
        true
    }
}

impl Refused for u32 {
    fn refused(self) -> bool {
        self == 0
    }
}

impl Refused for u16 {
    fn refused(self) -> bool {
        self == 0
    }
}

macro_rules! calls {
    ($($name:ident = |$o:ident| $call:expr;)*) => {
        // SAFETY: the objects are the parent's, which are alive in the child too. Other arguments aren't used.
        &[$((stringify!($name), |$o: Objects| unsafe { Refused::refused($call) })),*]
    };
}

/// The calls, with the names of exported functions or of operations.
const CALLS: &[(&str, Call)] = calls! {
    ibv_close_device = |o| ibv_close_device(o.context);
    ibv_alloc_pd = |o| pd::ibv_alloc_pd(o.context);
    ibv_dealloc_pd = |o| pd::ibv_dealloc_pd(o.pd);
    alloc_parent_domain = |o| pd::alloc_parent_domain(o.context, null_mut());
    alloc_td = |o| pd::alloc_td(o.context, null_mut());
    ibv_reg_mr = |o| mr::ibv_reg_mr(o.pd, null_mut(), 0, 0);
    ibv_reg_mr_iova = |o| mr::ibv_reg_mr_iova(o.pd, null_mut(), 0, 0, 0);
    ibv_reg_mr_iova2 = |o| mr::ibv_reg_mr_iova2(o.pd, null_mut(), 0, 0, 0);
    ibv_reg_dmabuf_mr = |o| mr::ibv_reg_dmabuf_mr(o.pd, 0, 0, 0, 0, 0);
    ibv_rereg_mr = |o| mr::ibv_rereg_mr(o.mr, 0, o.pd, null_mut(), 0, 0);
    ibv_dereg_mr = |o| mr::ibv_dereg_mr(o.mr);
    advise_mr = |o| mr::advise_mr(o.pd, 0, 0, null_mut(), 0);
    alloc_mw = |o| mw::alloc_mw(o.pd, IBV_MW_TYPE_2);
    dealloc_mw = |o| mw::dealloc_mw(o.mw);
    ibv_create_ah = |o| ah::ibv_create_ah(o.pd, null_mut());
    ibv_create_ah_from_wc = |o| ah::ibv_create_ah_from_wc(o.pd, null_mut(), null_mut(), 1);
    ibv_init_ah_from_wc = |o| ah::ibv_init_ah_from_wc(o.context, 1, null_mut(), null_mut(), null_mut());
    ibv_destroy_ah = |o| ah::ibv_destroy_ah(o.ah);
    ibv_create_comp_channel = |o| cq::ibv_create_comp_channel(o.context);
    ibv_destroy_comp_channel = |o| cq::ibv_destroy_comp_channel(o.channel);
    ibv_create_cq = |o| cq::ibv_create_cq(o.context, 1, null_mut(), null_mut(), 0);
    create_cq_ex = |o| cq_ex::create_cq_ex(o.context, null_mut());
    ibv_resize_cq = |o| cq::ibv_resize_cq(o.cq, 1);
    ibv_destroy_cq = |o| cq::ibv_destroy_cq(o.cq);
    ibv_get_cq_event = |o| cq::ibv_get_cq_event(o.channel, null_mut(), null_mut());
    ibv_ack_cq_events = |o| cq::ibv_ack_cq_events(o.cq, 1);
    poll_cq = |o| cq::poll_cq(o.cq, 1, null_mut());
    req_notify_cq = |o| cq::req_notify_cq(o.cq, 0);
    start_poll = |o| cq_ex::start_poll(o.cq.cast(), null_mut());
    next_poll = |o| cq_ex::next_poll(o.cq.cast());
    end_poll = |o| cq_ex::end_poll(o.cq.cast());
    ibv_create_srq = |o| srq::ibv_create_srq(o.pd, null_mut());
    create_srq_ex = |o| srq::create_srq_ex(o.context, null_mut());
    ibv_modify_srq = |o| srq::ibv_modify_srq(o.srq, null_mut(), 0);
    ibv_query_srq = |o| srq::ibv_query_srq(o.srq, null_mut());
    ibv_destroy_srq = |o| srq::ibv_destroy_srq(o.srq);
    post_srq_recv = |o| srq::post_srq_recv(o.srq, null_mut(), null_mut());
    ibv_create_qp = |o| qp::ibv_create_qp(o.pd, null_mut());
    create_qp_ex = |o| qp::create_qp_ex(o.context, null_mut());
    ibv_modify_qp = |o| modify::ibv_modify_qp(o.qp, null_mut(), 0);
    ibv_query_qp = |o| modify::ibv_query_qp(o.qp, null_mut(), 0, null_mut());
    ibv_destroy_qp = |o| qp::ibv_destroy_qp(o.qp);
    ibv_qp_to_qp_ex = |o| qp::ibv_qp_to_qp_ex(o.qp);
    ibv_attach_mcast = |o| qp::ibv_attach_mcast(o.qp, null_mut(), 0);
    ibv_detach_mcast = |o| qp::ibv_detach_mcast(o.qp, null_mut(), 0);
    ibv_set_ece = |o| qp::ibv_set_ece(o.qp, null_mut());
    ibv_query_ece = |o| qp::ibv_query_ece(o.qp, null_mut());
    ibv_query_qp_data_in_order = |o| qp::ibv_query_qp_data_in_order(o.qp, 0, 0);
    post_send = |o| post::post_send(o.qp, null_mut(), null_mut());
    post_recv = |o| post::post_recv(o.qp, null_mut(), null_mut());
    wr_start = |o| qp_ex::wr_start(o.qp.cast());
    wr_complete = |o| qp_ex::wr_complete(o.qp.cast());
    wr_abort = |o| qp_ex::wr_abort(o.qp.cast());
    ibv_get_async_event = |o| event::ibv_get_async_event(o.context, MaybeUninit::uninit().as_mut_ptr());
    ibv_ack_async_event = |o| {
        let element = ibv_async_event_element { qp: o.qp };
        let mut event = ibv_async_event { element, event_type: IBV_EVENT_COMM_EST };
        event::ibv_ack_async_event(&raw mut event);
    };
    ibv_query_device = |o| query::ibv_query_device(o.context, null_mut());
    ibv_query_port = |o| query::ibv_query_port(o.context, 1, null_mut());
    ibv_query_gid = |o| query::ibv_query_gid(o.context, 1, 0, null_mut());
    ibv_query_gid_type = |o| query::ibv_query_gid_type(o.context, 1, 0, null_mut());
    _ibv_query_gid_ex = |o| query::_ibv_query_gid_ex(o.context, 1, 0, null_mut(), 0, 0);
    _ibv_query_gid_table = |o| query::_ibv_query_gid_table(o.context, null_mut(), 0, 0, 0);
    ibv_query_pkey = |o| query::ibv_query_pkey(o.context, 1, 0, null_mut());
    ibv_get_pkey_index = |o| query::ibv_get_pkey_index(o.context, 1, 0);
    query_port = |o| query::query_port(o.context, 1, null_mut(), 0);
    query_device_ex = |o| query::query_device_ex(o.context, null_mut(), null_mut(), 0);
    query_rt_values = |o| query::query_rt_values(o.context, null_mut());
    rdma_create_id = |o| rdmacm::rdma_create_id(o.cm_channel, null_mut(), null_mut(), RDMA_PS_TCP);
    rdma_destroy_id = |o| rdmacm::rdma_destroy_id(o.id);
    rdma_migrate_id = |o| rdmacm::rdma_migrate_id(o.id, null_mut());
    rdma_destroy_event_channel = |o| rdmacm::rdma_destroy_event_channel(o.cm_channel);
    rdma_get_cm_event = |o| rdmacm::rdma_get_cm_event(o.cm_channel, null_mut());
    rdma_ack_cm_event = |o| rdmacm::rdma_ack_cm_event(o.event);
    rdma_bind_addr = |o| rdmacm::rdma_bind_addr(o.id, null_mut());
    rdma_resolve_addr = |o| rdmacm::rdma_resolve_addr(o.id, null_mut(), null_mut(), 0);
    rdma_resolve_route = |o| rdmacm::rdma_resolve_route(o.id, 0);
    rdma_connect = |o| rdmacm::rdma_connect(o.id, null_mut());
    rdma_accept = |o| rdmacm::rdma_accept(o.id, null_mut());
    rdma_reject = |o| rdmacm::rdma_reject(o.id, null_mut(), 0);
    rdma_reject_ece = |o| rdmacm::rdma_reject_ece(o.id, null_mut(), 0);
    rdma_disconnect = |o| rdmacm::rdma_disconnect(o.id);
    rdma_establish = |o| rdmacm::rdma_establish(o.id);
    rdma_notify = |o| rdmacm::rdma_notify(o.id, IBV_EVENT_COMM_EST);
    rdma_init_qp_attr = |o| rdmacm::rdma_init_qp_attr(o.id, null_mut(), null_mut());
    rdma_listen = |o| rdmacm::rdma_listen(o.id, 0);
    rdma_get_request = |o| rdmacm::rdma_get_request(o.id, null_mut());
    rdma_create_qp = |o| rdmacm::rdma_create_qp(o.id, null_mut(), null_mut());
    rdma_create_qp_ex = |o| rdmacm::rdma_create_qp_ex(o.id, null_mut());
    rdma_destroy_qp = |o| rdmacm::rdma_destroy_qp(o.id);
    rdma_create_srq = |o| rdmacm::rdma_create_srq(o.id, null_mut(), null_mut());
    rdma_create_srq_ex = |o| rdmacm::rdma_create_srq_ex(o.id, null_mut());
    rdma_destroy_srq = |o| rdmacm::rdma_destroy_srq(o.id);
    rdma_destroy_ep = |o| rdmacm::rdma_destroy_ep(o.id);
    rdma_join_multicast = |o| rdmacm::rdma_join_multicast(o.id, null_mut(), null_mut());
    rdma_join_multicast_ex = |o| rdmacm::rdma_join_multicast_ex(o.id, null_mut(), null_mut());
    rdma_leave_multicast = |o| rdmacm::rdma_leave_multicast(o.id, null_mut());
    rdma_set_option = |o| rdmacm::rdma_set_option(o.id, 0, 0, null_mut(), 0);
    rdma_set_local_ece = |o| rdmacm::rdma_set_local_ece(o.id, null_mut());
    rdma_get_remote_ece = |o| rdmacm::rdma_get_remote_ece(o.id, null_mut());
    rdma_get_src_port = |o| rdmacm::rdma_get_src_port(o.id);
    rdma_get_dst_port = |o| rdmacm::rdma_get_dst_port(o.id);
};

fn objects() -> Objects {
    let end = End::new();
    let memory = Box::leak(vec![0_u8; 64].into_boxed_slice());
    // SAFETY: the objects are alive.
    unsafe {
        let mr = mr::ibv_reg_mr(end.pd, memory.as_mut_ptr().cast(), memory.len(), WRITABLE);
        let mut init = ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (4, 1);
        let srq = srq::ibv_create_srq(end.pd, &raw mut init);
        let mut attr = ibv_ah_attr::zeroed();
        (attr.is_global, attr.port_num) = (1, 1);
        assert_eq!(query::ibv_query_gid(end.context, 1, 0, &raw mut attr.grh.dgid), 0);
        let cm_channel = rdmacm::rdma_create_event_channel();
        let mut id = null_mut();
        let created = rdmacm::rdma_create_id(cm_channel, &raw mut id, null_mut(), RDMA_PS_TCP);
        assert_eq!(created, rdmacm::Status::SUCCESS);
        let mut addr = super::own_addr();
        addr.sin_port = 1;
        let mut event = null_mut();
        let resolved = rdmacm::rdma_resolve_addr(id, null_mut(), (&raw mut addr).cast(), 1000);
        assert_eq!(resolved, rdmacm::Status::SUCCESS);
        assert_eq!(rdmacm::rdma_get_cm_event(cm_channel, &raw mut event), rdmacm::Status::SUCCESS);
        Objects {
            context: end.context,
            pd: end.pd,
            cq: end.cq,
            qp: end.qp,
            mr,
            mw: mw::alloc_mw(end.pd, IBV_MW_TYPE_2),
            srq,
            ah: ah::ibv_create_ah(end.pd, &raw mut attr),
            channel: cq::ibv_create_comp_channel(end.context),
            cm_channel,
            id,
            event,
        }
    }
}

#[test]
fn calls_in_child() {
    if !is_part("forks::calls_in_child") {
        return;
    }
    let objects = objects();
    let (end, peer) = (End::new(), End::new());
    end.connect(&peer);
    peer.connect(&end);
    // Another thread holds every lock while this one forks.
    let nic = OpenNic::if_open().unwrap();
    end.post_write(&mut [1; 8], 0, 0);
    // SAFETY: the queue is alive.
    let cq = unsafe { cq::CompletionQueue::of(end.cq) }.cq;
    let (locked, is_locked) = mpsc::channel();
    std::thread::spawn(move || {
        let open = OPEN.value().lock();
        let manager = MANAGER.value().lock();
        let table = manager.unwrap().lock_table();
        let objects = nic.objects.lock();
        let start = Instant::now();
        while nic.nic.poll(cq, 1, |_| {
            locked.send(()).unwrap();
            std::thread::sleep(2 * DEADLINE);
        }) == 0
        {
            assert!(start.elapsed() < DEADLINE, "the WRITE did not complete");
        }
        drop((open, table, objects));
    });
    is_locked.recv_timeout(DEADLINE).unwrap();
    // SAFETY: the objects are alive in the parent.
    let fails = |call: Call| !in_child(|| unsafe { call(objects) });
    let failed: Vec<&str> = CALLS.iter().filter(|(_, call)| fails(*call)).map(|(name, _)| *name).collect();
    assert!(failed.is_empty(), "in a forked child, {failed:?} didn't fail with EPERM at once");
    assert!(
        in_child(|| {
            // SAFETY: the device is this library's.
            let context = unsafe { ibv_open_device(crate::device::device()) };
            // SAFETY: the child's own context is open.
            !context.is_null() && unsafe { ibv_close_device(context) } == 0
        }),
        "a child opens a NIC of its own"
    );
    // The other thread holds its locks, which exiting would wait for.
    // SAFETY: the function has no preconditions.
    unsafe { libc::_exit(0) };
}

/// Calls a function in a forked child, and returns its result, or false if it doesn't return in time.
fn in_child(call: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only this library, and leaves with `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = if call() { 0 } else { 1 };
        // SAFETY: the function has no preconditions.
        unsafe { libc::_exit(status) };
    }
    let (start, mut status) = (Instant::now(), 0);
    // SAFETY: the child is this process's, and is waited for once.
    unsafe {
        while libc::waitpid(pid, &raw mut status, libc::WNOHANG) == 0 {
            if start.elapsed() > Duration::from_secs(20) {
                libc::kill(pid, libc::SIGKILL);
                libc::waitpid(pid, &raw mut status, 0);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}
