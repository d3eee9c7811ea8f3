//! Commands from the threads that connect sessions to the thread of a broker.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use adverb_cluster_proto::{EndReason, PeerId, Phase, SessionError};
use adverb_verbs::QueuePair;
use parking_lot::Mutex;

use super::{Broker, BrokerError, Offer, Result};

/// The maximum number of undelivered events of a peer's sessions. While there are so many, no further session with the
/// peer is prepared. So a peer that connects repeatedly can't fill the queue of a program that polls for other peers.
const MAX_SESSION_EVENTS: usize = 8;

/// A command to a broker.
pub(crate) enum Command {
    /// Prepare a session over a queue pair.
    Prepare {
        peer: PeerId,
        /// The number of the attempt to connect, which later commands name.
        attempt: u64,
        queue_pair: Arc<QueuePair>,
        /// The epoch of a peer that asks for a new session. The peer has no session then, so an open one is closed.
        peer_epoch: Option<u64>,
    },
    /// Open a prepared session, whose queue pair is connected.
    Open { peer: PeerId, attempt: u64, offer: Offer },
    /// Close a prepared session that could not be connected.
    Abort { peer: PeerId, attempt: u64 },
    /// Leave all sessions.
    Leave,
}

/// A notice to the thread that connects sessions.
pub(crate) enum Notice {
    /// The application has taken the broker of a thread, and polls it.
    Taken { thread: u16 },
    /// The broker of a thread has left, or was dropped.
    Closed { thread: u16 },
    /// The application asks for a session.
    Wanted { thread: u16, peer: PeerId },
    /// A session was established.
    SessionOpened { thread: u16, peer: PeerId },
    /// A session ended.
    SessionEnded { thread: u16, peer: PeerId, reason: EndReason },
    /// The reply to [`Command::Prepare`].
    Prepared { attempt: u64, result: Result<Offer> },
    /// The reply to [`Command::Open`].
    Opened { attempt: u64, result: Result<()> },
    /// The address of an attempt's member.
    Resolved { attempt: u64, result: std::io::Result<SocketAddr> },
    /// The cluster is dropped.
    Stop,
}

/// The notices to the thread that connects sessions.
pub(crate) struct Notices {
    /// The notices, or `None` if the thread has ended.
    queue: Mutex<Option<Vec<Notice>>>,
    /// Wakes the thread.
    sender: UnixStream,
    receiver: UnixStream,
}

impl Notices {
    pub(crate) fn new() -> std::io::Result<Notices> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Notices { queue: Mutex::new(Some(Vec::new())), sender, receiver })
    }

    pub(crate) fn push(&self, notice: Notice) {
        if let Some(queue) = &mut *self.queue.lock() {
            if queue.is_empty() {
                // The socket is empty, or has a byte that wakes the thread.
                let _ = (&self.sender).write(&[0]);
            }
            queue.push(notice);
        }
    }

    pub(crate) fn take(&self) -> Vec<Notice> {
        let mut queue = self.queue.lock();
        // Notices are pushed under the lock, so no byte is left without a notice.
        while (&self.receiver).read(&mut [0; 64]).is_ok_and(|count| count == 64) {}
        queue.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops the notices, now and later.
    pub(crate) fn close(&self) {
        *self.queue.lock() = None;
    }
}

impl AsFd for Notices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// The commands to a broker. The broker replies with notices.
pub(crate) struct Mailbox {
    has_commands: AtomicBool,
    commands: Mutex<Vec<Command>>,
    /// Wakes a broker that waits.
    sender: UnixStream,
    receiver: UnixStream,
    /// Whether the broker exists and belongs to a thread of the application.
    is_taken: AtomicBool,
    thread: u16,
    notices: Arc<Notices>,
}

