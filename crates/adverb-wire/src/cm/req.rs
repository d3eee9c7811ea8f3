//! REQ: somebody wants to connect.

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
    /// A request for communication: the first message of a connection (vol. 1, 12.6.5, table 106).
    ///
    /// "Local" is the sender of the REQ and "remote" its receiver.
    pub struct Req in DATA_LEN {
        /// The sender's name for the connection that is to be.
        pub local_comm_id: u32 = At<0>,
        /// The vendor's options for the connection.
        pub ece: Ece = EceAt<5, 6, 7>,
        /// What the sender wants to connect to.
        pub service_id: ServiceId = At<8>,
        /// The sender's channel adapter. A peer holds connections apart by it and the queue pair number.
        pub ca_guid: u64 = At<16>,
        /// The queue pair's Q_Key; for reliable datagrams only.
        pub qkey: u32 = At<28>,
        /// The sender's queue pair.
        pub qpn: Qpn = At<32>,
        /// How many reads and atomics the sender takes from its peer at once.
        pub responder_resources: u8 = At<35>,
        /// The sender's end-to-end context; for reliable datagrams only.
        pub local_eecn: Bits<24> = At<36>,
        /// How many reads and atomics the sender will have outstanding at its peer.
        pub initiator_depth: u8 = At<39>,
        /// The receiver's end-to-end context; for reliable datagrams only.
        pub remote_eecn: Bits<24> = At<40>,
        /// How long the sender expects the receiver's connection manager to take for an answer.
        pub remote_cm_response_timeout: Timeout = At<43>,
        /// What kind of transport the connection is to have.
        pub transport: TransportService = At<43, 5>,
        /// The sender's channel adapter can do end-to-end flow control.
        pub end_to_end_flow_control: bool = At<43, 7>,
        /// The PSN with which the *receiver* of this message is to begin: the first that the sender expects (vol. 1,
        /// 12.7; `cm_req_handler` in Linux's `cm.c`).
        pub starting_psn: Psn = At<44>,
        /// How long the sender's own connection manager takes for an answer at most.
        pub local_cm_response_timeout: Timeout = At<47>,
        /// How often the receiver is to repeat a request that isn't acknowledged.
        pub retry_count: Bits<3> = At<47, 5>,
        /// The partition of both queue pairs.
        pub pkey: u16 = At<48>,
        /// The path MTU, of the primary path as of the alternate. A code that is none is still parsed, so
        /// that it can be [rejected](super::RejectReason::InvalidPathMtu).
        pub path_mtu: Result<PathMtu, UnknownMtu> = At<50>,
        /// A reliable datagram channel exists already.
        pub rdc_exists: bool = At<50, 4>,
        /// How often the receiver is to repeat a request that finds no receive buffer; 7 is for ever.
        pub rnr_retry_count: Bits<3> = At<50, 5>,
        /// How often either connection manager repeats a message.
        pub max_cm_retries: Bits<4> = At<51>,
        /// The sender's queue pair has a shared receive queue.
        pub srq: bool = At<51, 4>,
        /// The kind of transport if that is [`TransportService::Extended`]: 1 is XRC.
        pub extended_transport: Bits<3> = At<51, 5>,
        /// The way to the receiver.
        pub primary_path: Path = At<52>,
        /// Another way, to be used when the primary path fails; [`Path::NONE`] if there isn't any.
        pub alternate_path: Path = At<96>,
        // Must stay behind the alternate path: this bit lies in its last byte.
        /// The sender takes part in the suggest alternate path protocol.
        pub sap_supported: bool = At<139, 5>,
        /// For the consumer; in a port space of IP it begins with an [`CmaHeader`].
        pub private_data: PrivateData<92> = At<140>,
    }
}

impl Req {
    /// The IP header with which the private data begins, and what the consumer put behind it.
    ///
    /// Fails if there is none, which is no error of a REQ to a service ID that isn't an IP port.
    pub fn cma_header(&self) -> Result<(CmaHeader, &[u8]), CmaHeaderError> {
        CmaHeader::split(self.private_data.as_bytes())
    }
}

/// One line with what matters most.
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
    /// A way from the sender of a REQ to its receiver, primary or alternate (vol. 1, 12.6.5, table 106).
    ///
    /// GIDs are IPv6 addresses in form; a RoCEv2 port with an IPv4 address has the IPv4-mapped one (Annex
    /// A17).
    pub struct Path in PATH_LEN {
        /// The sender's LID. RoCE has no LIDs; Linux sends 0xffff, which stands for any.
        pub local_lid: u16 = At<0>,
        /// The receiver's LID.
        pub remote_lid: u16 = At<2>,
        /// The sender's GID.
        pub local_gid: Ipv6Addr = At<4>,
        /// The receiver's GID.
        pub remote_gid: Ipv6Addr = At<20>,
        /// The flow label of the packets.
        pub flow_label: Bits<20> = At<36>,
        /// The rate limit of the path, as a code: 2 is 2.5 Gb/s, 3 is 10 Gb/s, 16 is 100 Gb/s.
        pub packet_rate: Bits<6> = At<39, 2>,
        /// The traffic class of the packets.
        pub traffic_class: u8 = At<40>,
        /// The hop limit of the packets.
        pub hop_limit: u8 = At<41>,
        /// The service level: the Ethernet priority of RoCE.
        pub sl: Bits<4> = At<42>,
        /// Both ports are in one subnet, so that LIDs suffice.
        pub subnet_local: bool = At<42, 4>,
        /// How long the receiver is to wait for an acknowledgement on this path.
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

/// Prints the GIDs, in IPv4 form where they are that, and the ACK timeout.
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
