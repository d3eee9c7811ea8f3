//! A hand-written provider, which tests that this crate's functions behave like the header's inline functions.

#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;

use adverb_sys::*;
use libc::{c_int, c_void, size_t};

thread_local! {
    /// The operation that was called last.
    static CALLED: Cell<&'static str> = const { Cell::new("nothing") };
}

fn called() -> &'static str {
    CALLED.replace("nothing")
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Returns an extended context of a library with all operations and a provider with none.
fn context() -> verbs_context {
    let mut context = verbs_context::zeroed();
    context.sz = size_of::<verbs_context>();
    context.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    context
}

unsafe extern "C" fn post_send(_: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    CALLED.set("post_send");
    // SAFETY: the test passes valid pointers.
    unsafe { *bad_wr = (*wr).next };
    libc::ENOMEM
}

unsafe extern "C" fn post_recv(_: *mut ibv_qp, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    CALLED.set("post_recv");
    0
}

unsafe extern "C" fn post_srq_recv(_: *mut ibv_srq, _: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr) -> c_int {
    CALLED.set("post_srq_recv");
    0
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    CALLED.set("poll_cq");
    // SAFETY: the test passes a sufficiently large array.
    unsafe { (*wc).imm = ibv_wc_imm { invalidated_rkey: 0x1234 } };
    num_entries
}

unsafe extern "C" fn req_notify_cq(_: *mut ibv_cq, solicited_only: c_int) -> c_int {
    CALLED.set("req_notify_cq");
    solicited_only
}

#[test]
fn work_is_posted_and_polled_through_the_contexts_operations() {
    let mut context = ibv_context::zeroed();
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    context.ops.post_srq_recv = Some(post_srq_recv);
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    let context = &raw mut context;
    let mut qp = ibv_qp { context, ..ibv_qp::zeroed() };
    let mut cq = ibv_cq { context, ..ibv_cq::zeroed() };
    let mut srq = ibv_srq { context, ..ibv_srq::zeroed() };

    let mut second = ibv_send_wr::zeroed();
    let mut first = ibv_send_wr { next: &mut second, ..ibv_send_wr::zeroed() };
    let mut bad = ptr::null_mut();
    let mut bad_recv = ptr::null_mut();
    let mut recv = ibv_recv_wr::zeroed();
    let mut wc = ibv_wc::zeroed();
    // SAFETY: every pointer refers to one of these objects, and the called operations exist.
    unsafe {
        assert_eq!(ibv_post_send(&mut qp, &mut first, &mut bad), libc::ENOMEM);
        assert_eq!(called(), "post_send");
        assert_eq!(bad, &raw mut second);
        assert_eq!(ibv_post_recv(&mut qp, &mut recv, &mut bad_recv), 0);
        assert_eq!(called(), "post_recv");
        assert_eq!(ibv_post_srq_recv(&mut srq, &mut recv, &mut bad_recv), 0);
        assert_eq!(called(), "post_srq_recv");
        assert_eq!(ibv_poll_cq(&mut cq, 1, &mut wc), 1);
        assert_eq!(called(), "poll_cq");
        assert_eq!(wc.invalidated_rkey(), 0x1234);
        assert_eq!(ibv_req_notify_cq(&mut cq, 1), 1);
        assert_eq!(called(), "req_notify_cq");
    }
}

unsafe extern "C" fn modify_cq(_: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    CALLED.set("modify_cq");
    // SAFETY: the test passes a valid pointer.
    unsafe { c_int::from((*attr).moderate.cq_count) }
}

