//! Priority flow control (PFC) of network interfaces, which the kernel reports in netlink messages for data center
//! bridging (`linux/dcbnl.h`).

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sendto, socket,
};

/// The type of requests and answers.
const RTM_GETDCB: u16 = 78;
/// The flag of a request.
const NLM_F_REQUEST: u16 = 1;
/// The command that returns the settings of IEEE 802.1Qaz.
const DCB_CMD_IEEE_GET: u8 = 21;
/// The attribute with the name of the interface.
const DCB_ATTR_IFNAME: u16 = 1;
/// The attribute that contains the attributes of IEEE 802.1Qaz.
const DCB_ATTR_IEEE: u16 = 13;
/// The attribute with `struct ieee_pfc`.
const DCB_ATTR_IEEE_PFC: u16 = 2;
/// The bits of an attribute's type that are no flags.
const TYPE_MASK: u16 = 0x3fff;
/// The bytes of a message before the attributes: `struct nlmsghdr` and `struct dcbmsg`.
const HEADER_LEN: usize = 16 + 4;
/// The time for the kernel's answer.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Returns the priorities of an interface with PFC, or `None` if its driver doesn't report them.
pub(super) fn pfc_priorities(interface: &str) -> Option<Vec<u8>> {
    let (domain, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkRoute);
    let socket = socket(domain, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).ok()?;
    // The socket is a netlink socket. `UdpSocket` only provides its time limit and its receive call.
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(TIMEOUT)).ok()?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), &request(interface), &kernel, MsgFlags::empty()).ok()?;
    let mut answer = [0; 8192];
    let len = socket.recv(&mut answer).ok()?;
    parse(&answer[..len])
}

fn request(interface: &str) -> Vec<u8> {
    let mut name = interface.as_bytes().to_vec();
    name.push(0);
    let mut message = vec![0; 4];
    message.extend(RTM_GETDCB.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence number, port
    message.extend([0, DCB_CMD_IEEE_GET, 0, 0]);
    message.extend(attribute(DCB_ATTR_IFNAME, &name));
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns the priorities in an answer. An error, for example of an interface without these settings, has another type.
fn parse(answer: &[u8]) -> Option<Vec<u8>> {
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if kind != RTM_GETDCB {
        return None;
    }
    let settings = find(DCB_ATTR_IEEE, answer.get(HEADER_LEN..)?)?;
    // `struct ieee_pfc`: the number of priorities that may have PFC, and the bits of those that have it.
    let enabled = *find(DCB_ATTR_IEEE_PFC, settings)?.get(1)?;
    Some((0..8).filter(|priority| enabled >> priority & 1 == 1).collect())
}

/// Returns the value of an attribute.
fn find(wanted: u16, mut attributes: &[u8]) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        if kind & TYPE_MASK == wanted {
            return attributes.get(4..len);
        }
        attributes = attributes.get(len.max(4).next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those of `dcb pfc show dev v0` of iproute2 6.1, without its sequence number and flag for acknowledgements.
    #[cfg(target_endian = "little")]
    #[test]
    fn request_is_that_of_dcb() {
        let bytes = b"\x1c\0\0\0\x4e\0\x01\0\0\0\0\0\0\0\0\0\0\x15\0\0\x07\0\x01\0v0\0\0";
        assert_eq!(request("v0"), bytes);
    }

    #[test]
    fn priorities_are_the_bits_of_the_settings() {
        let answer = |enabled: u8| {
            let ets = attribute(1, &[0; 58]);
            let pfc = attribute(DCB_ATTR_IEEE_PFC, &[8, enabled, 0, 0, 0, 0, 0, 0]);
            let mut answer = request("eth2");
            answer.extend(attribute(DCB_ATTR_IEEE, &[ets, pfc].concat()));
            answer
        };
        assert_eq!(parse(&answer(0b1000)), Some(vec![3]));
        assert_eq!(parse(&answer(0b100_0001)), Some(vec![0, 6]));
        assert_eq!(parse(&answer(0)), Some(vec![]));
        for len in 0..answer(1).len() - 8 {
            assert_eq!(parse(&answer(1)[..len]), None, "{len}");
        }
    }

    #[test]
    fn an_interface_without_the_settings_has_none() {
        assert_eq!(pfc_priorities("lo"), None);
        assert_eq!(pfc_priorities("no-such-interface"), None);
    }
}
