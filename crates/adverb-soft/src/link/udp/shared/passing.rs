//! The connections over which packets are passed on to other processes.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::MsgFlags;

use crate::link::AddressShare;
use crate::link::local::{Guarded, Holder, Name, Names};

/// The connections over which packets are passed on to other processes.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// The connections, the least recently opened first.
    connections: Vec<(Name, Guarded<UnixStream>)>,
    /// The shares that no process has, with the times until which no process is looked for.
    absent: Vec<(AddressShare, Instant)>,
}

/// The result of passing a packet on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passed {
    /// The packet was sent.
    Sent,
    /// No process has the name.
    Absent,
    /// The operating system can't connect to the process now, or the process must read other packets first.
    Failed,
}

/// The maximum number of connections that a process keeps open: to all other ones, and to some services.
const MAX_CONNECTIONS: usize = AddressShare::MAX_COUNT as usize + 32;

/// The time for which the packets of remote peers to a share are dropped after no process was found.
pub(super) const ABSENCE_TIME: Duration = Duration::from_millis(10);

const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT.union(MsgFlags::MSG_NOSIGNAL);

impl Passing {
    /// Sends a message to the process that has a name.
    pub(super) fn send(&mut self, names: &Names, name: Name, message: &[u8]) -> Passed {
        // A connection may be to a process that has ended, or that no longer listens on the service.
        for _ in 0..2 {
            let index = match self.connections.iter().position(|(connected, _)| *connected == name) {
                Some(index) => index,
                None => match names.connect(names.local(), name) {
                    Ok(Holder::OwnUser(stream)) => self.add(name, Guarded::new(stream)),
                    Ok(Holder::OtherUser | Holder::Absent) => return Passed::Absent,
                    Err(_) => return Passed::Failed,
                },
            };
            match nix::sys::socket::send(self.connections[index].1.as_raw_fd(), message, FLAGS) {
                Ok(_) => return Passed::Sent,
                Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EMSGSIZE) => {
                    return Passed::Failed;
                }
                Err(_) => _ = self.connections.remove(index),
            }
        }
        Passed::Failed
    }

    /// Records that no process has a share.
    pub(super) fn record_absence(&mut self, share: AddressShare) {
        self.absent.retain(|(absent, _)| *absent != share);
        self.absent.push((share, Instant::now() + ABSENCE_TIME));
    }

    /// Whether no process had a share a short time ago.
    pub(super) fn is_absent(&self, share: AddressShare) -> bool {
        let absent = self.absent.iter().find(|(absent, _)| *absent == share);
        absent.is_some_and(|(_, until)| Instant::now() < *until)
    }

    /// Adds a connection, and returns its index.
    fn add(&mut self, name: Name, stream: Guarded<UnixStream>) -> usize {
        if self.connections.len() >= MAX_CONNECTIONS {
            self.connections.remove(0);
        }
        self.connections.push((name, stream));
        self.connections.len() - 1
    }
}
