//! Commands from the threads that connect sessions to the thread of a broker.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::thread::Thread;

use adverb_cluster_proto::{PeerId, Phase, SessionError};
use adverb_verbs::QueuePair;
use parking_lot::Mutex;

use super::{Broker, BrokerError, Offer, Result};

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
        reply: SyncSender<Result<Offer>>,
    },
    /// Open a prepared session, whose queue pair is connected.
    Open { peer: PeerId, attempt: u64, offer: Offer, reply: SyncSender<Result<()>> },
    /// Close a prepared session that could not be connected.
    Abort { peer: PeerId, attempt: u64 },
    /// Leave all sessions.
    Leave,
}

/// The commands to a broker, and the state of its sessions for other threads.
pub(crate) struct Mailbox {
    has_commands: AtomicBool,
    commands: Mutex<Vec<Command>>,
    /// Wakes a broker that waits.
    sender: UnixStream,
    receiver: UnixStream,
    /// Whether the broker exists and belongs to a thread of the application.
    is_taken: AtomicBool,
    /// Whether a session is open, by peer.
    open: Box<[AtomicBool]>,
    /// The threads that dial the peers, by peer.
    dialers: Mutex<Vec<Option<Thread>>>,
}

impl Mailbox {
    pub(crate) fn new(peer_count: usize) -> std::io::Result<Mailbox> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Mailbox {
            has_commands: AtomicBool::new(false),
            commands: Mutex::default(),
            sender,
            receiver,
            is_taken: AtomicBool::new(false),
            open: (0..peer_count).map(|_| AtomicBool::new(false)).collect(),
            dialers: Mutex::new(vec![None; peer_count]),
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

    /// Takes the commands.
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

    /// Marks the broker as one of the application, which polls it.
    pub(crate) fn set_taken(&self) {
        self.is_taken.store(true, Ordering::Release);
        self.wake_dialers(|_| true);
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    pub(crate) fn is_open(&self, peer: PeerId) -> bool {
        self.open.get(usize::from(peer.0)).is_some_and(|open| open.load(Ordering::Acquire))
    }

    /// Sets the thread to wake when the session with a peer ends.
    pub(crate) fn set_dialer(&self, peer: PeerId, dialer: Thread) {
        if let Some(place) = self.dialers.lock().get_mut(usize::from(peer.0)) {
            *place = Some(dialer);
        }
    }

    pub(super) fn set_open(&self, peer: PeerId, is_open: bool) {
        let open = self.open.get(usize::from(peer.0));
        let was_open = open.is_some_and(|open| open.swap(is_open, Ordering::AcqRel));
        if was_open && !is_open {
            self.wake_dialers(|index| index == usize::from(peer.0));
        }
    }

    fn wake_dialers(&self, includes: impl Fn(usize) -> bool) {
        let dialers = self.dialers.lock();
        let included = dialers.iter().enumerate().filter(|(index, _)| includes(*index));
        included.filter_map(|(_, dialer)| dialer.as_ref()).for_each(Thread::unpark);
    }

    /// Drops the commands, now and later: the broker has left, or doesn't exist anymore.
    pub(super) fn close(&self) {
        let mut commands = self.commands.lock();
        self.is_taken.store(false, Ordering::Release);
        commands.clear();
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
        for command in mailbox.take() {
            match command {
                Command::Prepare { peer, attempt, queue_pair, peer_epoch, reply } => {
                    let prepared = self.prepare_anew(peer, attempt, queue_pair, peer_epoch);
                    if reply.send(prepared).is_err() {
                        self.abort(peer, attempt);
                    }
                }
                Command::Open { peer, attempt, offer, reply } => {
                    let opened = if self.is_attempt(peer, attempt) {
                        self.open(peer, &offer)
                    } else {
                        Err(BrokerError::SessionLost { peer })
                    };
                    if opened.is_err() {
                        self.abort(peer, attempt);
                    }
                    // The connecting thread may have stopped waiting. The session is open nevertheless.
                    let _ = reply.send(opened);
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
        match (self.core.epoch(peer), peer_epoch) {
            (Some(current), Some(requested)) if requested < current => {
                return Err(SessionError::StaleEpoch { peer, newest: current, requested }.into());
            }
            // This side asked for a session, and has one by now.
            (Some(_), None) => {
                return Err(SessionError::WrongPhase { peer, expected: "closed" }.into());
            }
            _ => {}
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
