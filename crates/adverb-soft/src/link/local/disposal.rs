//! Closing of sockets whose queues may contain files of other users.
//!
//! The thread that closes a Unix socket also closes the files that accompany the messages in its queue. Closing a file may take
//! as long as its user wants: a TCP socket with unsent data waits for its `SO_LINGER`. So one thread of the process does
//! nothing but close such sockets.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::fork::Guarded;

/// The sockets that a thread closes.
#[derive(Clone, Debug, Default)]
pub(super) struct Disposal(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    sockets: VecDeque<Guarded<OwnedFd>>,
    /// Whether the thread runs. It ends when it has closed all sockets.
    is_running: bool,
}

/// The number of sockets from which on the thread has no room.
const MAX_PENDING: usize = 64;

/// The sockets of a process with this ID: a forked child doesn't have the thread of its parent.
static OF_PROCESS: Mutex<Option<(u32, Disposal)>> = Mutex::new(None);

impl Disposal {
    /// Returns the sockets of this process.
    pub(super) fn of_process() -> Disposal {
        // In a forked child, the lock may be that of a thread of the parent.
        let Some(mut current) = OF_PROCESS.try_lock() else { return Disposal::default() };
        match &*current {
            Some((process, disposal)) if *process == std::process::id() => disposal.clone(),
            _ => current.insert((std::process::id(), Disposal::default())).1.clone(),
        }
    }

    /// Whether few sockets wait. Otherwise, no more connections should be opened that have to be closed by the thread.
    pub(super) fn has_room(&self) -> bool {
        let mut state = self.0.lock();
        self.start_thread(&mut state);
        state.sockets.len() < MAX_PENDING
    }

    /// Closes a socket soon.
    pub(super) fn close(&self, socket: Guarded<OwnedFd>) {
        let mut state = self.0.lock();
        state.sockets.push_back(socket);
        self.start_thread(&mut state);
    }

    /// Starts the thread, if there is work for one. If the operating system can't start a thread, later calls try again.
    fn start_thread(&self, state: &mut State) {
        if state.is_running || state.sockets.is_empty() {
            return;
        }
        let disposal = self.clone();
        let thread = std::thread::Builder::new().name("adverb-close".to_owned());
        state.is_running = thread.spawn(move || disposal.run()).is_ok();
    }

    fn run(&self) {
        loop {
            let mut state = self.0.lock();
            let socket = state.sockets.pop_front();
            state.is_running = socket.is_some();
            // The lock is released before the socket is closed.
            drop(state);
            if socket.is_none() {
                return;
            }
        }
    }
}
