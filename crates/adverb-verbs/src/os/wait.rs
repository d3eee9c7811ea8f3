//! Waiting for descriptors.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Waits until one of two descriptors is readable or its other end is closed. Returns `false` if the timeout expires
/// first, or a signal arrives.
pub fn wait_either(
    first: BorrowedFd<'_>,
    second: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let entry = |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // `ppoll` ignores an entry with a negative descriptor.
    let absent = libc::pollfd { fd: -1, events: 0, revents: 0 };
    let mut entries = [entry(first), second.map_or(absent, entry)];
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both entries may be written. The timeout is null or outlives the call, and no signals are masked.
    let count = unsafe { libc::ppoll(entries.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    if count >= 0 {
        return Ok(count > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}

/// The event of a descriptor to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// The descriptor is readable.
    Read,
    /// The descriptor is writable, or a connection was established.
    Write,
    /// Only errors, and the end of a connection.
    Nothing,
}

/// Waits until one of the descriptors is ready, and returns whether each of them is. None is ready if the timeout
/// expires first, or a signal arrives.
///
/// # Errors
///
/// Returns an error if the kernel doesn't have enough memory.
pub fn wait_many(fds: &[(BorrowedFd<'_>, Interest)], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
    let entry = |(fd, interest): &(BorrowedFd<'_>, Interest)| {
        let events = match interest {
            Interest::Read => libc::POLLIN,
            Interest::Write => libc::POLLOUT,
            Interest::Nothing => 0,
        };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    };
    let mut entries = Vec::from_iter(fds.iter().map(entry));
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: the entries may be written. The timeout is null or outlives the call, and no signals are masked.
    let code = unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, std::ptr::null()) };
    if code < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        entries.iter_mut().for_each(|entry| entry.revents = 0);
    }
    Ok(entries.iter().map(|entry| entry.revents != 0).collect())
}

/// Starts to connect a TCP socket without blocking. When the socket is writable, the connection is established or has
/// failed: see `TcpStream::take_error`.
///
/// # Errors
///
/// Returns the kernel's error, for example if there is no route to the address.
pub fn start_connect(addr: SocketAddr) -> io::Result<TcpStream> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call accesses no memory.
    let fd = unsafe { libc::socket(family, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and no other value owns it.
    let stream = TcpStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    let code = match addr {
        SocketAddr::V4(addr) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: addr.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(addr.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the address is readable, and has this length.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
        SocketAddr::V6(addr) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: addr.port().to_be(),
                sin6_flowinfo: addr.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                sin6_scope_id: addr.scope_id(),
            };
            // SAFETY: the address is readable, and has this length.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
    };
    let error = io::Error::last_os_error();
    if code == 0 || error.raw_os_error() == Some(libc::EINPROGRESS) { Ok(stream) } else { Err(error) }
}

/// A descriptor that is readable while any of several others is readable or its other end is closed.
#[derive(Debug)]
pub struct Watch(OwnedFd);

impl Watch {
    /// Creates a watch without descriptors.
    ///
    /// # Errors
    ///
    /// Returns an error if the process has no free descriptors.
    pub fn new() -> io::Result<Watch> {
        // SAFETY: the call accesses no memory.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and no other value owns it.
        Ok(Watch(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches another descriptor, until it is closed or removed.
    pub fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.add_as(fd, Interest::Read, 0)
    }

    /// Watches another descriptor for an event, until it is closed or removed. [`wait`](Watch::wait) returns the token
    /// while the descriptor is ready.
    pub fn add_as(&self, fd: BorrowedFd<'_>, interest: Interest, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Stops watching a descriptor.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd, Interest::Nothing, 0)
    }

    /// Waits until a descriptor is ready, and appends the tokens of at most 64 ready descriptors to `ready`. No token is
    /// appended if the timeout expires first, or a signal arrives. The timeout is rounded up to milliseconds.
    pub fn wait(&self, ready: &mut Vec<u64>, timeout: Option<Duration>) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let millis = timeout.map_or(-1, |timeout| {
            libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX)
        });
        let len = events.len() as libc::c_int;
        // SAFETY: the descriptor is open, and `len` events may be written.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), len, millis) };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) };
        };
        // The event is copied, because the structure is packed and references to its fields are not allowed.
        ready.extend(events[..count].iter().map(|event| ({ *event }).u64));
        Ok(())
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd<'_>,
        interest: Interest,
        token: u64,
    ) -> io::Result<()> {
        let events = match interest {
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
            Interest::Nothing => 0,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: both descriptors are open, and the event is readable.
        let code = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd.as_raw_fd(), &raw mut event) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn either_descriptor_ends_the_wait() {
        let (first, mut first_writer) = io::pipe().unwrap();
        let (second, second_writer) = io::pipe().unwrap();
        let wait = |timeout| wait_either(first.as_fd(), Some(second.as_fd()), timeout).unwrap();
        assert!(!wait(Some(Duration::from_millis(1))));
        first_writer.write_all(&[1]).unwrap();
        assert!(wait(None));
        (&first).read_exact(&mut [0]).unwrap();
        assert!(!wait(Some(Duration::ZERO)));
        drop(second_writer);
        assert!(wait(None), "a pipe without a writer has ended");
    }

    #[test]
    fn a_watch_is_readable_while_one_of_its_descriptors_is() {
        let (outer, inner) = (Watch::new().unwrap(), Watch::new().unwrap());
        outer.add(inner.as_fd()).unwrap();
        let is_ready = |watch: &Watch| wait_either(watch.as_fd(), None, Some(Duration::ZERO)).unwrap();
        let (reader, mut writer) = io::pipe().unwrap();
        inner.add(reader.as_fd()).unwrap();
        assert!(!is_ready(&inner) && !is_ready(&outer));
        writer.write_all(&[1]).unwrap();
        assert!(is_ready(&inner) && is_ready(&outer));
        (&reader).read_exact(&mut [0]).unwrap();
        assert!(!is_ready(&inner) && !is_ready(&outer));
        drop(writer);
        assert!(is_ready(&outer), "a pipe without a writer has ended");
        inner.remove(reader.as_fd()).unwrap();
        assert!(!is_ready(&outer), "a removed descriptor is not watched");
        inner.add(reader.as_fd()).unwrap();
        assert!(is_ready(&outer));
        drop(reader);
        assert!(!is_ready(&outer), "a closed descriptor is not watched");
    }

    #[test]
    fn a_watch_returns_the_tokens_of_ready_descriptors() {
        let watch = Watch::new().unwrap();
        let pipes = Vec::from_iter((0..100).map(|_| io::pipe().unwrap()));
        for (token, (reader, _)) in (0..).zip(&pipes) {
            watch.add_as(reader.as_fd(), Interest::Read, token).unwrap();
        }
        let wait = |timeout| {
            let mut ready = Vec::new();
            watch.wait(&mut ready, timeout).unwrap();
            ready
        };
        assert_eq!(wait(Some(Duration::from_micros(10))), []);
        (&pipes[7].1).write_all(&[1]).unwrap();
        assert_eq!(wait(None), [7]);
        (&pipes[7].0).read_exact(&mut [0]).unwrap();
        pipes.iter().for_each(|(_, writer)| (&*writer).write_all(&[1]).unwrap());
        assert_eq!(wait(None).len(), 64, "a call returns at most 64 tokens");
        let writer = pipes[0].1.as_fd();
        let watch = Watch::new().unwrap();
        watch.add_as(writer, Interest::Write, u64::MAX).unwrap();
        let mut ready = Vec::new();
        watch.wait(&mut ready, None).unwrap();
        assert_eq!(ready, [u64::MAX]);
    }

    #[test]
    fn wait_many_reports_each_ready_descriptor() {
        let (first, mut first_writer) = io::pipe().unwrap();
        let (second, second_writer) = io::pipe().unwrap();
        let wait = |interest, timeout| {
            let fds = [(first.as_fd(), interest), (second.as_fd(), interest)];
            wait_many(&fds, timeout).unwrap()
        };
        assert_eq!(wait(Interest::Read, Some(Duration::from_micros(10))), [false, false]);
        first_writer.write_all(&[1]).unwrap();
        assert_eq!(wait(Interest::Read, None), [true, false]);
        assert_eq!(wait(Interest::Nothing, Some(Duration::ZERO)), [false, false]);
        drop(second_writer);
        assert_eq!(wait(Interest::Nothing, None), [false, true], "a pipe without a writer has ended");
        assert_eq!(wait_many(&[(first_writer.as_fd(), Interest::Write)], None).unwrap(), [true]);
    }

    #[test]
    fn connecting_does_not_block() {
        for addr in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(addr) else { continue };
            let mut stream = start_connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            assert_eq!(wait_many(&[(stream.as_fd(), Interest::Write)], None).unwrap(), [true]);
            assert!(stream.take_error().unwrap().is_none());
            assert_eq!(stream.local_addr().unwrap(), peer);
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap_err().kind(), io::ErrorKind::WouldBlock);
            stream.write_all(&[7]).unwrap();
            (&accepted).read_exact(&mut byte).unwrap();
            assert_eq!(byte, [7]);
        }
    }

    #[test]
    fn one_descriptor_may_be_absent() {
        let (reader, _writer) = io::pipe().unwrap();
        assert!(!wait_either(reader.as_fd(), None, Some(Duration::from_micros(10))).unwrap());
    }
}
