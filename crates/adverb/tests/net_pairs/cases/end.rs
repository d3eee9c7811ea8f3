//! One end of a connection, blocking or async, with the same blocking methods.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use adverb::memory::{MemoryRegion, Pages, Pool, PoolBuf};
use adverb::net::{self, Message, Options, RemoteAccess, SendData, blocking};
use adverb::{Error, Result};
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
    pub(crate) fn connect(api: Api, options: &Options, address: SocketAddr) -> Result<End> {
        match api {
            Api::Threads => blocking::Connector::new().options(options).connect(address).map(End::Threads),
            Api::Tasks => wait(net::Connector::new().options(options).connect(address)).map(End::Tasks),
        }
    }

    pub(crate) fn send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<()> {
        Ok(either!(self, End, connection => connection.send(message))?)
    }

    pub(crate) fn send_with_imm<'a>(&self, message: impl Into<SendData<'a>>, immediate: u32) -> Result<()> {
        Ok(either!(self, End, connection => connection.send_with_imm(message, immediate))?)
    }

    pub(crate) fn feed<'a>(&self, message: impl Into<SendData<'a>>) -> Result<()> {
        Ok(either!(self, End, connection => connection.feed(message))?)
    }

    pub(crate) fn flush(&self) -> Result<()> {
        either!(self, End, connection => connection.flush())
    }

    /// Returns whether the message was sent.
    pub(crate) fn try_send<'a>(&self, message: impl Into<SendData<'a>>) -> Result<bool> {
        let sent = match self {
            End::Threads(connection) => connection.try_send(message),
            End::Tasks(connection) => connection.try_send(message),
        };
        match sent.map_err(Error::from) {
            Ok(()) => Ok(true),
            Err(Error::WouldBlock { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn recv(&self) -> Result<Option<Message>> {
        either!(self, End, connection => connection.recv())
    }

    pub(crate) fn recv_timeout(&self, timeout: Duration) -> Result<Option<Message>> {
        either!(self, End, connection => connection.recv_timeout(timeout))
    }

    pub(crate) fn shutdown(&self) -> Result<()> {
        either!(self, End, connection => connection.shutdown())
    }

    pub(crate) fn close(self) -> Result<()> {
        either!(self, End, connection => connection.close())
    }

    pub(crate) fn expose(&self, name: &str, len: usize, rights: RemoteAccess) -> Result<MemoryRegion> {
        either!(self, End, connection => connection.expose(name, len, rights))
    }

    pub(crate) fn remote_region(&self, name: &str) -> Result<AnyRegion<'_>> {
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
    ) -> Result<MemoryRegion> {
        either!(self, End, connection => connection.expose_addresses(base, memory, rights))
    }

    pub(crate) fn address_space(&self) -> Result<Space<'_>> {
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
#[derive(Clone, Copy)]
pub(crate) enum AnyRegion<'a> {
    Threads(blocking::RemoteRegion<'a>),
    Tasks(net::RemoteRegion<'a>),
}

impl AnyRegion<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            AnyRegion::Threads(remote) => remote.len(),
            AnyRegion::Tasks(remote) => remote.len(),
        }
    }

    pub(crate) fn read(&self, range: Range<u64>) -> Result<PoolBuf> {
        either!(self, AnyRegion, remote => remote.read(range))
    }

    pub(crate) fn read_many<const N: usize>(&self, ranges: [Range<u64>; N]) -> Result<Vec<PoolBuf>> {
        either!(self, AnyRegion, remote => remote.read_many(ranges))
    }

    pub(crate) fn write<'a>(&self, offset: u64, bytes: impl Into<SendData<'a>>) -> Result<()> {
        Ok(either!(self, AnyRegion, remote => remote.write(offset, bytes))?)
    }

    pub(crate) fn write_with_imm<'a>(
        &self,
        offset: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<()> {
        Ok(either!(self, AnyRegion, remote => remote.write_with_imm(offset, bytes, immediate))?)
    }

    pub(crate) fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        either!(self, AnyRegion, remote => remote.fetch_add(offset, add))
    }

    pub(crate) fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64> {
        either!(self, AnyRegion, remote => remote.compare_swap(offset, compare, swap))
    }
}

/// The peer's address space.
#[derive(Clone, Copy)]
pub(crate) enum Space<'a> {
    Threads(blocking::AddressSpace<'a>),
    Tasks(net::AddressSpace<'a>),
}

impl Space<'_> {
    pub(crate) fn read(&self, addresses: Range<u64>) -> Result<PoolBuf> {
        either!(self, Space, space => space.read(addresses))
    }

    pub(crate) fn read_many<const N: usize>(&self, addresses: [Range<u64>; N]) -> Result<Vec<PoolBuf>> {
        either!(self, Space, space => space.read_many(addresses))
    }

    pub(crate) fn write<'a>(&self, address: u64, bytes: impl Into<SendData<'a>>) -> Result<()> {
        Ok(either!(self, Space, space => space.write(address, bytes))?)
    }

    pub(crate) fn write_with_imm<'a>(
        &self,
        address: u64,
        bytes: impl Into<SendData<'a>>,
        immediate: u32,
    ) -> Result<()> {
        Ok(either!(self, Space, space => space.write_with_imm(address, bytes, immediate))?)
    }

    pub(crate) fn fetch_add(&self, address: u64, add: u64) -> Result<u64> {
        either!(self, Space, space => space.fetch_add(address, add))
    }

    pub(crate) fn compare_swap(&self, address: u64, compare: u64, swap: u64) -> Result<u64> {
        either!(self, Space, space => space.compare_swap(address, compare, swap))
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

    pub(crate) fn accept(&self) -> Result<End> {
        Ok(match self {
            AnyListener::Threads(listener) => End::Threads(listener.accept()?),
            AnyListener::Tasks(listener) => End::Tasks(wait(listener.accept())?),
        })
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
