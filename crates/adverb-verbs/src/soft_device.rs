//! Options of software devices.

use std::net::IpAddr;
use std::path::PathBuf;

use adverb_proto::Congestion;
use adverb_proto::types::PathMtu;
use adverb_soft::link::RingPeers;

use crate::backend::{SoftLink, SoftOptions};
use crate::device::Device;
use crate::error::Result;

pub use adverb_proto::{Dcqcn, IcrcCheck};
pub use adverb_soft::link::{FaultConfig, Switch, SwitchConfig};

/// A builder for a software device, with the options that a device name ([`Device::open`]) can't express.
///
/// This example opens two devices on an in-process switch, without sockets. Each device drops 1% of its packets:
///
/// ```
/// use adverb::verbs::{FaultConfig, SoftDevice, Switch};
///
/// let switch = Switch::default();
/// let faults = FaultConfig { loss_ppm: 10_000, ..FaultConfig::new(7) };
/// let here = SoftDevice::on_switch(&switch, "10.0.0.1".parse()?).faults(faults).open()?;
/// let there = SoftDevice::on_switch(&switch, "10.0.0.2".parse()?).faults(faults).open()?;
/// assert_eq!(here.name(), "soft:10.0.0.1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// This example opens a device with a socket and captures its packets for Wireshark:
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
    /// Creates a builder of a new device that only this machine can reach. (The device `soft` has the same properties,
    /// but all callers in a process share it.) The addresses are 127.0.0.1 and ::1 or, if they are in use, another
    /// address in 127.0.0.0/8 and another port of ::1.
    pub fn new() -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::Sockets))
    }

    /// Creates a builder of a device at an address of this machine, like `soft:192.0.2.7`. Several devices of a process may
    /// have the same address: the first uses UDP port 4791, which it shares with other processes of the user, and the GIDs
    /// of the others encode their ports ([`Device::open`]).
    ///
    /// ```
    /// use adverb::verbs::SoftDevice;
    ///
    /// let address = "127.9.8.7".parse()?;
    /// let one = SoftDevice::at_addr(address).open()?;
    /// let other = SoftDevice::at_addr(address).open()?;
    /// let [one, other] = [&one, &other].map(|device| device.gids().unwrap()[0].gid.udp_addr());
    /// assert_eq!((one.ip(), other.ip()), (address, address));
    /// assert_ne!(one.port(), other.port());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_addr(address: IpAddr) -> SoftDevice {
        SoftDevice::new().add_addr(address)
    }

    /// Creates a builder of a device at an address of an in-process switch.
    pub fn on_switch(switch: &Switch, address: IpAddr) -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::Memory(switch.clone()))).add_addr(address)
    }

    /// Creates a builder of a device without a network, with the addresses 127.0.0.1 and ::1. Its queue pairs can
    /// connect only to each other. If another device of the process has the same address, then
    /// [`Device::open_by_addr`] and the connection manager use the other device.
    pub fn loopback() -> SoftDevice {
        SoftDevice(SoftOptions::new(SoftLink::None))
    }

    /// Adds an address to the device.
    pub fn add_addr(mut self, address: IpAddr) -> SoftDevice {
        self.0.addresses.push(address);
        self
    }

    /// Injects faults into the packets that the device sends: the device drops, duplicates, corrupts, delays and
    /// ECN-marks them at these rates. Such a device is [`wire_only`](SoftDevice::wire_only).
    pub fn faults(mut self, faults: FaultConfig) -> SoftDevice {
        self.0.faults = Some(faults);
        self
    }

    /// Captures sent and received packets in this file, in pcapng format. Packets between the device's own queue pairs
    /// are captured only with [`loopback_via_link`](SoftDevice::loopback_via_link). Packets dropped by
    /// [`faults`](SoftDevice::faults) are not captured. The file is complete when the device is closed.
    pub fn capture(mut self, file: impl Into<PathBuf>) -> SoftDevice {
        self.0.capture = Some(file.into());
        self
    }

    /// Sets the path MTU: the maximum RDMA payload per packet. The default is the largest path MTU that the network
    /// interface supports.
    pub fn mtu(mut self, mtu: PathMtu) -> SoftDevice {
        self.0.mtu = Some(mtu);
        self
    }

    /// Sends packets between the device's own queue pairs through the link instead of delivering them directly in
    /// memory (for tests).
    pub fn loopback_via_link(mut self) -> SoftDevice {
        self.0.loopback_via_link = true;
        self
    }

    /// Restricts the device to packets that Adverb sent: IPv4 packets must have an IP ID below 64, unlike those of RDMA
    /// NICs and soft-RoCE. A corrupted packet then passes the ICRC check with a probability of 2⁻²⁶ instead of 2⁻¹⁶.
    /// With IPv6 the probability is always 2⁻³².
    pub fn adverb_peers_only(mut self) -> SoftDevice {
        self.0.adverb_peers_only = true;
        self
    }

    /// Shares the device's address and UDP port with no other process. Other processes of the user, also those in containers
    /// with the same network, can then neither receive nor send packets as this device. If another device has port 4791
    /// of the address, this one has another port. The environment variable `ADVERB_EXCLUSIVE=1` has the same effect on all
    /// devices of a process.
    ///
    /// ```
    /// use adverb::verbs::SoftDevice;
    ///
    /// let device = SoftDevice::at_addr("127.9.8.6".parse()?).exclusive().open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exclusive(mut self) -> SoftDevice {
        self.0.exclusive = true;
        self
    }

    /// Sends and receives all packets over UDP. Otherwise, packets between processes at one address travel in shared memory,
    /// where tcpdump doesn't see them. The environment variable `ADVERB_WIRE=1` has the same effect on all devices of a process.
    ///
    /// ```
    /// use adverb::verbs::SoftDevice;
    ///
    /// let device = SoftDevice::at_addr("127.9.8.5".parse()?).wire_only().open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wire_only(mut self) -> SoftDevice {
        self.0.ring_peers = RingPeers::None;
        self
    }

    /// Enables DCQCN congestion control: switches mark packets (ECN), receivers report the marks (CNP), and senders
    /// reduce their rate. By default senders are limited only by their windows. Receivers report marks in any case.
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

    /// Opens the device. Its name is `soft:` followed by its first address. While it is open, [`Device::open`] and
    /// [`Device::open_by_addr`] find it in this process.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`](crate::Error::CallFailed) if the address doesn't belong to this machine, if all its UDP ports
    /// are in use, or if the capture file can't be created.
    pub fn open(self) -> Result<Device> {
        Device::soft(&self.0)
    }

    /// Returns the addresses of this machine at which a software device can be opened, and the addresses of the
    /// software devices that are open in this process.
    pub fn available_addrs() -> Vec<IpAddr> {
        crate::backend::Device::soft_addresses()
    }
}

impl Default for SoftDevice {
    fn default() -> SoftDevice {
        SoftDevice::new()
    }
}
