//! Open devices (contexts).

use std::ffi::{CStr, CString};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adverb_proto::explain::Call;
use adverb_proto::trace::{RecorderOptions, Recording, StopCause};
use adverb_proto::types::{
    DeviceAttributes, DeviceInfo, FlushCapabilities, Gid, GidEntry, GidType, LinkLayer, ModerationLimits,
    OdpCapabilities, OdpOperations, PathMtu, Port, PortState, TimestampClock,
};
use adverb_sys::{self as sys, Ibverbs, ibv_context, ibv_device};

use super::registration::memlock_limit;
use super::{check, node_error, not_installed, set_nonblocking};
use crate::error::{Error, Feature, NoDeviceReason, Result, WithCauses, call_failed};
use crate::recorder::{DeviceRecorder, StopSignal};

pub(crate) struct Device {
    pub(super) library: &'static Ibverbs,
    pub(super) context: NonNull<ibv_context>,
    pub(super) name: String,
    /// The process that opened the device.
    owner: u32,
    /// Whether the device is Linux's soft-RoCE, which deviates from other devices.
    pub(super) is_soft_roce: bool,
    /// The `IBV_QP_EX_WITH_*` flags of the operations that the device supports and `ibv_post_send` can't post.
    pub(super) extended_operations: u64,
    /// The recorder of requests and completions, which the NIC doesn't record.
    pub(in crate::backend) recorder: Arc<DeviceRecorder>,
}

// SAFETY: libibverbs' contexts may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above. Verbs lock their shared state.
unsafe impl Sync for Device {}

impl Device {
    pub(in crate::backend) fn list() -> Result<Vec<DeviceInfo>> {
        // The library prints a warning about such a limit when it lists devices, even if there are none.
        if memlock_limit().is_some_and(|limit| limit <= MAX_WARNED_MEMLOCK) && !has_kernel_devices() {
            return Ok(Vec::new());
        }
        let library = library()?;
        Ok(DeviceList::new(library)?.iter().map(|(_, info)| info).collect())
    }

    pub(in crate::backend) fn open(name: &str) -> Result<Device> {
        let library = library()?;
        let list = DeviceList::new(library)?;
        let found = list.iter().find(|(_, info)| info.name == name);
        let Some((device, info)) = found else {
            let names: Vec<String> = list.iter().map(|(_, info)| info.name).collect();
            return Err(Error::NoDevice {
                problem: format!("no RDMA device is named {name}").into(),
                reason: if names.is_empty() { NoDeviceReason::NoneExists } else { NoDeviceReason::NotFound },
                available: names.into(),
            });
        };
        if info.unsupported_reason.is_some() {
            return Err(Error::Unsupported { feature: Feature::Protocol, device: name.into() });
        }
        // SAFETY: the device belongs to the list, which still exists.
        let context = unsafe { library.ibv_open_device(device) };
        let context = NonNull::new(context).ok_or_else(|| {
            let error = io::Error::last_os_error();
            // SAFETY: the device belongs to the list, and its fields are set when it is created.
            let node = unsafe { CStr::from_ptr((*device).dev_name.as_ptr()) };
            let error = node_error(&node.to_string_lossy()).unwrap_or(error);
            call_failed(Call::OpenDevice, format!("opening device {name}"), error)
        })?;
        let mut device = Device {
            library,
            context,
            name: name.to_owned(),
            owner: std::process::id(),
            is_soft_roce: false,
            extended_operations: 0,
            recorder: Arc::default(),
        };
        let attributes = device.attributes()?;
        device.is_soft_roce = attributes.vendor_id == SOFT_ROCE_VENDOR_ID;
        if attributes.has_atomic_write {
            device.extended_operations |= sys::IBV_QP_EX_WITH_ATOMIC_WRITE;
        }
        if attributes.flush.global || attributes.flush.persistent {
            device.extended_operations |= sys::IBV_QP_EX_WITH_FLUSH;
        }
        // SAFETY: the context was just opened, and its descriptor with it.
        set_nonblocking(unsafe { (*context.as_ptr()).async_fd })
            .map_err(|error| call_failed(Call::OpenDevice, format!("opening device {name}"), error))?;
        Ok(device)
    }

    /// Whether this process opened the device. A forked child must not change the parent's objects.
    pub(in crate::backend) fn is_owned(&self) -> bool {
        self.owner == std::process::id()
    }

