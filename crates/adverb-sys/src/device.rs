//! Devices and what they can do.

use libc::{c_char, c_int, c_uint, timespec};

use crate::errno::set_errno;
use crate::{__be64, Ibverbs, ibv_context};

shapes! {
    /// What kind of thing a device is.
    pub enum ibv_node_type: c_int {
        /// Something that the library doesn't know.
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
        /// A device whose kind doesn't matter, such as EFA.
        IBV_NODE_UNSPECIFIED = 7,
    }

    /// What a device speaks.
    pub enum ibv_transport_type: c_int {
        /// Something that the library doesn't know.
        IBV_TRANSPORT_UNKNOWN = -1,
        /// InfiniBand's transport, over InfiniBand or RoCE.
        IBV_TRANSPORT_IB = 0,
        /// iWARP.
        IBV_TRANSPORT_IWARP = 1,
        /// Cisco usNIC.
        IBV_TRANSPORT_USNIC = 2,
        /// Cisco usNIC over UDP.
        IBV_TRANSPORT_USNIC_UDP = 3,
        /// A vendor's own, such as EFA's.
        IBV_TRANSPORT_UNSPECIFIED = 4,
    }

    /// Two functions that never existed.
    #[derive(Clone, Copy)]
    pub struct _ibv_device_ops {
        /// Nothing.
        pub _dummy1: Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut ibv_context>,
        /// Nothing.
        pub _dummy2: Option<unsafe extern "C" fn(context: *mut ibv_context)>,
    }

    /// A device that the library found.
    pub struct ibv_device {
        /// Nothing.
        pub _ops: _ibv_device_ops,
        /// What it is.
        pub node_type: ibv_node_type,
        /// What it speaks.
        pub transport_type: ibv_transport_type,
        /// The kernel's name, such as `mlx5_0`.
        pub name: [c_char; 64],
        /// The name of its character device, such as `uverbs0`.
        pub dev_name: [c_char; 64],
        /// The character device's directory in sysfs.
        pub dev_path: [c_char; 256],
        /// The device's directory in sysfs.
        pub ibdev_path: [c_char; 256],
    }

    /// Among whom atomic operations are atomic.
    pub enum ibv_atomic_cap: c_uint {
        /// There are no atomic operations.
        IBV_ATOMIC_NONE = 0,
        /// Among the queue pairs of this device.
        IBV_ATOMIC_HCA = 1,
        /// Among all devices and the processors.
        IBV_ATOMIC_GLOB = 2,
    }

    /// What a device is and how much of everything it has.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_device_attr {
        /// The firmware's version, up to a NUL.
        pub fw_ver: [c_char; 64],
        /// The node's GUID.
        pub node_guid: __be64,
        /// The GUID that all parts of one adapter share.
        pub sys_image_guid: __be64,
        /// The largest region.
        pub max_mr_size: u64,
        /// Page sizes, a bit for each power of two.
        pub page_size_cap: u64,
        /// The vendor, an IEEE OUI or a PCI number.
        pub vendor_id: u32,
        /// The vendor's number for the part.
        pub vendor_part_id: u32,
        /// The hardware's version.
        pub hw_ver: u32,
        /// Queue pairs.
        pub max_qp: c_int,
        /// Requests in a work queue.
        pub max_qp_wr: c_int,
        /// `IBV_DEVICE_*`, those of the lower 32 bits.
        pub device_cap_flags: c_uint,
        /// Segments of a request.
        pub max_sge: c_int,
        /// Segments of an RDMA READ.
        pub max_sge_rd: c_int,
        /// Completion queues.
        pub max_cq: c_int,
        /// Entries in a completion queue.
        pub max_cqe: c_int,
        /// Memory regions.
        pub max_mr: c_int,
        /// Protection domains.
        pub max_pd: c_int,
        /// Reads and atomics that a queue pair serves at a time.
        pub max_qp_rd_atom: c_int,
        /// The same for an end-to-end context, which nobody has.
        pub max_ee_rd_atom: c_int,
        /// Reads and atomics that the device serves at a time.
        pub max_res_rd_atom: c_int,
        /// Reads and atomics that a queue pair has outstanding.
        pub max_qp_init_rd_atom: c_int,
        /// The same for an end-to-end context, which nobody has.
        pub max_ee_init_rd_atom: c_int,
        /// Among whom atomic operations are atomic.
        pub atomic_cap: ibv_atomic_cap,
        /// End-to-end contexts.
        pub max_ee: c_int,
        /// Reliable datagram domains.
        pub max_rdd: c_int,
        /// Memory windows.
        pub max_mw: c_int,
        /// Raw IPv6 queue pairs.
        pub max_raw_ipv6_qp: c_int,
        /// Raw Ethertype queue pairs.
        pub max_raw_ethy_qp: c_int,
        /// Multicast groups.
        pub max_mcast_grp: c_int,
        /// Queue pairs in a multicast group.
        pub max_mcast_qp_attach: c_int,
        /// Queue pairs in all multicast groups.
        pub max_total_mcast_qp_attach: c_int,
        /// Address handles.
        pub max_ah: c_int,
        /// Fast memory regions, which nobody has any more.
        pub max_fmr: c_int,
        /// Remappings of one.
        pub max_map_per_fmr: c_int,
        /// Shared receive queues.
        pub max_srq: c_int,
        /// Requests in a shared receive queue.
        pub max_srq_wr: c_int,
        /// Segments of a request in a shared receive queue.
        pub max_srq_sge: c_int,
        /// Partition keys.
        pub max_pkeys: u16,
        /// How long the device takes to acknowledge: 4.096 µs times this power of two.
        pub local_ca_ack_delay: u8,
        /// Ports.
        pub phys_port_cnt: u8,
    }

    // ibv_device_attr.device_cap_flags
    pub const c_uint {
        /// Work queues can be resized.
        IBV_DEVICE_RESIZE_MAX_WR = 1 << 0,
        /// Counts packets with a wrong P_Key.
        IBV_DEVICE_BAD_PKEY_CNTR = 1 << 1,
        /// Counts packets with a wrong Q_Key.
        IBV_DEVICE_BAD_QKEY_CNTR = 1 << 2,
        /// Raw packets can be multicast.
        IBV_DEVICE_RAW_MULTI = 1 << 3,
        /// Automatic path migration.
        IBV_DEVICE_AUTO_PATH_MIG = 1 << 4,
        /// A queue pair can change its port.
        IBV_DEVICE_CHANGE_PHY_PORT = 1 << 5,
        /// Checks the port of an address handle.
        IBV_DEVICE_UD_AV_PORT_ENFORCE = 1 << 6,
        /// The current state can be given when a queue pair is modified.
        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7,
        /// Ports can be shut down.
        IBV_DEVICE_SHUTDOWN_PORT = 1 << 8,
        /// Types of initialisation.
        IBV_DEVICE_INIT_TYPE = 1 << 9,
        /// Says when a port becomes active.
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10,
        /// Has a system image GUID.
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11,
        /// Reliable connections send receiver-not-ready NAKs.
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12,
        /// Shared receive queues can be resized.
        IBV_DEVICE_SRQ_RESIZE = 1 << 13,
        /// A completion queue can notify after several completions.
        IBV_DEVICE_N_NOTIFY_CQ = 1 << 14,
        /// Memory windows.
        IBV_DEVICE_MEM_WINDOW = 1 << 17,
        /// IP checksums for datagrams.
        IBV_DEVICE_UD_IP_CSUM = 1 << 18,
        /// Extended reliable connections.
        IBV_DEVICE_XRC = 1 << 20,
        /// Memory management extensions: sends that invalidate, local invalidation.
        IBV_DEVICE_MEM_MGT_EXTENSIONS = 1 << 21,
        /// Memory windows of type 2A.
        IBV_DEVICE_MEM_WINDOW_TYPE_2A = 1 << 23,
        /// Memory windows of type 2B.
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24,
        /// IP checksums for reliable connections.
        IBV_DEVICE_RC_IP_CSUM = 1 << 25,
        /// IP checksums for raw packets.
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26,
        /// Steering rules.
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29,
    }

    // ibv_device_attr_ex.device_cap_flags_ex, besides those above
    pub const u64 {
        /// Raw packets can keep their checksum.
        IBV_DEVICE_RAW_SCATTER_FCS = 1 << 34,
        /// Writes can be padded to a cache line.
        IBV_DEVICE_PCI_WRITE_END_PADDING = 1 << 36,
    }

    // The same, of which verbs.h has no names of its own. Told by the kernel, so that they are there whatever
    // the library's age.
    pub const u64 since "45" {
        /// FLUSH to global visibility.
        IB_UVERBS_DEVICE_FLUSH_GLOBAL = 1 << 38,
        /// FLUSH to persistence.
        IB_UVERBS_DEVICE_FLUSH_PERSISTENT = 1 << 39,
        /// ATOMIC WRITE.
        IB_UVERBS_DEVICE_ATOMIC_WRITE = 1 << 40,
    }

    /// What to ask about; so far nothing but zero.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_query_device_ex_input {
        /// Zero.
        pub comp_mask: u32,
    }

    /// What on-demand memory can be used for.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_odp_caps {
        /// [`IBV_ODP_SUPPORT`], [`IBV_ODP_SUPPORT_IMPLICIT`].
        pub general_caps: u64,
        /// By transport.
        pub per_transport_caps: ibv_odp_caps_per_transport,
    }

    /// What on-demand memory can be used for, by transport: [`IBV_ODP_SUPPORT_SEND`] and so on.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_odp_caps_per_transport inside ibv_odp_caps.per_transport_caps {
        /// Reliable connections.
        pub rc_odp_caps: u32,
        /// Unreliable connections.
        pub uc_odp_caps: u32,
        /// Datagrams.
        pub ud_odp_caps: u32,
    }

    // ibv_odp_caps.general_caps
    pub const u64 {
        /// Memory can be registered without pinning.
        IBV_ODP_SUPPORT = 1 << 0,
        /// The whole address space can be registered.
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1,
    }

    // ibv_odp_caps_per_transport
    pub const u32 {
        /// SEND from on-demand memory.
        IBV_ODP_SUPPORT_SEND = 1 << 0,
        /// Receive into it.
        IBV_ODP_SUPPORT_RECV = 1 << 1,
        /// RDMA WRITE.
        IBV_ODP_SUPPORT_WRITE = 1 << 2,
        /// RDMA READ.
        IBV_ODP_SUPPORT_READ = 1 << 3,
        /// Atomics.
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4,
        /// Receive into it through a shared receive queue.
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5,
    }

    pub const u32 since "58" {
        /// FLUSH.
        IBV_ODP_SUPPORT_FLUSH = 1 << 6,
        /// ATOMIC WRITE.
        IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7,
    }

    /// TCP segmentation.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tso_caps {
        /// The longest packet that is cut up; zero if none is.
        pub max_tso: u32,
        /// A bit for each type of queue pair.
        pub supported_qpts: u32,
    }

    /// Receive-side scaling.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_rss_caps {
        /// A bit for each type of queue pair.
        pub supported_qpts: u32,
        /// Tables.
        pub max_rwq_indirection_tables: u32,
        /// Entries in a table.
        pub max_rwq_indirection_table_size: u32,
        /// What can be hashed.
        pub rx_hash_fields_mask: u64,
        /// With what.
        pub rx_hash_function: u8,
    }

    /// Pacing, in kbit/s.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_packet_pacing_caps {
        /// The slowest.
        pub qp_rate_limit_min: u32,
        /// The fastest.
        pub qp_rate_limit_max: u32,
        /// A bit for each type of queue pair.
        pub supported_qpts: u32,
    }

    /// Tag matching.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_tm_caps {
        /// Bytes of a rendezvous header.
        pub max_rndv_hdr_size: u32,
        /// Buffers in a list.
        pub max_num_tags: u32,
        /// Which transports.
        pub flags: u32,
        /// Outstanding operations on a list.
        pub max_ops: u32,
        /// Segments of a buffer.
        pub max_sge: u32,
    }

    /// Moderation of completion events.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_cq_moderation_caps {
        /// The most completions that an event waits for.
        pub max_cq_count: u16,
        /// The longest that it waits, in microseconds.
        pub max_cq_period: u16,
    }

    /// Atomics over PCI: for each, a bit for 4, 8 and 16 bytes.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_pci_atomic_caps {
        /// Fetch and add.
        pub fetch_add: u16,
        /// Swap.
        pub swap: u16,
        /// Compare and swap.
        pub compare_swap: u16,
    }

    /// What a device is, and what has been added since.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_device_attr_ex {
        /// What it always told.
        pub orig_attr: ibv_device_attr,
        /// Zero.
        pub comp_mask: u32,
        /// On-demand memory.
        pub odp_caps: ibv_odp_caps,
        /// Which bits of a completion's timestamp count; zero if there are no timestamps.
        pub completion_timestamp_mask: u64,
        /// The clock of these timestamps, in kHz.
        pub hca_core_clock: u64,
        /// `IBV_DEVICE_*`, all of them.
        pub device_cap_flags_ex: u64,
        /// TCP segmentation.
        pub tso_caps: ibv_tso_caps,
        /// Receive-side scaling.
        pub rss_caps: ibv_rss_caps,
        /// Work queues outside queue pairs.
        pub max_wq_type_rq: u32,
        /// Pacing.
        pub packet_pacing_caps: ibv_packet_pacing_caps,
        /// What raw packets can do.
        pub raw_packet_caps: u32,
        /// Tag matching.
        pub tm_caps: ibv_tm_caps,
        /// Moderation of completion events.
        pub cq_mod_caps: ibv_cq_moderation_caps,
        /// Memory on the device.
        pub max_dm_size: u64,
        /// Atomics over PCI.
        pub pci_atomic_caps: ibv_pci_atomic_caps,
        /// On-demand memory with extended reliable connections.
        pub xrc_odp_caps: u32,
        /// Ports, where there are more than 255.
        pub phys_port_cnt_ex: u32,
    }

    /// What a device's clock says.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_values_ex {
        /// What is asked for, then what was answered.
        pub comp_mask: u32,
        /// The clock: ticks in `tv_nsec`.
        pub raw_clock: timespec,
    }

    // ibv_values_ex.comp_mask
    pub const u32 {
        /// The clock of completion timestamps.
        IBV_VALUES_MASK_RAW_CLOCK = 1 << 0,
    }
}

