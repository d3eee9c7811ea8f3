//! How connections are to be.

use std::time::Duration;

use adverb_verbs::Device;
use adverb_verbs::memory::Pool;

use super::Key;
use super::protocol::handshake::Session;
use super::protocol::{
    FEWEST_WRITES, HEADER_LEN, LONGEST_MESSAGE, LONGEST_RING, MOST_WRITES, SHORTEST_RING, UNIT, longest_write,
};

/// The longest message that is taken from the peer, unless the option is set.
const DEFAULT_LONGEST_MESSAGE: u32 = 64 << 20;

/// How connections are to be: each side chooses for itself, and they needn't agree.
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
    pub(super) recv_ring_size: u32,
    pub(super) max_outstanding_writes: u32,
    pub(super) eager_threshold: u32,
    pub(super) recv_buffer_limit: usize,
    pub(super) max_message_size: u32,
    pub(super) bootstrap: Bootstrap,
    pub(super) key: Option<Key>,
    pub(super) allow_foreign_gid: bool,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) keepalive: Duration,
    pub(super) reconnect: Option<Duration>,
    /// The connection that is to begin or to go on.
    pub(super) session: Option<Session>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: None,
            pool: None,
            recv_ring_size: 256 << 10,
            max_outstanding_writes: 64,
            eager_threshold: 16 << 10,
            recv_buffer_limit: 4 << 20,
            max_message_size: DEFAULT_LONGEST_MESSAGE,
            bootstrap: Bootstrap::Auto,
            key: None,
            allow_foreign_gid: false,
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::MAX,
            keepalive: Duration::from_secs(5),
            reconnect: None,
            session: None,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// The device to use. Unless set, it is the one that has the address over which the peer is reached.
    pub fn device(mut self, device: &Device) -> Options {
        self.device = Some(device.clone());
        self
    }

    /// Where the memory of messages comes from; it must be of the [device](Options::device) that is used, which is taken
    /// from it unless set. Unless set, each connection has a pool of its own.
    ///
    /// Connections of one pool are in one protection domain, where a key of memory is good for all of their peers: one that
    /// guesses the key of what another may reach could reach it too (a wrong guess ends its connection). Where that must not
    /// be, give each its own pool.
    pub fn pool(mut self, pool: &Pool) -> Options {
        self.device.get_or_insert_with(|| pool.protection_domain().device().clone());
        self.pool = Some(pool.clone());
        self
    }

    /// How many bytes of short messages the peer may send ahead: 256 KiB, unless set; from 512 bytes to 16 MiB.
    pub fn recv_ring_size(mut self, bytes: u32) -> Options {
        self.recv_ring_size = bytes.clamp(SHORTEST_RING, LONGEST_RING) / UNIT * UNIT;
        self
    }

    /// How many writes the peer may have on their way or unread, each of one message or several: 64, unless set; from 4 to
    /// 256.
    pub fn max_outstanding_writes(mut self, count: u32) -> Options {
        self.max_outstanding_writes = count.clamp(FEWEST_WRITES, MOST_WRITES);
        self
    }

    /// Up to which length messages are copied into the peer's ring: 16 KiB, unless set, and at most a quarter of the ring.
    /// The peer reads longer ones from where they are.
    pub fn eager_threshold(mut self, bytes: u32) -> Options {
        self.eager_threshold = bytes;
        self
    }

    /// How many bytes of messages that nobody has asked for yet are taken in: 4 MiB, unless set. (Each counts 64 bytes more
    /// than it has; and one always is.)
    pub fn recv_buffer_limit(mut self, bytes: usize) -> Options {
        self.recv_buffer_limit = bytes;
        self
    }

    /// The longest message that is taken from the peer: 64 MiB, unless set; at most 1 GiB. The peer is told, and its `send`
    /// refuses longer ones; a peer that offers one all the same is disconnected, before there is memory for it.
    ///
    /// A peer makes this side allocate that much with a frame of 32 bytes, so raise it only as far as the messages need.
    /// Streams aren't limited by it.
    pub fn max_message_size(mut self, bytes: u32) -> Options {
        self.max_message_size = bytes.min(LONGEST_MESSAGE);
        self
    }

    /// How the two sides find each other: [`Auto`](Bootstrap::Auto), unless set.
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Options {
        self.bootstrap = bootstrap;
        self
    }

    /// The key that the peer must have too: none, unless set. Both sides then show each other that they have it, before either
    /// tells where its memory is or lets the other reach it; who has another key, or none, isn't connected.
    ///
    /// This protects who is connected to whom, and nothing of what is said afterwards: RDMA's packets are neither signed nor
    /// encrypted, so that who sees them can read them, and who can forge them can take the peer's place. Use it in a network
    /// where others can connect, but can't watch or forge.
    pub fn key(mut self, key: &Key) -> Options {
        self.key = Some(key.clone());
        self
    }

    /// Whether a peer that connects over TCP may name a GID that isn't the address of its end of the TCP connection: no,
    /// unless set.
    ///
    /// Either side sends its RDMA packets to the GID that the other names in its greeting. The check keeps a peer from aiming
    /// them at a third party. Set this on both sides where the RDMA network has other addresses than the one that TCP goes
    /// over, or where a device has only a link-local GID (`fe80::…`); then let only trusted peers reach the listener, or use a
    /// [key](Options::key). GIDs with a UDP port count as their address, and all loopback addresses as one. There is no check
    /// on InfiniBand, where GIDs aren't IP addresses, nor on networks in memory.
    pub fn allow_foreign_gid(mut self, allow: bool) -> Options {
        self.allow_foreign_gid = allow;
        self
    }

    /// How long connecting may take, and closing: 5 s, unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Options {
        self.connect_timeout = timeout;
        self
    }

    /// How long to wait for a message, and for room to send one: as long as it takes, unless set.
    pub fn timeout(mut self, timeout: Duration) -> Options {
        self.timeout = timeout;
        self
    }

    /// After which silence who waits asks whether the peer is there: 5 s, unless set. The peer's device answers, whatever
    /// its program does; if it doesn't, the connection ends, within another second or so. `Duration::MAX` is never. (A program
    /// that dies is noticed at once where the connection was made by the connection manager of hardware: the kernel says so.)
    pub fn keepalive(mut self, silence: Duration) -> Options {
        self.keepalive = silence;
        self
    }

    /// Has the connection go on when its link breaks, if it can be made again within this time: over the same path or
    /// [another](super::blocking::Connector::alternate_addr). Both sides must want it.
    ///
    /// A break is noticed by who uses the connection, as it is [otherwise](Options::keepalive), and not while nobody does. From
    /// then on it is made again by itself: who connected connects again, and the other side lets it in, if its listener is still
    /// there. That side must have noticed too, or somebody must be [accepting](super::blocking::Listener::accept); so let the
    /// keepalive be a small part of this time.
    ///
    /// What was sent and hadn't come is sent again, so that no message is lost or comes twice as long as both programs live; who
    /// waits goes on waiting. One-sided operations that were under way fail, because nobody knows whether they were done;
    /// memory that was exposed is announced again, and must be [found](super::blocking::Connection::remote_region) again.
    ///
    /// If the time passes, or the peer doesn't know the connection any more, because its program has ended, the connection
    /// ends, and [`take_unacknowledged`](super::blocking::Connection::take_unacknowledged) has the messages that the peer may not have.
    /// Until the peer has read them, messages are kept in this side's memory for that.
    pub fn reconnect(mut self, within: Duration) -> Options {
        self.reconnect = Some(within);
        self
    }

    /// The longest message that fits a write into a ring of the peer's.
    pub(super) fn eager_for(&self, ring: u32) -> u32 {
        self.eager_threshold.min(longest_write(ring) - HEADER_LEN as u32)
    }
}

/// How two sides find each other.
///
/// Both ways lead to the same connection, over the same device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Bootstrap {
    /// A listener can be found in both ways, where its device has a connection manager; who connects over hardware asks the
    /// connection manager, and TCP if the peer has none there, and who connects over a software device asks TCP: on one
    /// machine several processes can have the same address for TCP, but not for RDMA. (So a listener that only the connection
    /// manager serves is found from a software device only by who chooses that too. It isn't asked where TCP is refused:
    /// where nobody listens nobody answers there, and connecting would fail after seconds instead of at once.)
    #[default]
    Auto,
    /// The connection manager of RDMA, with the port of its own that has the same number. No TCP is needed.
    ConnectionManager,
    /// A TCP connection, over which the sides tell each other of their queue pairs, and which is then closed.
    Tcp,
}
