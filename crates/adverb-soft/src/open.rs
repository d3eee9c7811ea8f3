//! The options of a software NIC, and functions that open it: for adverb-verbs, and for the drop-in library
//! (adverb-preload).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use adverb_proto::Congestion;
use adverb_proto::types::{Gid, PathMtu};

use crate::link::{Bundle, Capture, FaultConfig, FaultLink, Interface, Link, Switch, UdpConfig, UdpLink};
use crate::{Nic, NicOptions};

/// The options of a NIC.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of the link.
    pub link: LinkKind,
    /// The NIC's addresses. If there are none, a NIC on sockets gets loopback addresses. A NIC without a link always has
    /// the addresses 127.0.0.1 and ::1.
    pub addresses: Vec<IpAddr>,
    /// The path MTU to use instead of the link's path MTU.
    pub mtu: Option<PathMtu>,
    /// The faults to inject into the packets that the NIC sends.
    pub faults: Option<FaultConfig>,
    /// The file to which the NIC writes all packets that it sends and receives.
    pub capture: Option<PathBuf>,
    /// Whether loopback packets are sent through the link instead of being delivered directly.
    pub loopback_via_link: bool,
    /// Whether the NIC accepts only packets of Adverb's devices.
    pub adverb_peers_only: bool,
    /// Whether the user requested that no other process has a device at the same address and port. [`open`](Options::open)
    /// ignores this field: its caller takes the field into account in `shared`.
    pub exclusive: bool,
    /// Whether other processes may have devices at the same address and port. adverb-verbs sets
    /// this field when it opens a device. The field is `false` if `exclusive` is set, if the environment variable
    /// `ADVERB_EXCLUSIVE` requests exclusive devices, or if the device can't share its addresses.
    pub shared: bool,
    /// The congestion control of queue pairs.
    pub congestion: Congestion,
}

/// The kind of a NIC's link.
#[derive(Clone, Debug)]
pub enum LinkKind {
    /// UDP sockets at the addresses.
    Sockets,
    /// A switch in memory. The NIC is attached to one port of the switch for each of its addresses.
    Memory(Switch),
    /// No link: the NIC's queue pairs can connect only to each other.
    None,
}

impl Options {
    /// Creates the default options of a NIC with this kind of link and without addresses.
    pub fn new(link: LinkKind) -> Options {
        Options {
            link,
            addresses: Vec::new(),
            mtu: None,
            faults: None,
            capture: None,
            loopback_via_link: false,
            adverb_peers_only: false,
            exclusive: false,
            shared: false,
            congestion: Congestion::None,
        }
    }

    /// Opens the NIC. If the NIC has addresses on sockets, calls `report` with each address and with the link that was opened
    /// for it. If the port that the address encodes is in use, the link has another port.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`UdpLink::open`], [`Switch::attach`], [`Capture::create`] and [`Nic::open`].
    pub fn open(&self, report: impl Fn(IpAddr, &UdpLink)) -> io::Result<Nic> {
        let mut options = match self.link {
            LinkKind::None => NicOptions::loopback(),
            LinkKind::Sockets => {
                let links = match &self.addresses[..] {
                    [] => open_loopback(self.adverb_peers_only)?,
                    addresses => addresses
                        .iter()
                        .map(|address| {
                            open_near(*address, self.adverb_peers_only, self.shared)
                                .inspect(|(link, _)| report(*address, link))
                        })
                        .collect::<io::Result<_>>()?,
                };
                return self.open_with(links);
            }
            LinkKind::Memory(ref switch) => {
                let attach = |address: &IpAddr| Ok((*address, switch.attach(*address)?));
                self.with_links(self.addresses.iter().map(attach).collect::<io::Result<_>>()?)?
            }
        };
        if let Some(mtu) = self.mtu {
            options = options.mtu(mtu);
        }
        Nic::open(options.loopback_via_link(self.loopback_via_link))
    }

    /// Opens the NIC over links that are already open. `links` contains each link and its path MTU.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Capture::create`] and [`Nic::open`].
    pub fn open_with(&self, links: Vec<(UdpLink, PathMtu)>) -> io::Result<Nic> {
        let mtu = links.iter().map(|(_, mtu)| *mtu).min().unwrap_or(PathMtu::Mtu4096);
        let options =
            self.with_links(links.into_iter().map(|(link, _)| (link.gid().ip(), link)).collect())?;
        Nic::open(options.mtu(self.mtu.unwrap_or(mtu)).loopback_via_link(self.loopback_via_link))
    }

