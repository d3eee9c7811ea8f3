//! The data that two programs exchange to connect their queue pairs.

use super::{Gid, PathMtu, Psn, Qpn};

/// The data about a queue pair that its peer needs to connect to it.
///
/// Programs exchange endpoints out of band. With the feature `serde` an endpoint can be serialized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Endpoint {
    /// The GID of the queue pair's port.
    pub gid: Gid,
    /// The local identifier (LID) of the port, on InfiniBand.
    pub lid: u16,
    /// The queue pair's number.
    #[cfg_attr(feature = "serde", serde(with = "qpn"))]
    pub qpn: Qpn,
    /// The sequence number of the first packet that the queue pair sends.
    #[cfg_attr(feature = "serde", serde(with = "psn"))]
    pub psn: Psn,
    /// The MTU of the port, in bytes. A connection uses the smaller of the two endpoints' MTUs.
    pub mtu: u16,
}

impl Endpoint {
    /// Creates the endpoint of a queue pair whose LID and MTU are unknown. The LID is 0, the value for RoCE. The MTU is
    /// 4096 bytes, so a connection uses the MTU of the local port.
    ///
    /// ```
    /// # mod adverb { pub use adverb_proto::types as verbs; }
    /// use adverb::verbs::{Endpoint, Gid, Psn, Qpn};
    ///
    /// let address: std::net::IpAddr = "192.0.2.7".parse()?;
    /// let peer = Endpoint::new(Gid::from(address), Qpn::truncate(0x11), Psn::wrapping(0x1234));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn new(gid: Gid, qpn: Qpn, psn: Psn) -> Endpoint {
        Endpoint { gid, lid: 0, qpn, psn, mtu: PathMtu::Mtu4096.bytes() }
    }

    /// Returns the MTU of a connection between this endpoint and a port whose MTU is `mtu`.
    pub fn common_mtu(&self, mtu: PathMtu) -> PathMtu {
        PathMtu::at_most(usize::from(self.mtu)).map_or(PathMtu::Mtu256, |endpoint_mtu| endpoint_mtu.min(mtu))
    }
}

/// Declares a module that serializes a 24-bit number as an integer and checks it when deserializing.
#[cfg(feature = "serde")]
macro_rules! as_number {
    ($module:ident, $type:ident) => {
        mod $module {
            use serde::{Deserialize, Deserializer, Serializer, de::Error};

            use super::$type;

            pub(super) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u32(value.get())
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let number = u32::deserialize(deserializer)?;
                $type::new(number)
                    .ok_or_else(|| D::Error::custom(format!("{number} does not fit in 24 bits")))
            }
        }
    };
}

#[cfg(feature = "serde")]
as_number!(qpn, Qpn);
#[cfg(feature = "serde")]
as_number!(psn, Psn);