#[test]
fn an_extended_operation_is_called_only_if_the_library_had_it() {
    let mut attr =
        ibv_modify_cq_attr { moderate: ibv_moderate_cq { cq_count: 7, cq_period: 0 }, ..Default::default() };
    let needed_size = size_of::<verbs_context>() - offset_of!(verbs_context, modify_cq);
    let try_with = |extended: &mut verbs_context, attr: &mut ibv_modify_cq_attr| {
        // The address of the context is derived from that of the whole struct, so that the fields before it may be
        // read.
        let context = (&raw mut *extended).wrapping_byte_add(offset_of!(verbs_context, context)).cast();
        let mut cq = ibv_cq { context, ..ibv_cq::zeroed() };
        // SAFETY: the queue and its context are complete.
        unsafe { ibv_modify_cq(&mut cq, attr) }
    };

    let mut extended = context();
    assert_eq!(try_with(&mut extended, &mut attr), libc::EOPNOTSUPP, "the provider doesn't have it");
    extended.modify_cq = Some(modify_cq);
    assert_eq!(try_with(&mut extended, &mut attr), 7);
    assert_eq!(called(), "modify_cq");
    extended.sz = needed_size;
    assert_eq!(try_with(&mut extended, &mut attr), 7, "the oldest library that has it");
    extended.sz = needed_size - 1;
    assert_eq!(try_with(&mut extended, &mut attr), libc::EOPNOTSUPP, "a library that didn't have it");
    extended.sz = size_of::<verbs_context>();
    extended.context.abi_compat = ptr::null_mut();
    assert_eq!(try_with(&mut extended, &mut attr), libc::EOPNOTSUPP, "not an extended context");
}

#[test]
fn the_extended_context_contains_the_context() {
    let mut extended = context();
    let whole = &raw mut extended;
    // SAFETY: the context is the last field of an extended one.
    unsafe {
        let context = &raw mut (*whole).context;
        assert_eq!(verbs_get_ctx(context), whole);
        (*context).abi_compat = ptr::null_mut();
        assert!(verbs_get_ctx(context).is_null());
    }
}

#[test]
fn unsupported_creations_set_errno() {
    let mut extended = context();
    let whole = &raw mut extended;
    // SAFETY: the context is complete, and its operations read nothing else.
    unsafe {
        let context = &raw mut (*whole).context;
        let mut pd = ibv_pd { context, ..ibv_pd::zeroed() };
        assert!(ibv_create_cq_ex(context, &mut ibv_cq_init_attr_ex::zeroed()).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        *libc::__errno_location() = 0;
        assert!(ibv_alloc_mw(&mut pd, IBV_MW_TYPE_2).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        *libc::__errno_location() = 0;
        assert!(ibv_alloc_td(context, &mut ibv_td_init_attr::zeroed()).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!(
            ibv_advise_mr(&mut pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, ptr::null_mut(), 0),
            libc::EOPNOTSUPP
        );
        assert_eq!(ibv_query_rt_values_ex(context, &mut ibv_values_ex::zeroed()), libc::EOPNOTSUPP);
    }
}

unsafe extern "C" fn bind_mw(_: *mut ibv_qp, _: *mut ibv_mw, _: *mut ibv_mw_bind) -> c_int {
    CALLED.set("bind_mw");
    0
}

#[test]
fn ibv_bind_mw_checks_its_arguments_like_the_header() {
    let mut context = ibv_context::zeroed();
    context.ops.bind_mw = Some(bind_mw);
    let context = &raw mut context;
    let mut qp = ibv_qp { context, ..ibv_qp::zeroed() };
    let mut pd = ibv_pd { context, ..ibv_pd::zeroed() };
    let mut other_pd = ibv_pd { context, ..ibv_pd::zeroed() };
    let mut mr = ibv_mr { context, pd: &mut pd, ..ibv_mr::zeroed() };
    let mut mw = ibv_mw { context, pd: &mut pd, r#type: IBV_MW_TYPE_1, ..ibv_mw::zeroed() };
    let mut bind = ibv_mw_bind::zeroed();
    // SAFETY: every pointer refers to one of these objects, and the operation exists.
    unsafe {
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), 0, "unbinding needs no region");
        assert_eq!(called(), "bind_mw");
        bind.bind_info.length = 1;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), libc::EINVAL, "a range without a region");
        bind.bind_info.mr = &mut mr;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), 0);
        assert_eq!(called(), "bind_mw");
        mw.pd = &mut other_pd;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), libc::EPERM, "another protection domain");
        mw.r#type = IBV_MW_TYPE_2;
        assert_eq!(ibv_bind_mw(&mut qp, &mut mw, &mut bind), libc::EINVAL, "bound by a request");
    }
    assert_eq!(called(), "nothing");
}

