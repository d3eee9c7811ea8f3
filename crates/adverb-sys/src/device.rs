//! Devices and their attributes.

use libc::{c_char, c_int, c_uint, timespec};

use crate::errno::set_errno;
use crate::{__be64, Ibverbs, ibv_context};

shapes! {
    /// The node type of a device.
    pub enum ibv_node_type: c_int {
        /// A type unknown to the library.
        IBV_NODE_UNKNOWN = -1,
        /// An InfiniBand or RoCE adapter.
        IBV_NODE_CA = 1,
        /// A switch.
        IBV_NODE_SWITCH = 2,
        /// A router.
        IBV_NODE_ROUTER = 3,
        /// An iWARP adapter.
        IBV_NODE_RNIC = 4,
        /// A Cisco usNIC.
        IBV_NODE_USNIC = 5,
        /// A Cisco usNIC over UDP.
        IBV_NODE_USNIC_UDP = 6,
        /// A device of unspecified type, such as EFA.
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// The transport of a device.
    pub enum ibv_transport_type: c_int {
        /// A transport unknown to the library.
        IBV_TRANSPORT_UNKNOWN = -1,
        /// InfiniBand's transport, over InfiniBand or RoCE.
        IBV_TRANSPORT_IB = 0,
        /// iWARP.
        IBV_TRANSPORT_IWARP = 1,
        /// Cisco usNIC.
        IBV_TRANSPORT_USNIC = 2,
        /// Cisco usNIC over UDP.
        IBV_TRANSPORT_USNIC_UDP = 3,
        /// A vendor-specific transport, such as EFA's SRD.
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// Two unused function pointers.
    #[derive(Clone, Copy)]
    pub struct _ibv_device_ops {
        /// An unused function pointer.
        pub _dummy1: Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context>,
        /// An unused function pointer.
        pub _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
    }

    /// An RDMA device.
    pub struct ibv_device {
        /// Unused function pointers.
        pub _ops: _ibv_device_ops,
        /// The node type.
        pub node_type: ibv_node_type,
        /// The transport.
        pub transport_type: ibv_transport_type,
        /// The kernel's name of the device, such as `mlx5_0`.
        pub name: [c_char; 64],
        /// The name of the character device, such as `uverbs0`.
        pub dev_name: [c_char; 64],
        /// The sysfs directory of the character device.
        pub dev_path: [c_char; 256],
        /// The sysfs directory of the device.
        pub ibdev_path: [c_char; 256],
    }

    /// The scope of atomic operations.
    pub enum ibv_atomic_cap: c_uint {
        /// The device has no atomic operations.
        IBV_ATOMIC_NONE = 0,
        /// Operations are atomic among the queue pairs of the device.
        IBV_ATOMIC_HCA = 1,
        /// Operations are atomic among all devices and CPUs.
        IBV_ATOMIC_GLOB = 2,
    }

    /// The attributes and limits of a device.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_device_attr {
        /// The firmware version, terminated by NUL.
        pub fw_ver: [c_char; 64],
        /// The node GUID.
        pub node_guid: __be64,
        /// The system image GUID, shared by all parts of an adapter.
        pub sys_image_guid: __be64,
        /// The maximum size of a memory region in bytes.
        pub max_mr_size: u64,
        /// The supported page sizes: bit n is set for 2ⁿ bytes.
        pub page_size_cap: u64,
        /// The vendor ID, an IEEE OUI or a PCI vendor ID.
        pub vendor_id: u32,
        /// The vendor's part ID.
        pub vendor_part_id: u32,
        /// The hardware version.
        pub hw_ver: u32,
        /// The maximum number of queue pairs.
        pub max_qp: c_int,
        /// The maximum number of requests in a work queue.
        pub max_qp_wr: c_int,
        /// The lower 32 bits of the `IBV_DEVICE_*` flags.
        pub device_cap_flags: c_uint,
        /// The maximum number of segments of a request.
        pub max_sge: c_int,
        /// The maximum number of segments of an RDMA READ.
        pub max_sge_rd: c_int,
        /// The maximum number of completion queues.
        pub max_cq: c_int,
        /// The maximum number of entries in a completion queue.
        pub max_cqe: c_int,
        /// The maximum number of memory regions.
        pub max_mr: c_int,
        /// The maximum number of protection domains.
        pub max_pd: c_int,
        /// The maximum number of RDMA READs and atomics outstanding per queue pair as responder.
        pub max_qp_rd_atom: c_int,
        /// The maximum number of RDMA READs and atomics outstanding per end-to-end context as responder (reliable
        /// datagrams only).
        pub max_ee_rd_atom: c_int,
        /// The maximum number of RDMA READs and atomics outstanding on the device as responder.
        pub max_res_rd_atom: c_int,
        /// The maximum number of RDMA READs and atomics outstanding per queue pair as requester.
        pub max_qp_init_rd_atom: c_int,
        /// The maximum number of RDMA READs and atomics outstanding per end-to-end context as requester (reliable
        /// datagrams only).
        pub max_ee_init_rd_atom: c_int,
        /// The scope of atomic operations.
        pub atomic_cap: ibv_atomic_cap,
        /// The maximum number of end-to-end contexts.
        pub max_ee: c_int,
        /// The maximum number of reliable datagram domains.
        pub max_rdd: c_int,
        /// The maximum number of memory windows.
        pub max_mw: c_int,
        /// The maximum number of raw IPv6 queue pairs.
        pub max_raw_ipv6_qp: c_int,
        /// The maximum number of raw Ethertype queue pairs.
        pub max_raw_ethy_qp: c_int,
        /// The maximum number of multicast groups.
        pub max_mcast_grp: c_int,
        /// The maximum number of queue pairs in a multicast group.
        pub max_mcast_qp_attach: c_int,
        /// The maximum number of queue pairs in all multicast groups.
        pub max_total_mcast_qp_attach: c_int,
        /// The maximum number of address handles.
        pub max_ah: c_int,
        /// The maximum number of fast memory regions, which are obsolete.
        pub max_fmr: c_int,
        /// The maximum number of remappings of a fast memory region.
        pub max_map_per_fmr: c_int,
        /// The maximum number of shared receive queues.
        pub max_srq: c_int,
        /// The maximum number of requests in a shared receive queue.
        pub max_srq_wr: c_int,
        /// The maximum number of segments of a request in a shared receive queue.
        pub max_srq_sge: c_int,
        /// The maximum number of partition keys.
        pub max_pkeys: u16,
        /// The exponent of the maximum ACK delay: the delay is 4.096 µs × 2ⁿ.
        pub local_ca_ack_delay: u8,
        /// The number of ports.
        pub phys_port_cnt: u8,
    }

    // ibv_device_attr.device_cap_flags
    pub const c_uint {
        /// Resizing of work queues.
        IBV_DEVICE_RESIZE_MAX_WR = 1 << 0,
        /// A counter of packets with a wrong P_Key.
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        /// A counter of packets with a wrong Q_Key.
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        /// Multicast of raw packets.
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        /// Automatic path migration.
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        /// Changes of the port of a queue pair.
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        /// Checks of the port of an address handle.
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        /// Specification of the current state when a queue pair is modified.
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        /// Shutdown of ports.
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        /// Selection of the initialization type of a port.
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        /// Events when a port becomes active.
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        /// A system image GUID.
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        /// RNR NAKs on reliable connections.
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        /// Resizing of shared receive queues.
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        /// Completion events after a number of completions.
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        /// IP checksums for datagrams.
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        /// Extended reliable connections (XRC).
        IBV_DEVICE_XRC = 1 << 20,
        /// Memory management extensions: SEND with invalidate, and local invalidation.
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows of type 2A.
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B.
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        /// IP checksums for reliable connections.
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        /// IP checksums for raw packets.
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        /// Flow steering rules.
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
    }

    // ibv_device_attr_ex.device_cap_flags_ex, besides those above
    pub const u64 {
        /// Delivery of the frame check sequence of raw packets.
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        /// Padding of PCI writes to a cache line.
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
    }

    // Further flags of the same field, which verbs.h doesn't name. The kernel reports them, so they exist with any
    // version of the library.
    pub const u64 since "45" {
        /// FLUSH to global visibility.
        IB_UVERBS_DEVICE_FLUSH_GLOBAL = 1 << 38,
        /// FLUSH to persistence.
        IB_UVERBS_DEVICE_FLUSH_PERSISTENT = 1 << 39,
        /// ATOMIC WRITE.
        IB_UVERBS_DEVICE_ATOMIC_WRITE = 1 << 40,
    }

    /// The input of `ibv_query_device_ex`; no attribute is defined yet.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_query_device_ex_input {
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
    }

    /// The on-demand paging capabilities.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_odp_caps {
        /// The general flags: [`IBV_ODP_SUPPORT`], [`IBV_ODP_SUPPORT_IMPLICIT`].
        pub general_caps: u64,
        /// The capabilities by transport.
        pub per_transport_caps: ibv_odp_caps_per_transport,
    }

    /// The on-demand paging capabilities by transport, as `IBV_ODP_SUPPORT_*` flags.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_odp_caps_per_transport inside ibv_odp_caps.per_transport_caps {
        /// The flags of reliable connections.
        pub rc_odp_caps: u32,
        /// The flags of unreliable connections.
        pub uc_odp_caps: u32,
        /// The flags of unreliable datagrams.
        pub ud_odp_caps: u32,
    }

    // ibv_odp_caps.general_caps
    pub const u64 {
        /// On-demand paging (ODP): registration of memory without pinning.
        IBV_ODP_SUPPORT = 1 << 0,
        /// Implicit on-demand paging: registration of the whole address space.
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }

    // ibv_odp_caps_per_transport
    pub const u32 {
        /// SEND from memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_SEND = 1 << 0,
        /// Receives into memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        /// RDMA WRITE on memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        /// RDMA READ on memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_READ = 1 << 3,
        /// Atomics on memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        /// Receives through a shared receive queue into memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
    }

    pub const u32 since "58" {
        /// FLUSH of memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_FLUSH = 1 << 6,
        /// ATOMIC WRITE on memory registered with on-demand paging (ODP).
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7,
    }

    /// The capabilities of TCP segmentation offload (TSO).
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tso_caps {
        /// The maximum size of a packet to segment, in bytes. The value is zero if the device doesn't support TSO.
        pub max_tso: u32,
        /// The supported queue pair types: bit n is set for type n.
        pub supported_qpts: u32,
    }

    /// The capabilities of receive-side scaling (RSS).
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_rss_caps {
        /// The supported queue pair types: bit n is set for type n.
        pub supported_qpts: u32,
        /// The maximum number of indirection tables.
        pub max_rwq_indirection_tables: u32,
        /// The maximum number of entries of an indirection table.
        pub max_rwq_indirection_table_size: u32,
        /// The packet fields that can be hashed.
        pub rx_hash_fields_mask: u64,
        /// The supported hash functions.
        pub rx_hash_function: u8,
    }

    /// The limits of packet pacing.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_packet_pacing_caps {
        /// The minimum rate in kbit/s.
        pub qp_rate_limit_min: u32,
        /// The maximum rate in kbit/s.
        pub qp_rate_limit_max: u32,
        /// The supported queue pair types: bit n is set for type n.
        pub supported_qpts: u32,
    }

    /// The capabilities of tag matching (TM).
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tm_caps {
        /// The maximum length of a rendezvous header in bytes.
        pub max_rndv_hdr_size: u32,
        /// The maximum number of buffers in the tag list.
        pub max_num_tags: u32,
        /// The flags of the supported transports.
        pub flags: u32,
        /// The maximum number of outstanding operations on the tag list.
        pub max_ops: u32,
        /// The maximum number of segments of a tagged buffer.
        pub max_sge: u32,
    }

    /// The limits of completion event moderation.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_cq_moderation_caps {
        /// The maximum number of completions per event.
        pub max_cq_count: u16,
        /// The maximum delay in microseconds.
        pub max_cq_period: u16,
    }

    /// The capabilities of PCI atomics: for each operation, flags for 4, 8 and 16 bytes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_pci_atomic_caps {
        /// The flags of fetch-and-add.
        pub fetch_add: u16,
        /// The flags of swap.
        pub swap: u16,
        /// The flags of compare-and-swap.
        pub compare_swap: u16,
    }

    /// The extended attributes of a device.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_device_attr_ex {
        /// The attributes that [`ibv_query_device`](crate::Ibverbs::ibv_query_device) returns.
        pub orig_attr: ibv_device_attr,
        /// The mask of optional fields, which must be zero.
        pub comp_mask: u32,
        /// The on-demand paging capabilities.
        pub odp_caps: ibv_odp_caps,
        /// The mask of valid bits of completion timestamps. The mask is zero if the device doesn't support timestamps.
        pub completion_timestamp_mask: u64,
        /// The frequency of the timestamp clock in kHz.
        pub hca_core_clock: u64,
        /// All `IBV_DEVICE_*` flags.
        pub device_cap_flags_ex: u64,
        /// The capabilities of TCP segmentation offload (TSO).
        pub tso_caps: ibv_tso_caps,
        /// The capabilities of receive-side scaling (RSS).
        pub rss_caps: ibv_rss_caps,
        /// The maximum number of work queues.
        pub max_wq_type_rq: u32,
        /// The limits of packet pacing.
        pub packet_pacing_caps: ibv_packet_pacing_caps,
        /// The raw packet capability flags.
        pub raw_packet_caps: u32,
        /// The capabilities of tag matching (TM).
        pub tm_caps: ibv_tm_caps,
        /// The limits of completion event moderation.
        pub cq_mod_caps: ibv_cq_moderation_caps,
        /// The maximum size of device memory in bytes.
        pub max_dm_size: u64,
        /// The capabilities of PCI atomics.
        pub pci_atomic_caps: ibv_pci_atomic_caps,
        /// The on-demand paging capabilities of XRC.
        pub xrc_odp_caps: u32,
        /// The number of ports, if it exceeds 255.
        pub phys_port_cnt_ex: u32,
    }

    /// The values of `ibv_query_rt_values_ex`.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_values_ex {
        /// The mask of requested values on input, and of returned values on output.
        pub comp_mask: u32,
        /// The raw clock, with ticks in `tv_nsec`.
        pub raw_clock: timespec,
    }

    // ibv_values_ex.comp_mask
    pub const u32 {
        /// The mask bit of the field `raw_clock`, the clock of completion timestamps.
        IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
    }
}