    pub(in crate::backend) fn attributes(&self) -> Result<DeviceAttributes> {
        let mut attr = sys::ibv_device_attr_ex::zeroed();
        // SAFETY: the context is open, and the attributes may be written.
        let code =
            unsafe { self.library.ibv_query_device_ex(self.context.as_ptr(), std::ptr::null(), &mut attr) };
        check(Call::Query, code, || format!("querying the attributes of {}", self.name))?;
        let odp = odp_capabilities(&attr.odp_caps);
        let timestamps = (attr.completion_timestamp_mask != 0).then_some(
            TimestampClock::new(attr.completion_timestamp_mask).with_frequency_khz(attr.hca_core_clock),
        );
        let caps = attr.cq_mod_caps;
        let moderation = (caps.max_cq_count > 0 && caps.max_cq_period > 0).then(|| {
            ModerationLimits::new(caps.max_cq_count, Duration::from_micros(caps.max_cq_period.into()))
        });
        // SAFETY: the context is open, and the field is set when it is opened.
        let vectors = unsafe { (*self.context.as_ptr()).num_comp_vectors };
        let has = |flag: u64| attr.device_cap_flags_ex & flag != 0;
        let has_atomic_write = has(sys::IB_UVERBS_DEVICE_ATOMIC_WRITE);
        let mut flush = FlushCapabilities::default();
        flush.global = has(sys::IB_UVERBS_DEVICE_FLUSH_GLOBAL);
        flush.persistent = has(sys::IB_UVERBS_DEVICE_FLUSH_PERSISTENT);
        let attr = &attr.orig_attr;
        let count = |value: libc::c_int| u32::try_from(value).unwrap_or(0);
        let small = |value: libc::c_int| u8::try_from(value).unwrap_or(if value < 0 { 0 } else { u8::MAX });
        // C's `char` is signed on some architectures only.
        let firmware: Vec<u8> =
            attr.fw_ver.iter().map(|c| c.to_ne_bytes()[0]).take_while(|byte| *byte != 0).collect();
        let mut attributes = DeviceAttributes::default();
        attributes.firmware = String::from_utf8_lossy(&firmware).into_owned();
        attributes.guid = u64::from_be(attr.node_guid);
        attributes.vendor_id = attr.vendor_id;
        attributes.vendor_part_id = attr.vendor_part_id;
        attributes.port_count = attr.phys_port_cnt;
        attributes.max_queue_pairs = count(attr.max_qp);
        attributes.max_queue_depth = count(attr.max_qp_wr);
        attributes.max_sge = count(attr.max_sge);
        attributes.max_completion_queues = count(attr.max_cq);
        attributes.max_completion_queue_depth = count(attr.max_cqe);
        attributes.max_memory_regions = count(attr.max_mr);
        attributes.max_memory_region_len = attr.max_mr_size;
        attributes.max_protection_domains = count(attr.max_pd);
        attributes.max_dest_rd_atomic = small(attr.max_qp_rd_atom);
        attributes.max_rd_atomic = small(attr.max_qp_init_rd_atom);
        attributes.has_atomics = attr.atomic_cap != sys::IBV_ATOMIC_NONE;
        attributes.has_atomic_write = has_atomic_write;
        attributes.flush = flush;
        attributes.has_memory_windows = attr.device_cap_flags & sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B != 0;
        attributes.max_shared_receive_queues = count(attr.max_srq);
        attributes.max_multicast_groups = count(attr.max_mcast_grp);
        attributes.odp = odp;
        attributes.completion_vector_count = count(vectors);
        attributes.moderation = moderation;
        attributes.timestamp_clock = timestamps;
        attributes.has_connection_manager = true;
        Ok(attributes)
    }

    /// Reads the clock of timestamps between two readings of the monotonic clock, and returns the most accurate of a few
    /// attempts with its uncertainty. Returns `None` if the driver can't read the clock.
    pub(in crate::backend) fn read_clock(&self) -> Result<Option<(u64, Instant, Duration)>> {
        let mut best: Option<(u64, Instant, Duration)> = None;
        for _ in 0..CLOCK_ATTEMPTS {
            let mut values = sys::ibv_values_ex::zeroed();
            values.comp_mask = sys::IBV_VALUES_MASK_RAW_CLOCK;
            let before = Instant::now();
            // SAFETY: the context is open, and the values may be read and written.
            let code = unsafe { sys::ibv_query_rt_values_ex(self.context.as_ptr(), &mut values) };
            let uncertainty = before.elapsed() / 2;
            if matches!(code, libc::EOPNOTSUPP | libc::ENOSYS) {
                return Ok(None);
            }
            check(Call::Query, code, || format!("reading the clock of {}", self.name))?;
            if values.comp_mask & sys::IBV_VALUES_MASK_RAW_CLOCK == 0 {
                return Ok(None);
            }
            if best.is_none_or(|(.., smallest)| uncertainty < smallest) {
                let ticks = values.raw_clock.tv_nsec.cast_unsigned();
                best = Some((ticks, before + uncertainty, uncertainty));
            }
        }
        Ok(best)
    }

