//! Options of connections.

use std::sync::Arc;
use std::time::Duration;

use adverb_net_proto::{
    MAX_MESSAGE_SIZE, MAX_OUTSTANDING_WRITES, MAX_RING_SIZE, MIN_OUTSTANDING_WRITES, MIN_RING_SIZE,
};
use adverb_verbs::internal::is_same_device;
use adverb_verbs::memory::Pool;
use adverb_verbs::{self as verbs, Device, Key, PathMtu, Traffic};

use crate::domains::{SharedDomain, SharedDomains};
use crate::error::{BindError, ConnectError};
use crate::key::HandshakeKey;

/// Default of [`Options::max_message_size`].
const DEFAULT_MAX_MESSAGE_SIZE: u32 = 64 << 20;

/// Options of a connection. Each side sets its own options; the options of the two sides may differ.
///
/// A setter accepts any value. [`connect`](crate::blocking::Connector::connect) and
/// [`bind`](crate::blocking::ListenerBuilder::bind) return [`ConnectError::InvalidOption`] and
/// [`BindError::InvalidOption`] if a value is outside its range, and [`ConnectError::ForeignPool`] and
/// [`BindError::ForeignPool`] if the pool belongs to another device.
///
/// ```
/// use std::time::Duration;
/// use adverb::net::Options;
///
/// let options = Options::new().recv_ring_size(1 << 20).connect_timeout(Duration::from_secs(1));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(super) device: Option<Device>,
    pub(super) pool: Option<Pool>,
    /// The shared protection domains, which clones of these options share.
    pub(super) domains: Option<Arc<SharedDomains>>,
    /// Whether windows are not used, as on a device without them, for tests.
    pub(super) without_windows: bool,
    pub(super) recv_ring_size: u32,
    pub(super) max_outstanding_writes: u32,
    pub(super) eager_threshold: u32,
    pub(super) recv_buffer_limit: usize,
    pub(super) max_message_size: u32,
    pub(super) mtu: PathMtu,
    pub(super) traffic: Traffic,
    pub(super) bootstrap: Bootstrap,
    pub(super) key: Option<HandshakeKey>,
    pub(super) allow_foreign_gid: bool,
    pub(super) max_connections_per_source: Option<usize>,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) keepalive: Option<Duration>,
    pub(super) reconnect: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: None,
            pool: None,
            domains: None,
            without_windows: false,
            recv_ring_size: 256 << 10,
            max_outstanding_writes: 64,
            eager_threshold: 16 << 10,
            recv_buffer_limit: 4 << 20,
            max_message_size: DEFAULT_MAX_MESSAGE_SIZE,
            mtu: PathMtu::Mtu4096,
            traffic: Traffic::new(),
            bootstrap: Bootstrap::Auto,
            key: None,
            allow_foreign_gid: false,
            max_connections_per_source: None,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::MAX,
            keepalive: Some(Duration::from_secs(5)),
            reconnect: None,
        }
    }
}

impl Options {
    /// Returns the default options.
    pub fn new() -> Options {
        Options::default()
    }

    /// Sets the device. By default, a connection uses the device with the local address of the route to the peer.
    pub fn device(mut self, device: &Device) -> Options {
        self.device = Some(device.clone());
        self
    }

    /// Sets the pool for the memory of messages. By default, each connection has a pool of its own.
    ///
    /// Without [`device`](Options::device), connections use the device of the pool. With both options, the pool must belong
    /// to that device.
    ///
    /// A connection whose pool has no memory for a message of the peer ends. The manual's chapter about streams
    /// (`adverb::manual::streams`) says how much memory a connection needs, for pools with
    /// [`PoolBuilder::max_bytes`](adverb_verbs::memory::PoolBuilder::max_bytes).
    ///
    /// Connections that share a pool share its protection domain, and a memory key is valid for every connection of
    /// its domain. A peer that guesses the key of memory exposed to another peer can therefore access that memory. (A
    /// wrong guess ends the connection of the peer that guessed.) If peers must not access each other's memory, use one
    /// pool per connection, or set [`shared_domain`](Options::shared_domain) too.
    pub fn pool(mut self, pool: &Pool) -> Options {
        self.device.get_or_insert_with(|| pool.protection_domain().device().clone());
        self.pool = Some(pool.clone());
        self
    }

