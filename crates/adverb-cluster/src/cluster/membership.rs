//! The members of a cluster.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// A member of a cluster: its name, and the address at which it listens for other members.
///
/// ```
/// use adverb::cluster::Member;
///
/// let member = Member::new("a", "10.0.0.1:7471");
/// assert_eq!((member.name(), member.addr()), ("a", "10.0.0.1:7471"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    name: String,
    addr: String,
}

impl Member {
    /// Creates a member. `addr` is `host:port`; the host is an IP address of the member's device, or a name, which is
    /// resolved each time that the member is dialed.
    pub fn new(name: impl Into<String>, addr: impl Into<String>) -> Member {
        Member { name: name.into(), addr: addr.into() }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address.
    pub fn addr(&self) -> &str {
        &self.addr
    }
}

/// A source of the members of a cluster.
///
/// The list of names must be the same, in the same order, at all members: the index of a member is its number. Addresses may
/// change, for example when a member restarts on another machine.
pub trait Membership: fmt::Debug + Send + Sync + 'static {
    /// Returns the names of all members. The cluster calls this function once, when it is joined.
    fn names(&self) -> Vec<String>;

    /// Returns the current address of a member, if it is known without blocking. The function is called before each attempt
    /// to reach a member. If it returns `None`, which is the default, [`resolve`](Membership::resolve) is called instead.
    fn known_addr(&self, member: usize) -> Option<SocketAddr> {
        let _ = member;
        None
    }

    /// Returns the current address of a member. A background thread, which is the same for all members, calls the function
    /// before each attempt to reach a member, so it may block.
    ///
    /// # Errors
    ///
    /// Returns an error if the address is unknown. The caller tries again later.
    fn resolve(&self, member: usize) -> io::Result<SocketAddr>;
}

/// A list of members that doesn't change.
impl Membership for Vec<Member> {
    fn names(&self) -> Vec<String> {
        self.iter().map(|member| member.name.clone()).collect()
    }

    fn known_addr(&self, member: usize) -> Option<SocketAddr> {
        self.get(member)?.addr.parse().ok()
    }

    fn resolve(&self, member: usize) -> io::Result<SocketAddr> {
        let unknown = || io::Error::from(io::ErrorKind::NotFound);
        let addr = &self.get(member).ok_or_else(unknown)?.addr;
        addr.to_socket_addrs()?.next().ok_or_else(unknown)
    }
}
