//! Faults planted on purpose, one selected at a time, so that a simulation can show that its oracles find them.
//!
//! Only the feature `mutants` compiles any of this. Each fault is one place in the engine that asks
//! `mutant!(Name)`; without the feature that is the constant `false`.

/// Declares the faults once.
#[cfg(feature = "mutants")]
macro_rules! mutations {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A fault that can be planted.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Mutation {
            $($(#[$doc])* $name,)*
        }

        impl Mutation {
            /// All of them.
            pub const ALL: &[Mutation] = &[$(Mutation::$name),*];
        }
    };
}

#[cfg(feature = "mutants")]
mutations! {
    /// The responder takes a packet from the future as if it were the expected one.
    SkipPsnCheck,
    /// Sequence numbers are compared without regard to their wrap.
    PsnWithoutWrap,
    /// A duplicate atomic is executed again.
    ReexecuteDuplicateAtomic,
    /// A duplicate WRITE in one packet is executed again.
    ReexecuteDuplicateWrite,
    /// A duplicate SEND in one packet consumes another receive request.
    DuplicateSendConsumesReceive,
    /// A range may reach one byte behind its region.
    BoundsOffByOne,
    /// The protection domain of a key isn't looked at.
    SkipDomainCheck,
    /// The rights of a region aren't looked at.
    SkipRightsCheck,
    /// The packets of a WRITE behind its first aren't checked again.
    NoAccessRecheck,
    /// A SEND with invalidate leaves the key valid.
    InvalidateNothing,
    /// The key of an empty operation is checked.
    CheckKeyOfNothing,
    /// The ICRC isn't checked.
    IgnoreIcrc,
    /// The retransmission timer is never started.
    LoseRetransmitTimer,
    /// A timer that found nothing to do isn't started again when there is.
    TimerNotRearmed,
    /// Fences are ignored.
    IgnoreFence,
    /// More READs and atomics are sent than the peer has room for.
    IgnoreReadLimit,
    /// The message count in acknowledgements counts one message too many after a READ.
    WrongMsn,
    /// Congestion notifications are counted, and nothing else.
    IgnoreCnp,
    /// Marked packets cause no notification.
    NeverNotify,
    /// Each marked packet causes a notification, however soon after another.
    NotifyAlways,
    /// The rate, once cut, stays so.
    NeverRecover,
    /// The rate is computed, and not kept to.
    IgnorePace,
    /// An acknowledgement names the packet behind the last one executed.
    AckOneTooMany,
    /// A request completes twice.
    DoubleCompletion,
    /// A failed request that asked for no completion gets none.
    SilentFailure,
    /// An error forgets the receive queue.
    FlushForgetsReceives,
    /// An error forgets the last request of the send queue.
    FlushForgetsLastSend,
    /// A replayed READ begins with the first byte of the original.
    ReplayFromStart,
    /// A READ that is asked for again forgets what it has received.
    ReadRetryForgetsProgress,
    /// Going back resumes one packet too late.
    GoBackTooShort,
    /// An acknowledgement beyond an outstanding READ completes it.
    IgnoreImpliedNak,
    /// A receiver-not-ready NAK is taken for an acknowledgement.
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
    /// A message of an unreliable connection goes on as if no packet of it were missing.
    IgnoreUcGap,
    /// A datagram's queue key isn't looked at.
    SkipQueueKeyCheck,
    /// A datagram's route header is zeros.
    NoRouteHeader,
    /// A shared receive queue never tells that it is nearly empty.
    SrqLimitForgotten,
    /// A range may reach one byte behind its window.
    WindowBoundsOffByOne,
    /// A window is reached with the key of an earlier binding.
    StaleWindowKey,
    /// A window is reached through any queue pair.
    WindowForAnyQueuePair,
    /// A window still shows what it did after it was invalidated.
    WindowOutlivesInvalidation,
    /// A late packet of an unreliable connection is taken for a new message.
    LateUcPacketAccepted,
    /// What unreliable connections lose isn't counted.
    LossesUncounted,
    /// A datagram to a group goes to all members but one.
    GroupForgetsOne,
    /// A shared receive completes under the number of another.
    SrqRequestsConfused,
    /// Windows stay bound when their queue pair is destroyed or reset.
    WindowOutlivesQueuePair,
    /// A destroyed queue pair keeps the shared receive request that it was using.
    SrqRequestLost,
    /// The connection manager takes a repeated REQ for a new one.
    CmDuplicateRequestIsNew,
    /// The connection manager doesn't answer a repeated REP, so that a lost RTU stays lost.
    CmLostRtuStaysLost,
    /// The connection manager tells of an established connection again when the RTU comes again.
    CmEstablishedTwice,
    /// The connection manager answers a REJ that belongs to nothing with a REJ.
    CmRejAnsweredByRej,
    /// The connection manager's REP asks for the sequence number that the REQ asked for.
    CmPsnOfTheWrongSide,
    /// The connection manager uses numbers again as soon as a connection is over.
    CmNoTimewait,
    /// The connection manager keeps a peer's communication ID when a connection is gone.
    CmRemoteIdLeaks,
}

#[cfg(feature = "mutants")]
mod selected {
    use std::cell::Cell;

    use super::Mutation;

    std::thread_local! {
        static SELECTED: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Plants a fault for every engine of this thread, or none.
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

/// Whether this fault is planted.
#[cfg(feature = "mutants")]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutation::is_selected($crate::mutation::Mutation::$name)
    };
}

/// Whether this fault is planted: never.
#[cfg(not(feature = "mutants"))]
macro_rules! mutant {
    ($name:ident) => {
        false
    };
}

pub(crate) use mutant;
