//! The other processes of the user with which a link exchanges packets in memory.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use adverb_wire::ROCE_PORT;
use nix::unistd::Uid;

use super::shared::SharedAddress;
use super::{Receiving, UdpConfig, UdpStatistics, socket};
use crate::link::datagram::Datagram;
use crate::link::local::{Endpoint, Event, Holder, Listener, Name, Names, verifiable_user};
use crate::link::{AddressShare, AddressSharing, RingPeers};

/// The names of a link, and the rings between this process and others.
#[derive(Debug)]
pub(super) enum Neighbors {
    /// The link shares its address with other processes.
    Sharing(Box<SharedAddress>),
    /// The link has its address to itself, and the other processes have other addresses.
    Alone(Box<Endpoint>),
}

/// The maximum time to wait for the name of a device. A process that had the address before may still be ending.
const MAX_CLAIM_WAIT: Duration = Duration::from_millis(200);

/// The time before the name is tried again.
const CLAIM_RETRY_INTERVAL: Duration = Duration::from_millis(1);

impl Neighbors {
    /// Opens the receiving socket at an address, and returns it with the size of its buffer. The process takes the names by which
    /// others find it if the configuration permits sharing the address or memory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`UdpLink::open`](super::UdpLink::open).
    pub(super) fn open(
        local: SocketAddr,
        config: &UdpConfig,
    ) -> io::Result<(Option<Neighbors>, Receiving, usize)> {
        let is_shared = config.shared && config.port == ROCE_PORT;
        let needs_user = is_shared || config.ring_peers == RingPeers::AllLocal;
        let user = if needs_user { verifiable_user() } else { None };
        if is_shared && let Some(user) = user {
            let (shared, receiving, buffer) = SharedAddress::open(local, user, config)?;
            return Ok((Some(Neighbors::Sharing(Box::new(shared))), Receiving::Shared(receiving), buffer));
        }
        let (receiving, buffer) = socket::open_receiving(local, config)?;
        let neighbors = user.map(|user| Neighbors::alone(local, user)).transpose()?;
        Ok((neighbors, Receiving::Exclusive(receiving), buffer))
    }

    /// Takes the name of a device that has its address to itself. If another user has the name, all packets to the device are sent
    /// over UDP.
    fn alone(local: SocketAddr, user: Uid) -> io::Result<Neighbors> {
        let names = Names::new(local, user);
        let listener = claim_device(&names);
        let mut endpoint = Endpoint::new(names, None, RingPeers::AllLocal)?;
        if let Some(listener) = listener {
            endpoint.listen(listener, Name::Device)?;
        }
        Ok(Neighbors::Alone(Box::new(endpoint)))
    }

    /// Returns the names, and the rings.
    #[inline]
    pub(super) fn endpoint(&self) -> &Endpoint {
        match self {
            Neighbors::Sharing(shared) => shared.endpoint(),
            Neighbors::Alone(endpoint) => endpoint,
        }
    }

    /// Returns the names, and the rings.
    #[inline]
    pub(super) fn endpoint_mut(&mut self) -> &mut Endpoint {
        match self {
            Neighbors::Sharing(shared) => shared.endpoint_mut(),
            Neighbors::Alone(endpoint) => endpoint,
        }
    }

    /// Returns the share of the link in its address, if other processes share it.
    pub(super) fn address_share(&self) -> Option<AddressShare> {
        match self {
            Neighbors::Sharing(shared) => Some(shared.address_share()),
            Neighbors::Alone(_) => None,
        }
    }

    /// Returns the capability of a link that shares its address.
    pub(super) fn address_sharing(&mut self) -> Option<&mut dyn AddressSharing> {
        match self {
            Neighbors::Sharing(shared) => Some(&mut **shared),
            Neighbors::Alone(_) => None,
        }
    }

    /// Returns the descriptor that is readable when [`receive`](Neighbors::receive) has work.
    pub(super) fn readiness(&self) -> BorrowedFd<'_> {
        self.endpoint().readiness()
    }

    /// Returns the time of the next call to [`receive`](Neighbors::receive).
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Neighbors::Sharing(shared) => shared.deadline(),
            Neighbors::Alone(endpoint) => endpoint.deadline(),
        }
    }

    /// Adds the counters of packets to other processes.
    pub(super) fn count(&self, statistics: UdpStatistics) -> UdpStatistics {
        let (passed_on, not_passed_on) = match self {
            Neighbors::Sharing(shared) => shared.passed_packets(),
            Neighbors::Alone(_) => (0, 0),
        };
        let endpoint = self.endpoint();
        UdpStatistics {
            passed_on,
            not_passed_on: not_passed_on + endpoint.lost_packets(),
            sent_in_memory: endpoint.sent_packets(),
            ..statistics
        }
    }

    /// Returns whether a datagram from the socket is a packet that this process must handle: it is neither a marker nor a packet
    /// of another process, which is passed on.
    #[inline]
    pub(super) fn accept(&mut self, datagram: &Datagram<'_>) -> bool {
        let is_own = match self {
            Neighbors::Sharing(shared) => shared.accept_or_pass_on(datagram),
            Neighbors::Alone(_) => true,
        };
        is_own && !self.endpoint_mut().take_marker(datagram.bytes)
    }

    /// Passes about `max` packets from other processes to `each`, and returns their number. This is called for each receive.
    #[inline]
    pub(super) fn receive(&mut self, max: usize, each: &mut dyn FnMut(&Datagram<'_>)) -> usize {
        match self {
            Neighbors::Sharing(shared) => shared.receive(max, each),
            Neighbors::Alone(endpoint) => {
                let count = endpoint.receive(max, each);
                if endpoint.take_served() {
                    handle_events(endpoint);
                }
                count
            }
        }
    }
}

/// Closes the connections with messages that aren't about packets, which only processes at a shared address send.
#[cold]
fn handle_events(endpoint: &mut Endpoint) {
    while let Some(event) = endpoint.pop_event() {
        match event {
            Event::Message(number, _) => endpoint.remove(number),
            Event::Ended(_) => {}
        }
    }
}

/// Claims the name of a device that has its address to itself. Returns `None` if another process has the name.
fn claim_device(names: &Names) -> Option<Listener> {
    let start = Instant::now();
    loop {
        match names.claim(Name::Device) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && start.elapsed() < MAX_CLAIM_WAIT => {
                if matches!(names.connect(names.local(), Name::Device), Ok(Holder::OtherUser)) {
                    return None;
                }
                std::thread::sleep(CLAIM_RETRY_INTERVAL);
            }
            claimed => return claimed.ok(),
        }
    }
}
