//! REQ: the request for communication.

use core::fmt;
use core::net::Ipv6Addr;

use super::ece::EceAt;
use super::layout::{At, Block, array_field, layout};
use super::{
    Bits, CmaHeader, CmaHeaderError, DATA_LEN, Ece, PathMtu, PrivateData, ServiceId, Timeout,
    TransportService, UnknownMtu,
};
use crate::{Psn, Qpn};

layout! {
    /// A request for communication, the first message of a connection (vol. 1, 12.6.5, table 106).
    ///
    /// "Local" means the sender of the REQ, "remote" means its receiver.
    pub struct Req in DATA_LEN {
        /// The sender's communication ID, which identifies the connection.
        pub local_comm_id: u32 = At<0>,
        /// The enhanced connection establishment (ECE) options that the sender offers.
        pub ece: Ece = EceAt<5, 6, 7>,
        /// The ID of the service to connect to.
        pub service_id: ServiceId = At<8>,
        /// The GUID of the sender's channel adapter. The GUID and the queue pair number identify the connection.
        pub ca_guid: u64 = At<16>,
        /// The Q_Key of the sender's queue pair; for reliable datagrams only.
        pub qkey: u32 = At<28>,
        /// The number of the sender's queue pair.
        pub qpn: Qpn = At<32>,
        /// The maximum number of RDMA READs and atomics outstanding from the receiver to the sender.
        pub responder_resources: u8 = At<35>,
        /// The sender's end-to-end context (EECN); for reliable datagrams only.
        pub local_eecn: Bits<24> = At<36>,
        /// The maximum number of RDMA READs and atomics outstanding from the sender to the receiver.
        pub initiator_depth: u8 = At<39>,
        /// The receiver's end-to-end context (EECN); for reliable datagrams only.
        pub remote_eecn: Bits<24> = At<40>,
        /// The time within which the receiver's CM must reply.
        pub remote_cm_response_timeout: Timeout = At<43>,
        /// The transport of the connection.
        pub transport: TransportService = At<43, 5>,
        /// Whether the sender's channel adapter supports end-to-end flow control.
        pub end_to_end_flow_control: bool = At<43, 7>,
        /// The first PSN of the *receiver's* requests, which is the first PSN that the sender expects (vol. 1, 12.7;
        /// `cm_req_handler` in Linux's `cm.c`).
        pub starting_psn: Psn = At<44>,
        /// The maximum time that the sender's CM takes to reply.
        pub local_cm_response_timeout: Timeout = At<47>,
        /// The maximum number of times that the receiver retransmits a request that isn't acknowledged.
        pub retry_count: Bits<3> = At<47, 5>,
        /// The partition key (P_Key) of both queue pairs.
        pub pkey: u16 = At<48>,
        /// The path MTU of both the primary and the alternate path. An invalid code isn't a parse error, so that the CM
        /// can [reject](super::RejectReason::InvalidPathMtu) it.
        pub path_mtu: Result<PathMtu, UnknownMtu> = At<50>,
        /// Whether a reliable datagram channel already exists.
        pub rdc_exists: bool = At<50, 4>,
        /// The maximum number of times that the receiver retries a request after an RNR NAK; 7 means no limit.
        pub rnr_retry_count: Bits<3> = At<50, 5>,
        /// The maximum number of times that either CM retransmits a message.
        pub max_cm_retries: Bits<4> = At<51>,
        /// Whether the sender's queue pair has a shared receive queue.
        pub srq: bool = At<51, 4>,
        /// The transport if `transport` is [`TransportService::Extended`]: 1 is XRC.
        pub extended_transport: Bits<3> = At<51, 5>,
        /// The primary path to the receiver.
        pub primary_path: Path = At<52>,
        /// The path to use if the primary path fails, or [`Path::NONE`].
        pub alternate_path: Path = At<96>,
        // This field must stay after the alternate path, whose last byte contains its bit.
        /// Whether the sender supports the suggest alternate path (SAP) protocol.
        pub sap_supported: bool = At<139, 5>,
        /// The private data, which starts with a [`CmaHeader`] if the service ID is in the TCP or UDP port space.
        pub private_data: PrivateData<92> = At<140>,
    }
}

