//! Ports.

use libc::{c_int, c_uint};

use crate::{__be16, Ibverbs, ibv_context};

shapes! {
    /// The most payload that a packet carries.
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

    /// What a port's logical link does.
    pub enum ibv_port_state: c_uint {
        /// Nothing is said.
        IBV_PORT_NOP = 0,
        /// There is no physical link.
        IBV_PORT_DOWN = 1,
        /// The link is up, and waits for a subnet manager.
        IBV_PORT_INIT = 2,
        /// The subnet manager has configured it.
        IBV_PORT_ARMED = 3,
        /// It carries data.
        IBV_PORT_ACTIVE = 4,
        /// It had been active, and the physical link is in error.
        IBV_PORT_ACTIVE_DEFER = 5,
    }

    // ibv_port_attr.link_layer
    pub const u8 {
        /// An old kernel doesn't tell; it is InfiniBand then.
        IBV_LINK_LAYER_UNSPECIFIED = 0,
        /// InfiniBand.
        IBV_LINK_LAYER_INFINIBAND = 1,
        /// Ethernet: RoCE or iWARP.
        IBV_LINK_LAYER_ETHERNET = 2,
    }

    // ibv_port_attr.flags
    pub const u8 {
        /// Every packet needs a global route header.
        IBV_QPF_GRH_REQUIRED = 1 << 0,
    }

    // ibv_port_attr.port_cap_flags
    pub const u32 {
        /// A subnet manager runs here.
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
        /// Keeps its M_Key when it is off.
        IBV_PORT_MKEY_NVRAM = 1 << 7,
        /// Keeps its P_Keys when it is off.
        IBV_PORT_PKEY_NVRAM = 1 << 8,
        /// Has a light.
        IBV_PORT_LED_INFO_SUP = 1 << 9,
        /// Has a system image GUID.
        IBV_PORT_SYS_IMAGE_GUID_SUP = 1 << 11,
        /// Traps for P_Keys at a switch's external port.
        IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12,
        /// Extended speeds.
        IBV_PORT_EXTENDED_SPEEDS_SUP = 1 << 14,
        /// `port_cap_flags2` says something.
        IBV_PORT_CAP_MASK2_SUP = 1 << 15,
        /// Has a connection manager.
        IBV_PORT_CM_SUP = 1 << 16,
        /// SNMP tunnelling.
        IBV_PORT_SNMP_TUNNEL_SUP = 1 << 17,
        /// Reinitialisation.
        IBV_PORT_REINIT_SUP = 1 << 18,
        /// Device management.
        IBV_PORT_DEVICE_MGMT_SUP = 1 << 19,
        /// A vendor's management class.
        IBV_PORT_VENDOR_CLASS_SUP = 1 << 20,
        /// Notices by direct route.
        IBV_PORT_DR_NOTICE_SUP = 1 << 21,
        /// Notices when these flags change.
        IBV_PORT_CAP_MASK_NOTICE_SUP = 1 << 22,
        /// Boot management.
        IBV_PORT_BOOT_MGMT_SUP = 1 << 23,
        /// Measures the link's latency.
        IBV_PORT_LINK_LATENCY_SUP = 1 << 24,
        /// Clients can be asked to register again.
        IBV_PORT_CLIENT_REG_SUP = 1 << 25,
        /// GIDs are made from IP addresses.
        IBV_PORT_IP_BASED_GIDS = 1 << 26,
    }

    // ibv_port_attr.port_cap_flags2
    pub const u16 {
        /// The node's description can be set.
        IBV_PORT_SET_NODE_DESC_SUP = 1 << 0,
        /// Extended port information.
        IBV_PORT_INFO_EXT_SUP = 1 << 1,
        /// Virtual ports.
        IBV_PORT_VIRT_SUP = 1 << 2,
        /// A table of a switch's port states.
        IBV_PORT_SWITCH_PORT_STATE_TABLE_SUP = 1 << 3,
        /// Two lanes.
        IBV_PORT_LINK_WIDTH_2X_SUP = 1 << 4,
        /// 50 Gbit/s a lane.
        IBV_PORT_LINK_SPEED_HDR_SUP = 1 << 5,
        /// 100 Gbit/s a lane.
        IBV_PORT_LINK_SPEED_NDR_SUP = 1 << 10,
    }

    pub const u16 since "49" {
        /// 200 Gbit/s a lane.
        IBV_PORT_LINK_SPEED_XDR_SUP = 1 << 12,
    }

    /// What a port is.
    #[derive(Debug, Clone, Copy)]
    pub struct ibv_port_attr {
        /// What the logical link does.
        pub state: ibv_port_state,
        /// The largest MTU that it can have.
        pub max_mtu: ibv_mtu,
        /// The MTU that it has.
        pub active_mtu: ibv_mtu,
        /// Entries of the GID table, empty ones included.
        pub gid_tbl_len: c_int,
        /// `IBV_PORT_*`.
        pub port_cap_flags: u32,
        /// The longest message.
        pub max_msg_sz: u32,
        /// Packets with a wrong P_Key.
        pub bad_pkey_cntr: u32,
        /// Packets with a wrong Q_Key.
        pub qkey_viol_cntr: u32,
        /// Entries of the P_Key table.
        pub pkey_tbl_len: u16,
        /// The local identifier; zero on Ethernet.
        pub lid: u16,
        /// The subnet manager's.
        pub sm_lid: u16,
        /// How many low bits of the local identifier are free.
        pub lmc: u8,
        /// How many virtual lanes there are, encoded.
        pub max_vl_num: u8,
        /// The service level to the subnet manager.
        pub sm_sl: u8,
        /// The subnet's propagation delay: 4.096 µs times this power of two.
        pub subnet_timeout: u8,
        /// How the subnet manager initialised it.
        pub init_type_reply: u8,
        /// How many lanes, encoded: 1 for 1, 2 for 4, 4 for 8, 8 for 12, 16 for 2.
        pub active_width: u8,
        /// The speed of a lane, encoded.
        pub active_speed: u8,
        /// What the physical link does, encoded; 5 is up.
        pub phys_state: u8,
        /// `IBV_LINK_LAYER_*`.
        pub link_layer: u8,
        /// [`IBV_QPF_GRH_REQUIRED`].
        pub flags: u8,
        /// More `IBV_PORT_*`.
        pub port_cap_flags2: u16,
        /// The speed of a lane where `active_speed` is too narrow to say it, else zero.
        pub active_speed_ex: u32 = since "49",
    }
}

impl Ibverbs {
    /// Asks for a port's attributes. 0 or an error number.
    ///
    /// The symbol of this name fills in no more than it did long ago.
    ///
    /// # Safety
    ///
    /// `context` is open, and `port_attr` valid for writes.
    pub unsafe fn ibv_query_port(
        &self,
        context: *mut ibv_context,
        port_num: u8,
        port_attr: *mut ibv_port_attr,
    ) -> c_int {
        // SAFETY: the caller upholds what is asked for above. The library writes no more than the size it is
        // given, and zero to what it doesn't know; the old function writes the beginning of the same struct.
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

    /// The index of a P_Key in a port's table, or -1 with errno set.
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
