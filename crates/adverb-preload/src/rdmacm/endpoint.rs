//! Endpoints: identifiers whose address is resolved and whose queue pair exists, for programs that wait in each call.

use std::ptr::null_mut;

use adverb_sys::*;
use libc::c_int;

use super::id::Id;
use super::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::{Status, status};
use crate::entry::errno;

/// Returns the errno value if a function failed.
fn result(status: Status) -> Result<(), c_int> {
    if status == Status::SUCCESS { Ok(()) } else { Err(errno()) }
}

/// Resolves the addresses of an endpoint.
///
/// # Safety
///
/// The addresses are complete, and the other objects are alive.
unsafe fn prepare(
    id: &Id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init: Option<&mut ibv_qp_init_attr>,
) -> Result<(), c_int> {
    let base = id.as_ptr();
    let qp_type = info.ai_qp_type as ibv_qp_type;
    // SAFETY: as the caller says; no other thread has the identifier.
    unsafe {
        if info.ai_flags & RAI_PASSIVE != 0 {
            result(rdma_bind_addr(base, info.ai_src_addr))?;
            if !pd.is_null() {
                (*base).pd = pd;
            }
            if let Some(qp_init) = qp_init {
                qp_init.qp_type = qp_type;
                id.state.lock().qp_init = Some(*qp_init);
            }
            return Ok(());
        }
        result(rdma_resolve_addr(base, info.ai_src_addr, info.ai_dst_addr, TIMEOUT_MS))?;
        result(rdma_resolve_route(base, TIMEOUT_MS))?;
        if !info.ai_connect.is_null() {
            let data = std::slice::from_raw_parts(info.ai_connect.cast::<u8>(), info.ai_connect_len);
            id.state.lock().connect_data = data.to_vec();
        }
        if let Some(qp_init) = qp_init {
            qp_init.qp_type = qp_type;
            id.create_qp(pd, qp_init)?;
        }
        if !pd.is_null() {
            (*base).pd = pd;
        }
    }
    Ok(())
}

entry! {
    /// Creates an endpoint.
    fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        qp_init_attr: *mut ibv_qp_init_attr,
    ) -> Status {
        // SAFETY: the information is valid for reads, and the attributes are NULL or valid for reads and writes.
        let (info, qp_init) = unsafe { (*res, qp_init_attr.as_mut()) };
        let space = info.ai_port_space as rdma_port_space;
        let created = Id::create(null_mut(), null_mut(), space, info.ai_qp_type as ibv_qp_type);
        // SAFETY: as above; the pointer is valid for writes.
        let prepared = created.and_then(|created| unsafe {
            if let Err(errno) = prepare(created, &info, pd, qp_init) {
                _ = Id::destroy(created.as_ptr());
                return Err(errno);
            }
            id.write(created.as_ptr());
            Ok(())
        });
        status(prepared)
    }

    /// Destroys an endpoint with its queue pair.
    fn rdma_destroy_ep(id: *mut rdma_cm_id) {
        // SAFETY: the identifier is alive, and the program doesn't use it any more.
        unsafe {
            Id::of(id).destroy_qp();
            Id::of(id).destroy_srq();
            _ = Id::destroy(id);
        }
    }
}

/// The time limit for resolving addresses. It never expires, because the device resolves them at once.
const TIMEOUT_MS: c_int = 2000;