unsafe extern "C" fn wr_start(_: *mut ibv_qp_ex) {
    CALLED.set("wr_start");
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    CALLED.set("wr_rdma_write");
    // SAFETY: the test passes a valid pointer.
    unsafe { assert_eq!(((*qp).wr_id, rkey, remote_addr), (1, 2, 3)) };
}

unsafe extern "C" fn wr_set_sge(_: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    CALLED.set("wr_set_sge");
    assert_eq!((lkey, addr, length), (4, 5, 6));
}

unsafe extern "C" fn wr_complete(_: *mut ibv_qp_ex) -> c_int {
    CALLED.set("wr_complete");
    libc::ENOMEM
}

#[test]
fn a_request_is_built_through_the_queue_pairs_function_pointers() {
    let mut qp = ibv_qp_ex {
        wr_start: Some(wr_start),
        wr_rdma_write: Some(wr_rdma_write),
        wr_set_sge: Some(wr_set_sge),
        wr_complete: Some(wr_complete),
        ..ibv_qp_ex::zeroed()
    };
    let qp = &raw mut qp;
    // SAFETY: the queue pair is complete, and the called operations exist.
    unsafe {
        ibv_wr_start(qp);
        assert_eq!(called(), "wr_start");
        (*qp).wr_id = 1;
        ibv_wr_rdma_write(qp, 2, 3);
        assert_eq!(called(), "wr_rdma_write");
        ibv_wr_set_sge(qp, 4, 5, 6);
        assert_eq!(called(), "wr_set_sge");
        assert_eq!(ibv_wr_complete(qp), libc::ENOMEM);
        assert_eq!(called(), "wr_complete");
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    CALLED.set("start_poll");
    // SAFETY: the test passes a valid pointer.
    unsafe { (*cq).wr_id = 42 };
    0
}

unsafe extern "C" fn next_poll(_: *mut ibv_cq_ex) -> c_int {
    CALLED.set("next_poll");
    libc::ENOENT
}

unsafe extern "C" fn end_poll(_: *mut ibv_cq_ex) {
    CALLED.set("end_poll");
}

unsafe extern "C" fn read_imm_data(_: *mut ibv_cq_ex) -> __be32 {
    0x0102_0304_u32.to_be()
}

#[test]
fn completions_are_read_through_the_queues_function_pointers() {
    let mut cq = ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_imm_data: Some(read_imm_data),
        ..ibv_cq_ex::zeroed()
    };
    let cq = &raw mut cq;
    // SAFETY: the queue is complete, and the called operations exist.
    unsafe {
        assert_eq!(ibv_start_poll(cq, &mut ibv_poll_cq_attr::zeroed()), 0);
        assert_eq!((called(), (*cq).wr_id), ("start_poll", 42));
        assert_eq!(u32::from_be(ibv_wc_read_imm_data(cq)), 0x0102_0304);
        assert_eq!(ibv_next_poll(cq), libc::ENOENT);
        ibv_end_poll(cq);
        assert_eq!(called(), "end_poll");
        assert_eq!((*ibv_cq_ex_to_cq(cq)).cqe, (*cq).cqe);
    }
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, _: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    CALLED.set("create_qp");
    // The test recognizes the argument by its address.
    pd.cast()
}

unsafe extern "C" fn create_qp_ex(_: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    CALLED.set("create_qp_ex");
    attr.cast()
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    CALLED.set("create_srq");
    pd.cast()
}