impl Ibverbs {
    /// Asks for a device's extended attributes, and for the plain ones if it has no more. 0 or an error
    /// number.
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
        // SAFETY: the caller upholds what is asked for above; the library writes no more than the size it is
        // given.
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

    /// The kernel's number of a device, or -1 if the kernel or the library is too old to tell.
    ///
    /// # Safety
    ///
    /// `device` is in a list that isn't freed yet, or open.
    pub unsafe fn ibv_get_device_index(&self, device: *mut ibv_device) -> c_int {
        match self.ibv_get_device_index {
            // SAFETY: the caller vouches for the device.
            Some(ibv_get_device_index) => unsafe { ibv_get_device_index(device) },
            None => -1,
        }
    }

    /// Opens a device by a descriptor that another process opened. NULL with errno set if that fails.
    ///
    /// # Safety
    ///
    /// `cmd_fd` is the `cmd_fd` of a context, and the result owns it.
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

/// Reads a device's clock. 0 or an error number.
///
/// # Safety
///
/// `context` is open, and `values` valid for reads and writes.
#[inline]
pub unsafe fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
    // SAFETY: the caller upholds what is asked for above.
    unsafe {
        match verbs_op!(context, query_rt_values) {
            Some(query_rt_values) => query_rt_values(context, values),
            None => libc::EOPNOTSUPP,
        }
    }
}