    /// Returns the options of a NIC over links, with capture and fault injection if they are configured.
    fn with_links<L: Link + 'static>(&self, mut links: Vec<(IpAddr, L)>) -> io::Result<NicOptions> {
        let addresses: Vec<IpAddr> = links.iter().map(|(address, _)| *address).collect();
        let mut link: Box<dyn Link> = match links.pop() {
            Some((_, link)) if links.is_empty() => Box::new(link),
            last => {
                let mut bundle = Bundle::new()?;
                for (address, link) in links.into_iter().chain(last) {
                    bundle.add(Gid::from(address).udp_addr().ip(), link)?;
                }
                Box::new(bundle)
            }
        };
        if let Some(file) = &self.capture {
            let name = addresses.first().map(IpAddr::to_string).unwrap_or_default();
            link = Box::new(Capture::create(file)?.watch(&name, link));
        }
        if let Some(faults) = self.faults {
            link = Box::new(FaultLink::new(link, faults));
        }
        Ok(NicOptions::boxed(addresses, link))
    }
}

/// Opens links that only this machine can reach, at 127.0.0.1 and ::1. If another process uses 127.0.0.1, the first link gets
/// another address in 127.0.0.0/8. If another process uses ::1, the second link gets another port, because ::1 is the only
/// IPv6 loopback address.
fn open_loopback(adverb_peers_only: bool) -> io::Result<Vec<(UdpLink, PathMtu)>> {
    let mut tried = 0;
    let mut address = Ipv4Addr::LOCALHOST;
    let v4 = loop {
        match open_gid(address.into(), adverb_peers_only, false) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tried < MAX_ATTEMPTS => {
                tried += 1;
                address = random_loopback()?;
            }
            opened => break opened,
        }
    };
    let v6 = open_near(Ipv6Addr::LOCALHOST.into(), adverb_peers_only, false);
    match (v4, v6) {
        (Ok(v4), v6) => Ok(std::iter::once(v4).chain(v6.ok()).collect()),
        // The machine may have no IPv4.
        (Err(_), Ok(v6)) => Ok(vec![v6]),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Returns a random IPv4 loopback address. Most likely, no other process uses this address.
///
/// # Errors
///
/// Returns an error if the system provides no random numbers.
pub fn random_loopback() -> io::Result<Ipv4Addr> {
    let [a, b, c, _] = getrandom::u32().map_err(io::Error::other)?.to_ne_bytes();
    // The second and the last byte are neither 0 nor 255, so this is neither the first nor the last address of a network.
    Ok(Ipv4Addr::new(127, a.clamp(1, 254), b, c.clamp(1, 254)))
}

/// Opens a link at an address. If port 4791 is in use at this address, the link gets another port that the address's GID can
/// encode.
fn open_near(address: IpAddr, adverb_peers_only: bool, shared: bool) -> io::Result<(UdpLink, PathMtu)> {
    let is_taken = |opened: &io::Result<_>| {
        opened.as_ref().err().is_some_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    let mut opened = open_gid(address, adverb_peers_only, shared);
    let others = Gid::UDP_PORTS.map(|port| Gid::from(SocketAddr::new(address, port)));
    for other in others.filter(|other| other.has_udp_port()) {
        if !is_taken(&opened) {
            break;
        }
        opened = open_gid(other.ip(), adverb_peers_only, false);
    }
    opened
}

/// Opens a link at an address, on the UDP port that the address encodes.
fn open_gid(address: IpAddr, adverb_peers_only: bool, shared: bool) -> io::Result<(UdpLink, PathMtu)> {
    open_at(Gid::from(address).udp_addr(), |config| {
        (config.adverb_peers_only, config.shared) = (adverb_peers_only, shared);
    })
}

/// Opens a link at an address and port, and returns the link and the path MTU of its interface. `configure` sets further
/// options of the link.
///
/// # Errors
///
/// Returns `Unsupported` if the MTU of the interface is too small, and the errors of [`Interface::of`] and
/// [`UdpLink::open`].
pub fn open_at(place: SocketAddr, configure: impl FnOnce(&mut UdpConfig)) -> io::Result<(UdpLink, PathMtu)> {
    let interface = Interface::of(place.ip())?;
    let mtu = interface.path_mtu().ok_or_else(|| {
        let Interface { name, mtu, .. } = &interface;
        let text = format!("the MTU of {name}, {mtu} bytes, is too small for RoCEv2");
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    let mut config = UdpConfig::new(place.ip());
    config.port = place.port();
    configure(&mut config);
    if matches!(place.ip(), IpAddr::V6(address) if address.is_unicast_link_local()) {
        config.scope_id = interface.index;
    }
    Ok((UdpLink::open(&config)?, mtu))
}

/// The maximum number of loopback addresses to try.
const MAX_ATTEMPTS: usize = 64;
