//! The list of devices, which has one.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

use adverb_proto::types::Gid;
use adverb_sys::{__be64, IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use libc::{c_char, c_int};

use crate::entry::fail;
use crate::settings::Settings;

/// The device, in the layout of rdma-core's `verbs_device`, whose later fields are zero.
#[repr(C)]
struct Device {
    base: ibv_device,
    _rest: [u64; 64],
}

// SAFETY: the device is constant.
unsafe impl Sync for Device {}

// SAFETY: as above.
unsafe impl Send for Device {}

pub(crate) fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let device = DEVICE.get_or_init(|| {
        let mut base = ibv_device::zeroed();
        base.node_type = IBV_NODE_CA;
        base.transport_type = IBV_TRANSPORT_IB;
        copy(&mut base.name, NAME);
        copy(&mut base.dev_name, "uverbs0");
        copy(&mut base.dev_path, "/sys/class/infiniband_verbs/uverbs0");
        copy(&mut base.ibdev_path, &format!("/sys/class/infiniband/{NAME}"));
        Device { base, _rest: [0; 64] }
    });
    // Programs don't write to a device.
    (&raw const device.base).cast_mut()
}

pub(crate) const NAME: &str = "adverb0";

/// Returns the GUID of the device: a local one, different for each address.
pub(crate) fn guid() -> u64 {
    let address = Settings::from_environment().ok().and_then(|settings| settings.address);
    let address = address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let bits = u128::from_be_bytes(Gid::from(address).bytes());
    // Addresses of one network differ in their last bits.
    GUID | u64::from((bits ^ bits >> 32 ^ bits >> 64 ^ bits >> 96) as u32)
}

/// The first of the GUIDs of software NICs.
const GUID: u64 = 0x0200_00ff_0000_0000;

/// Copies a string into a field, with a terminating zero.
pub(crate) fn copy(field: &mut [c_char], text: &str) {
    for (place, byte) in field.iter_mut().zip(text.bytes().chain([0])) {
        *place = byte as c_char;
    }
}

entry! {
    /// Returns the list of devices, which ends with NULL.
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
        // SAFETY: the function has no preconditions.
        let list = unsafe { libc::calloc(2, size_of::<*mut ibv_device>()) }.cast::<*mut ibv_device>();
        if list.is_null() {
            return fail(libc::ENOMEM);
        }
        // SAFETY: the list has room for two pointers, and the other pointer is NULL or valid for writes.
        unsafe {
            list.write(device());
            if !num_devices.is_null() {
                num_devices.write(1);
            }
        }
        list
    }

    /// Frees a list of devices.
    fn ibv_free_device_list(list: *mut *mut ibv_device) {
        // SAFETY: the list was allocated by `ibv_get_device_list`.
        unsafe { libc::free(list.cast()) };
    }

    /// Returns the name of a device.
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        // SAFETY: the device is this library's.
        unsafe { (&raw const (*device).name).cast() }
    }

    /// Returns the node GUID of a device.
    fn ibv_get_device_guid(_device: *mut ibv_device) -> __be64 {
        guid().to_be()
    }

    /// Returns the kernel's index of a device, which is 0 for the only one.
    fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
        0
    }
}
