//! Software devices that a name can't describe.

use std::net::IpAddr;
use std::path::PathBuf;

use adverb_proto::Congestion;
use adverb_proto::types::PathMtu;

pub use adverb_proto::{Dcqcn, IcrcCheck};
pub use adverb_soft::link::{FaultConfig, Switch, SwitchConfig};

use super::Device;
use crate::backend::{SoftLink, SoftOptions};
use crate::error::Result;

/// A software device that is to be opened, with all that its name ([`Device::open`]) can't say.
///
/// Two devices on a network in memory, without any socket, that loses one packet in a hundred:
///
/// ```
/// use adverb::verbs::{FaultConfig, SoftDevice, Switch};
///
/// let switch = Switch::default();
/// let faults = FaultConfig { loss: 10_000, ..FaultConfig::new(7) };
/// let here = SoftDevice::on_switch(&switch, "10.0.0.1".parse()?).faults(faults).open()?;
/// let there = SoftDevice::on_switch(&switch, "10.0.0.2".parse()?).faults(faults).open()?;
/// assert_eq!(here.name(), "soft:10.0.0.1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// One with a socket, whose packets are recorded for Wireshark:
///
/// ```no_run
/// use adverb::verbs::SoftDevice;
///
/// let device = SoftDevice::at_addr("192.0.2.7".parse()?).capture("packets.pcapng").open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SoftDevice(SoftOptions);

impl SoftDevice {
    /// A device for programs on this machine, as `soft` is, but one of its own: at 127.0.0.1 and ::1, or, if they are taken,
    /// at another address in 127.0.0.0/8 and another port of ::1.
    pub fn new() -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::Sockets))
    }

    /// A device at an address of this machine, as `soft:192.0.2.7` is. There may be several: the first has UDP port 4791, and
    /// the GIDs of others say which they have ([`Device::open`]).
    ///
    /// ```
    /// use adverb::verbs::SoftDevice;
    ///
    /// let address = "127.9.8.7".parse()?;
    /// let one = SoftDevice::at_addr(address).open()?;
    /// let other = SoftDevice::at_addr(address).open()?;
    /// let [one, other] = [&one, &other].map(|device| device.gids().unwrap()[0].gid.udp_address());
    /// assert_eq!((one.ip(), other.ip()), (address, address));
    /// assert_ne!(one.port(), other.port());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_addr(address: IpAddr) -> SoftDevice {
        SoftDevice::new().address(address)
    }

    /// A device at an address of a network that is in this process's memory.
    pub fn on_switch(switch: &Switch, address: IpAddr) -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::Memory(switch.clone()))).address(address)
    }

    /// A device with 127.0.0.1 and ::1 and no network at all: its queue pairs can only talk to each other.
    pub fn loopback() -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::None))
    }

    /// Another address that it is to have.
    pub fn address(mut self, address: IpAddr) -> SoftDevice {
        self.0.addresses.push(address);
        self
    }

    /// Harms what the device sends: loses, duplicates, corrupts, delays and marks packets, as often as this says.
    pub fn faults(mut self, faults: FaultConfig) -> SoftDevice {
        self.0.faults = Some(faults);
        self
    }

    /// Writes every packet that comes and goes to this file, in pcapng's form; not those between its own queue pairs,
    /// unless they [take the network](SoftDevice::loopback_via_link), and not those that [faults](SoftDevice::faults) lost. The file
    /// is whole when the device is closed.
    pub fn capture(mut self, file: impl Into<PathBuf>) -> SoftDevice {
        self.0.capture = Some(file.into());
        self
    }

    /// The payload of the longest packet that it sends; unless set, as much as fits the network interface.
    pub fn mtu(mut self, mtu: PathMtu) -> SoftDevice {
        self.0.mtu = Some(mtu);
        self
    }

    /// Has packets between the device's own queue pairs take the network, too, instead of the short way through memory.
    pub fn loopback_via_link(mut self) -> SoftDevice {
        self.0.loopback_via_link = true;
        self
    }

    /// Has the device take packets only as Adverb sends them: of IPv4 packets, only those with an identification below 64,
    /// which RDMA adapters' and soft-RoCE's haven't got. A packet that was damaged on its way then gets past the checksum
    /// once in 2²⁶ instead of once in 2¹⁶; with IPv6 it is once in 2³² in any case.
    pub fn adverb_peers_only(mut self) -> SoftDevice {
        self.0.adverb_peers_only = true;
        self
    }

    /// Has the device's connections slow down when the network is congested, by DCQCN: switches may mark their packets
    /// (ECN), receivers tell of marks (CNP), and senders heed that. Unless set they send as fast as their windows allow;
    /// they tell of marks in any case.
    ///
    /// ```
    /// use adverb::verbs::{Dcqcn, SoftDevice};
    ///
    /// let device = SoftDevice::loopback().dcqcn(Dcqcn::new(25_000_000_000)).open()?; // a link of 25 Gbit/s
    /// # Ok::<(), adverb::Error>(())
    /// ```
    pub fn dcqcn(mut self, constants: Dcqcn) -> SoftDevice {
        self.0.congestion = Congestion::Dcqcn(constants);
        self
    }

    /// Opens it. Its name is `soft:` and its first address; while it is open, [`Device::open`] and
    /// [`Device::by_address`] find it in this process.
    ///
    /// # Errors
    ///
    /// If the address isn't this machine's, or all its ports are taken; if the file can't be made.
    pub fn open(self) -> Result<Device> {
        Device::soft(&self.0)
    }

    /// The addresses of this machine that software devices could be at, and those of the devices that are open in this
    /// process.
    pub fn available_addrs() -> Vec<IpAddr> {
        crate::backend::Device::soft_addresses()
    }
}

impl Default for SoftDevice {
    fn default() -> SoftDevice {
        SoftDevice::new()
    }
}