impl Mailbox {
    pub(crate) fn new(thread: u16, notices: Arc<Notices>) -> std::io::Result<Mailbox> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Mailbox {
            has_commands: AtomicBool::new(false),
            commands: Mutex::default(),
            sender,
            receiver,
            is_taken: AtomicBool::new(false),
            thread,
            notices,
        })
    }

    /// Sends a command. A command to a broker that doesn't exist anymore is dropped.
    pub(crate) fn send(&self, command: Command) {
        let mut commands = self.commands.lock();
        if !self.is_taken.load(Ordering::Acquire) {
            return;
        }
        commands.push(command);
        self.has_commands.store(true, Ordering::Release);
        // If the socket is full, the broker is woken by an earlier byte.
        let _ = (&self.sender).write(&[0]);
    }

    /// Withdraws the command to prepare a session, or makes the broker close a session that it has prepared. So a broker that
    /// isn't polled has no commands of attempts that have ended.
    pub(crate) fn abort(&self, peer: PeerId, attempt: u64) {
        let mut commands = self.commands.lock();
        let is_preparation = |command: &Command| matches!(command, Command::Prepare { attempt: other, .. } if *other == attempt);
        let withdrawn = commands.iter().position(is_preparation).map(|index| commands.remove(index));
        drop(commands);
        if withdrawn.is_none() {
            self.send(Command::Abort { peer, attempt });
        }
    }

    /// Returns the number of commands that the broker has not executed.
    #[cfg(test)]
    pub(crate) fn command_count(&self) -> usize {
        self.commands.lock().len()
    }

    fn take(&self) -> Vec<Command> {
        let mut commands = self.commands.lock();
        // Commands are sent under the lock, so no byte is left without a command.
        while (&self.receiver).read(&mut [0; 64]).is_ok_and(|count| count == 64) {}
        self.has_commands.store(false, Ordering::Release);
        std::mem::take(&mut commands)
    }

    pub(super) fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Acquire)
    }

    /// Records that the application has the broker and polls it.
    pub(crate) fn set_taken(&self) {
        self.is_taken.store(true, Ordering::Release);
        self.notices.push(Notice::Taken { thread: self.thread });
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    pub(super) fn session_opened(&self, peer: PeerId) {
        self.notices.push(Notice::SessionOpened { thread: self.thread, peer });
    }

    pub(super) fn session_ended(&self, peer: PeerId, reason: EndReason) {
        self.notices.push(Notice::SessionEnded { thread: self.thread, peer, reason });
    }

    /// Asks for a session.
    pub(super) fn want(&self, peer: PeerId) {
        self.notices.push(Notice::Wanted { thread: self.thread, peer });
    }

    /// Drops the commands, now and later: the broker has left, or doesn't exist anymore.
    pub(super) fn close(&self) {
        let mut commands = self.commands.lock();
        commands.clear();
        if self.is_taken.swap(false, Ordering::AcqRel) {
            self.notices.push(Notice::Closed { thread: self.thread });
        }
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

impl Broker {
    /// Executes the commands. All polled completions must have been processed.
    pub(super) fn execute_commands(&mut self) {
        let Some(mailbox) = self.mailbox.as_ref().filter(|mailbox| mailbox.has_commands()) else { return };
        let mailbox = Arc::clone(mailbox);
        for command in mailbox.take() {
            match command {
                Command::Prepare { peer, attempt, queue_pair, peer_epoch } => {
                    let result = self.prepare_anew(peer, attempt, queue_pair, peer_epoch);
                    mailbox.notices.push(Notice::Prepared { attempt, result });
                }
                Command::Open { peer, attempt, offer } => {
                    let result = if self.is_attempt(peer, attempt) {
                        self.open(peer, &offer)
                    } else {
                        Err(BrokerError::SessionLost { peer })
                    };
                    if result.is_err() {
                        self.abort(peer, attempt);
                    }
                    // The connecting thread may have stopped waiting. The session is open nevertheless.
                    mailbox.notices.push(Notice::Opened { attempt, result });
                }
                Command::Abort { peer, attempt } => self.abort(peer, attempt),
                Command::Leave => self.start_leaving(),
            }
        }
    }

    fn prepare_anew(
        &mut self,
        peer: PeerId,
        attempt: u64,
        queue_pair: Arc<QueuePair>,
        peer_epoch: Option<u64>,
    ) -> Result<Offer> {
        let checked = match peer_epoch {
            Some(epoch) => self.core.check_epoch(peer, epoch),
            // This side asked for a session, and has one by now.
            None if self.is_open(peer) => Err(SessionError::WrongPhase { peer, expected: Phase::Closed }),
            None => Ok(()),
        };
        // A refused epoch causes a probe of the session.
        self.post_requests();
        checked?;
        let state = self.peers.get(usize::from(peer.0));
        if state.is_some_and(|state| state.session_event_count >= MAX_SESSION_EVENTS) {
            return Err(BrokerError::UndeliveredEvents { peer });
        }
        self.close(peer);
        self.prepare_with(peer, queue_pair, attempt)
    }

    /// Closes the session of an attempt, unless it is open.
    fn abort(&mut self, peer: PeerId, attempt: u64) {
        if self.is_attempt(peer, attempt) {
            self.close(peer);
        }
    }

    /// Whether the session being prepared is that of an attempt.
    fn is_attempt(&self, peer: PeerId, attempt: u64) -> bool {
        let state = self.peers.get(usize::from(peer.0));
        let link = state.and_then(|state| state.link.as_ref());
        link.is_some_and(|link| link.attempt == attempt) && self.core.phase(peer) == Phase::Preparing
    }
}
