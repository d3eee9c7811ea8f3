//! Address handles.

use std::cell::UnsafeCell;
use std::sync::atomic::Ordering;

use adverb_proto::types::Gid;
use adverb_proto::{AddressVector, Path};
use adverb_sys::*;
use libc::c_int;

use crate::calls::invalid;
use crate::context::{self, Context, Member, Object};
use crate::entry::{Pointee, Purpose, errno_result, fail};
use crate::nic::OpenPath;
use crate::pd::ProtectionDomain;

#[repr(C)]
pub(crate) struct AddressHandle {
    base: UnsafeCell<ibv_ah>,
    member: Member,
    path: OpenPath,
}

impl Object for AddressHandle {
    fn member(&self) -> &Member {
        &self.member
    }

    fn release(&self) -> Result<(), c_int> {
        // SAFETY: the domain is alive as long as its address handles, because `users` counts them.
        let domain = unsafe { ProtectionDomain::of((*self.base.get()).pd) };
        self.path.close(domain.nic);
        domain.users.fetch_sub(1, Ordering::Release);
        Ok(())
    }
}

impl Pointee for ibv_ah {
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn check(this: *mut ibv_ah, purpose: Purpose) -> Result<(), c_int> {
        // SAFETY: as the caller says.
        unsafe { AddressHandle::of(this) }.member.check(purpose)
    }
}

impl AddressHandle {
    /// Returns the address handle behind a program's pointer.
    ///
    /// # Safety
    ///
    /// The address handle is alive.
    #[inline]
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a AddressHandle {
        // SAFETY: as the caller says; the struct starts with `base`.
        unsafe { &*ah.cast() }
    }
}

impl AddressVector for AddressHandle {
    fn path(&self) -> Option<&Path> {
        Some(&self.path.path)
    }
}

/// Returns the address of a datagram's sender.
///
/// # Safety
///
/// The context is open, and the pointers are valid for reads.
unsafe fn address_of_sender(
    context: *mut ibv_context,
    port_num: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, c_int> {
    // SAFETY: as the caller says; the header may be at any address of a buffer.
    let (context, wc, grh) = unsafe { (Context::of(context), *wc, grh.read_unaligned()) };
    if wc.wc_flags & IBV_WC_GRH == 0 || port_num != 1 {
        return Err(invalid("the completion has no GRH, or the port is not 1"));
    }
    // The header of a packet over IPv4 is an IPv4 header in the last 20 of the 40 bytes (Annex A17.4.5.2).
    // SAFETY: the header is plain bytes.
    let bytes: [u8; 40] = unsafe { std::mem::transmute(grh) };
    let is_v6 = bytes[0] >> 4 == 6;
    let v4_mapped = |at: usize| {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&bytes[at..at + 4]);
        gid
    };
    let (source, destination, traffic_class, flow_label, hop_limit) = if is_v6 {
        let word = u32::from_be(grh.version_tclass_flow);
        let (class, label) = ((word >> 20) as u8, word & IB_GRH_FLOWLABEL_MASK);
        (grh.sgid.octets(), grh.dgid.octets(), class, label, grh.hop_limit)
    } else {
        (v4_mapped(32), v4_mapped(36), bytes[21], 0, bytes[28])
    };
    let addresses = context.nic.nic.addresses();
    let ours = addresses.iter().position(|address| Gid::from(*address).bytes() == destination);
    let mut attr = ibv_ah_attr::zeroed();
    attr.grh.dgid = source.into();
    // A datagram to a multicast group is answered from the first address.
    attr.grh.sgid_index = ours.unwrap_or(0) as u8;
    attr.grh.flow_label = flow_label;
    attr.grh.traffic_class = traffic_class;
    // The answer may take at least as many hops as packets with Linux's default limit.
    attr.grh.hop_limit = if hop_limit == 0 { 64 } else { hop_limit.max(64) };
    attr.is_global = 1;
    attr.port_num = port_num;
    attr.dlid = wc.slid;
    Ok(attr)
}

entry! {
    /// Creates an address handle.
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        // SAFETY: the domain is alive, and the attributes are valid for reads.
        let (domain, attr, context) = unsafe { (ProtectionDomain::of(pd), &*attr, (*pd).context) };
        let path = match domain.nic.datagram_path(attr) {
            Ok(path) => path,
            Err(errno) => return fail(errno),
        };
        domain.users.fetch_add(1, Ordering::Acquire);
        // SAFETY: the context of a domain that can be used is open.
        let member = unsafe { Member::new(context) };
        let base = UnsafeCell::new(ibv_ah { context, pd, handle: member.handle });
        let this = Box::leak(Box::new(AddressHandle { base, member, path }));
        context::add(this);
        this.base.get()
    }

    /// Writes the address of a datagram's sender.
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        ah_attr: *mut ibv_ah_attr,
    ) -> c_int {
        // SAFETY: the context is open, and the pointers are valid.
        unsafe { errno_result(address_of_sender(context, port_num, wc, grh).map(|attr| ah_attr.write(attr))) }
    }

    /// Creates an address handle for a datagram's sender.
    fn ibv_create_ah_from_wc(
        pd: *mut ibv_pd,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        port_num: u8,
    ) -> *mut ibv_ah {
        // SAFETY: the domain is alive, and the pointers are valid.
        unsafe {
            match address_of_sender((*pd).context, port_num, wc, grh) {
                Ok(mut attr) => ibv_create_ah(pd, &raw mut attr),
                Err(errno) => fail(errno),
            }
        }
    }
}

destructors! {
    /// Destroys an address handle.
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        // SAFETY: the address handle is alive, and `ibv_create_ah` made it with a box.
        let released = context::release(unsafe { AddressHandle::of(ah) });
        if released.is_ok() {
            // SAFETY: as above; the program doesn't use it any more.
            drop(unsafe { Box::from_raw(ah.cast::<AddressHandle>()) });
        }
        errno_result(released)
    }
}
