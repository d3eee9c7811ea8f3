//! Mutations: deliberate bugs of the connection. A simulation selects a mutation and must detect the bug.
//!
//! Mutations exist only with the feature `mutants`. The connection's code tests for a mutation with `mutant!(Name)`,
//! which is `false` without the feature.

pub(crate) use adverb_proto::mutant;
use adverb_proto::mutations;

mutations! {
    "A deliberate bug of the connection, for testing a simulation's oracles."

    // Credits.
    /// Writes ignore the unread bytes of the peer's ring.
    IgnoreRingCredits,
    /// Writes ignore the maximum number of unread writes.
    IgnoreWriteCredits,
    /// One write more than the peer allows is in flight or unread.
    OneWriteTooMany,
    /// Credits are returned for writes that were not read.
    CreditsBeforeRead,
    /// Credits are returned only with messages.
    CreditsNeverSent,
    /// Returned credits are those of the previous report.
    StaleCredits,
    /// The skipped end of a ring is not counted.
    SkipUncounted,
    /// The receive of a write is not posted again.
    ReceiveNotPostedAgain,
    /// The ring is read without regard to the limit of buffered messages.
    UnboundedInbox,
    /// Received messages still count as buffered.
    BufferedForever,
    /// Requests are signaled only if they must be, so that the send queue stays full.
    NeverSignaled,
    // Replay.
    /// A write is forgotten when it completes.
    ForgetWhenCompleted,
    /// Writes behind an unread rendezvous message are forgotten.
    ForgetPastRendezvous,
    /// Messages that the peer has received are replayed.
    ReplayAll,
    /// The first message of a replay is skipped.
    ReplaySkipsFirst,
    /// Frames that were not posted are not replayed.
    ReplayLosesUnposted,
    /// A flushed write is not replayed.
    FlushedWriteLost,
    /// New messages are sent before the replay.
    NewBeforeReplayed,
    /// Shutdown and close frames are sent before the replay.
    EndBeforeReplayed,
    /// Nothing that was written is forgotten.
    NothingForgotten,
    /// A write whose request had no completion is not replayed.
    DrainedWriteLost,
    /// A refused write is not replayed.
    RefusedWriteLost,
    // Close.
    /// The close frame counts as delivered when it is posted.
    CloseUndelivered,
    /// A close does not wait for rendezvous messages.
    CloseIgnoresRendezvous,
    /// A close is not acknowledged.
    NoCloseAck,
    /// The acknowledgement of a close is ignored.
    CloseAckIgnored,
    /// The lane is stopped as soon as a close arrives.
    NoLinger,
    /// A close has no time limit.
    NoCloseTimeout,
    /// The wait for the acknowledgement of the peer's close has no time limit.
    NoLingerTimeout,
    /// The wait for the completion of a close's acknowledgement has no time limit.
    NoCloseAckTimeout,
    /// A close doesn't continue when rendezvous messages were reported as read.
    CloseIgnoresReport,
    /// Messages are sent after a shutdown.
    SendAfterShutdown,
    /// The ring stays registered after the end of its lane.
    RingNotReleased,
    // Rendezvous.
    /// A region is released when its frame is taken.
    RegionReleasedEarly,
    /// A rendezvous message is reported as read when the READ is posted.
    RendezvousDoneEarly,
    /// Rendezvous messages are never reported as read.
    RendezvousDoneUnreported,
    /// A rendezvous message is reported as read twice.
    RendezvousDoneTwice,
    /// A whole message is delivered before an earlier one that is not whole.
    RendezvousOvertaken,
    /// More than eight rendezvous messages are outstanding.
    RendezvousUnlimited,
    /// Rendezvous messages are not replayed.
    RendezvousNotReplayed,
    // One-sided access.
    /// Operations ignore the depth of the send queue.
    OperationUnlimited,
    /// Regions are announced over another lane with their old keys.
    StaleRegionExposed,
    /// Regions are announced over the first lane only.
    NotExposedAgain,
    /// A withdrawn region is announced over later lanes.
    WithdrawnKept,
    /// The peer is not told that a region was withdrawn.
    WithdrawUnannounced,
    /// The peer is told that a region was withdrawn after messages that were sent later.
    WithdrawDelayed,
    // Resume.
    /// A rendezvous message counts as received before it is read.
    ReceivedCountsUnread,
    /// A shutdown stays received though messages before it were lost.
    EndsNotRolledBack,
    /// A message of an earlier lane is sent with its old key.
    StaleRegionReplayed,
    /// The connector does not dial again.
    NoRedial,
    /// A session without a lane has no time limit.
    NoReconnectTimeout,
    /// A handshake has no time limit.
    NoHandshakeTimeout,
    /// The regions of messages that the peer has received are not released.
    RegionKeptByResume,
    /// A session resumes with a peer that doesn't know it.
    UnknownSessionAccepted,
    /// An idle peer is not probed.
    NoKeepalive,
}
