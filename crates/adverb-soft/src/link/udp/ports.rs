//! The sending sockets of a link, by source port.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use super::SendFailure;
use super::socket::{self, FIRST_SOURCE_PORT};

/// The sending sockets of a link, each with its own source port.
///
/// The link opens the permanent sockets when it is opened itself. It opens the other sockets when a path requests their
/// ports, up to a limit. A socket without users stays open, because its port may be requested again, until the limit
/// requires it to be closed.
#[derive(Debug)]
pub(super) struct SendingSockets {
    /// The sockets: first the permanent ones, at least one, then the others.
    sockets: Vec<Sender>,
    permanent_count: usize,
    /// For each port from [`FIRST_SOURCE_PORT`] on: 1 + the index of its socket, or 0. The list is empty if the link has
    /// only one port, below that range.
    by_port: Box<[u16]>,
    /// The local address, with any port.
    local: SocketAddr,
    /// The interface of multicast packets.
    interface: u32,
    /// The maximum number of sockets that are not permanent.
    max_on_demand: usize,
    /// The number of released uses so far.
    release_count: u64,
    /// The kernel's hop limit of unicast packets, or 0 if it isn't known.
    default_hop_limit: u8,
}

#[derive(Debug)]
struct Sender {
    port: u16,
    socket: UdpSocket,
    /// The number of paths with this port. It has no effect for a permanent socket.
    user_count: usize,
    /// The value of `release_count` when the last user released the port.
    released_at: u64,
    send_times: SendTimes,
    /// The hop limit that the link has set for the socket's unicast packets.
    hop_limit: Option<u8>,
}

/// The hop limits of unicast packets that are sent without a control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct HopLimits {
    /// The hop limit of packets that request none, or 0 if it isn't known.
    pub(super) default: u8,
    /// The socket's hop limit, or 0 if it isn't known.
    pub(super) socket: u8,
}

/// Whether the kernel returns the times of datagrams that a socket sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendTimes {
    Disabled,
    /// The kernel returns send times. The next datagram that requests its send time has this number, or a higher one if
    /// sending a datagram failed.
    Enabled(u32),
    /// The kernel can't return send times.
    Unsupported,
}