impl Ibverbs {
    /// Queries a device's extended attributes. If the device doesn't support this query, only `orig_attr` is filled in,
    /// and all other attributes are zero. Returns 0 or an errno value.
    ///
    /// # Safety
    ///
    /// `context` is open, `input` is NULL or valid for reads, and `attr` is valid for writes.
    pub unsafe fn ibv_query_device_ex(
        &self,
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
    ) -> c_int {
        // SAFETY: the caller upholds the requirements above, and the library writes at most the given size.
        unsafe {
            if !input.is_null() && (*input).comp_mask != 0 {
                return libc::EINVAL;
            }
            if let Some(query_device_ex) = verbs_op!(context, query_device_ex) {
                let result = query_device_ex(context, input, attr, size_of::<ibv_device_attr_ex>());
                if result != libc::EOPNOTSUPP && result != libc::ENOSYS {
                    return result;
                }
            }
            attr.write(ibv_device_attr_ex::zeroed());
            self.ibv_query_device(context, &raw mut (*attr).orig_attr)
        }
    }

    /// Returns the kernel's index of a device, or -1 if the kernel or the library is too old.
    ///
    /// # Safety
    ///
    /// `device` is in a device list that isn't freed yet, or a context of the device is open.
    pub unsafe fn ibv_get_device_index(&self, device: *mut ibv_device) -> c_int {
        match self.ibv_get_device_index {
            // SAFETY: the caller vouches for the device.
            Some(ibv_get_device_index) => unsafe { ibv_get_device_index(device) },
            None => -1,
        }
    }

    /// Opens a device through the file descriptor of another process's context. Returns NULL and sets errno on failure.
    ///
    /// # Safety
    ///
    /// `cmd_fd` is the field `cmd_fd` of a device context. The returned context owns the file descriptor.
    pub unsafe fn ibv_import_device(&self, cmd_fd: c_int) -> *mut ibv_context {
        match self.ibv_import_device {
            // SAFETY: the caller vouches for the descriptor.
            Some(ibv_import_device) => unsafe { ibv_import_device(cmd_fd) },
            None => {
                set_errno(libc::EOPNOTSUPP);
                core::ptr::null_mut()
            }
        }
    }
}

/// Reads a device's clock. Returns 0 or an errno value.
///
/// # Safety
///
/// `context` is open, and `values` is valid for reads and writes.
#[inline]
pub unsafe fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the caller upholds the requirements above.
    unsafe {
        match verbs_op!(context, query_rt_values) {
            Some(query_rt_values) => query_rt_values(context, values),
            None => libc::EOPNOTSUPP,
        }
    }
}
