//! Sockets that have names, and listen for connections of any user.
//!
//! Another user can send messages with files before a connection is accepted. The thread of [`Disposal`] closes such
//! connections, also those that have not been accepted when the listener is dropped. Since Linux 6.16, the kernel rejects
//! files in messages to names that need none, and in all messages while the thread has no room. Such connections are closed at
//! once. On older kernels, no connection is accepted while the thread has no room.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use nix::libc;
use nix::sys::socket::sockopt::{GetBool, SetBool};
use nix::sys::socket::{
    AddressFamily, Backlog as ListenQueue, Shutdown, SockFlag, SockType, UnixAddr, getsockopt, listen,
    setsockopt, shutdown,
};
use nix::unistd::Uid;

use super::disposal::Disposal;
use super::fork::Guarded;
use super::user;

/// A socket that has a name, and listens for connections.
#[derive(Debug)]
pub(in crate::link) struct Listener {
    /// The socket, until the listener is dropped.
    socket: Option<Guarded<UnixListener>>,
    uid: Uid,
    disposal: Disposal,
    /// Whether processes of this user send files.
    needs_files: bool,
    /// The process that opened the socket. A forked child must not use it.
    owner: u32,
}

/// The maximum number of connections to a name that are not accepted yet: a few of each other process. If other users'
/// connections fill a longer queue, those of this user wait longer.
const QUEUE_LEN: i32 = 512;

impl Listener {
    /// Listens for connections to a name, whose messages may have files if `needs_files` is set.
    ///
    /// # Errors
    ///
    /// Returns `AddrInUse` if another process has the name.
    pub(super) fn open(
        name: &UnixAddr,
        uid: Uid,
        disposal: &Disposal,
        needs_files: bool,
    ) -> io::Result<Listener> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        let _ = set_accepts_files(&socket, needs_files && disposal.has_room());
        nix::sys::socket::bind(socket.as_raw_fd(), name)?;
        // musl's maximum is 128, and longer queues are an error.
        listen(&socket, ListenQueue::new(QUEUE_LEN).unwrap_or(ListenQueue::MAXCONN))?;
        let socket = Some(Guarded::new(UnixListener::from(socket)));
        let (disposal, owner) = (disposal.clone(), std::process::id());
        Ok(Listener { socket, uid, disposal, needs_files, owner })
    }

    /// Accepts a connection. Returns `None` if it was that of another user, which is closed.
    ///
    /// # Errors
    ///
    /// Returns `WouldBlock` if there is none, and other errors if none can be accepted now: the process has no free
    /// descriptor, or too many connections of other users are waiting to be closed.
    pub(in crate::link) fn accept(&self) -> io::Result<Option<UnixStream>> {
        let has_room = self.disposal.has_room();
        let is_limited = set_accepts_files(&**self, self.needs_files && has_room).is_ok();
        if !has_room && !is_limited {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        self.accept_any()
    }

    /// Accepts a connection even if the thread has no room.
    fn accept_any(&self) -> io::Result<Option<UnixStream>> {
        let (stream, _) = UnixListener::accept(self)?;
        if user::is_peer(&stream, self.uid) {
            return Ok(Some(stream));
        }
        // A connection keeps the option that the listener had when it was opened.
        if getsockopt(&stream, PassRights) != Ok(false) {
            self.disposal.close(Guarded::new(stream).into_owned());
        }
        Ok(None)
    }
}

impl Deref for Listener {
    type Target = UnixListener;

    fn deref(&self) -> &UnixListener {
        self.socket.as_ref().expect("the listener is not dropped")
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.owner != std::process::id() {
            return;
        }
        // From now on, no connection can be opened.
        let _ = shutdown(self.as_raw_fd(), Shutdown::Read);
        let is_limited = set_accepts_files(&**self, false).is_ok();
        loop {
            match self.accept_any() {
                Ok(_) if is_limited || self.disposal.has_room() => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The name stays in use until the thread closes the listener with the other connections.
                _ => break,
            }
        }
        self.socket.take().into_iter().for_each(|socket| self.disposal.close(socket.into_owned()));
    }
}

/// Sets whether the messages to the connections that a listener gets from now on may have files.
///
/// # Errors
///
/// Returns an error if the kernel doesn't support the option. Messages may always have files then.
fn set_accepts_files(socket: &impl AsFd, accepts: bool) -> nix::Result<()> {
    setsockopt(socket, PassRights, &accepts)
}

#[derive(Clone, Copy)]
struct PassRights;
nix::setsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, SetBool);
nix::getsockopt_impl!(PassRights, libc::SOL_SOCKET, SO_PASSRIGHTS, bool, GetBool);

/// The option of Linux 6.16 and newer, which `libc` lacks.
const SO_PASSRIGHTS: libc::c_int = 83;

#[cfg(test)]
pub(super) mod tests {
    use std::io::{IoSlice, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use nix::errno::Errno;
    use nix::sys::socket::sockopt::{Linger, RcvBuf, SndBuf};
    use nix::sys::socket::{ControlMessage, MsgFlags, connect, sendmsg};
    use nix::unistd::geteuid;

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns a TCP socket whose last `close` waits for an hour, or until the other end is closed, and the other end.
    pub(in crate::link::local) fn lingering_socket() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        setsockopt(&listener, RcvBuf, &4096).unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        setsockopt(&socket, SndBuf, &4096).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The other end may acknowledge data late.
        for _ in 0..10 {
            while socket.write(&[0; 4096]).is_ok() {}
            std::thread::sleep(Duration::from_millis(1));
        }
        setsockopt(&socket, Linger, &libc::linger { l_onoff: 1, l_linger: 3600 }).unwrap();
        (socket, peer)
    }

