//! Ports and their attributes.

use libc::{c_int, c_uint};

use crate::{__be16, Ibverbs, ibv_context};

shapes! {
    /// The maximum payload of a packet.
    pub enum ibv_mtu: c_uint {
        /// 256 bytes.
        IBV_MTU_256 = 1,
        /// 512 bytes.
        IBV_MTU_512 = 2,
        /// 1024 bytes.
        IBV_MTU_1024 = 3,
        /// 2048 bytes.
        IBV_MTU_2048 = 4,
        /// 4096 bytes.
        IBV_MTU_4096 = 5,
    }

    /// The logical state of a port.
    pub enum ibv_port_state: c_uint {
        /// No state change (NOP).
        IBV_PORT_NOP = 0,
        /// The physical link is down.
        IBV_PORT_DOWN = 1,
        /// The physical link is up, but the subnet manager hasn't configured the port.
        IBV_PORT_INIT = 2,
        /// The subnet manager has configured the port.
        IBV_PORT_ARMED = 3,
        /// The port transfers data.
        IBV_PORT_ACTIVE = 4,
        /// The port was active, and its physical link failed.
        IBV_PORT_ACTIVE_DEFER = 5,
    }

    // ibv_port_attr.link_layer
    pub const u8 {
        /// A link layer that an old kernel does not report, which is always InfiniBand.
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        /// InfiniBand.
        IBV_LINK_LAYER_INFINIBAND = 1,
        /// Ethernet: RoCE or iWARP.
        IBV_LINK_LAYER_ETHERNET = 2,
    }

    // ibv_port_attr.flags
    pub const u8 {
        /// Every packet must have a global route header.
        IBV_QPF_GRH_REQUIRED = 1 << 0,
    }

    // ibv_port_attr.port_cap_flags
    pub const u32 {
        /// A subnet manager on this port.
        IBV_PORT_SM = 1 << 1,
        /// Notices.
        IBV_PORT_NOTICE_SUP = 1 << 2,
        /// Traps.
        IBV_PORT_TRAP_SUP = 1 << 3,
        /// Optional inter-packet delays.
        IBV_PORT_OPT_IPD_SUP = 1 << 4,
        /// Automatic path migration.
        IBV_PORT_AUTO_MIGR_SUP = 1 << 5,
        /// A mapping from service levels to virtual lanes.
        IBV_PORT_SL_MAP_SUP = 1 << 6,
        /// A management key (M_Key) in nonvolatile memory.
        IBV_PORT_MKEY_NVRAM = 1 << 7,
        /// P_Keys in nonvolatile memory.
        IBV_PORT_PKEY_NVRAM = 1 << 8,
        /// LED information.
        IBV_PORT_LED_INFO_SUP = 1 << 9,
        /// A system image GUID.
        IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
        /// Traps for P_Key violations at a switch's external port.
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        /// Extended speeds.
        IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
        /// Validity of the field `port_cap_flags2`.
        IBV_PORT_CAP_MASK2_SUP = 1 << 15,
        /// Communication management.
        IBV_PORT_CM_SUP = 1 << 16,
        /// SNMP tunneling.
        IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
        /// Reinitialization.
        IBV_PORT_REINIT_SUP = 1 << 18,
        /// Device management.
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        /// A vendor-specific management class.
        IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
        /// Directed-route notices.
        IBV_PORT_DR_NOTICE_SUP = 1 << 21,
        /// Notices of changes to the capability flags.
        IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
        /// Boot management.
        IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
        /// Measurement of the link's round-trip latency.
        IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
        /// Client reregistration.
        IBV_PORT_CLIENT_REG_SUP = 1 << 25,
        /// GIDs derived from IP addresses.
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }

    // ibv_port_attr.port_cap_flags2
    pub const u16 {
        /// Setting the node description.
        IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
        /// Extended port information.
        IBV_PORT_INFO_EXT_SUP = 1 << 1,
        /// Virtual ports.
        IBV_PORT_VIRT_SUP = 1 << 2,
        /// A table of a switch's port states.
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
        /// Two lanes.
        IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
        /// 50 Gbit/s per lane.
        IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
        /// 100 Gbit/s per lane.
        IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
    }

    pub const u16 since "49" {
        /// 200 Gbit/s per lane.
        IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12,
    }

    /// The attributes of a port.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_port_attr {
        /// The logical state.
        pub state: ibv_port_state,
        /// The maximum MTU.
        pub max_mtu: ibv_mtu,
        /// The active MTU.
        pub active_mtu: ibv_mtu,
        /// The number of entries of the GID table, including empty entries.
        pub gid_tbl_len: c_int,
        /// The `IBV_PORT_*` flags of the first capability mask.
        pub port_cap_flags: u32,
        /// The maximum message size in bytes.
        pub max_msg_sz: u32,
        /// The number of received packets with a wrong P_Key.
        pub bad_pkey_cntr: u32,
        /// The number of received packets with a wrong Q_Key.
        pub qkey_viol_cntr: u32,
        /// The number of entries of the P_Key table.
        pub pkey_tbl_len: u16,
        /// The LID, or zero on Ethernet.
        pub lid: u16,
        /// The subnet manager's LID.
        pub sm_lid: u16,
        /// The LID mask control: the number of low LID bits that the port ignores.
        pub lmc: u8,
        /// The code of the number of virtual lanes.
        pub max_vl_num: u8,
        /// The service level of packets to the subnet manager.
        pub sm_sl: u8,
        /// The exponent of the subnet's propagation delay: the delay is 4.096 µs × 2ⁿ.
        pub subnet_timeout: u8,
        /// The initialization type that the subnet manager performed.
        pub init_type_reply: u8,
        /// The code of the number of lanes. Code 1 means one lane, 2 means 4 lanes, 4 means 8 lanes, 8 means 12
        /// lanes, and 16 means 2 lanes.
        pub active_width: u8,
        /// The code of the speed of a lane.
        pub active_speed: u8,
        /// The code of the physical state. Code 5 means that the link is up.
        pub phys_state: u8,
        /// The link layer, an `IBV_LINK_LAYER_*` value.
        pub link_layer: u8,
        /// The flags: [`IBV_QPF_GRH_REQUIRED`].
        pub flags: u8,
        /// The `IBV_PORT_*` flags of the second capability mask.
        pub port_cap_flags2: u16,
        /// The code of the speed of a lane if `active_speed` cannot represent it, otherwise zero.
        pub active_speed_ex: u32 = since "49",
    }
}

