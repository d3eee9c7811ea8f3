//! Mutations: deliberate bugs of the connection. A simulation selects a mutation and must detect the bug. The comment of a
//! mutation describes the wrong behavior. A *write* is an RDMA WRITE of frames into the peer's ring, and a *lane* is a queue
//! pair under the connection.
//!
//! Mutations exist only with the feature `mutants`. The connection's code tests for a mutation with `mutant!(Name)`,
//! which is `false` without the feature.

pub(crate) use adverb_proto::mutant;
use adverb_proto::mutations;

mutations! {
    "A deliberate bug of the connection, for testing a simulation's oracles."

    // Credits.
    /// A write can overwrite bytes of the peer's ring that the peer has not read.
    IgnoreRingCredits,
    /// The number of writes that the peer has not read is not limited.
    IgnoreWriteCredits,
    /// The limit of writes that are in flight or unread is one higher than the peer allows.
    OneWriteTooMany,
    /// The connection returns the credits of a write before it has read the write.
    CreditsBeforeRead,
    /// The connection returns credits only together with messages, and never in a separate write.
    CreditsNeverSent,
    /// Each report of credits contains the values that were current at the previous report.
    StaleCredits,
    /// The bytes that a write skips at the end of the ring are not counted against the credits.
    SkipUncounted,
    /// A receive that a write has consumed is not posted again.
    ReceiveNotPostedAgain,
    /// The connection reads its ring although the buffered messages have reached their limit.
    UnboundedInbox,
    /// Messages that the application has received still count as buffered.
    BufferedForever,
    /// No request is signaled just to free the slots of earlier unsignaled requests, so the send queue stays full.
    NeverSignaled,
    // Replay.
    /// A write that has completed is not kept for a replay.
    ForgetWhenCompleted,
    /// Writes that follow an unread rendezvous message are not kept for a replay.
    ForgetPastRendezvous,
    /// A replay includes the messages that the peer has received.
    ReplayAll,
    /// A replay skips its first message.
    ReplaySkipsFirst,
    /// Frames that had not been posted when their lane ended are not replayed.
    ReplayLosesUnposted,
    /// A write that completed with an error, such as a flush error, is not replayed.
    FlushedWriteLost,
    /// New messages are sent before the replay is complete.
    NewBeforeReplayed,
    /// Shutdown and close frames are sent before the replay is complete.
    EndBeforeReplayed,
    /// All writes stay kept for a replay, even those that the peer has read.
    NothingForgotten,
    /// A write is not replayed if its lane ended without a completion of the write.
    DrainedWriteLost,
    /// A write that the queue pair refused to post is not replayed.
    RefusedWriteLost,
    // Close.
    /// The close frame counts as delivered as soon as it is posted.
    CloseUndelivered,
    /// A close does not wait until the peer has read all rendezvous messages.
    CloseIgnoresRendezvous,
    /// A close is not acknowledged.
    NoCloseAck,
    /// The connection ignores the peer's acknowledgement of a close.
    CloseAckIgnored,
    /// The lane is stopped as soon as the peer's close arrives, without a linger time.
    NoLinger,
    /// A close has no time limit.
    NoCloseTimeout,
    /// After the peer's close, the connection waits for the peer's acknowledgement without a time limit.
    NoLingerTimeout,
    /// After posting the acknowledgement of a close, the connection waits for its completion without a time limit.
    NoCloseAckTimeout,
    /// A close that waits for the report of read rendezvous messages doesn't continue when the report is posted.
    CloseIgnoresReport,
    /// The application can send messages after a shutdown.
    SendAfterShutdown,
    /// The ring stays registered after its lane has ended.
    RingNotReleased,
    // Rendezvous.
    /// The region of a rendezvous message is released as soon as the message's frame is in a batch.
    RegionReleasedEarly,
    /// A rendezvous message is reported as read when its READ is posted, not when its READ completes.
    RendezvousDoneEarly,
    /// Rendezvous messages are never reported as read.
    RendezvousDoneUnreported,
    /// A rendezvous message is reported as read twice.
    RendezvousDoneTwice,
    /// The application receives a message before an earlier message that has not been read completely.
    RendezvousOvertaken,
    /// More than eight rendezvous messages are outstanding.
    RendezvousUnlimited,
    /// Rendezvous messages are not replayed.
    RendezvousNotReplayed,
    // One-sided access.
    /// One-sided operations can be posted although the send queue is full.
    OperationUnlimited,
    /// A new lane announces the regions with their keys of an earlier lane.
    StaleRegionExposed,
    /// A new lane doesn't announce the regions of earlier lanes.
    NotExposedAgain,
    /// Later lanes announce a region that was withdrawn.
    WithdrawnKept,
    /// The withdrawal of a region is not announced to the peer.
    WithdrawUnannounced,
    /// The withdrawal of a region is announced only after messages that the application sent after the withdrawal.
    WithdrawDelayed,
    // Resume.
    /// When a lane ends, a rendezvous message counts as received although it has not been read completely.
    ReceivedCountsUnread,
    /// A shutdown or close still counts as received although the lane ended before earlier messages were read.
    EndsNotRolledBack,
    /// A rendezvous message is replayed with its key of an earlier lane.
    StaleRegionReplayed,
    /// The connector does not dial again after its lane has failed.
    NoRedial,
    /// A session without a lane waits for a new lane without a time limit.
    NoReconnectTimeout,
    /// A handshake has no time limit.
    NoHandshakeTimeout,
    /// When a session resumes, the regions of the messages that the peer has received are not released.
    RegionKeptByResume,
    /// A session resumes with a peer that doesn't know it.
    UnknownSessionAccepted,
    /// An idle peer is not probed.
    NoKeepalive,
}
