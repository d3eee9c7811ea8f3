//! Codes in messages: reject reasons, statuses, and kinds of messages and transports.

use core::fmt;

use super::layout::{SmallField, small_field};

/// Declares an enum of codes with their descriptions, and a variant for unlisted codes.
macro_rules! codes {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($int:ty) {
            $( $(#[$variant_meta:meta])* $variant:ident = $code:literal => $words:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$variant_meta])* $variant, )*
            /// A code that isn't listed here.
            Other(UnlistedCode<$int>),
        }

        impl $name {
            /// Returns the variant for `code`.
            pub const fn from_code(code: $int) -> $name {
                match code {
                    $( $code => $name::$variant, )*
                    _ => $name::Other(UnlistedCode(code)),
                }
            }

            /// Returns the code on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $( $name::$variant => $code, )*
                    $name::Other(unlisted) => unlisted.0,
                }
            }

            /// Returns a description.
            pub const fn description(self) -> &'static str {
                match self {
                    $( $name::$variant => $words, )*
                    $name::Other(_) => "unlisted code",
                }
            }
        }

        /// Prints the description and, in parentheses, the code.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.description(), self.code())
            }
        }
    };
}

codes! {
    /// The reason for a REJ (vol. 1, 12.6.7.2, table 109).
    ///
    /// ```
    /// # mod adverb { pub use adverb_wire as verbs; }
    /// use adverb::verbs::cm::RejectReason;
    ///
    /// assert_eq!(RejectReason::from_code(10), RejectReason::StaleConnection);
    /// assert_eq!(RejectReason::StaleConnection.to_string(), "stale connection (10)");
    /// assert_eq!(RejectReason::from_code(999).to_string(), "unlisted code (999)");
    /// ```
    pub enum RejectReason(u16) {
        /// No queue pair is available.
        NoQueuePair = 1 => "no queue pair available",
        /// No end-to-end context is available.
        NoEeContext = 2 => "no end-to-end context available",
        /// A resource other than queue pairs and end-to-end contexts is exhausted.
        NoResources = 3 => "no resources available",
        /// The peer's timeout for a reply expired.
        Timeout = 4 => "timeout",
        /// The peer doesn't support the request.
        UnsupportedRequest = 5 => "unsupported request",
        /// The communication ID is unknown to the peer.
        InvalidCommId = 6 => "invalid communication ID",
        /// The local and the remote communication ID belong to different connections.
        InvalidCommInstance = 7 => "invalid communication instance",
        /// No listener exists for the service ID. This corresponds to "connection refused" of TCP.
        InvalidServiceId = 8 => "invalid service ID",
        /// The service uses another transport.
        InvalidTransportType = 9 => "invalid transport service type",
        /// The peer still has a connection with this channel adapter and queue pair, possibly in time-wait.
        StaleConnection = 10 => "stale connection",
        /// The reliable datagram channel of the request doesn't exist.
        RdcDoesNotExist = 11 => "RDC does not exist",
        /// The remote GID of the primary path isn't the peer's.
        InvalidPrimaryGid = 12 => "primary remote port GID rejected",
        /// The remote LID of the primary path isn't the peer's.
        InvalidPrimaryLid = 13 => "primary remote port LID rejected",
        /// The primary path's service level is invalid.
        InvalidPrimarySl = 14 => "invalid primary SL",
        /// The primary path's traffic class is invalid.
        InvalidPrimaryTrafficClass = 15 => "invalid primary traffic class",
        /// The primary path's hop limit is invalid.
        InvalidPrimaryHopLimit = 16 => "invalid primary hop limit",
        /// The primary path's packet rate is invalid.
        InvalidPrimaryPacketRate = 17 => "invalid primary packet rate",
        /// The remote GID of the alternate path isn't the peer's.
        InvalidAlternateGid = 18 => "alternate remote port GID rejected",
        /// The remote LID of the alternate path isn't the peer's.
        InvalidAlternateLid = 19 => "alternate remote port LID rejected",
        /// The alternate path's service level is invalid.
        InvalidAlternateSl = 20 => "invalid alternate SL",
        /// The alternate path's traffic class is invalid.
        InvalidAlternateTrafficClass = 21 => "invalid alternate traffic class",
        /// The alternate path's hop limit is invalid.
        InvalidAlternateHopLimit = 22 => "invalid alternate hop limit",
        /// The alternate path's packet rate is invalid.
        InvalidAlternatePacketRate = 23 => "invalid alternate packet rate",
        /// The client must use another port and CM, named in the additional information.
        PortAndCmRedirection = 24 => "port and CM redirection",
        /// The client must use another port, named in the additional information.
        PortRedirection = 25 => "port redirection",
        /// The path MTU is invalid, or exceeds the peer's maximum.
        InvalidPathMtu = 26 => "invalid path MTU",
        /// The peer doesn't support the requested number of outstanding RDMA READs and atomics.
        InsufficientResponderResources = 27 => "insufficient responder resources",
        /// The peer's application rejected the request. The private data may contain the reason.
        ConsumerReject = 28 => "consumer reject",
        /// The peer rejected the RNR retry count.
        RnrRetryCountReject = 29 => "RNR retry count rejected",
        /// A connection with this communication ID is already being established.
        DuplicateLocalCommId = 30 => "duplicate local communication ID",
        /// The peer's CM supports another class version.
        InvalidClassVersion = 31 => "invalid class version",
        /// The primary path's flow label is invalid.
        InvalidPrimaryFlowLabel = 32 => "invalid primary flow label",
        /// The alternate path's flow label is invalid.
        InvalidAlternateFlowLabel = 33 => "invalid alternate flow label",
        /// The peer doesn't support the [`Ece`](super::Ece) options.
        VendorOptionNotSupported = 35 => "vendor option not supported",
    }
}