    /// Sends a message with a file over a Unix socket.
    pub(in crate::link::local) fn send_with_file(
        socket: &impl AsRawFd,
        file: &impl AsRawFd,
    ) -> nix::Result<()> {
        let files = [file.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&files)];
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::MSG_NOSIGNAL, None)?;
        Ok(())
    }

    /// Returns a name of this test process.
    fn name(test: &str) -> UnixAddr {
        UnixAddr::new_abstract(format!("adverb/test/{}/{test}", std::process::id()).as_bytes()).unwrap()
    }

    /// Returns a listener for which this process is that of another user.
    fn strangers_listener(name: &UnixAddr, disposal: &Disposal) -> Listener {
        Listener::open(name, Uid::from_raw(geteuid().as_raw() ^ 1), disposal, true).unwrap()
    }

    fn connected(name: &UnixAddr) -> OwnedFd {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        connect(socket.as_raw_fd(), name).unwrap();
        socket
    }

    /// Occupies the thread until the result is dropped, and leaves it no room.
    fn occupy(disposal: &Disposal, listener: &Listener, name: &UnixAddr) -> TcpStream {
        let (file, file_peer) = lingering_socket();
        send_with_file(&connected(name), &file).unwrap();
        drop(file);
        assert!(listener.accept().unwrap().is_none());
        while disposal.has_room() {
            drop(connected(name));
            assert!(listener.accept().unwrap().is_none());
        }
        file_peer
    }

    fn await_until(condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(start.elapsed() < TEST_TIMEOUT, "the condition doesn't hold");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn connections_are_accepted_while_the_thread_is_occupied() {
        let (name, own_name, disposal) = (name("accepted"), name("own"), Disposal::default());
        let listener = strangers_listener(&name, &disposal);
        if getsockopt(&*listener, PassRights).is_err() {
            println!("skipped: the kernel has no SO_PASSRIGHTS");
            return;
        }
        let occupied = occupy(&disposal, &listener, &name);
        let own = Listener::open(&own_name, geteuid(), &disposal, false).unwrap();
        let waiting = connected(&name);
        assert!(listener.accept().unwrap().is_none());
        // From now on, the kernel rejects files, and connections are closed at once.
        for _ in 0..1000 {
            let connection = connected(&name);
            assert_eq!(send_with_file(&connection, &connection), Err(Errno::EPERM));
            assert!(listener.accept().unwrap().is_none());
        }
        let connection = connected(&own_name);
        let _accepted = own.accept().unwrap().unwrap();
        assert_eq!(send_with_file(&connection, &connection), Err(Errno::EPERM));
        // The name is free although the thread is still occupied.
        drop(listener);
        drop(strangers_listener(&name, &disposal));
        // The thread closes the other connections then, and files are accepted again.
        drop((occupied, waiting));
        await_until(|| disposal.has_room());
        let _listener = strangers_listener(&name, &disposal);
        let connection = connected(&name);
        send_with_file(&connection, &connection).unwrap();
    }

    #[test]
    fn a_listener_that_ends_leaves_its_connections_to_the_thread_and_its_name_to_others() {
        let (name, disposal) = (name("ends"), Disposal::default());
        let listener = strangers_listener(&name, &disposal);
        let connections = [connected(&name), connected(&name)];
        let (file, file_peer) = lingering_socket();
        send_with_file(&connections[0], &file).unwrap();
        drop(file);
        drop(listener);
        drop(strangers_listener(&name, &disposal));
        drop(file_peer);
        // The connections end.
        for connection in connections {
            let received = nix::sys::socket::recv(connection.as_raw_fd(), &mut [0], MsgFlags::empty());
            assert_eq!(received.unwrap_or(0), 0);
        }
    }

    #[test]
    fn no_connection_is_accepted_on_an_old_kernel_while_the_thread_has_no_room() {
        // Only this thread, which is that of the test, can't use the option from now on.
        emulate_old_kernel();
        let (name, other_name, disposal) = (name("old"), name("other"), Disposal::default());
        let (listener, other) =
            (strangers_listener(&name, &disposal), strangers_listener(&other_name, &disposal));
        assert!(set_accepts_files(&*listener, true).is_err());
        let occupied = occupy(&disposal, &listener, &name);
        let connection = connected(&name);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        // The name of a listener with connections is free after they were closed, and that of another one at once.
        drop((listener, other));
        let open = |name| Listener::open(name, geteuid(), &disposal, true);
        assert!(open(&other_name).is_ok());
        assert_eq!(open(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop((occupied, connection));
        await_until(|| open(&name).is_ok());
        await_until(|| disposal.has_room());
    }

    /// Makes the kernel reject `SO_PASSRIGHTS` for this thread, as a kernel before Linux 6.16 does.
    fn emulate_old_kernel() {
        let instruction = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let option_offset = 16 + 2 * 8 + if cfg!(target_endian = "big") { 4 } else { 0 };
        let mut program = [
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, option_offset),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 3, SO_PASSRIGHTS as u32),
            instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_setsockopt as u32),
            instruction(
                libc::BPF_RET | libc::BPF_K,
                0,
                0,
                libc::SECCOMP_RET_ERRNO | libc::ENOPROTOOPT as u32,
            ),
            instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the kernel copies the program.
        let status = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
                | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
        };
        assert_eq!(status, 0, "{}", Errno::last());
    }
}
