//! Lists devices, their ports and GIDs, similar to `ibv_devinfo`, with the C API only.

#[cfg(target_os = "linux")]
fn main() {
    let ibverbs = match adverb_sys::Ibverbs::load() {
        Ok(ibverbs) => ibverbs,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    linux::list(ibverbs);
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("libibverbs exists on Linux only");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::CStr;
    use std::io::Error;
    use std::{process, ptr};

    use adverb_sys::*;

    pub(super) fn list(ibverbs: &Ibverbs) {
        let mut count = 0;
        // SAFETY: `count` is valid for writes.
        let list = unsafe { ibverbs.ibv_get_device_list(&mut count) };
        if list.is_null() {
            eprintln!("cannot list devices: {}", Error::last_os_error());
            process::exit(1);
        }
        println!("{count} devices");
        for index in 0..count as usize {
            // SAFETY: the list has this many devices, and is freed only below.
            unsafe { print_device(ibverbs, *list.add(index)) };
        }
        // SAFETY: the list was created above, and is freed once.
        unsafe { ibverbs.ibv_free_device_list(list) };
    }

    /// Prints a device.
    ///
    /// # Safety
    ///
    /// `device` is in a list that isn't freed yet.
    unsafe fn print_device(ibverbs: &Ibverbs, device: *mut ibv_device) {
        // SAFETY: the device exists, and is queried only while it is open.
        unsafe {
            let name = CStr::from_ptr(ibverbs.ibv_get_device_name(device)).to_string_lossy();
            let node = CStr::from_ptr(ibverbs.ibv_node_type_str((*device).node_type)).to_string_lossy();
            let guid = u64::from_be(ibverbs.ibv_get_device_guid(device));
            let index = ibverbs.ibv_get_device_index(device);
            println!("{name} (index {index}): {node}, GUID {guid:016x}");
            let context = ibverbs.ibv_open_device(device);
            if context.is_null() {
                println!("  cannot open the device: {}", Error::last_os_error());
                return;
            }
            let mut attr = ibv_device_attr_ex::zeroed();
            match ibverbs.ibv_query_device_ex(context, ptr::null(), &mut attr) {
                0 => print_attributes(ibverbs, context, &attr),
                error => println!("  cannot query the device: {}", Error::from_raw_os_error(error)),
            }
            ibverbs.ibv_close_device(context);
        }
    }

    /// Prints the attributes and the ports of a device.
    ///
    /// # Safety
    ///
    /// `context` is open.
    unsafe fn print_attributes(ibverbs: &Ibverbs, context: *mut ibv_context, attr: &ibv_device_attr_ex) {
        let orig = &attr.orig_attr;
        println!(
            "  vendor {:#06x} part {}, {} queue pairs of {} requests, {} completion queues of {} entries, \
             {} regions up to {:#x} bytes",
            orig.vendor_id,
            orig.vendor_part_id,
            orig.max_qp,
            orig.max_qp_wr,
            orig.max_cq,
            orig.max_cqe,
            orig.max_mr,
            orig.max_mr_size
        );
        println!(
            "  page sizes {:#x}, flags {:#x}, extended {:#x}, on-demand {:#x}, atomics {}, timestamps {:#x}",
            orig.page_size_cap,
            orig.device_cap_flags,
            attr.device_cap_flags_ex,
            attr.odp_caps.general_caps,
            orig.atomic_cap,
            attr.completion_timestamp_mask
        );
        for number in 1..=orig.phys_port_cnt {
            // SAFETY: the caller vouches for the context.
            unsafe { print_port(ibverbs, context, number) };
        }
    }

    /// Prints a port and its GIDs.
    ///
    /// # Safety
    ///
    /// `context` is open.
    unsafe fn print_port(ibverbs: &Ibverbs, context: *mut ibv_context, number: u8) {
        // SAFETY: the caller guarantees that the context is open, and the results are written to local variables.
        unsafe {
            let mut port = ibv_port_attr::zeroed();
            let error = ibverbs.ibv_query_port(context, number, &mut port);
            if error != 0 {
                println!("  cannot query port {number}: {}", Error::from_raw_os_error(error));
                return;
            }
            let state = CStr::from_ptr(ibverbs.ibv_port_state_str(port.state)).to_string_lossy();
            println!(
                "  port {number}: {state}, link layer {}, MTU {} of {}, messages up to {:#x} bytes, LID {}, \
                 {} P_Keys, {} GIDs, width {}, speed {}, flags {:#x}",
                port.link_layer,
                128 << port.active_mtu,
                128 << port.max_mtu,
                port.max_msg_sz,
                port.lid,
                port.pkey_tbl_len,
                port.gid_tbl_len,
                port.active_width,
                port.active_speed,
                port.port_cap_flags
            );
            for index in 0..port.gid_tbl_len as u32 {
                let mut entry = ibv_gid_entry::zeroed();
                match ibverbs.ibv_query_gid_ex(context, number.into(), index, &mut entry, 0) {
                    0 => println!(
                        "    GID {index}: {:?}, {}, interface {}",
                        entry.gid,
                        match entry.gid_type {
                            IBV_GID_TYPE_IB => "InfiniBand",
                            IBV_GID_TYPE_ROCE_V1 => "RoCE v1",
                            IBV_GID_TYPE_ROCE_V2 => "RoCE v2",
                            _ => "unknown",
                        },
                        entry.ndev_ifindex
                    ),
                    // The entry is empty.
                    libc::ENODATA => {}
                    error => println!("    GID {index}: {}", Error::from_raw_os_error(error)),
                }
            }
        }
    }
}