unsafe extern "C" fn compat_query_port(
    _: *mut ibv_context,
    _: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    CALLED.set("compat_query_port");
    // SAFETY: the test passes a complete struct, which starts with the old one.
    unsafe { (*attr.cast::<ibv_port_attr>()).lid = 9 };
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr, len: size_t) -> c_int {
    CALLED.set("query_port");
    assert_eq!(len, size_of::<ibv_port_attr>());
    // SAFETY: the test passes a complete struct.
    unsafe { (*attr).active_speed_ex = 256 };
    0
}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    CALLED.set("query_device");
    // SAFETY: the test passes a valid pointer.
    unsafe { (*attr).max_qp = 5 };
    0
}

unsafe extern "C" fn query_device_ex(
    _: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    _: size_t,
) -> c_int {
    CALLED.set("query_device_ex");
    // SAFETY: the test passes a valid pointer.
    unsafe { (*attr).orig_attr.max_qp }
}

unsafe extern "C" fn reg_mr(_: *mut ibv_pd, _: *mut c_void, _: size_t, access: c_int) -> *mut ibv_mr {
    CALLED.set("reg_mr");
    ptr::without_provenance_mut(access as usize)
}

unsafe extern "C" fn reg_mr_iova2(
    _: *mut ibv_pd,
    addr: *mut c_void,
    _: size_t,
    iova: u64,
    access: libc::c_uint,
) -> *mut ibv_mr {
    CALLED.set("reg_mr_iova2");
    assert_eq!(addr.addr() as u64, iova);
    ptr::without_provenance_mut(access as usize)
}

/// Returns the library with some functions replaced, if the library is installed.
fn library() -> Option<Ibverbs> {
    let library = Ibverbs::load().inspect_err(|error| println!("skipped: {error}")).ok()?;
    Some(Ibverbs {
        ibv_create_qp: create_qp,
        ibv_create_srq: create_srq,
        ibv_query_port: compat_query_port,
        ibv_query_device: query_device,
        ibv_reg_mr: reg_mr,
        ibv_reg_mr_iova2: Some(reg_mr_iova2),
        ..*library
    })
}

