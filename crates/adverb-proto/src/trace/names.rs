//! Names and texts of reasons, causes and timers.

use core::fmt;

use super::{DropReason, RetryCause, StopCause, TimerKind};
use crate::cq::Cq;
use crate::srq::Srq;

/// Declares the names and the texts of an enum's variants.
macro_rules! names {
    ($type:ident, $example:literal { $($variant:ident: $name:literal, $text:literal;)* }) => {
        impl $type {
            #[doc = concat!("Returns the name for file formats, such as `\"", $example, "\"`.")]
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self {
                    $($type::$variant => $text,)*
                })
            }
        }
    };
}

names! {
    DropReason, "wrong_icrc" {
        UnknownQp: "unknown_qp", "the queue pair does not exist";
        WrongState: "wrong_state", "the queue pair's state does not allow it to receive packets";
        WrongTransport: "wrong_transport", "the packet's transport is not the queue pair's";
        WrongAddress: "wrong_address", "the packet's addresses are not the connection's";
        WrongPkey: "wrong_pkey", "the partition key does not match the queue pair's";
        WrongIcrc: "wrong_icrc", "the ICRC is wrong";
        OutOfSequence: "out_of_sequence", "an earlier packet is missing";
        DuplicateTooOld: "duplicate_too_old", "duplicate of a request whose response is no longer stored";
        StaleResponse: "stale_response", "it acknowledges packets that are not outstanding";
        MismatchedResponse: "mismatched_response", "the response does not match its request";
        ReservedSyndrome: "reserved_syndrome", "the syndrome is reserved";
        PsnBelowExpected: "psn_below_expected", "its sequence number is lower than the expected one";
        NoReceivePosted: "no_receive_posted", "no receive is posted";
        MessageTooLong: "message_too_long", "the message is longer than its receive buffer or the maximum";
        InvalidRequest: "invalid_request", "the request is invalid or violates access rights";
        WrongQkey: "wrong_qkey", "the queue key differs from the queue pair's";
        NoMulticastMember: "no_multicast_member", "no queue pair is attached to the multicast group";
    }
}

names! {
    RetryCause, "timeout" {
        Timeout: "timeout", "timeout";
        SequenceNak: "sequence_nak", "PSN sequence error NAK";
        ImpliedNak: "implied_nak", "missing response";
        Rnr: "rnr", "RNR NAK";
    }
}

names! {
    TimerKind, "ack_timeout" {
        AckTimeout: "ack_timeout", "acknowledgement timeout";
        Pacing: "pacing", "pacing";
        Rnr: "rnr", "RNR backoff";
    }
}

names! {
    StopCause, "manual" {
        Manual: "manual", "the application stopped the recording";
        Failure: "failure", "a request failed";
        Timeout: "timeout", "an acknowledgement timeout expired";
    }
}

impl Cq {
    /// Returns the number of the completion queue at its device.
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl Srq {
    /// Returns the number of the shared receive queue at its device.
    pub const fn number(self) -> u32 {
        self.0
    }
}
