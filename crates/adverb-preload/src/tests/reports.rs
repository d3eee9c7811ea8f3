//! The report of a process: its leaks and failed calls, and the resources of calls that fail.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::ptr::null_mut;

use adverb_sys::*;

use super::children::{Part, is_part};
use crate::context::{ibv_close_device, ibv_open_device};
use crate::cq::{ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel};
use crate::entry::errno;
use crate::mr::ibv_reg_mr;
use crate::nic::OpenNic;
use crate::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::post::post_recv;
use crate::qp::{ibv_create_qp, ibv_destroy_qp};
use crate::rdmacm;

/// Runs a part whose report is written at its end, and returns the report.
fn report_of(part: &str) -> String {
    let directory = std::env::temp_dir().join(format!("adverb-report-{}-{}", std::process::id(), part.len()));
    fs::create_dir(&directory).unwrap();
    let status = Part::start(part, &[("ADVERB_REPORT", directory.to_str().unwrap())]).status();
    let paths: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let reports: Vec<String> = paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let modes: Vec<u32> = paths.iter().map(|path| fs::metadata(path).unwrap().permissions().mode()).collect();
    fs::remove_dir_all(&directory).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{part} ended with {status:?}");
    // The report, and perhaps the file that marks that the message about the device's address was printed.
    assert!(modes.iter().all(|mode| mode & 0o777 == 0o600), "other users can read one of {paths:?}");
    reports.concat()
}

#[test]
fn a_program_of_librdmacm_that_destroys_its_objects_leaks_none() {
    let report = report_of("reports::librdmacm");
    assert!(report.contains("messages\tsent\t0\n"), "{report}");
    assert!(!report.contains("leak\t") && !report.contains("call\t"), "{report}");
}

#[test]
fn librdmacm() {
    if !is_part("reports::librdmacm") {
        return;
    }
    // SAFETY: the objects are alive.
    unsafe {
        let channel = rdmacm::rdma_create_event_channel();
        let mut id = null_mut();
        let created = rdmacm::rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP);
        assert_eq!(created, rdmacm::Status::SUCCESS);
        let mut addr = super::own_addr();
        addr.sin_port = 1;
        let resolved = rdmacm::rdma_resolve_addr(id, null_mut(), (&raw mut addr).cast(), 1000);
        assert_eq!(resolved, rdmacm::Status::SUCCESS);
        // The identifier has the library's own context and domain, and the program adds a queue pair.
        let mut init = ibv_qp_init_attr::zeroed();
        (init.qp_type, init.cap.max_send_wr, init.cap.max_send_sge) = (IBV_QPT_RC, 4, 1);
        assert_eq!(rdmacm::rdma_create_qp(id, null_mut(), &raw mut init), rdmacm::Status::SUCCESS);
        rdmacm::rdma_destroy_qp(id);
        assert_eq!(rdmacm::rdma_destroy_id(id), rdmacm::Status::SUCCESS);
        rdmacm::rdma_destroy_event_channel(channel);
        crate::report::adverb_at_exit();
    }
}

#[test]
fn objects_of_a_closed_context_are_leaked_until_they_are_destroyed() {
    let report = report_of("reports::closed_context");
    let leaks: Vec<&str> = report.lines().filter(|line| line.starts_with("leak\t")).collect();
    let expected =
        ["protection domains", "memory regions", "completion queues"].map(|name| format!("leak\t{name}\t1"));
    assert_eq!(leaks, expected);
    assert!(!report.contains("call\t"), "a full queue is no failure: {report}");
}

#[test]
fn closed_context() {
    if !is_part("reports::closed_context") {
        return;
    }
    let (end, mut memory) = (super::End::new(), [0_u8; 8]);
    end.connect(&end);
    // SAFETY: the objects are alive, and the queue pair's memory remains after the context is closed.
    unsafe {
        let mr = ibv_reg_mr(end.pd, memory.as_mut_ptr().cast(), memory.len(), super::WRITABLE);
        assert!(!mr.is_null());
        let (mut recv, mut bad) = (ibv_recv_wr::zeroed(), null_mut());
        let mut post = || post_recv(end.qp, &raw mut recv, &raw mut bad);
        let refused = (0..1000).map(|_| post()).find(|errno| *errno != 0);
        assert_eq!(refused, Some(libc::ENOMEM));
        assert_eq!([ibv_close_device(end.context), ibv_destroy_qp(end.qp)], [0; 2]);
        crate::report::adverb_at_exit();
    }
}

