//! Addresses of services.

use std::ptr::null_mut;

use adverb_sys::*;
use libc::{addrinfo, c_char, c_int, c_void, sockaddr, socklen_t};

use crate::entry::fail;

/// Returns a copy of bytes that `free` frees, or NULL.
///
/// # Safety
///
/// `from` is valid for reads of `length` bytes.
unsafe fn duplicate(from: *const c_void, length: usize) -> *mut c_void {
    // SAFETY: as the caller says; the copy has the same length.
    unsafe {
        let to = libc::calloc(1, length.max(1));
        if !to.is_null() {
            to.copy_from_nonoverlapping(from, length);
        }
        to
    }
}

/// Returns the hints for the C library.
fn hints_for(hints: &rdma_addrinfo) -> addrinfo {
    // SAFETY: all bytes of the struct may be zero.
    let mut info: addrinfo = unsafe { std::mem::zeroed() };
    for (flag, same) in [(RAI_PASSIVE, libc::AI_PASSIVE), (RAI_NUMERICHOST, libc::AI_NUMERICHOST)] {
        if hints.ai_flags & flag != 0 {
            info.ai_flags |= same;
        }
    }
    info.ai_family = hints.ai_family;
    let is_datagram = hints.ai_qp_type == IBV_QPT_UD as c_int || hints.ai_port_space == RDMA_PS_UDP as c_int;
    (info.ai_socktype, info.ai_protocol) = match is_datagram {
        true => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
        false => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
    };
    info
}

/// Looks up the address of a node and service. Returns the C library's error code.
///
/// # Safety
///
/// The strings are NULL or end with zero, and `info` has the hints.
unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    info: &mut rdma_addrinfo,
) -> Result<(), c_int> {
    let hints = hints_for(info);
    let mut found: *mut addrinfo = null_mut();
    // SAFETY: as the caller says; the list is freed after its first address is copied.
    unsafe {
        match libc::getaddrinfo(node, service, &raw const hints, &raw mut found) {
            0 => {}
            error => return Err(error),
        }
        let first = *found;
        info.ai_family = first.ai_family;
        let copy = duplicate(first.ai_addr.cast(), first.ai_addrlen as usize).cast::<sockaddr>();
        if info.ai_flags & RAI_PASSIVE != 0 {
            (info.ai_src_addr, info.ai_src_len) = (copy, first.ai_addrlen);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (copy, first.ai_addrlen);
        }
        libc::freeaddrinfo(found);
        if copy.is_null() { Err(libc::EAI_MEMORY) } else { Ok(()) }
    }
}

/// Copies an address of the hints, unless the information has one.
///
/// # Safety
///
/// The hints' address is NULL or valid for reads of its length.
unsafe fn copy_address(from: (*mut sockaddr, socklen_t), to: (&mut *mut sockaddr, &mut socklen_t)) {
    if to.0.is_null() && !from.0.is_null() && from.1 != 0 {
        // SAFETY: as the caller says.
        *to.0 = unsafe { duplicate(from.0.cast(), from.1 as usize) }.cast();
        *to.1 = from.1;
    }
}

entry! {
    /// Looks up the address of a node and service. Returns 0, an error code of `getaddrinfo`, or -1 and sets errno.
    fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> c_int, Infallible {
        if node.is_null() && service.is_null() && hints.is_null() {
            fail::<()>(libc::EINVAL);
            return -1;
        }
        // SAFETY: the hints are NULL or valid for reads, with their addresses; the strings end with zero.
        unsafe {
            let hints = hints.as_ref().copied().unwrap_or_else(rdma_addrinfo::zeroed);
            let mut info = rdma_addrinfo::zeroed();
            (info.ai_flags, info.ai_family) = (hints.ai_flags, hints.ai_family);
            (info.ai_qp_type, info.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
            let is_datagram = info.ai_qp_type == IBV_QPT_UD as c_int || info.ai_port_space == RDMA_PS_UDP as c_int;
            if info.ai_qp_type == 0 {
                info.ai_qp_type = (if is_datagram { IBV_QPT_UD } else { IBV_QPT_RC }) as c_int;
            }
            if info.ai_port_space == 0 {
                info.ai_port_space = (if is_datagram { RDMA_PS_UDP } else { RDMA_PS_TCP }) as c_int;
            }
            if !(node.is_null() && service.is_null())
                && let Err(error) = look_up(node, service, &mut info)
            {
                return error;
            }
            copy_address((hints.ai_src_addr, hints.ai_src_len), (&mut info.ai_src_addr, &mut info.ai_src_len));
            copy_address((hints.ai_dst_addr, hints.ai_dst_len), (&mut info.ai_dst_addr, &mut info.ai_dst_len));
            let copy = duplicate((&raw const info).cast(), size_of_val(&info));
            res.write(copy.cast());
            if copy.is_null() {
                libc::free(info.ai_src_addr.cast());
                libc::free(info.ai_dst_addr.cast());
                return libc::EAI_MEMORY;
            }
            0
        }
    }

    /// Frees address information.
    fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
        let mut next = res;
        while !next.is_null() {
            // SAFETY: `rdma_getaddrinfo` allocated all parts, and the program doesn't use them any more.
            unsafe {
                let info = *next;
                libc::free(info.ai_src_addr.cast());
                libc::free(info.ai_dst_addr.cast());
                libc::free(info.ai_src_canonname.cast());
                libc::free(info.ai_dst_canonname.cast());
                libc::free(info.ai_route);
                libc::free(info.ai_connect);
                libc::free(next.cast());
                next = info.ai_next;
            }
        }
    }
}
