//! The lines that a member prints for the coordinator, in JSON.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// The settings of a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The number of the member.
    pub(crate) member: u16,
    pub(crate) addrs: Vec<SocketAddr>,
    pub(crate) threads: u16,
    /// The number of messages of each session in each direction. `None` means as many as possible until the command
    /// `finish`.
    pub(crate) quota: Option<u64>,
    pub(crate) seed: u64,
    pub(crate) ack_timeout: u8,
    pub(crate) fault: Option<Fault>,
}

/// A mistake of a member, which the run must report. It shows that the checks work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Fault {
    /// A byte of a message is wrong.
    WrongByte,
    /// A message is not sent.
    LostMessage,
    /// A message is sent twice.
    DuplicateMessage,
    /// Bytes of WRITEs are wrong.
    WrongWrite,
    /// Fetch-and-adds add more than is counted.
    ExtraAdd,
    /// Calls are not answered.
    LostReply,
    /// A thread stops polling.
    StoppedThread,
    /// A session is closed.
    ClosedSession,
}

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Line {
    /// The member has joined the cluster.
    Started { epoch: u64, device: String },
    /// Messages arrive in a session.
    Flowing { thread: u16, peer: u16, peer_epoch: u64 },
    /// The member closes a session.
    Closing { thread: u16, peer: u16, peer_epoch: u64 },
    /// A session ended.
    Ended { thread: u16, peer: u16, peer_epoch: u64, reason: String },
    /// The state of the threads, every second.
    Progress { threads: Vec<ThreadProgress> },
    /// The response to the command `report`.
    Report { sessions: Vec<SessionReport> },
    /// A check failed.
    Failed { error: String },
}

impl Line {
    pub(crate) fn print(&self) {
        match serde_json::to_string(self) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("a line can't be represented: {error}"),
        }
    }
}

/// The state of a thread.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct ThreadProgress {
    /// The number of iterations of the thread's loop.
    pub(crate) iterations: u64,
    /// Whether all sessions have exchanged and checked their final counts.
    pub(crate) is_finished: bool,
    /// The sessions that have not exchanged them, for the diagnosis of a hang.
    pub(crate) unfinished: String,
    pub(crate) counts: Counts,
}

/// Counts since the start of the process.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Messages that were received and checked, without requests and replies.
    pub(crate) messages: u64,
    /// Requests that were received and checked.
    pub(crate) requests: u64,
    /// Replies and failures that were received and checked.
    pub(crate) replies: u64,
    /// Calls that were cancelled, timed out, or lost with their session.
    pub(crate) unanswered_calls: u64,
    /// WRITEs of peers that were checked, without those with immediate data.
    pub(crate) writes: u64,
    /// WRITEs with immediate data of peers that were checked.
    pub(crate) immediates: u64,
    /// READs whose bytes were checked.
    pub(crate) reads: u64,
    /// Fetch-and-adds whose results were checked.
    pub(crate) adds: u64,
    /// Compare-and-swaps whose results were checked.
    pub(crate) swaps: u64,
    /// Batches that ended.
    pub(crate) batches: u64,
    /// Bytes that were checked.
    pub(crate) bytes: u64,
    /// Tickets that were posted.
    pub(crate) tickets: u64,
    /// Tickets that ended successfully.
    pub(crate) completed_tickets: u64,
    /// Tickets that ended with their session.
    pub(crate) failed_tickets: u64,
}

impl Counts {
    /// Returns the number of messages of all kinds that were received.
    pub(crate) fn all_messages(&self) -> u64 {
        self.messages + self.requests + self.replies
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.messages += other.messages;
        self.requests += other.requests;
        self.replies += other.replies;
        self.unanswered_calls += other.unanswered_calls;
        self.writes += other.writes;
        self.immediates += other.immediates;
        self.reads += other.reads;
        self.adds += other.adds;
        self.swaps += other.swaps;
        self.batches += other.batches;
        self.bytes += other.bytes;
        self.tickets += other.tickets;
        self.completed_tickets += other.completed_tickets;
        self.failed_tickets += other.failed_tickets;
    }
}

/// One side of a session at the end of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionReport {
    pub(crate) thread: u16,
    pub(crate) peer: u16,
    pub(crate) epoch: u64,
    pub(crate) peer_epoch: u64,
    /// The requests of this side.
    pub(crate) sent: Tally,
    /// The requests of the peer.
    pub(crate) received: Tally,
}

/// The numbers of requests in one direction of a session. Both sides have the same numbers at its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Messages or requests.
    pub(crate) messages: u64,
    /// WRITEs.
    pub(crate) writes: u64,
    /// Fetch-and-adds of 1 to the word of the session. Each is followed by one to the word of the thread.
    pub(crate) adds: u64,
    /// The sum of other fetch-and-adds.
    pub(crate) sum: u64,
    /// Compare-and-swaps of the word of the session.
    pub(crate) swaps: u64,
    /// Successful compare-and-swaps of the word of the thread.
    pub(crate) shared_swaps: u64,
}

impl Tally {
    /// The length of the byte representation.
    pub(crate) const LEN: usize = 48;

    pub(crate) fn to_bytes(self) -> [u8; Tally::LEN] {
        let words = [self.messages, self.writes, self.adds, self.sum, self.swaps, self.shared_swaps];
        let mut bytes = [0; Tally::LEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; Tally::LEN]) -> Tally {
        let (words, _) = bytes.as_chunks::<8>();
        let [messages, writes, adds, sum, swaps, shared_swaps] =
            [0, 1, 2, 3, 4, 5].map(|index| u64::from_le_bytes(words[index]));
        Tally { messages, writes, adds, sum, swaps, shared_swaps }
    }
}