    /// Sets whether the connections with these options share one protection domain and one pool per device. The default
    /// is `false`: each connection has a domain of its own. A listener that
    /// [exposes](crate::blocking::ListenerBuilder::expose_region) regions always shares a domain.
    ///
    /// A [`SharedRegion`](crate::SharedRegion) is registered once for each domain. Connections share a domain if their
    /// options are clones of the value on which this method was called, so all connections of a listener do.
    ///
    /// A memory key is valid for every connection of its domain. Therefore, the memory of such a connection is
    /// registered without rights, and the peer gets keys of type 2 memory windows, which only this peer's connection
    /// accepts. Binding the windows makes a message of more than [`eager_threshold`](Options::eager_threshold) bytes
    /// slightly slower. Some devices have no windows
    /// ([`has_memory_windows`](adverb_verbs::DeviceAttributes::has_memory_windows)): there, a peer that learns or guesses
    /// a key can access the memory of other peers, as with [`pool`](Options::pool).
    pub fn shared_domain(mut self, enabled: bool) -> Options {
        self.domains = enabled.then(Arc::default);
        self
    }

    /// Returns the shared domain for connections over a device, if the connections share one.
    pub(crate) fn shared_domain_of(&self, device: &Device) -> verbs::Result<Option<Arc<SharedDomain>>> {
        self.domains.as_ref().map(|domains| domains.get(device, self.pool.as_ref())).transpose()
    }

    /// Whether connections with a shared domain use the windows of a device.
    pub(crate) fn uses_windows(&self, device: &Device) -> bool {
        device.attributes().has_memory_windows && !self.without_windows
    }

    /// Makes the connections share a domain, if they do not.
    pub(crate) fn share_domain(&mut self) {
        self.domains.get_or_insert_default();
    }

    /// Sets the size of the receive ring in bytes. It limits the eager messages that the peer may send before this side
    /// reads them. The default is 256 KiB, the minimum 512 bytes, and the maximum 16 MiB. The ring has this size rounded
    /// down to a multiple of 16 bytes.
    pub fn recv_ring_size(mut self, bytes: u32) -> Options {
        self.recv_ring_size = bytes;
        self
    }

    /// Sets the maximum number of the peer's writes that are in flight or unread. A write carries one or more
    /// messages. The default is 64, the minimum 4, and the maximum 256.
    pub fn max_outstanding_writes(mut self, count: u32) -> Options {
        self.max_outstanding_writes = count;
        self
    }

    /// Sets the maximum size of an eager message in bytes. The default is 16 KiB. A connection uses at most a quarter of
    /// the peer's receive ring, less 16 bytes, even if this value is larger.
    ///
    /// This side copies messages up to this size into the peer's ring. The peer's device reads longer messages from
    /// this side's memory (rendezvous).
    pub fn eager_threshold(mut self, bytes: u32) -> Options {
        self.eager_threshold = bytes;
        self
    }

    /// Sets the maximum number of bytes in messages that have arrived, but that the application has not received yet.
    /// The default is 4 MiB.
    ///
    /// Each message counts as its size plus 64 bytes. The connection always buffers one message, regardless of its
    /// size. The manual's chapter about streams (`adverb::manual::streams`) describes how to limit memory.
    pub fn recv_buffer_limit(mut self, bytes: usize) -> Options {
        self.recv_buffer_limit = bytes;
        self
    }

    /// Sets the maximum size of a message that this side accepts, in bytes. The default is 64 MiB, and the maximum
    /// 1 GiB.
    ///
    /// The peer receives the value in the handshake, and its `send` returns
    /// [`SendErrorKind::TooLong`](crate::SendErrorKind::TooLong) for longer messages. If a peer sends a longer message anyway, this side ends the connection before it allocates memory for
    /// the message.
    ///
    /// A peer can cause an allocation of this size with a frame of 32 bytes, so raise the value only as far as the
    /// application needs. A stream carries any number of bytes, in messages of at most this size.
    pub fn max_message_size(mut self, bytes: u32) -> Options {
        self.max_message_size = bytes;
        self
    }

