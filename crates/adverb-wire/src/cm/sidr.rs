//! SIDR_REQ and SIDR_REP: which queue pair takes a service's datagrams.

use core::fmt;

use super::ece::EceAt;
use super::layout::{At, layout};
use super::rej::InfoAt;
use super::{AdditionalInfo, CmaHeader, CmaHeaderError, DATA_LEN, Ece, PrivateData, ServiceId, SidrStatus};
use crate::Qpn;

layout! {
    /// A service ID resolution request: the sender wants to send datagrams to a service, and asks for its
    /// queue pair (vol. 1, 12.11.1, table 119).
    pub struct SidrReq in DATA_LEN {
        /// The sender's name for the request.
        pub request_id: u32 = At<0>,
        /// The partition of both queue pairs.
        pub pkey: u16 = At<4>,
        /// The service that is asked for.
        pub service_id: ServiceId = At<8>,
        /// For the consumer; in a port space of IP it begins with an [`CmaHeader`].
        pub private_data: PrivateData<216> = At<16>,
    }
}

impl SidrReq {
    /// The IP header with which the private data begins, and what the consumer put behind it.
    ///
    /// Fails if there is none, which is no error of a request for a service ID that isn't an IP port.
    pub fn cma_header(&self) -> Result<(CmaHeader, &[u8]), CmaHeaderError> {
        CmaHeader::split(self.private_data.as_bytes())
    }
}

/// One line with what matters most.
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
        /// The receiver's name for the request.
        pub request_id: u32 = At<0>,
        /// What became of it.
        pub status: SidrStatus = At<4>,
        /// More about a status other than [`SidrStatus::Valid`].
        pub additional_info: AdditionalInfo = InfoAt<5, 8, 24>,
        /// The vendor's options.
        pub ece: Ece = EceAt<6, 7, 11>,
        /// The queue pair to send to.
        pub qpn: Qpn = At<8>,
        /// The service that was asked for.
        pub service_id: ServiceId = At<12>,
        /// The Q_Key to send with.
        pub qkey: u32 = At<20>,
        /// For the consumer.
        pub private_data: PrivateData<136> = At<96>,
    }
}

/// One line with what matters most.
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