    pub(in crate::backend) fn port(&self, number: u8) -> Result<Port> {
        let mut attr = sys::ibv_port_attr::zeroed();
        // SAFETY: the context is open, and the attributes may be written.
        let code = unsafe { self.library.ibv_query_port(self.context.as_ptr(), number, &mut attr) };
        check(Call::Query, code, || format!("querying the attributes of port {number} of {}", self.name))?;
        let mtu = |code: sys::ibv_mtu| {
            u8::try_from(code).ok().and_then(PathMtu::from_code).unwrap_or(PathMtu::Mtu256)
        };
        let state = match attr.state {
            sys::IBV_PORT_DOWN => PortState::Down,
            sys::IBV_PORT_INIT => PortState::Init,
            sys::IBV_PORT_ARMED => PortState::Armed,
            sys::IBV_PORT_ACTIVE => PortState::Active,
            sys::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            _ => PortState::Unknown,
        };
        let link_layer = match attr.link_layer {
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            _ => LinkLayer::InfiniBand,
        };
        let mut port = Port::new(number, state, link_layer);
        port.max_mtu = mtu(attr.max_mtu);
        port.active_mtu = mtu(attr.active_mtu);
        port.lid = attr.lid;
        port.max_message_size = attr.max_msg_sz;
        port.gid_table_len = u32::try_from(attr.gid_tbl_len).unwrap_or(0);
        port.pkey_table_len = attr.pkey_tbl_len;
        port.needs_grh = attr.flags & sys::IBV_QPF_GRH_REQUIRED != 0;
        Ok(port)
    }

    pub(in crate::backend) fn pkeys(&self, port: u8) -> Result<Vec<u16>> {
        let key = |index: u16| {
            let mut key = 0;
            // SAFETY: the context is open, and the key may be written.
            let code =
                unsafe { self.library.ibv_query_pkey(self.context.as_ptr(), port, index.into(), &mut key) };
            check(Call::Query, code, || format!("querying P_Key {index} of port {port} of {}", self.name))?;
            Ok(u16::from_be(key))
        };
        (0..self.port(port)?.pkey_table_len).map(key).collect()
    }

    pub(in crate::backend) fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let ports = self.attributes()?.port_count;
        let mut entry_count = 0;
        for port in 1..=ports {
            entry_count += self.port(port)?.gid_table_len as usize;
        }
        let zero = sys::ibv_gid_entry::zeroed();
        let mut entries = vec![zero; entry_count.min(MAX_GIDS)];
        // SAFETY: the context is open, and `entries.len()` entries may be written.
        let count = unsafe {
            self.library.ibv_query_gid_table(self.context.as_ptr(), entries.as_mut_ptr(), entries.len(), 0)
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::from_raw_os_error(i32::try_from(-count).unwrap_or(libc::EIO));
            return Err(call_failed(Call::Query, format!("querying the GID table of {}", self.name), error));
        };
        entries.truncate(count);
        let entry = |entry: &sys::ibv_gid_entry| {
            let port = u8::try_from(entry.port_num).unwrap_or(u8::MAX);
            let gid_type = match entry.gid_type {
                sys::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
                sys::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
                _ => GidType::InfiniBand,
            };
            let gid = Gid::new(entry.gid.octets());
            let mut listed = GidEntry::new(port, entry.gid_index, gid, gid_type);
            listed.netdev = interface_name(entry.ndev_ifindex);
            listed
        };
        Ok(entries.iter().map(entry).filter(|entry| !entry.gid.is_zero()).collect())
    }
}

impl Device {
    pub(in crate::backend) fn start_recording(
        &self,
        name: &str,
        options: &RecorderOptions,
    ) -> Result<StopSignal> {
        self.recorder.start(name, options)
    }

    pub(in crate::backend) fn stop_recording(&self, name: &str) -> Option<Recording> {
        self.recorder.stop(name)
    }

    pub(in crate::backend) fn snapshot_recording(&self, name: &str) -> Option<Recording> {
        self.recorder.snapshot(name)
    }

    pub(in crate::backend) fn recording_stop_cause(&self) -> Option<StopCause> {
        self.recorder.stop_cause()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if self.is_owned() {
            // SAFETY: the context is open and closed once, and all objects that were created from it are destroyed,
            // because they hold the device.
            let code = unsafe { self.library.ibv_close_device(self.context.as_ptr()) };
            if let Err(error) = check(Call::Destroy, code, || format!("closing device {}", self.name)) {
                tracing::error!(error = %WithCauses(&error), "closing a device failed");
            }
        }
    }
}