impl Ibverbs {
    /// Queries a port's attributes. Returns 0 or an errno value.
    ///
    /// This method calls the extended operation, because the exported symbol fills in only the fields of its oldest
    /// version.
    ///
    /// # Safety
    ///
    /// `context` is open, and `port_attr` is valid for writes.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller upholds the requirements above. The library writes at most the given size, and zeros for
        // unknown fields. The old function writes the start of the same struct.
        unsafe {
            match verbs_op!(context, query_port) {
                Some(query_port) => query_port(context, port_num, port_attr, size_of::<ibv_port_attr>()),
                None => {
                    port_attr.write(ibv_port_attr::zeroed());
                    (self.ibv_query_port)(context, port_num, port_attr.cast())
                }
            }
        }
    }

    /// Returns the index of a P_Key in a port's P_Key table. Returns -1 and sets errno on failure.
    ///
    /// # Safety
    ///
    /// `context` is open.
    pub unsafe fn ibv_get_pkey_index(&self, context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int {
        match self.ibv_get_pkey_index {
            // SAFETY: the caller vouches for the context.
            Some(ibv_get_pkey_index) => unsafe { ibv_get_pkey_index(context, port_num, pkey) },
            None => {
                crate::errno::set_errno(libc::EOPNOTSUPP);
                -1
            }
        }
    }
}
