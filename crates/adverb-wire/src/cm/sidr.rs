//! SIDR_REQ and SIDR_REP: resolution of a service ID to a datagram queue pair.

use core::fmt;

use super::ece::EceAt;
use super::layout::{At, layout};
use super::rej::InfoAt;
use super::{AdditionalInfo, CmaHeader, CmaHeaderError, DATA_LEN, Ece, PrivateData, ServiceId, SidrStatus};
use crate::Qpn;

layout! {
    /// A service ID resolution request, for the queue pair that receives a service's datagrams (vol. 1, 12.11.1, table
    /// 119).
    pub struct SidrReq in DATA_LEN {
        /// The request ID, chosen by the sender.
        pub request_id: u32 = At<0>,
        /// The partition key (P_Key) of both queue pairs.
        pub pkey: u16 = At<4>,
        /// The ID of the service to resolve.
        pub service_id: ServiceId = At<8>,
        /// The private data, which starts with a [`CmaHeader`] if the service ID is in the TCP or UDP port space.
        pub private_data: PrivateData<216> = At<16>,
    }
}

impl SidrReq {
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
impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CM SIDR_REQ id {:#x} service {} pkey {:#06x}",
            self.request_id, self.service_id, self.pkey
        )?;
        match self.cma_header() {
            Ok((header, _)) if self.service_id.port().is_some() => write!(f, " ip {header}"),
            _ => Ok(()),
        }
    }
}

layout! {
    /// The response to a service ID resolution request (vol. 1, 12.11.2, table 120).
    pub struct SidrRep in DATA_LEN {
        /// The request ID, from the SIDR_REQ.
        pub request_id: u32 = At<0>,
        /// The status of the request.
        pub status: SidrStatus = At<4>,
        /// Details of a status other than [`SidrStatus::Valid`].
        pub additional_info: AdditionalInfo = InfoAt<5, 8, 24>,
        /// The enhanced connection establishment (ECE) options.
        pub ece: Ece = EceAt<6, 7, 11>,
        /// The number of the service's queue pair.
        pub qpn: Qpn = At<8>,
        /// The service ID, from the SIDR_REQ.
        pub service_id: ServiceId = At<12>,
        /// The Q_Key for datagrams to the queue pair.
        pub qkey: u32 = At<20>,
        /// The private data.
        pub private_data: PrivateData<136> = At<96>,
    }
}

/// Prints one line with the most important fields.
impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM SIDR_REP id {:#x} service {}", self.request_id, self.service_id)?;
        match self.status {
            SidrStatus::Valid => write!(f, " qp {} qkey {:#010x}", self.qpn, self.qkey)?,
            status => write!(f, " status: {status}")?,
        }
        if self.ece == Ece::NONE { Ok(()) } else { write!(f, " ece {}", self.ece) }
    }
}