    /// Sets the maximum path MTU: the RDMA payload of one packet. The default is 4096 bytes, the largest path MTU.
    ///
    /// A connection uses the smallest of the path MTUs of both devices and both options. The first packet in each
    /// direction has this size. If a packet of more than 1024 bytes does not arrive for half of the time that is left
    /// to connect or about two seconds, whichever is shorter, the connector dials once more with a path MTU of 1024
    /// bytes, which fits every network with an MTU of at least 1280 bytes. If a host name has several addresses, the
    /// two dials to one address take time from the next addresses. Set this option if a network between the two sides
    /// has a smaller MTU than both of them, to save that time, or to use 2048 or 512 bytes instead.
    ///
    /// A connection manager negotiates the path MTU itself. A connector with [`Bootstrap::Auto`] that sets this option
    /// therefore connects over TCP, and the option has no effect with [`Bootstrap::ConnectionManager`].
    pub fn mtu(mut self, mtu: PathMtu) -> Options {
        self.mtu = mtu;
        self
    }

    /// Sets the header fields of this side's packets that the network evaluates, such as the DSCP. Over a connection
    /// manager, the connector's fields also apply to the peer's packets, unless the listener sets its own.
    ///
    /// ```
    /// use adverb::net::Options;
    /// use adverb::verbs::Traffic;
    ///
    /// let options = Options::new().traffic(Traffic::new().dscp(26));
    /// ```
    pub fn traffic(mut self, traffic: Traffic) -> Options {
        self.traffic = traffic;
        self
    }

    /// Sets the channel over which the two sides connect their queue pairs. The default is [`Bootstrap::Auto`].
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Options {
        self.bootstrap = bootstrap;
        self
    }

    /// Sets the key, which the peer must have too. By default, a connection has no key.
    ///
    /// Each side proves to the other that it has the key before either side sends an address of its memory or grants
    /// access to it. A side with a key rejects a peer that has another key or none.
    ///
    /// A key authenticates only the handshake. RDMA packets are neither signed nor encrypted: an attacker that sees the
    /// packets can read them, and an attacker that can forge packets can impersonate the peer. Use a key in networks
    /// where attackers can connect, but can neither observe nor forge packets.
    pub fn key(mut self, key: &Key) -> Options {
        self.key = Some(HandshakeKey::new(key));
        self
    }

    /// Sets the maximum number of connections that a listener has with one source: an IPv4 address, or the /64 network
    /// of an IPv6 address. The listener ends further connections at once. A connection counts until the program drops
    /// it.
    ///
    /// By default, a listener without a [key](Options::key) has at most 4096 connections with each source, except for
    /// loopback addresses, and a listener with a key has no limit.
    pub fn max_connections_per_source(mut self, count: usize) -> Options {
        self.max_connections_per_source = Some(count);
        self
    }

    /// Sets whether a peer that connects over TCP may send a GID that is not the address of its end of the TCP
    /// connection. The default is `false`.
    ///
    /// Each side sends its RDMA packets to the GID in the peer's greeting. The check prevents a peer from directing
    /// these packets at a third party. Set this option on both sides if the RDMA network has other addresses than the
    /// network of the TCP connection, or if a device has only a link-local GID (`fe80::…`). Then let only trusted peers
    /// reach the listener, or use a [key](Options::key).
    ///
    /// The check ignores the UDP port that a GID may contain, and treats all loopback addresses as equal. There is no
    /// check on InfiniBand, where GIDs are not IP addresses, and no check on an in-process switch.
    pub fn allow_foreign_gid(mut self, allow: bool) -> Options {
        self.allow_foreign_gid = allow;
        self
    }

    /// Sets the time limit for connecting, and for closing. The default is 5 s, and `None` means no limit.
    pub fn connect_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Options {
        self.connect_timeout = timeout.into().unwrap_or(Duration::MAX);
        self
    }

    /// Sets the time limit of calls that wait for a message, for credits, or for a one-sided operation. The default is
    /// `None`: no limit.
    ///
    /// The limit also applies to `recv` of a server that waits for requests. It does not end the connection: a reply that
    /// arrives after the time limit is returned by the next `recv`. A limit that is shorter than the time to detect a
    /// failure (see [`keepalive`](Options::keepalive)) and to [reconnect](Options::reconnect) hides the reason of the
    /// failure, because the calls return `TimedOut` first.
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Options {
        self.timeout = timeout.into().unwrap_or(Duration::MAX);
        self
    }

