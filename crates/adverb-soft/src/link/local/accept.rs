//! Connections to the names of a process.
//!
//! Any user can connect to a name. The connections of other users are closed, a few at a time, so that they neither keep
//! the process from its packets nor fill the queue for long.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollEvent, EpollFlags};
use nix::sys::socket::MsgFlags;

use super::endpoint::{Endpoint, Source};
use super::fork::Guarded;
use super::message::{HELLO_MESSAGE, Message, VERSION};
use super::token::Token;

/// The listeners that may have connections.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    /// The numbers of the listeners. The epoll instance doesn't report them until they have no more connections.
    ready: Vec<u64>,
    /// The time before which no connection is accepted, because another user has opened some.
    paused_until: Option<Instant>,
    /// The time at which connections are accepted.
    accept_at: Option<Instant>,
}

/// The maximum number of connections that a process accepts: those of all other processes to a few names.
const MAX_INBOUND: usize = 1024;

/// The maximum number of connections that are accepted before packets are received.
const MAX_BATCH: usize = 64;

/// The maximum number of other users' connections that are closed before packets are received.
const MAX_FOREIGN_BATCH: usize = 16;

/// The time for which no connection is accepted after another user's.
const FOREIGN_PAUSE: Duration = Duration::from_millis(1);

/// The time after which a process that can't accept a connection tries again. It may have no free file descriptor.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Returns the event of a listener. The epoll instance reports it once, so that connections that can't be accepted now don't
/// wake the process again and again.
pub(super) fn event(number: u64) -> EpollEvent {
    Token::Source(number).event(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT)
}

impl Acceptor {
    /// Returns the time of the next call to [`Endpoint::accept`].
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.accept_at
    }

    /// Adds a listener with connections.
    pub(super) fn add(&mut self, number: u64, now: Instant) {
        if !self.ready.contains(&number) {
            self.ready.push(number);
        }
        self.accept_at = Some(self.paused_until.map_or(now, |until| until.max(now)));
    }
}

impl Endpoint {
    /// Accepts connections to the names of this process from processes of this user, and returns whether there were any.
    #[cold]
    pub(super) fn accept(&mut self, now: Instant) -> bool {
        let (mut own_count, mut foreign_count, mut next_at) = (0, 0, now);
        let mut emptied = Vec::new();
        let listeners = std::mem::take(&mut self.acceptor.ready);
        for (index, number) in listeners.iter().enumerate() {
            if own_count + foreign_count >= MAX_BATCH || foreign_count >= MAX_FOREIGN_BATCH {
                // These listeners are the first ones next time.
                self.acceptor.ready.splice(0..0, listeners[index..].iter().copied());
                break;
            }
            self.acceptor.ready.push(*number);
            while own_count + foreign_count < MAX_BATCH && foreign_count < MAX_FOREIGN_BATCH {
                let Some(Source::Listener(listener, name)) = self.sources.get(number) else {
                    self.acceptor.ready.pop();
                    break;
                };
                let (stream, name) = match (listener.accept(), *name) {
                    (Ok(Some(stream)), name) => (stream, name),
                    (Ok(None), _) => {
                        foreign_count += 1;
                        continue;
                    }
                    (Err(error), _) if error.kind() == io::ErrorKind::WouldBlock => {
                        emptied.push(*number);
                        break;
                    }
                    (Err(_), _) => {
                        next_at = now + ERROR_PAUSE;
                        break;
                    }
                };
                own_count += 1;
                if self.inbound_count < MAX_INBOUND && stream.set_nonblocking(true).is_ok() {
                    // Without memory for the source, the connection is closed.
                    let _ = self.add(Source::Accepted(Guarded::new(stream), name));
                }
            }
        }
        if foreign_count > 0 {
            // Until then, further connections of other users don't wake the process.
            next_at = next_at.max(now + FOREIGN_PAUSE);
            self.acceptor.paused_until = Some(now + FOREIGN_PAUSE);
        } else {
            self.acceptor.paused_until = None;
            emptied.retain(|number| self.report_again(*number));
            self.acceptor.ready.retain(|number| !emptied.contains(number));
        }
        self.acceptor.accept_at = (!self.acceptor.ready.is_empty()).then_some(next_at);
        own_count > 0
    }

    /// Lets the epoll instance report the next connection to a listener, and returns whether it does.
    fn report_again(&self, number: u64) -> bool {
        match self.sources.get(&number) {
            Some(Source::Listener(listener, _)) => {
                self.readiness.modify(&**listener, &mut event(number)).is_ok()
            }
            _ => true,
        }
    }

    /// Handles the first message of a connection, which has the version of the protocol.
    pub(super) fn greet(&mut self, number: u64, message: Message<'_>) {
        match self.sources.remove(&number) {
            Some(Source::Accepted(stream, name)) if message == Message::Hello(VERSION) => {
                self.sources.insert(number, Source::Inbound(stream, name));
            }
            Some(Source::Accepted(stream, _)) => {
                // The other process learns the version of this one.
                let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
                let _ = nix::sys::socket::send(stream.as_raw_fd(), &HELLO_MESSAGE, flags);
                self.inbound_count -= 1;
            }
            _ => {}
        }
    }
}
