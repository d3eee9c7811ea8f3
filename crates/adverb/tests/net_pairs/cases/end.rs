//! One end of a connection, blocking or async, with the same blocking methods.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use adverb::Result;
use adverb::memory::{MemoryRegion, Pages, Pool, PoolBuf};
use adverb::net::{
    self, ConnectionError, ExposeError, Message, Options, RecvError, RemoteAccess, RemoteErrorKind, SendData,
    SendErrorKind, SharedRegion, blocking,
};
use tokio::runtime::Runtime;

/// The API of a connection: blocking (threads) or async (tasks).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Api {
    Threads,
    Tasks,
}

impl Api {
    pub(crate) const ALL: [Api; 2] = [Api::Threads, Api::Tasks];
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Api::Threads => "threads",
            Api::Tasks => "tasks",
        })
    }
}

impl FromStr for Api {
    type Err = String;

    fn from_str(word: &str) -> Result<Api, String> {
        let found = Api::ALL.into_iter().find(|api| api.to_string() == word);
        found.ok_or_else(|| format!("{word} is neither threads nor tasks"))
    }
}

/// One end of a connection.
pub(crate) enum End {
    Threads(blocking::Connection),
    Tasks(net::Connection),
}

/// One end of a byte stream.
pub(crate) enum StreamEnd {
    Threads(blocking::Stream),
    Tasks(Box<net::Stream>),
}

/// An end that is not connected yet.
pub(crate) enum Opening<'a> {
    Connect(Api, &'a Options, SocketAddr),
    Accept(&'a AnyListener),
}

impl Opening<'_> {
    pub(super) fn connection(&self) -> Result<End> {
        use Opening::{Accept, Connect};
        Ok(match *self {
            Connect(Api::Threads, options, address) => {
                End::Threads(blocking::Connector::new().options(options).connect(address)?)
            }
            Connect(Api::Tasks, options, address) => {
                End::Tasks(wait(net::Connector::new().options(options).connect(address))?)
            }
            Accept(AnyListener::Threads(listener)) => End::Threads(listener.accept()?),
            Accept(AnyListener::Tasks(listener)) => End::Tasks(wait(listener.accept())?),
        })
    }

    pub(super) fn stream(&self) -> Result<StreamEnd> {
        use Opening::{Accept, Connect};
        Ok(match *self {
            Connect(Api::Threads, options, address) => {
                StreamEnd::Threads(blocking::Connector::new().options(options).connect_stream(address)?)
            }
            Connect(Api::Tasks, options, address) => {
                let stream = wait(net::Connector::new().options(options).connect_stream(address))?;
                StreamEnd::Tasks(Box::new(stream))
            }
            Accept(AnyListener::Threads(listener)) => StreamEnd::Threads(listener.accept_stream()?),
            Accept(AnyListener::Tasks(listener)) => {
                StreamEnd::Tasks(Box::new(wait(listener.accept_stream())?))
            }
        })
    }
}

/// Calls the same method of either variant, and blocks until it returns.
macro_rules! either {
    ($end:expr, $type:ident, $connection:ident => $call:expr) => {
        match $end {
            $type::Threads($connection) => $call,
            $type::Tasks($connection) => wait($call),
        }
    };
}

impl End {
    pub(crate) fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendErrorKind> {
        Ok(either!(self, End, connection => connection.send(message))?)
    }