impl SendingSockets {
    /// Opens `permanent` sockets at the first free ports. Up to `max_on_demand` further sockets are opened on demand.
    ///
    /// # Errors
    ///
    /// Returns an error if no socket can be opened.
    pub(super) fn open(
        local: SocketAddr,
        permanent: u16,
        max_on_demand: u16,
        interface: u32,
    ) -> io::Result<SendingSockets> {
        let mut ports = SendingSockets {
            sockets: Vec::with_capacity(usize::from(permanent)),
            permanent_count: 0,
            by_port: vec![0; PORT_COUNT].into(),
            local,
            interface,
            max_on_demand: usize::from(max_on_demand),
            release_count: 0,
            default_hop_limit: 0,
        };
        // These are also the system's ephemeral ports, so other programs may use some of them.
        for port in FIRST_SOURCE_PORT..=u16::MAX {
            if ports.sockets.len() == usize::from(permanent) {
                break;
            }
            match ports.bind(port) {
                Ok(socket) => ports.insert(ports.sockets.len(), port, socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        ports.permanent_count = ports.sockets.len();
        if ports.sockets.is_empty() {
            let text = format!("all UDP ports of {} from {FIRST_SOURCE_PORT} up are taken", local.ip());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        ports.default_hop_limit = default_hop_limit(&ports.sockets[0].socket, local)?;
        Ok(ports)
    }

    /// Creates the ports of a link with a single port: the port that `socket` is bound to.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket's options can't be set.
    pub(super) fn single(socket: UdpSocket, local: SocketAddr, interface: u32) -> io::Result<SendingSockets> {
        socket::set_send_options(&socket, local.ip(), interface)?;
        let default_hop_limit = default_hop_limit(&socket, local)?;
        Ok(SendingSockets {
            sockets: vec![Sender::new(local.port(), socket, 0)],
            permanent_count: 1,
            by_port: Box::default(),
            local,
            interface,
            max_on_demand: 0,
            release_count: 0,
            default_hop_limit,
        })
    }

    /// Returns the permanent sockets, of which there is at least one.
    pub(super) fn permanent(&self) -> impl Iterator<Item = &UdpSocket> {
        self.sockets[..self.permanent_count].iter().map(|sender| &sender.socket)
    }

    /// Returns the socket with this source port, or `None` if the port isn't open.
    pub(super) fn get(&self, port: u16) -> Option<&UdpSocket> {
        self.index_of(port).map(|index| &self.sockets[index].socket)
    }

    /// Returns the socket with this source port for packets that request a hop limit, and the hop limits of the socket. The
    /// first hop limit other than the kernel's becomes the socket's, because the kernel takes longer to send a packet with
    /// a control message, and the packets of a port mostly have one hop limit.
    #[inline]
    pub(super) fn get_for(&mut self, port: u16, hop_limit: u8) -> Option<(&UdpSocket, HopLimits)> {
        let index = self.index_of(port)?;
        let (sender, default) = (&mut self.sockets[index], self.default_hop_limit);
        if sender.hop_limit.is_none() && ![0, default].contains(&hop_limit) && default != 0 {
            sender.set_hop_limit(hop_limit, default);
        }
        Some((&sender.socket, HopLimits { default, socket: sender.hop_limit.unwrap_or(default) }))
    }

    /// Returns the socket with this source port, the number of the next datagram that requests its send time, and the hop
    /// limits of the socket. Returns `None` if there is no such socket, or the kernel can't return send times.
    pub(super) fn timed_socket(&mut self, port: u16) -> Option<(&UdpSocket, &mut u32, HopLimits)> {
        let index = self.index_of(port)?;
        let (sender, default) = (&mut self.sockets[index], self.default_hop_limit);
        if sender.send_times == SendTimes::Disabled {
            let enabled = socket::enable_send_times(&sender.socket);
            sender.send_times = enabled.map_or(SendTimes::Unsupported, |()| SendTimes::Enabled(0));
        }
        let hop_limits = HopLimits { default, socket: sender.hop_limit.unwrap_or(default) };
        match &mut sender.send_times {
            SendTimes::Enabled(number) => Some((&sender.socket, number, hop_limits)),
            SendTimes::Disabled | SendTimes::Unsupported => None,
        }
    }

    /// Sends a datagram that isn't a packet from a source port. Returns whether it was sent: if not, no socket has the port, or
    /// the kernel refuses the datagram.
    ///
    /// # Errors
    ///
    /// Returns an error if the datagram can be sent later.
    #[cold]
    pub(super) fn send(&self, port: u16, destination: SocketAddr, bytes: &[u8]) -> io::Result<bool> {
        let Some(socket) = self.get(port) else { return Ok(false) };
        match socket.send_to(bytes, destination) {
            Ok(_) => Ok(true),
            Err(error) => match SendFailure::of(&error) {
                SendFailure::BufferFull | SendFailure::Interrupted => Err(error),
                SendFailure::Packet | SendFailure::SocketUnusable => Ok(false),
            },
        }
    }

    /// Whether a socket has this source port.
    pub(super) fn contains(&self, port: u16) -> bool {
        self.index_of(port).is_some()
    }

    /// Returns the permanent port for a flow that prefers the port `preferred`. The result is always the same.
    pub(super) fn permanent_port(&self, preferred: u16) -> u16 {
        match self.index_of(preferred) {
            Some(index) if index < self.permanent_count => preferred,
            _ => self.sockets[usize::from(preferred & !FIRST_SOURCE_PORT) % self.permanent_count].port,
        }
    }

    /// Whether the link can open this port. A link with a single port can't open others.
    pub(super) fn can_open(&self, port: u16) -> bool {
        port >= FIRST_SOURCE_PORT && !self.by_port.is_empty()
    }

    /// Adds a user of a port, and opens the port if it isn't open.
    ///
    /// # Errors
    ///
    /// Returns an error if the port can't be opened: another program has it, the process has too many file descriptors,
    /// or the limit is reached and all ports have users.
    pub(super) fn acquire(&mut self, port: u16) -> io::Result<()> {
        let index = match self.index_of(port) {
            Some(index) => index,
            None if self.can_open(port) => self.open_on_demand(port)?,
            None => return Err(io::ErrorKind::InvalidInput.into()),
        };
        self.sockets[index].user_count += 1;
        Ok(())
    }

    /// Removes a user of a port that was [acquired](SendingSockets::acquire).
    pub(super) fn release(&mut self, port: u16) {
        let Some(index) = self.index_of(port) else { return };
        self.release_count += 1;
        let sender = &mut self.sockets[index];
        sender.user_count = sender.user_count.saturating_sub(1);
        sender.released_at = self.release_count;
    }

    /// Opens a port, and returns the index of its socket. If the limit is reached, this closes the port that has been
    /// without users for the longest time.
    fn open_on_demand(&mut self, port: u16) -> io::Result<usize> {
        let on_demand = &self.sockets[self.permanent_count..];
        let index = if on_demand.len() < self.max_on_demand {
            self.sockets.len()
        } else {
            let idle = on_demand.iter().enumerate().filter(|(_, sender)| sender.user_count == 0);
            let oldest = idle.min_by_key(|(_, sender)| sender.released_at);
            let (offset, _) = oldest.ok_or(io::ErrorKind::QuotaExceeded)?;
            self.permanent_count + offset
        };
        let socket = self.bind(port)?;
        socket::minimize_receive_buffer(&socket);
        self.insert(index, port, socket);
        Ok(index)
    }

    /// Stores a socket at an index, and closes the socket that it replaces.
    fn insert(&mut self, index: usize, port: u16, socket: UdpSocket) {
        let sender = Sender::new(port, socket, self.release_count);
        if index == self.sockets.len() {
            self.sockets.push(sender);
        } else {
            let closed = std::mem::replace(&mut self.sockets[index], sender);
            self.by_port[offset_of(closed.port)] = 0;
        }
        // There are fewer than 2¹⁶ ports.
        self.by_port[offset_of(port)] = index as u16 + 1;
    }

    fn bind(&self, port: u16) -> io::Result<UdpSocket> {
        let mut address = self.local;
        address.set_port(port);
        let socket = socket::bind(address)?;
        socket::set_send_options(&socket, address.ip(), self.interface)?;
        Ok(socket)
    }

    /// Returns the index of the socket with this source port. This is called for each run of packets with one source.
    fn index_of(&self, port: u16) -> Option<usize> {
        if port < FIRST_SOURCE_PORT || self.by_port.is_empty() {
            return (self.sockets[0].port == port).then_some(0);
        }
        usize::from(self.by_port[offset_of(port)]).checked_sub(1)
    }
}

impl Sender {
    fn new(port: u16, socket: UdpSocket, released_at: u64) -> Sender {
        let send_times = SendTimes::Disabled;
        Sender { port, socket, user_count: 0, released_at, send_times, hop_limit: None }
    }

    /// Sets the hop limit of the socket's unicast packets. If the kernel rejects it, the socket keeps the default.
    #[cold]
    fn set_hop_limit(&mut self, hop_limit: u8, default: u8) {
        let is_set = self.socket.set_ttl(hop_limit.into()).is_ok();
        self.hop_limit = Some(if is_set { hop_limit } else { default });
    }
}

/// Returns the hop limit of a socket's IPv4 packets, or 0 for IPv6.
fn default_hop_limit(socket: &UdpSocket, local: SocketAddr) -> io::Result<u8> {
    if local.is_ipv4() { Ok(u8::try_from(socket.ttl()?).unwrap_or(0)) } else { Ok(0) }
}

/// The number of ports from [`FIRST_SOURCE_PORT`] on.
const PORT_COUNT: usize = 1 << 14;

/// Returns the offset of a port from [`FIRST_SOURCE_PORT`].
const fn offset_of(port: u16) -> usize {
    (port & !FIRST_SOURCE_PORT) as usize
}