/// The number of clock readings for one sample.
const CLOCK_ATTEMPTS: u32 = 4;

/// Returns the capabilities of on-demand paging.
fn odp_capabilities(caps: &sys::ibv_odp_caps) -> OdpCapabilities {
    let operations = |caps: u32| {
        let mut operations = OdpOperations::default();
        operations.send = caps & sys::IBV_ODP_SUPPORT_SEND != 0;
        operations.recv = caps & sys::IBV_ODP_SUPPORT_RECV != 0;
        operations.write = caps & sys::IBV_ODP_SUPPORT_WRITE != 0;
        operations.read = caps & sys::IBV_ODP_SUPPORT_READ != 0;
        operations.atomic = caps & sys::IBV_ODP_SUPPORT_ATOMIC != 0;
        operations.shared_recv = caps & sys::IBV_ODP_SUPPORT_SRQ_RECV != 0;
        operations
    };
    let mut odp = OdpCapabilities::default();
    odp.supported = caps.general_caps & sys::IBV_ODP_SUPPORT != 0;
    odp.rc = operations(caps.per_transport_caps.rc_odp_caps);
    odp.uc = operations(caps.per_transport_caps.uc_odp_caps);
    odp.ud = operations(caps.per_transport_caps.ud_odp_caps);
    odp
}

/// The vendor ID of Linux's soft-RoCE (rxe_param.h).
const SOFT_ROCE_VENDOR_ID: u32 = 0xff_ffff;

/// The maximum number of entries that fit the kernel's reply, which is limited to 64 KiB. The kernel rejects a larger
/// request.
const MAX_GIDS: usize = 2047;

/// The maximum limit of locked memory, in bytes, about which the library prints a warning.
const MAX_WARNED_MEMLOCK: u64 = 32 << 10;

/// Whether the kernel has RDMA devices that programs can open.
fn has_kernel_devices() -> bool {
    let has_entries =
        |directory| std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    has_entries("/sys/class/infiniband")
}

/// Returns the library, or the error of loading it.
fn library() -> Result<&'static Ibverbs> {
    Ibverbs::load().map_err(not_installed)
}

/// The list of devices that libibverbs creates.
struct DeviceList {
    library: &'static Ibverbs,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl DeviceList {
    fn new(library: &'static Ibverbs) -> Result<DeviceList> {
        let mut count = 0;
        // SAFETY: the count may be written.
        let list = unsafe { library.ibv_get_device_list(&mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(DeviceList { library, list, count: usize::try_from(count).unwrap_or(0) }),
            None => {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    // The library returns these errors if the kernel has no RDMA support.
                    Some(libc::ENOSYS | libc::ENOENT) => Err(Error::NoDevice {
                        problem: "listing RDMA devices failed: the kernel has no RDMA support".into(),
                        reason: NoDeviceReason::NoneExists,
                        available: Box::default(),
                    }),
                    _ => Err(call_failed(Call::OpenDevice, "listing RDMA devices", error)),
                }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (*mut ibv_device, DeviceInfo)> {
        (0..self.count).map(|index| {
            // SAFETY: the list has that many entries.
            let device = unsafe { *self.list.as_ptr().add(index) };
            // SAFETY: the device belongs to the list, which still exists, and its name is a C string.
            let name = unsafe { CStr::from_ptr(self.library.ibv_get_device_name(device)) };
            // SAFETY: the device belongs to the list.
            let guid = unsafe { self.library.ibv_get_device_guid(device) };
            // SAFETY: the device belongs to the list, and its fields are set when it is created.
            let transport = unsafe { (*device).transport_type };
            let unsupported = match transport {
                sys::IBV_TRANSPORT_IB => None,
                sys::IBV_TRANSPORT_IWARP => {
                    Some("use a RoCE or InfiniBand device: Adverb does not support iWARP")
                }
                _ => Some(
                    "use a RoCE or InfiniBand device: this one has a protocol of its own, such as EFA's SRD",
                ),
            };
            let name = name.to_string_lossy().into_owned();
            let mut info = DeviceInfo::new(name, u64::from_be(guid));
            info.unsupported_reason = unsupported;
            (device, info)
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the library created the list, which is freed once. Open devices stay open.
        unsafe { self.library.ibv_free_device_list(self.list.as_ptr()) };
    }
}

/// Returns the name of a network interface.
fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer may be written, and has the size that the function requires.
    let name = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if name.is_null() {
        return None;
    }
    // SAFETY: the pointer refers to the array above, which the function filled with a C string.
    let name = unsafe { CStr::from_ptr(name) };
    CString::from(name).into_string().ok()
}