#[test]
fn failed_calls_are_reported_with_their_reasons() {
    let report = report_of("reports::failing_calls");
    let reason = "ibv_create_qp failed with EINVAL: max_send_wr is 40000, but the maximum is 32768";
    assert!(report.contains(&format!("call\t{reason}\t2\n")), "{report}");
    assert!(report.contains("call\trdma_create_qp failed with EINVAL: max_send_wr is 50000"), "{report}");
    let calls = report.lines().filter(|line| line.starts_with("call\t")).count();
    assert_eq!(calls, 2, "a call inside another call isn't counted, nor is an empty event queue: {report}");
}

#[test]
fn failing_calls() {
    if !is_part("reports::failing_calls") {
        return;
    }
    // SAFETY: the objects are alive.
    unsafe {
        let context = ibv_open_device(crate::device::device());
        let (pd, cq) = (ibv_alloc_pd(context), ibv_create_cq(context, 1, null_mut(), null_mut(), 0));
        let mut init = ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
        init.cap.max_send_wr = 40_000;
        assert!(ibv_create_qp(pd, &raw mut init).is_null());
        assert!(ibv_create_qp(pd, &raw mut init).is_null());
        let channel = rdmacm::rdma_create_event_channel();
        libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
        let mut event = null_mut();
        assert_ne!(rdmacm::rdma_get_cm_event(channel, &raw mut event), rdmacm::Status::SUCCESS);
        let mut id = null_mut();
        let created = rdmacm::rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP);
        assert_eq!(created, rdmacm::Status::SUCCESS);
        let mut addr = super::own_addr();
        assert_eq!(rdmacm::rdma_bind_addr(id, (&raw mut addr).cast()), rdmacm::Status::SUCCESS);
        let mut init = ibv_qp_init_attr::zeroed();
        (init.qp_type, init.cap.max_send_wr) = (IBV_QPT_RC, 50_000);
        assert_ne!(rdmacm::rdma_create_qp(id, null_mut(), &raw mut init), rdmacm::Status::SUCCESS);
        crate::report::adverb_at_exit();
    }
}

#[test]
fn a_call_without_descriptors_leaves_nothing() {
    super::children::run("reports::without_descriptors");
}

#[test]
fn without_descriptors() {
    if !is_part("reports::without_descriptors") {
        return;
    }
    // SAFETY: no other thread reads the environment; the objects are alive, and the descriptors are this process's.
    unsafe {
        // Other processes at the address would open and close connections, which are descriptors, too.
        std::env::set_var("ADVERB_EXCLUSIVE", "1");
        let context = ibv_open_device(crate::device::device());
        let channel = ibv_create_comp_channel(context);
        let count = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = count();
        // One descriptor is free: the first of two that a context needs.
        let first_free = libc::dup(0);
        libc::close(first_free);
        let set_limit = |limit| {
            let mut old = std::mem::zeroed::<libc::rlimit>();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old);
            old.rlim_cur = limit;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const old), 0);
        };
        set_limit(first_free as u64 + 1);
        for _ in 0..3 {
            assert!(ibv_open_device(crate::device::device()).is_null());
            assert_eq!(errno(), libc::EMFILE);
        }
        set_limit(1024);
        assert_eq!(count(), before);
        // A queue whose event can't be watched isn't created.
        let epoll = libc::dup((*channel).fd);
        libc::dup2(0, (*channel).fd);
        let cqs = || OpenNic::if_open().unwrap().objects.lock().cqs.len();
        let queues = cqs();
        assert!(ibv_create_cq(context, 1, null_mut(), channel, 0).is_null());
        assert_eq!((errno(), cqs()), (libc::EINVAL, queues));
        libc::dup2(epoll, (*channel).fd);
        libc::close(epoll);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        let pd = ibv_alloc_pd(context);
        assert_eq!([ibv_dealloc_pd(pd), ibv_close_device(context)], [0; 2]);
    }
}
