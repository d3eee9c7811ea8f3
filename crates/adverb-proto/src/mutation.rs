//! Mutations: deliberate bugs, selected one at a time, so that a simulation can show that its oracles find them.
//!
//! Only the feature `mutants` compiles them. Each mutation is a place in the engine with the condition `mutant!(Name)`,
//! which is the constant `false` without the feature.

/// Declares the mutations.
#[cfg(feature = "mutants")]
macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mutation: a deliberate bug.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Mutation {
            $($(#[$doc])* $name,)*
        }

        impl Mutation {
            /// All mutations.
            pub const ALL: &[Mutation] = &[$(Mutation::$name),*];
        }
    };
}

#[cfg(feature = "mutants")]
mutations! {
    /// The responder accepts a packet ahead of the expected sequence number.
    SkipPsnCheck,
    /// Sequence numbers are compared without regard to their wrap.
    PsnWithoutWrap,
    /// A duplicate atomic is executed again.
    ReexecuteDuplicateAtomic,
    /// A duplicate WRITE in one packet is executed again.
    ReexecuteDuplicateWrite,
    /// A duplicate SEND in one packet consumes another receive request.
    DuplicateSendConsumesReceive,
    /// A range may exceed its region by one byte.
    BoundsOffByOne,
    /// The protection domain of a key isn't checked.
    SkipDomainCheck,
    /// The access rights of a region aren't checked.
    SkipRightsCheck,
    /// Only the first packet of a WRITE is checked.
    NoAccessRecheck,
    /// A SEND with invalidate leaves the key valid.
    InvalidateNothing,
    /// The key of an empty operation is checked.
    CheckKeyOfNothing,
    /// The ICRC isn't checked.
    IgnoreIcrc,
    /// The retransmission timer is never started.
    LoseRetransmitTimer,
    /// A timer that expired while the queue pair was idle isn't restarted.
    TimerNotRearmed,
    /// Fences are ignored.
    IgnoreFence,
    /// The requester exceeds the peer's limit of outstanding READs and atomics.
    IgnoreReadLimit,
    /// The message count in acknowledgements counts one message too many after a READ.
    WrongMsn,
    /// Congestion notifications are counted, but don't cut the rate.
    IgnoreCnp,
    /// Marked packets cause no notification.
    NeverNotify,
    /// Each marked packet causes a notification, however soon after another.
    NotifyAlways,
    /// The rate never grows after a cut.
    NeverRecover,
    /// The rate is computed, but not enforced.
    IgnorePace,
    /// An acknowledgement carries the sequence number after the last executed one.
    AckOneTooMany,
    /// A request completes twice.
    DoubleCompletion,
    /// An unsignaled request that fails produces no completion.
    SilentFailure,
    /// The error state doesn't flush the receive queue.
    FlushForgetsReceives,
    /// The error state doesn't flush the last request of the send queue.
    FlushForgetsLastSend,
    /// The response to a duplicate READ starts with the first byte of the original.
    ReplayFromStart,
    /// A retransmitted READ discards the responses received before.
    ReadRetryForgetsProgress,
    /// A retransmission starts one packet too late.
    GoBackTooShort,
    /// An acknowledgement beyond an outstanding READ completes it.
    IgnoreImpliedNak,
    /// An RNR NAK is treated as an acknowledgement.
    RnrNakIsAck,
    /// The last packet of a WRITE is placed one byte late.
    LastPacketMisplaced,
    /// A receive completes before the last packet's bytes are in its buffer.
    CompleteBeforeData,
    /// A destroyed queue pair stays in the table of numbers.
    DestroyLeaks,
    /// A message counts as delivered when its first packet is acknowledged.
    FirstPacketCompletesMessage,
    /// The second segment of a request is read from its first.
    SegmentsConfused,
    /// A gap in a message of an unreliable connection is ignored.
    IgnoreUcGap,
    /// The queue key of a datagram isn't checked.
    SkipQueueKeyCheck,
    /// The global route header of a datagram is all zeros.
    NoRouteHeader,
    /// A shared receive queue never makes a limit event.
    SrqLimitForgotten,
    /// A range may exceed its window by one byte.
    WindowBoundsOffByOne,
    /// The key of an earlier binding still gives access to a window.
    StaleWindowKey,
    /// Any queue pair gives access to a window.
    WindowForAnyQueuePair,
    /// An invalidated window still gives access.
    WindowOutlivesInvalidation,
    /// A late packet of an unreliable connection starts a new message.
    LateUcPacketAccepted,
    /// Losses of unreliable connections aren't counted.
    LossesUncounted,
    /// A multicast datagram reaches all members of the group but one.
    GroupForgetsOne,
    /// A shared receive completes with the id of another.
    SrqRequestsConfused,
    /// Windows stay bound when their queue pair is destroyed or reset.
    WindowOutlivesQueuePair,
    /// A destroyed queue pair keeps the shared receive request that it was using.
    SrqRequestLost,
    /// The connection manager treats a duplicate REQ as a new one.
    CmDuplicateRequestIsNew,
    /// The connection manager doesn't reply to a duplicate REP, so that a lost RTU stays lost.
    CmLostRtuStaysLost,
    /// The connection manager makes a second established event for a duplicate RTU.
    CmEstablishedTwice,
    /// The connection manager replies with a REJ to a REJ of an unknown connection.
    CmRejAnsweredByRej,
    /// The connection manager's REP carries the starting sequence number of the REQ.
    CmPsnOfTheWrongSide,
    /// The connection manager reuses numbers without timewait.
    CmNoTimewait,
    /// The connection manager keeps a peer's communication ID after the connection has ended.
    CmRemoteIdLeaks,
}

#[cfg(feature = "mutants")]
mod selected {
    use std::cell::Cell;

    use super::Mutation;

    std::thread_local! {
        static SELECTED: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Selects the mutation of every engine in this thread, or none.
    pub fn select(mutation: Option<Mutation>) {
        SELECTED.set(mutation);
    }

    pub(crate) fn is_selected(mutation: Mutation) -> bool {
        SELECTED.get() == Some(mutation)
    }
}

#[cfg(feature = "mutants")]
pub(crate) use selected::is_selected;
#[cfg(feature = "mutants")]
pub use selected::select;

/// Whether this mutation is selected.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutation::is_selected($crate::mutation::Mutation::$name)
    };
}

/// Whether this mutation is selected: never without the feature.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

pub(crate) use mutant;