    pub(crate) fn send_with_imm<'a>(
        &self,
        message: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), SendErrorKind> {
        Ok(either!(self, End, connection => connection.send_with_imm(message, immediate))?)
    }

    pub(crate) fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<(), SendErrorKind> {
        Ok(either!(self, End, connection => connection.feed(message))?)
    }

    pub(crate) fn flush(&self) -> Result<(), SendErrorKind> {
        Ok(either!(self, End, connection => connection.flush())?)
    }

    /// Returns whether the message was sent.
    pub(crate) fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<bool, SendErrorKind> {
        let sent = match self {
            End::Threads(connection) => connection.try_send(message),
            End::Tasks(connection) => connection.try_send(message),
        };
        match sent.map_err(|error| error.kind) {
            Ok(()) => Ok(true),
            Err(SendErrorKind::WouldBlock { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn recv(&self) -> Result<Option<Message>, RecvError> {
        either!(self, End, connection => connection.recv())
    }

    pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message>, RecvError> {
        either!(self, End, connection => connection.recv_timeout(timeout))
    }

    pub(crate) fn shutdown(&self) -> Result<(), SendErrorKind> {
        Ok(either!(self, End, connection => connection.shutdown())?)
    }

    pub(crate) fn close(self) -> Result<(), ConnectionError> {
        either!(self, End, connection => connection.close())
    }

    pub(crate) fn expose_region(
        &self,
        name: &str,
        region: &SharedRegion,
        rights: RemoteAccess,
    ) -> Result<(), ExposeError> {
        either!(self, End, connection => connection.expose_region(name, region, rights))
    }

    pub(crate) fn withdraw(&self, name: &str) -> bool {
        match self {
            End::Threads(connection) => connection.withdraw(name),
            End::Tasks(connection) => connection.withdraw(name),
        }
    }

    pub(crate) fn expose(
        &self,
        name: &str,
        len: usize,
        rights: RemoteAccess,
    ) -> Result<MemoryRegion, ExposeError> {
        either!(self, End, connection => connection.expose(name, len, rights))
    }

    pub(crate) fn remote_region(&self, name: &str) -> Result<AnyRegion, RemoteErrorKind> {
        Ok(match self {
            End::Threads(connection) => AnyRegion::Threads(connection.remote_region(name)?),
            End::Tasks(connection) => AnyRegion::Tasks(wait(connection.remote_region(name))?),
        })
    }

    pub(crate) fn expose_addresses(
        &self,
        base: u64,
        memory: Pages,
        rights: RemoteAccess,
    ) -> Result<MemoryRegion, ExposeError> {
        either!(self, End, connection => connection.expose_addresses(base, memory, rights))
    }

    pub(crate) fn address_space(&self) -> Result<Space, RemoteErrorKind> {
        Ok(match self {
            End::Threads(connection) => Space::Threads(connection.address_space()?),
            End::Tasks(connection) => Space::Tasks(wait(connection.address_space())?),
        })
    }

    pub(crate) fn pool(&self) -> Pool {
        match self {
            End::Threads(connection) => connection.pool(),
            End::Tasks(connection) => connection.pool(),
        }
    }
}

/// The peer's region.
#[derive(Clone)]
pub(crate) enum AnyRegion {
    Threads(blocking::RemoteRegion),
    Tasks(net::RemoteRegion),
}

impl AnyRegion {
    pub(crate) fn len(&self) -> u64 {
        match self {
            AnyRegion::Threads(remote) => remote.len(),
            AnyRegion::Tasks(remote) => remote.len(),
        }
    }

    pub(crate) fn read(&self, range: Range<u64>) -> Result<PoolBuf, RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.read(range))?)
    }

    pub(crate) fn read_many<const N: usize>(
        &self,
        ranges: [Range<u64>; N],
    ) -> Result<Vec<PoolBuf>, RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.read_many(ranges))?)
    }

    pub(crate) fn write<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
    ) -> Result<(), RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.write(offset, bytes))?)
    }

    pub(crate) fn write_with_imm<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.write_with_imm(offset, bytes, immediate))?)
    }

    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.fetch_add(offset, add))?)
    }

    pub(crate) fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, RemoteErrorKind> {
        Ok(either!(self, AnyRegion, remote => remote.compare_swap(offset, compare, swap))?)
    }
}

/// The peer's address space.
#[derive(Clone)]
pub(crate) enum Space {
    Threads(blocking::AddressSpace),
    Tasks(net::AddressSpace),
}

impl Space {
    pub(crate) fn read(&self, addresses: Range<u64>) -> Result<PoolBuf, RemoteErrorKind> {
        Ok(either!(self, Space, space => space.read(addresses))?)
    }

    pub(crate) fn read_many<const N: usize>(
        &self,
        addresses: [Range<u64>; N],
    ) -> Result<Vec<PoolBuf>, RemoteErrorKind> {
        Ok(either!(self, Space, space => space.read_many(addresses))?)
    }

    pub(crate) fn write<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
    ) -> Result<(), RemoteErrorKind> {
        Ok(either!(self, Space, space => space.write(address, bytes))?)
    }

    pub(crate) fn write_with_imm<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<(), RemoteErrorKind> {
        Ok(either!(self, Space, space => space.write_with_imm(address, bytes, immediate))?)
    }

    pub(crate) fn fetch_add(&self, address: u64, add: u64) -> Result<u64, RemoteErrorKind> {
        Ok(either!(self, Space, space => space.fetch_add(address, add))?)
    }

    pub(crate) fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64, RemoteErrorKind> {
        Ok(either!(self, Space, space => space.compare_swap(address, compare, swap))?)
    }
}

/// A listener of either API.
pub(crate) enum AnyListener {
    Threads(blocking::Listener),
    Tasks(net::Listener),
}

impl AnyListener {
    /// Listens on a free port of the address.
    pub(crate) fn bind(api: Api, options: &Options, address: IpAddr) -> Result<AnyListener> {
        let address = SocketAddr::new(address, 0);
        Ok(match api {
            Api::Threads => {
                AnyListener::Threads(blocking::Listener::builder().options(options).bind(address)?)
            }
            Api::Tasks => AnyListener::Tasks(wait(net::Listener::builder().options(options).bind(address))?),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            AnyListener::Threads(listener) => listener.local_addr(),
            AnyListener::Tasks(listener) => listener.local_addr(),
        }
    }
}

/// Blocks until the future is ready. Many threads may call this at the same time.
pub(super) fn wait<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all().build().expect("the runtime can be created")
    });
    runtime.block_on(future)
}