impl Req {
    /// Returns the [`CmaHeader`] at the start of the private data, and the consumer's data after it.
    ///
    /// # Errors
    ///
    /// Returns [`CmaHeaderError`] if the private data doesn't start with a valid header. There is no header if the
    /// service ID is outside the TCP and UDP port spaces.
    pub fn cma_header(&self) -> Result<(CmaHeader, &[u8]), CmaHeaderError> {
        CmaHeader::split(self.private_data.as_bytes())
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM REQ local {:#x} service {} ", self.local_comm_id, self.service_id)?;
        match (self.transport, self.extended_transport.get()) {
            (TransportService::Extended, 1) => f.write_str("XRC")?,
            (TransportService::Extended, other) => write!(f, "extended transport {other}")?,
            (transport, _) => transport.fmt(f)?,
        }
        write!(f, " qp {} psn {}", self.qpn, self.starting_psn)?;
        match self.path_mtu {
            Ok(mtu) => write!(f, " mtu {mtu}")?,
            Err(unknown) => write!(f, " {unknown}")?,
        }
        write!(
            f,
            " resources {} depth {} retry {} rnr {} pkey {:#06x} path {}",
            self.responder_resources,
            self.initiator_depth,
            self.retry_count,
            self.rnr_retry_count,
            self.pkey,
            self.primary_path
        )?;
        if self.alternate_path != Path::NONE {
            write!(f, " alternate {}", self.alternate_path)?;
        }
        if self.ece != Ece::NONE {
            write!(f, " ece {}", self.ece)?;
        }
        match self.cma_header() {
            Ok((header, _)) if self.service_id.port().is_some() => write!(f, " ip {header}"),
            _ => Ok(()),
        }
    }
}

layout! {
    /// A path from the sender of a REQ to its receiver (vol. 1, 12.6.5, table 106).
    ///
    /// GIDs have the form of IPv6 addresses. The GID of a RoCEv2 port with an IPv4 address is the IPv4-mapped IPv6
    /// address (Annex A17).
    pub struct Path in PATH_LEN {
        /// The sender's LID. RoCE has no LIDs; Linux sends 0xffff, the permissive LID.
        pub local_lid: u16 = At<0>,
        /// The receiver's LID.
        pub remote_lid: u16 = At<2>,
        /// The sender's GID.
        pub local_gid: Ipv6Addr = At<4>,
        /// The receiver's GID.
        pub remote_gid: Ipv6Addr = At<20>,
        /// The IPv6 flow label.
        pub flow_label: Bits<20> = At<36>,
        /// The code of the path's rate limit: 2 is 2.5 Gb/s, 3 is 10 Gb/s, 16 is 100 Gb/s.
        pub packet_rate: Bits<6> = At<39, 2>,
        /// The traffic class.
        pub traffic_class: u8 = At<40>,
        /// The hop limit.
        pub hop_limit: u8 = At<41>,
        /// The service level; in RoCE, the Ethernet priority.
        pub sl: Bits<4> = At<42>,
        /// Whether both ports are in the same subnet, so that LIDs suffice.
        pub subnet_local: bool = At<42, 4>,
        /// The receiver's ACK timeout on this path.
        pub local_ack_timeout: Timeout = At<43>,
    }
}

const PATH_LEN: usize = 44;

array_field!(Path, 44, |bytes| Path::read(&Block(bytes)), |path: Path| {
    let mut block = Block([0; PATH_LEN]);
    path.write(&mut block);
    block.0
});

impl Path {
    /// No path: all zeros.
    pub const NONE: Path = Path {
        local_lid: 0,
        remote_lid: 0,
        local_gid: Ipv6Addr::UNSPECIFIED,
        remote_gid: Ipv6Addr::UNSPECIFIED,
        flow_label: Bits::ZERO,
        packet_rate: Bits::ZERO,
        traffic_class: 0,
        hop_limit: 0,
        sl: Bits::ZERO,
        subnet_local: false,
        local_ack_timeout: Timeout::ZERO,
    };
}

/// Prints the GIDs, as IPv4 addresses if they are IPv4-mapped, and the ACK timeout.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (local, remote) = (self.local_gid.to_canonical(), self.remote_gid.to_canonical());
        write!(f, "{local} > {remote} timeout ")?;
        match self.local_ack_timeout {
            Timeout::ZERO => f.write_str("none"),
            timeout => timeout.fmt(f),
        }
    }
}
