//! Mutations: deliberate bugs of the engine. A simulation selects a mutation and must detect the bug.
//!
//! Mutations exist only with the feature `mutants`. The engine's code tests for a mutation with `mutant!(Name)`, which
//! is `false` without the feature. The state machines above this crate declare their mutations with the same macros.

/// Declares the mutations of the calling crate, in its module `mutation`.
#[doc(hidden)]
#[macro_export]
macro_rules! mutations {
    ($enum_doc:literal $($(#[$doc:meta])* $name:ident,)*) => {
        #[doc = $enum_doc]
        #[cfg(feature = "mutants")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Mutation {
            $($(#[$doc])* $name,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutation {
            /// All mutations.
            pub const ALL: &[Mutation] = &[$(Mutation::$name),*];
        }

        #[cfg(feature = "mutants")]
        std::thread_local! {
            static SELECTED: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
        }

        /// Selects the mutation for all state machines of this crate in this thread, or no mutation if `mutation` is
        /// `None`.
        #[cfg(feature = "mutants")]
        pub fn select(mutation: Option<Mutation>) {
            SELECTED.set(mutation);
        }

        #[cfg(feature = "mutants")]
        pub(crate) fn is_selected(mutation: Mutation) -> bool {
            SELECTED.get() == Some(mutation)
        }
    };
}

/// Whether this mutation of the calling crate is selected: never without its feature `mutants`.
#[doc(hidden)]
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "the mutations are those of the calling crate")]
macro_rules! mutant {
    ($name:ident) => {{
        #[cfg(feature = "mutants")]
        let is_selected = crate::mutation::is_selected(crate::mutation::Mutation::$name);
        #[cfg(not(feature = "mutants"))]
        let is_selected = false;
        is_selected
    }};
}

pub(crate) use mutant;

mutations! {
    "A deliberate bug of the engine, for testing a simulation's oracles."

    /// The responder accepts a packet ahead of the expected sequence number.
    SkipPsnCheck,
    /// Sequence numbers are compared as integers, so comparisons are wrong after a wraparound.
    PsnWithoutWrap,
    /// A duplicate atomic is executed again.
    ReexecuteDuplicateAtomic,
    /// A duplicate WRITE in one packet is executed again.
    ReexecuteDuplicateWrite,
    /// A duplicate SEND in one packet consumes another receive request.
    DuplicateSendConsumesReceive,
    /// A range may exceed its region by one byte.
    BoundsOffByOne,
    /// The protection domain of a region isn't checked.
    SkipDomainCheck,
    /// The access rights of a region or window aren't checked.
    SkipRightsCheck,
    /// The packets of a WRITE after the first one may still write to a region that was deregistered.
    NoAccessRecheck,
    /// A SEND with invalidate leaves the key valid.
    SkipInvalidate,
    /// The responder checks the remote key of an empty READ or WRITE, which needs no valid key.
    CheckKeyOfZeroLength,
    /// The ICRC isn't checked.
    IgnoreIcrc,
    /// Sending a packet doesn't start the acknowledgement timer.
    NeverStartRetransmitTimer,
    /// The acknowledgement timer isn't restarted after an acknowledgement or a retransmission.
    TimerNotRearmed,
    /// Fences are ignored.
    IgnoreFence,
    /// The requester exceeds the peer's limit of outstanding READs and atomics.
    IgnoreReadLimit,
    /// The message sequence number (MSN) in acknowledgements counts each READ, atomic, FLUSH and ATOMIC WRITE twice.
    WrongMsn,
    /// Congestion notification packets (CNPs) are counted, but don't reduce the rate.
    IgnoreCnp,
    /// The receiver sends no CNP for ECN-marked packets.
    NeverSendCnp,
    /// The receiver sends a CNP for each ECN-marked packet, without a minimum interval.
    CnpForEveryMark,
    /// The rate never increases after a reduction.
    RateNeverRecovers,
    /// The rate is computed, but not enforced.
    RateNotEnforced,
    /// An acknowledgement carries the sequence number after that of the last executed packet.
    AckPsnTooHigh,
    /// A request completes twice.
    DoubleCompletion,
    /// An unsignaled request that fails produces no completion.
    SilentFailure,
    /// The error state doesn't flush the receive queue.
    FlushSkipsReceives,
    /// The error state doesn't flush the last request of the send queue.
    FlushSkipsLastSend,
    /// The response to a duplicate READ starts with the first byte of the original READ.
    DuplicateReadFromStart,
    /// A duplicate READ of memory that was deregistered after its first response ends the connection.
    RefuseDuplicateRead,
    /// A retransmitted READ request carries the address of the first byte, although a part of the response was
    /// received.
    ReadRetryDiscardsProgress,
    /// A retransmission starts one packet too late.
    RetransmitSkipsOnePacket,
    /// An acknowledgement of a later request completes an outstanding READ without its data.
    IgnoreImpliedNak,
    /// An RNR NAK is treated as an acknowledgement.
    RnrNakIsAck,
    /// The payload of a WRITE's last packet is written one byte after its proper address.
    LastPacketMisplaced,
    /// A receive completes although the last packet's bytes were not written to its buffer.
    CompleteBeforeData,
    /// A destroyed queue pair stays in the index of queue pair numbers.
    DestroyLeaksQpn,
    /// A message counts as delivered when its first packet is acknowledged.
    FirstPacketCompletesMessage,
    /// The bytes of a request's second segment are read from its first segment.
    SecondSegmentReadFromFirst,
    /// A gap in a message of an unreliable connection is ignored.
    IgnoreUcGap,
    /// The queue key of a datagram isn't checked.
    SkipQueueKeyCheck,
    /// The global route header of a datagram is all zeros.
    ZeroedRouteHeader,
    /// A shared receive queue never generates its limit event.
    SrqLimitEventMissing,
    /// A range may exceed its window by one byte.
    WindowBoundsOffByOne,
    /// The key of an earlier binding still grants access to a window.
    StaleWindowKey,
    /// A window can be accessed through any queue pair, not only through the one that bound it.
    WindowForAnyQueuePair,
    /// An invalidated window still grants access.
    WindowOutlivesInvalidation,
    /// A late packet of an unreliable connection starts a new message.
    LateUcPacketAccepted,
    /// Losses of unreliable connections aren't counted.
    LossesUncounted,
    /// A multicast datagram reaches all members of the group but one.
    MulticastSkipsOneMember,
    /// A request of a shared receive queue completes with the id of another request.
    SrqWrongRequestId,
    /// Windows stay bound when their queue pair is destroyed or reset.
    WindowOutlivesQueuePair,
    /// A destroyed or reset queue pair does not return the request that it took from its shared receive queue.
    SrqRequestLost,
    /// The connection manager treats a duplicate REQ as a new one.
    CmDuplicateRequestIsNew,
    /// The connection manager doesn't reply to a duplicate REP, so a lost RTU is never retransmitted.
    CmLostRtuStaysLost,
    /// The connection manager reports an established connection again after a duplicate RTU.
    CmEstablishedTwice,
    /// The connection manager sends a REJ in response to a REJ for an unknown connection.
    CmRejAnsweredByRej,
    /// The connection manager's REP carries the starting sequence number of the REQ.
    CmPsnOfTheWrongSide,
    /// The connection manager allows queue pair numbers to be reused without timewait.
    CmNoTimewait,
    /// The connection manager keeps a peer's communication ID after the connection has ended.
    CmRemoteIdLeaks,
}