    /// Sets the time without traffic from the peer after which a waiting call probes the peer. The default is 5 s, and `None`
    /// disables the probes.
    ///
    /// A peer's program that exits or drops the connection reports that at once; a probe detects that it was killed, or
    /// that the network has failed. The peer's device acknowledges the probe, even if the peer's program hangs. If the
    /// device sends no acknowledgement, the connection ends about two seconds after the probe: the probe is
    /// retransmitted six times, with an ACK timeout of 268 ms. The InfiniBand specification allows hardware to wait up
    /// to four times as long. If the connection manager of RDMA hardware established the connection, the kernel also
    /// reports at once that the peer's process has ended.
    pub fn keepalive(mut self, silence: impl Into<Option<Duration>>) -> Options {
        self.keepalive = silence.into();
        self
    }

    /// Enables reconnecting, and sets its time limit. The default is `None`: a connection ends when it fails. Both sides
    /// must enable reconnecting.
    ///
    /// A connection that fails is reconnected over the same path, or over [another
    /// path](crate::blocking::Connector::alternate_addr). Calls that use the connection detect the failure, as
    /// [`keepalive`](Options::keepalive) describes; without such a call, the failure is not detected. One thread then
    /// reconnects all failed connections of the process: the connector dials again, and the listener accepts, if it
    /// still exists. The accepting side must have detected the failure too, or a caller must be waiting in
    /// [`accept`](crate::blocking::Listener::accept). To make both sides detect the failure before this time limit expires,
    /// set the keepalive to a small fraction of it.
    ///
    /// Each side then replays the messages that the peer has not received. No message is lost or duplicated while both
    /// programs run, and waiting calls keep waiting. One-sided operations in flight fail, because this side cannot
    /// determine whether the peer's device has executed them. This side announces exposed memory again, and the peer
    /// must call [`remote_region`](crate::blocking::Connection::remote_region) again.
    ///
    /// The connection ends if the time limit expires, or if the peer does not know the connection because its program
    /// was restarted. [`take_unacknowledged`](crate::blocking::Connection::take_unacknowledged) then returns the
    /// messages that the peer may not have received. For the replay, this side keeps messages in memory until the peer
    /// has read them.
    pub fn reconnect(mut self, timeout: impl Into<Option<Duration>>) -> Options {
        self.reconnect = timeout.into();
        self
    }

    /// Checks the options that have a range, and that the pool is one of the device.
    pub(crate) fn check(&self) -> Result<(), InvalidOption> {
        check_range("recv_ring_size", self.recv_ring_size, MIN_RING_SIZE, MAX_RING_SIZE)?;
        let writes = self.max_outstanding_writes;
        check_range("max_outstanding_writes", writes, MIN_OUTSTANDING_WRITES, MAX_OUTSTANDING_WRITES)?;
        check_range("max_message_size", self.max_message_size, 0, MAX_MESSAGE_SIZE)?;
        let (Some(device), Some(pool)) = (&self.device, &self.pool) else { return Ok(()) };
        let of_pool = pool.protection_domain().device();
        if is_same_device(device, of_pool) {
            return Ok(());
        }
        Err(InvalidOption::ForeignPool { device: device.name().into(), of_pool: of_pool.name().into() })
    }
}

/// Checks that an option is at least `min` and at most `max`.
fn check_range(option: &'static str, value: u32, min: u32, max: u32) -> Result<(), InvalidOption> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(InvalidOption::OutOfRange { option, value: value.into(), min: min.into(), max: max.into() })
}

