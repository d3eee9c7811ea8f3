//! Queries of the device, of its port, and of the port's tables of GIDs and partition keys.

use adverb_soft::link::Interface;
use adverb_sys::*;
use adverb_wire::DEFAULT_PKEY;
use libc::{c_int, c_uint, size_t, ssize_t, timespec};

use crate::context::Context;
use crate::device::{copy, guid};
use crate::entry::fail;
use crate::nic::OpenNic;

/// The maximum number of outstanding requests of a queue. A queue allocates memory only when requests are posted.
pub(crate) const MAX_WR: u32 = 1 << 15;

/// The maximum number of outstanding READs and atomics of a queue pair, in each direction.
pub(crate) const MAX_RD_ATOMIC: u8 = 128;

/// The maximum number of segments of a request.
pub(crate) const MAX_SGE: u32 = 32;

fn device_attr(nic: &OpenNic) -> ibv_device_attr {
    let mut attr = ibv_device_attr::zeroed();
    copy(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr.node_guid = guid().to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = 1 << 46;
    attr.page_size_cap = 4096;
    // No vendor is registered with this ID.
    attr.vendor_id = 0xff_ffff;
    attr.max_qp = 1 << 20;
    attr.max_qp_wr = MAX_WR as c_int;
    attr.device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR
        | IBV_DEVICE_BAD_QKEY_CNTR
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    attr.max_sge = MAX_SGE as c_int;
    attr.max_sge_rd = MAX_SGE as c_int;
    attr.max_cq = 1 << 16;
    attr.max_cqe = crate::cq::MAX_CQE as c_int;
    attr.max_mr = 1 << 20;
    attr.max_pd = 1 << 16;
    attr.max_qp_rd_atom = c_int::from(MAX_RD_ATOMIC);
    attr.max_res_rd_atom = 1 << 20;
    attr.max_qp_init_rd_atom = c_int::from(MAX_RD_ATOMIC);
    // The NIC uses the CPU's atomic instructions, so the NIC's atomics are also atomic for programs.
    attr.atomic_cap = IBV_ATOMIC_GLOB;
    attr.max_mw = 1 << 16;
    attr.max_mcast_grp = 1 << 12;
    attr.max_mcast_qp_attach = 1 << 8;
    attr.max_total_mcast_qp_attach = 1 << 16;
    attr.max_ah = 1 << 20;
    attr.max_srq = 1 << 16;
    attr.max_srq_wr = MAX_WR as c_int;
    attr.max_srq_sge = MAX_SGE as c_int;
    attr.max_pkeys = 1;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = 1;
    // The NIC is open as long as the context is open, and an open NIC has addresses.
    debug_assert!(!nic.nic.addresses().is_empty());
    attr
}

fn port_attr(nic: &OpenNic) -> ibv_port_attr {
    let mut attr = ibv_port_attr::zeroed();
    let mtu = c_uint::from(nic.nic.mtu().code());
    attr.state = if nic.nic.has_failed() { IBV_PORT_DOWN } else { IBV_PORT_ACTIVE };
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = mtu;
    attr.gid_tbl_len = nic.nic.addresses().len() as c_int;
    attr.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
    attr.max_msg_sz = 1 << 31;
    attr.pkey_tbl_len = 1;
    attr.max_vl_num = 1;
    // 4X QDR is 40 Gbit/s, about the rate of WRITEs of 1 MiB between two processes. UCX chooses its protocols by this rate.
    attr.active_width = 2;
    attr.active_speed = 4;
    // The number 5 means that the link is up.
    attr.phys_state = 5;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    attr.flags = IBV_QPF_GRH_REQUIRED;
    attr
}

/// Writes the first `length` bytes of the port's attributes to `to`. If `length` is larger than this library's struct, the
/// remaining bytes become 0.
///
/// # Safety
///
/// The context is open, and `length` bytes at `to` are valid for writes.
unsafe fn write_port(context: *mut ibv_context, port: u8, to: *mut u8, length: usize) -> c_int {
    if port != 1 {
        return fail(libc::EINVAL);
    }
    // SAFETY: as the caller says.
    unsafe {
        let attr = port_attr(Context::of(context).nic);
        write_prefix(&attr, to, length);
    }
    0
}

/// Writes the first `length` bytes of a value to `to`. If `length` is larger than the value, the remaining bytes become 0.
///
/// # Safety
///
/// `length` bytes at `to` are valid for writes.
unsafe fn write_prefix<T>(value: &T, to: *mut u8, length: usize) {
    let known = size_of::<T>().min(length);
    // SAFETY: as the caller says.
    unsafe {
        to.write_bytes(0, length);
        to.copy_from_nonoverlapping((&raw const *value).cast(), known);
    }
}

/// Returns the entry of the GID table at an index, or `None` if the table has no such entry.
fn gid_entry(nic: &OpenNic, index: u32) -> Option<ibv_gid_entry> {
    let gid = nic.gid(usize::try_from(index).ok()?)?;
    let interface = Interface::of(gid.udp_addr().ip()).ok();
    Some(ibv_gid_entry {
        gid: gid.bytes().into(),
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: interface.map_or(0, |interface| interface.index),
    })
}

operations! {
    /// Queries a port. The program's header passes the size of its struct, which may be older or newer than this library's.
    fn query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
        port_attr_len: size_t,
    ) -> c_int {
        // SAFETY: the context is open, and the program states the size of its struct.
        unsafe { write_port(context, port_num, port_attr.cast(), port_attr_len) }
    }

    /// Queries the device. The program's header passes the size of its struct, which may be older or newer than this library's.
    fn query_device_ex(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        attr_size: size_t,
    ) -> c_int {
        // SAFETY: the input is NULL or valid for reads.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
            || attr_size < size_of::<ibv_device_attr>()
        {
            return fail(libc::EINVAL);
        }
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        let mut extended = ibv_device_attr_ex::zeroed();
        extended.orig_attr = device_attr(nic);
        // The unit of timestamps is 1 ns, so the clock's frequency is 1,000,000 kHz.
        extended.completion_timestamp_mask = u64::MAX;
        extended.hca_core_clock = 1_000_000;
        extended.device_cap_flags_ex = extended.orig_attr.device_cap_flags.into();
        extended.phys_port_cnt_ex = 1;
        // The NIC supports on-demand paging, because it accesses memory with the CPU, and the kernel handles page faults.
        let datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
        let connections = datagrams | IBV_ODP_SUPPORT_WRITE;
        extended.odp_caps.general_caps = IBV_ODP_SUPPORT;
        extended.odp_caps.per_transport_caps = ibv_odp_caps_per_transport {
            rc_odp_caps: connections | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC,
            uc_odp_caps: connections,
            ud_odp_caps: datagrams,
        };
        // SAFETY: the program states the size of its struct.
        unsafe { write_prefix(&extended, attr.cast(), attr_size) };
        0
    }

    /// Reads the NIC's clock.
    fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
        // SAFETY: the context is open, and the values are valid for reads and writes.
        let (nic, mask) = unsafe { (Context::of(context).nic, (*values).comp_mask) };
        if mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return fail(libc::EINVAL);
        }
        let elapsed = nic.nic.clock_origin().elapsed();
        let raw_clock = timespec {
            tv_sec: elapsed.as_secs() as libc::time_t,
            tv_nsec: elapsed.subsec_nanos().into(),
        };
        // SAFETY: as above.
        unsafe { (*values).raw_clock = raw_clock };
        0
    }
}

