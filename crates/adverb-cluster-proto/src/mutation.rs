//! Mutations: deliberate bugs of the broker, of its calls and of the exchange of keys. A simulation selects a mutation and
//! must detect the bug.
//!
//! Mutations exist only with the feature `mutants`. The broker's code tests for a mutation with `mutant!(Name)`, which is
//! `false` without the feature.

pub(crate) use adverb_proto::mutant;
use adverb_proto::mutations;

mutations! {
    "A deliberate bug of the broker, for testing a simulation's oracles."

    /// Messages are sent without credits.
    IgnoreCredits,
    /// A released receive grants two credits.
    GrantTwice,
    /// No credit message is ever sent.
    NoCreditMessages,
    /// A peer without credits gets no credit message until the threshold is reached.
    StarvedPeerIgnored,
    /// A peer that uses its last credit gets no credit message for earlier grants until the next release.
    LastCreditUnnoticed,
    /// Each grant causes a credit message, so that more than two are outstanding.
    CreditMessagePerGrant,
    /// A credit message uses a credit of its sender.
    CreditMessageUsesCredit,
    /// The receive of a credit message grants a credit when it is posted again.
    CreditMessageGrants,
    /// A WRITE with immediate data uses no credit.
    ImmediateUsesNoCredit,
    /// The receive of a WRITE with immediate data is posted again, and grants a credit, before the application releases it.
    ImmediateGrantedEarly,
    /// A session starts with one credit more than the peer granted.
    InitialCreditTooHigh,
    /// A discarded send slot keeps its credit.
    DiscardLosesCredit,
    /// A batch takes one credit, however many of its transfers need one.
    BatchTakesOneCredit,
    /// Receives are posted after the messages that announce them.
    ReceivesAfterSends,
    /// The epoch of remote memory isn't checked.
    SkipEpochCheck,
    /// A session with an earlier run of a member is accepted.
    AcceptOlderEpoch,
    /// A completion of an earlier session counts for the current one.
    AcceptStaleCompletion,
    /// A send slot of an earlier session can be posted in the current one.
    AcceptStaleSlot,
    /// Each request is posted at once.
    DoorbellPerRequest,
    /// A flush leaves the last request in the queue.
    FlushSkipsLast,
    /// A flush of all peers skips one of them.
    FlushAllSkipsPeer,
    /// The full batch isn't posted without a flush.
    BatchNeverPosted,
    /// The first transfer of a batch ends its ticket.
    TicketOfFirstTransfer,
    /// Two requests of a list are exchanged.
    ListOutOfOrder,
    /// A send slot is free when its request is posted.
    SlotFreedWhenPosted,
    /// A receive is posted again when its message arrives.
    ReceivePostedWhileHeld,
    /// A new session posts receive slots that the application still holds.
    HeldSlotPostedAgain,
    /// The slots of unfinished messages aren't freed when a session ends.
    SlotsLostWithSession,
    /// The end of a session frees send slots that the application still holds.
    ReservedSlotFreed,
    /// More requests are posted than the send queue can hold.
    SendQueueOverflow,
    /// Requests that waited for the send queue aren't posted when it drains.
    FullSendQueueForgotten,
    /// Every request is signaled.
    SignalAll,
    /// Only the ends of tickets are signaled.
    SignalOnlyTickets,
    /// The ends of tickets aren't signaled.
    TicketsUnsignaled,
    /// A completion also completes the following request.
    CompletionCoversNext,
    /// A failed request completes its ticket successfully.
    FailureIsSuccess,
    /// The tickets of requests that were never posted don't end with the session.
    WaitingTicketsLost,
    /// Tickets end before the queue pair is destroyed.
    TicketsEndBeforeClose,
    /// No event is delivered when a request that was refused may succeed.
    NeverUnblocked,
    /// An idle session is never checked.
    NoKeepalive,
    /// A leave message is posted before the requests that wait.
    LeaveBeforeRequests,
    /// A message of a session that ended before it was established is delivered.
    MessageOfUnknownSession,
    /// A reply ends the call that has its index, whatever its generation.
    ReplyGenerationIgnored,
    /// The index of a cancelled call is used again before the cancellation is sent.
    CancelledIndexReused,
    /// The expiry of a call isn't sent to the peer.
    ExpiryUnannounced,
    /// Calls never expire.
    DeadlinesIgnored,
    /// The deadline of an answered call stays.
    DeadlineOfAnsweredCall,
    /// A timer that is used again ends the call that it had before.
    TimerKeepsCall,
    /// One call more than the maximum can be outstanding.
    OneCallTooMany,
    /// The calls of a session don't end with it.
    CallsSurviveSession,
    /// The requests of a new session must continue the generations of the last one.
    GenerationsSurviveSession,
    /// A request of an earlier session can be answered in the current one.
    RequestSurvivesSession,
    /// A cancelled request can still be answered.
    CancellationIgnored,
    /// A request that was answered isn't finished.
    AnsweredRequestPending,
    /// A reply that has to wait is never sent.
    QueuedReplyLost,
    /// A reply that had to wait is sent with the data of another one.
    QueuedReplyMixedUp,
    /// A request above the maximum is dropped without a failure.
    RefusalLost,
    /// The epoch of a pointer isn't checked.
    PointerEpochUnchecked,
    /// The member of a pointer isn't checked.
    PointerMemberUnchecked,
    /// The bounds of a pointer aren't checked.
    PointerBoundsUnchecked,
    /// A segment that the peer has withdrawn is still resolved.
    WithdrawnStillResolved,
    /// A withdrawal is confirmed while transfers to the segment are outstanding.
    ConfirmedBeforeTransfers,
    /// A withdrawal isn't confirmed when the last transfer ends.
    ConfirmationForgotten,
    /// A withdrawn segment is released before the peers have confirmed.
    ReleasedBeforeConfirmation,
    /// Withdrawals aren't sent to the peers.
    WithdrawalUnannounced,
    /// Segments that are added during a session aren't announced.
    LaterSegmentsUnannounced,
    /// The keys of a peer stay valid after the session.
    KeysSurviveSession,
    /// A new session doesn't announce the segments that the last one announced.
    AnnouncementsSurviveSession,
    /// A withdrawn segment isn't released if a session ends instead of a confirmation.
    EndedSessionKeepsSegments,
}
