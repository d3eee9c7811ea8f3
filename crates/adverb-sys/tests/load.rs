//! Loading the libraries, where they are installed.

#![cfg(target_os = "linux")]

use std::ffi::CStr;

use adverb_sys::{IBV_EVENT_PORT_ACTIVE, IBV_NODE_CA, IBV_WC_RETRY_EXC_ERR, Ibverbs, RdmaCm};

/// Returns the library, or prints the reason and returns `None` if it isn't installed.
fn ibverbs() -> Option<&'static Ibverbs> {
    match Ibverbs::load() {
        Ok(ibverbs) => Some(ibverbs),
        Err(error) => {
            println!("skipped: {error}");
            assert!(error.is_not_installed(), "{error}");
            None
        }
    }
}

#[test]
fn loading_twice_returns_the_same_library() {
    let Some(first) = ibverbs() else {
        return;
    };
    assert!(std::ptr::eq(first, Ibverbs::load().unwrap()));
}

#[test]
fn the_device_list_may_be_empty() {
    let Some(ibverbs) = ibverbs() else {
        return;
    };
    let mut count = -1;
    // SAFETY: `count` is valid for writes.
    let list = unsafe { ibverbs.ibv_get_device_list(&mut count) };
    if list.is_null() {
        // This is the result on a kernel without RDMA.
        println!("no list: {}", std::io::Error::last_os_error());
        return;
    }
    println!("{count} devices");
    assert!(count >= 0);
    for index in 0..count as usize {
        // SAFETY: the list has this many devices, and isn't freed yet.
        unsafe {
            let device = *list.add(index);
            let name = CStr::from_ptr(ibverbs.ibv_get_device_name(device));
            assert_eq!(name, CStr::from_ptr((&raw const (*device).name).cast()));
            println!("{name:?}, index {}", ibverbs.ibv_get_device_index(device));
        }
    }
    // SAFETY: the list ends with NULL, and is freed once.
    unsafe {
        assert!((*list.add(count as usize)).is_null());
        ibverbs.ibv_free_device_list(list);
    }
}

#[test]
fn the_library_describes_all_values() {
    let Some(ibverbs) = ibverbs() else {
        return;
    };
    // SAFETY: the results are constant strings.
    unsafe {
        assert_eq!(
            CStr::from_ptr(ibverbs.ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)),
            c"transport retry counter exceeded"
        );
        assert_eq!(CStr::from_ptr(ibverbs.ibv_event_type_str(IBV_EVENT_PORT_ACTIVE)), c"port active");
        assert_eq!(CStr::from_ptr(ibverbs.ibv_node_type_str(IBV_NODE_CA)), c"InfiniBand channel adapter");
        // Values that no header defines also have a description.
        assert!(!ibverbs.ibv_wc_status_str(4711).is_null());
    }
}

#[test]
fn librdmacm_loads_or_returns_an_error() {
    let cm = match RdmaCm::load() {
        Ok(cm) => cm,
        Err(error) => {
            println!("skipped: {error}");
            assert!(error.is_not_installed(), "{error}");
            return;
        }
    };
    // SAFETY: the result is a constant string.
    let text = unsafe { CStr::from_ptr(cm.rdma_event_str(adverb_sys::RDMA_CM_EVENT_ESTABLISHED)) };
    assert_eq!(text, c"RDMA_CM_EVENT_ESTABLISHED");
    // SAFETY: there are no requirements. Without a device or module, the result is NULL.
    let channel = unsafe { cm.rdma_create_event_channel() };
    if channel.is_null() {
        println!("no channel: {}", std::io::Error::last_os_error());
    } else {
        // SAFETY: the channel was created above, and is destroyed once.
        unsafe {
            assert!((*channel).fd >= 0);
            cm.rdma_destroy_event_channel(channel);
        }
    }
}