entry! {
    /// Queries the device.
    fn ibv_query_device(context: *mut ibv_context, device_attr_: *mut ibv_device_attr) -> c_int {
        // SAFETY: the context is open, and the attributes are valid for writes.
        unsafe { device_attr_.write(device_attr(Context::of(context).nic)) };
        0
    }

    /// Queries a port for a program that was built with an old header, whose struct ends before `port_cap_flags2`. In a newer
    /// program, the header redirects the call to [`query_port`].
    fn ibv_query_port(
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut _compat_ibv_port_attr,
    ) -> c_int {
        let length = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
        // SAFETY: the context is open, and the program has a struct of this size.
        unsafe { write_port(context, port_num, port_attr.cast(), length) }
    }

    /// Queries an entry of the GID table.
    fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int, MinusOne {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        let found = u32::try_from(index).ok().filter(|_| port_num == 1).and_then(|index| gid_entry(nic, index));
        let Some(entry) = found else {
            crate::entry::set_errno(libc::EINVAL);
            return -1;
        };
        // SAFETY: the GID is valid for writes.
        unsafe { gid.write(entry.gid) };
        0
    }

    /// Queries the type of an entry of the GID table. rdma-core's own programs call this function.
    fn ibv_query_gid_type(
        context: *mut ibv_context,
        port_num: u8,
        index: c_uint,
        gid_type: *mut c_uint,
    ) -> c_int, MinusOne {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        if port_num != 1 || gid_entry(nic, index).is_none() {
            crate::entry::set_errno(libc::EINVAL);
            return -1;
        }
        // The result is the kernel's number of RoCE v2, which is 1, and not `IBV_GID_TYPE_ROCE_V2`.
        // SAFETY: the type is valid for writes.
        unsafe { gid_type.write(1) };
        0
    }

    /// Queries an entry of the GID table, including its type.
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: size_t,
    ) -> c_int {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        if flags != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        match gid_entry(nic, gid_index).filter(|_| port_num == 1) {
            Some(found) => {
                // SAFETY: the program states the size of its struct.
                unsafe { write_prefix(&found, entry.cast(), entry_size) };
                0
            }
            None => fail(libc::EINVAL),
        }
    }

    /// Queries all entries of the GID table, and returns their number.
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: size_t,
        flags: u32,
        entry_size: size_t,
    ) -> ssize_t {
        // SAFETY: the context is open.
        let nic = unsafe { Context::of(context) }.nic;
        if flags != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        if max_entries < nic.nic.addresses().len() {
            return fail(libc::EINVAL);
        }
        let table = (0..).map_while(|index| gid_entry(nic, index));
        let mut count = 0;
        for entry in table {
            // SAFETY: the program has room for `max_entries` structs of the size that it states.
            unsafe { write_prefix(&entry, entries.cast::<u8>().add(count * entry_size), entry_size) };
            count += 1;
        }
        count as ssize_t
    }

    /// Queries an entry of the partition key table.
    fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int, MinusOne {
        _ = context;
        if port_num != 1 || index != 0 {
            crate::entry::set_errno(libc::EINVAL);
            return -1;
        }
        // SAFETY: the key is valid for writes.
        unsafe { pkey.write(DEFAULT_PKEY.to_be()) };
        0
    }

    /// Returns the index of a partition key in the port's table.
    fn ibv_get_pkey_index(_context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int, MinusOne {
        if port_num == 1 && u16::from_be(pkey) == DEFAULT_PKEY {
            return 0;
        }
        crate::entry::set_errno(libc::EINVAL);
        -1
    }
}
