//! Service IDs, which identify listeners.

use core::fmt;

/// A service ID: the 64-bit identifier of a listener (vol. 1, 12.7; Annex A11 for IP ports).
///
/// The service IDs of `rdma_cm`, which connects by IP address, consist of an IP protocol and a port.
///
/// ```
/// use adverb_wire::cm::{PortSpace, ServiceId};
///
/// let service = ServiceId::tcp_port(7471);
/// assert_eq!(service.get(), 0x0000_0000_0106_1d2f);
/// assert_eq!((service.port_space(), service.port()), (Some(PortSpace::Tcp), Some(7471)));
/// assert_eq!(service.to_string(), "tcp/7471");
/// assert_eq!(ServiceId::new(0x1000).to_string(), "0x0000000000001000");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(u64);

impl ServiceId {
    /// Creates the service ID with this value.
    pub const fn new(value: u64) -> ServiceId {
        ServiceId(value)
    }

    /// Creates the service ID of a port in the TCP port space, for connected queue pairs.
    pub const fn tcp_port(port: u16) -> ServiceId {
        PortSpace::Tcp.service_id(port)
    }

    /// Creates the service ID of a port in the UDP port space, for datagram queue pairs.
    pub const fn udp_port(port: u16) -> ServiceId {
        PortSpace::Udp.service_id(port)
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the port space, or `None` if the service ID isn't a port.
    pub fn port_space(self) -> Option<PortSpace> {
        [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]
            .into_iter()
            .find(|space| space.base() == self.0 & !0xffff)
    }

    /// Returns the port, or `None` if the service ID isn't in a [port space](ServiceId::port_space).
    pub fn port(self) -> Option<u16> {
        let [.., high, low] = self.0.to_be_bytes();
        self.port_space().map(|_| u16::from_be_bytes([high, low]))
    }
}

/// Prints a port as in `tcp/7471`, and other service IDs in hexadecimal.
impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port_space(), self.port()) {
            (Some(space), Some(port)) => write!(f, "{space}/{port}"),
            _ => write!(f, "{:#018x}", self.0),
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({self})")
    }
}

/// A range of service IDs that are ports. IP port spaces have the prefix 0x01 followed by the number of the IP protocol
/// (Annex A11; `enum rdma_ucm_port_space` in Linux).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Ports of connected queue pairs: 0x0106.
    Tcp = 0x0106,
    /// Ports of datagram queue pairs: 0x0111.
    Udp = 0x0111,
    /// Ports of queue pairs of either kind, addressed by GID instead of IP address: 0x013f.
    Ib = 0x013f,
}

impl PortSpace {
    /// Returns the service ID of a port.
    pub const fn service_id(self, port: u16) -> ServiceId {
        let [high, low] = port.to_be_bytes();
        let [space_high, space_low] = (self as u16).to_be_bytes();
        ServiceId(u64::from_be_bytes([0, 0, 0, 0, space_high, space_low, high, low]))
    }

    const fn base(self) -> u64 {
        self.service_id(0).0
    }
}

/// Prints `tcp`, `udp` or `ib`.
impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortSpace::Tcp => "tcp",
            PortSpace::Udp => "udp",
            PortSpace::Ib => "ib",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_the_prefix_of_their_space() {
        assert_eq!(ServiceId::tcp_port(0xffff).get(), 0x0106_ffff);
        assert_eq!(ServiceId::udp_port(1).get(), 0x0111_0001);
        assert_eq!(PortSpace::Ib.service_id(0).get(), 0x013f_0000);
        for space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            for port in [0, 1, 7471, 0xffff] {
                let service = space.service_id(port);
                assert_eq!((service.port_space(), service.port()), (Some(space), Some(port)));
            }
        }
    }

    #[test]
    fn a_service_id_with_another_prefix_has_no_port() {
        for value in [0, 0x0107_0001, 0x1_0106_0001, 0x0100_0000_0106_0001, u64::MAX] {
            assert_eq!(ServiceId::new(value).port(), None);
        }
    }
}