#[test]
fn redirected_functions_behave_like_the_header() {
    let Some(mut library) = library() else {
        return;
    };
    let mut extended = context();
    let whole = &raw mut extended;
    let mut pd = ibv_pd::zeroed();
    let pd = &raw mut pd;
    // SAFETY: every pointer refers to one of these objects, and the called functions read nothing else.
    unsafe {
        let context = &raw mut (*whole).context;

        // The plain function creates a queue pair without extended attributes.
        let mut attr = ibv_qp_init_attr_ex { comp_mask: IBV_QP_INIT_ATTR_PD, pd, ..Default::default() };
        assert_eq!(library.ibv_create_qp_ex(context, &mut attr), pd.cast());
        assert_eq!(called(), "create_qp");
        attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        assert!(library.ibv_create_qp_ex(context, &mut attr).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        (*whole).create_qp_ex = Some(create_qp_ex);
        assert_eq!(library.ibv_create_qp_ex(context, &mut attr), (&raw mut attr).cast());
        assert_eq!(called(), "create_qp_ex");

        // The plain function also creates a shared receive queue without extended attributes.
        let mut attr = ibv_srq_init_attr_ex { comp_mask: IBV_SRQ_INIT_ATTR_PD, pd, ..Default::default() };
        assert_eq!(library.ibv_create_srq_ex(context, &mut attr), pd.cast());
        assert_eq!(called(), "create_srq");
        attr.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE;
        assert_eq!(library.ibv_create_srq_ex(context, &mut attr), pd.cast());
        assert_eq!(called(), "create_srq");
        for (mask, srq_type) in [
            (IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_XRC),
            (IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ, IBV_SRQT_BASIC),
            (IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQT_BASIC),
        ] {
            attr.comp_mask = mask;
            attr.srq_type = srq_type;
            assert!(library.ibv_create_srq_ex(context, &mut attr).is_null());
            assert_eq!((called(), errno()), ("nothing", libc::EOPNOTSUPP));
        }

        // The extended operation queries a port, and gets the size of the struct.
        let mut port = ibv_port_attr { active_speed_ex: 1, ..Default::default() };
        assert_eq!(library.ibv_query_port(context, 1, &mut port), 0);
        assert_eq!((called(), port.lid, port.active_speed_ex), ("compat_query_port", 9, 0));
        (*whole).query_port = Some(query_port);
        assert_eq!(library.ibv_query_port(context, 1, &mut port), 0);
        assert_eq!((called(), port.active_speed_ex), ("query_port", 256));

        // A device fills the fields that it knows, and the rest is zero.
        let mut device = ibv_device_attr_ex { device_cap_flags_ex: 1, ..Default::default() };
        let input = ibv_query_device_ex_input { comp_mask: 1 };
        assert_eq!(library.ibv_query_device_ex(context, &input, &mut device), libc::EINVAL);
        assert_eq!(called(), "nothing");
        (*whole).query_device_ex = Some(query_device_ex);
        assert_eq!(library.ibv_query_device_ex(context, ptr::null(), &mut device), 0);
        assert_eq!(called(), "query_device_ex");
        for error in [libc::EOPNOTSUPP, libc::ENOSYS] {
            device.orig_attr.max_qp = error;
            assert_eq!(library.ibv_query_device_ex(context, ptr::null(), &mut device), 0);
            let attributes = (device.orig_attr.max_qp, device.device_cap_flags_ex);
            assert_eq!((called(), attributes), ("query_device", (5, 0)));
        }
        device.orig_attr.max_qp = libc::EIO;
        assert_eq!(library.ibv_query_device_ex(context, ptr::null(), &mut device), libc::EIO);
        assert_eq!(called(), "query_device_ex");

        // Memory is registered with optional flags, which are not passed to an old library.
        let memory = ptr::without_provenance_mut(0x1000);
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING;
        assert_eq!(library.ibv_reg_mr(pd, memory, 1, access).addr(), access as usize);
        assert_eq!(called(), "reg_mr_iova2");
        library.ibv_reg_mr_iova2 = None;
        library.ibv_reg_mr_iova = None;
        assert_eq!(library.ibv_reg_mr(pd, memory, 1, access).addr(), IBV_ACCESS_LOCAL_WRITE as usize);
        assert_eq!(called(), "reg_mr");
        assert!(library.ibv_reg_mr_iova2(pd, memory, 1, 0, access).is_null());
        assert_eq!((called(), errno()), ("nothing", libc::EOPNOTSUPP));

        // A function that an old library lacks returns an error.
        library.ibv_reg_dmabuf_mr = None;
        library._ibv_query_gid_ex = None;
        library._ibv_query_gid_table = None;
        assert!(library.ibv_reg_dmabuf_mr(pd, 0, 1, 0, -1, access).is_null());
        let mut entry = ibv_gid_entry::zeroed();
        assert_eq!(library.ibv_query_gid_ex(context, 1, 0, &mut entry, 0), libc::EOPNOTSUPP);
        assert_eq!(library.ibv_query_gid_table(context, &mut entry, 1, 0), -(libc::EOPNOTSUPP as isize));
    }
}

#[test]
fn keys_and_ports_are_computed_as_in_the_header() {
    assert_eq!(ibv_inc_rkey(0x1234_56fe), 0x1234_56ff);
    assert_eq!(ibv_inc_rkey(0x1234_56ff), 0x1234_5600);
    assert_eq!(ibv_inc_rkey(u32::MAX), 0xffff_ff00);
    assert_eq!(ibv_flow_label_to_udp_sport(0), 0xC000);
    assert_eq!(ibv_flow_label_to_udp_sport(0x3FFF), 0xFFFF);
    assert_eq!(ibv_flow_label_to_udp_sport(0xF_C000), 0xC03F);
    assert_eq!(ibv_flow_label_to_udp_sport(0xFFF0_0001), 0xC001);
    let gid = ibv_gid::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(format!("{gid:?}"), "fe80::1");
    // SAFETY: both members are sixteen bytes of integers.
    assert_eq!(u64::from_be(unsafe { gid.global.subnet_prefix }), 0xfe80_0000_0000_0000);
}