codes! {
    /// The status of a service ID resolution request (vol. 1, 12.11.2, table 120).
    ///
    /// ```
    /// use adverb_wire::cm::SidrStatus;
    ///
    /// assert_eq!(SidrStatus::from_code(1).to_string(), "service ID not supported (1)");
    /// ```
    pub enum SidrStatus(u8) {
        /// The queue pair number and Q_Key are valid.
        Valid = 0 => "valid",
        /// No listener exists for the service ID.
        ServiceIdNotSupported = 1 => "service ID not supported",
        /// The service provider rejected the request.
        Rejected = 2 => "rejected by the service provider",
        /// No queue pair is available.
        NoQueuePair = 3 => "no queue pair available",
        /// The client must use another port, named in the additional information.
        Redirected = 4 => "redirected",
        /// The peer's CM supports another class version.
        UnsupportedVersion = 5 => "class version not supported",
    }
}

small_field!(RejectReason, 16, |bits| RejectReason::from_code(SmallField::from_bits(bits)), |reason| reason
    .code()
    .into());
small_field!(SidrStatus, 8, |bits| SidrStatus::from_code(SmallField::from_bits(bits)), |status| status
    .code()
    .into());

/// A code without a variant of its own. Only `from_code` creates values of this type, so that each code has a single
/// representation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnlistedCode<T>(T);

impl<T: Copy> UnlistedCode<T> {
    /// Returns the code.
    pub const fn get(self) -> T {
        self.0
    }
}

/// The kind of message that a REJ rejects or an MRA acknowledges (vol. 1, 12.6.6 and 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// A REQ.
    Req = 0,
    /// A REP.
    Rep = 1,
    /// A LAP in an MRA, or no particular message in a REJ.
    Other = 2,
    /// A value that the specification reserves.
    Reserved = 3,
}

small_field!(
    MessageKind,
    2,
    |bits| match bits & 3 {
        0 => MessageKind::Req,
        1 => MessageKind::Rep,
        2 => MessageKind::Other,
        _ => MessageKind::Reserved,
    },
    |kind| (kind as u8).into()
);

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MessageKind::Req => "REQ",
            MessageKind::Rep => "REP",
            MessageKind::Other => "other",
            MessageKind::Reserved => "reserved",
        })
    }
}

/// The transport that a REQ requests (vol. 1, 12.6.5, table 106).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TransportService {
    /// Reliable connection (RC).
    ReliableConnection = 0,
    /// Unreliable connection (UC).
    UnreliableConnection = 1,
    /// Reliable datagram (RD), which RoCE doesn't support.
    ReliableDatagram = 2,
    /// The transport in [`Req::extended_transport`](super::Req::extended_transport): 1 is the extended reliable
    /// connection (XRC).
    Extended = 3,
}

small_field!(
    TransportService,
    2,
    |bits| match bits & 3 {
        0 => TransportService::ReliableConnection,
        1 => TransportService::UnreliableConnection,
        2 => TransportService::ReliableDatagram,
        _ => TransportService::Extended,
    },
    |service| (service as u8).into()
);

impl fmt::Display for TransportService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportService::ReliableConnection => "RC",
            TransportService::UnreliableConnection => "UC",
            TransportService::ReliableDatagram => "RD",
            TransportService::Extended => "extended",
        })
    }
}

/// The response in a REP to the alternate path of the REQ (vol. 1, 12.6.8, table 110).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Failover {
    /// The peer accepts the alternate path.
    Accepted = 0,
    /// The peer doesn't support failover.
    NotSupported = 1,
    /// The peer supports failover, but rejects this path.
    Rejected = 2,
    /// A value that the specification reserves.
    Reserved = 3,
}

small_field!(
    Failover,
    2,
    |bits| match bits & 3 {
        0 => Failover::Accepted,
        1 => Failover::NotSupported,
        2 => Failover::Rejected,
        _ => Failover::Reserved,
    },
    |failover| (failover as u8).into()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in 0..=u16::MAX {
            assert_eq!(RejectReason::from_code(code).code(), code);
        }
        for code in 0..=u8::MAX {
            assert_eq!(SidrStatus::from_code(code).code(), code);
        }
        for bits in 0..4 {
            assert_eq!(MessageKind::from_bits(bits).to_bits(), bits);
            assert_eq!(TransportService::from_bits(bits).to_bits(), bits);
            assert_eq!(Failover::from_bits(bits).to_bits(), bits);
        }
    }

    #[test]
    fn the_listed_reasons_are_1_to_33_and_35() {
        let listed = |code: &u16| !matches!(RejectReason::from_code(*code), RejectReason::Other(_));
        assert!((0..=u16::MAX).filter(listed).eq((1..=33).chain([35])));
    }
}