/// An invalid option.
pub(crate) enum InvalidOption {
    /// The option is outside its range.
    OutOfRange { option: &'static str, value: u64, min: u64, max: u64 },
    /// The pool belongs to another device.
    ForeignPool { device: Box<str>, of_pool: Box<str> },
}

impl From<InvalidOption> for ConnectError {
    fn from(invalid: InvalidOption) -> ConnectError {
        match invalid {
            InvalidOption::OutOfRange { option, value, min, max } => {
                ConnectError::InvalidOption { option, value, min, max }
            }
            InvalidOption::ForeignPool { device, of_pool } => ConnectError::ForeignPool { device, of_pool },
        }
    }
}

impl From<InvalidOption> for BindError {
    fn from(invalid: InvalidOption) -> BindError {
        match invalid {
            InvalidOption::OutOfRange { option, value, min, max } => {
                BindError::InvalidOption { option, value, min, max }
            }
            InvalidOption::ForeignPool { device, of_pool } => BindError::ForeignPool { device, of_pool },
        }
    }
}

/// The channel over which two sides exchange the attributes of their queue pairs.
///
/// The established connection uses the same device in each case. The channel determines whether the connection manager
/// reports the end of the peer's process ([`Options::keepalive`]), whether [`Options::mtu`] has an effect, and to which
/// side's packets [`Options::traffic`] applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Bootstrap {
    /// The connection manager or TCP, chosen by the device and by the channels that reach the peer.
    ///
    /// A listener accepts connections over TCP, and from the connection manager if its device has one.
    ///
    /// A connector over RDMA hardware tries the connection manager first, unless [`Options::mtu`] is set. If that
    /// fails, for example because the peer's connection manager has no listener at the port, the connector tries TCP,
    /// unless the time limit has expired or the listener has rejected the connection. A connector over a software
    /// device uses TCP only, because several users of one machine can share an address for TCP, but not for RDMA. To
    /// reach a listener with [`Bootstrap::ConnectionManager`], such a connector must set the same option. The connector
    /// does not try the connection manager after a refused TCP connection, because that attempt takes seconds to fail
    /// if there is no listener.
    #[default]
    Auto,
    /// The RDMA connection manager (`rdma_cm`), at the same port number in its own port space. No TCP connection is
    /// needed.
    ConnectionManager,
    /// A TCP connection, which both sides close after the handshake.
    Tcp,
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use adverb_verbs::SoftDevice;

    use super::*;
    use crate::blocking::{Connector, Listener};

    #[test]
    fn options_outside_their_range_are_errors_of_bind_and_connect() {
        let cases = [
            (Options::new().recv_ring_size(511), "recv_ring_size", 511, 512),
            (Options::new().recv_ring_size(u32::MAX), "recv_ring_size", u64::from(u32::MAX), 512),
            (Options::new().max_outstanding_writes(3), "max_outstanding_writes", 3, 4),
            (Options::new().max_message_size((1 << 30) + 1), "max_message_size", (1 << 30) + 1, 0),
        ];
        for (options, name, number, minimum) in cases {
            let Err(BindError::InvalidOption { option, value, min, .. }) =
                Listener::builder().options(&options).bind("127.0.0.1:0")
            else {
                panic!("{name} is valid")
            };
            assert_eq!((option, value, min), (name, number, minimum));
            // The options are checked first: nothing listens there.
            let Err(ConnectError::InvalidOption { option, value, min, .. }) =
                Connector::new().options(&options).connect("127.0.0.1:1")
            else {
                panic!("{name} is valid")
            };
            assert_eq!((option, value, min), (name, number, minimum));
        }
    }

    #[test]
    fn a_pool_of_another_device_is_an_error_of_bind_and_connect() {
        let devices = [(); 2].map(|()| SoftDevice::loopback().open().unwrap());
        let pool = Pool::new(&devices[0].create_protection_domain().unwrap());
        let orders =
            [Options::new().pool(&pool).device(&devices[1]), Options::new().device(&devices[1]).pool(&pool)];
        for options in orders {
            let bound = Listener::builder().options(&options).bind("127.0.0.1:0").map(drop);
            assert!(matches!(bound, Err(BindError::ForeignPool { .. })), "{bound:?}");
            let connected = Connector::new().options(&options).connect("127.0.0.1:1").map(drop);
            assert!(matches!(connected, Err(ConnectError::ForeignPool { .. })), "{connected:?}");
            assert!(options.device(&devices[0]).check().is_ok());
        }
        assert!(Options::new().pool(&pool).check().is_ok());
    }

    #[test]
    fn none_turns_each_limit_off() {
        let second = Duration::from_secs(1);
        let on = Options::new().timeout(second).keepalive(second).reconnect(second).connect_timeout(second);
        assert_eq!((on.timeout, on.keepalive, on.reconnect), (second, Some(second), Some(second)));
        let off = on.timeout(None).keepalive(None).reconnect(None).connect_timeout(None);
        assert_eq!((off.timeout, off.connect_timeout), (Duration::MAX, Duration::MAX));
        assert_eq!((off.keepalive, off.reconnect), (None, None));
    }
}
