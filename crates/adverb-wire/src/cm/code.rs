//! What messages say in numbers: reasons, states and kinds.

use core::fmt;

use super::layout::{SmallField, small_field};

/// Declares an enum of codes with their words, and one more variant for what isn't listed.
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
            /// What this code means.
            pub const fn from_code(code: $int) -> $name {
                match code {
                    $( $code => $name::$variant, )*
                    _ => $name::Other(UnlistedCode(code)),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> $int {
                match self {
                    $( $name::$variant => $code, )*
                    $name::Other(unlisted) => unlisted.0,
                }
            }

            /// The meaning in words.
            pub const fn description(self) -> &'static str {
                match self {
                    $( $name::$variant => $words, )*
                    $name::Other(_) => "unlisted code",
                }
            }
        }

        /// Prints the words and, in parentheses, the code.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.description(), self.code())
            }
        }
    };
}

codes! {
    /// Why a connection was refused or given up (vol. 1, 12.6.7.2, table 109).
    ///
    /// ```
    /// use adverb_wire::cm::RejectReason;
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
        /// Something else is used up.
        NoResources = 3 => "no resources available",
        /// The peer waited too long for an answer.
        Timeout = 4 => "timeout",
        /// The peer doesn't support what is asked for.
        UnsupportedRequest = 5 => "unsupported request",
        /// The message names a communication ID that the peer doesn't have.
        InvalidCommId = 6 => "invalid communication ID",
        /// Local and remote communication ID don't belong together.
        InvalidCommInstance = 7 => "invalid communication instance",
        /// Nobody listens at the service ID: in IP terms, connection refused.
        InvalidServiceId = 8 => "invalid service ID",
        /// The service has another transport type.
        InvalidTransportType = 9 => "invalid transport service type",
        /// The peer still has a connection of this CA and queue pair, or their time-wait isn't over.
        StaleConnection = 10 => "stale connection",
        /// There is no reliable datagram channel of the kind that the request assumes.
        RdcDoesNotExist = 11 => "RDC doesn't exist",
        /// The remote GID of the primary path isn't the peer's.
        InvalidPrimaryGid = 12 => "primary remote port GID rejected",
        /// The remote LID of the primary path isn't the peer's.
        InvalidPrimaryLid = 13 => "primary remote port LID rejected",
        /// The primary path's service level.
        InvalidPrimarySl = 14 => "invalid primary SL",
        /// The primary path's traffic class.
        InvalidPrimaryTrafficClass = 15 => "invalid primary traffic class",
        /// The primary path's hop limit.
        InvalidPrimaryHopLimit = 16 => "invalid primary hop limit",
        /// The primary path's packet rate.
        InvalidPrimaryPacketRate = 17 => "invalid primary packet rate",
        /// The remote GID of the alternate path isn't the peer's.
        InvalidAlternateGid = 18 => "alternate remote port GID rejected",
        /// The remote LID of the alternate path isn't the peer's.
        InvalidAlternateLid = 19 => "alternate remote port LID rejected",
        /// The alternate path's service level.
        InvalidAlternateSl = 20 => "invalid alternate SL",
        /// The alternate path's traffic class.
        InvalidAlternateTrafficClass = 21 => "invalid alternate traffic class",
        /// The alternate path's hop limit.
        InvalidAlternateHopLimit = 22 => "invalid alternate hop limit",
        /// The alternate path's packet rate.
        InvalidAlternatePacketRate = 23 => "invalid alternate packet rate",
        /// Ask another port and another connection manager; the additional information says which.
        PortAndCmRedirection = 24 => "port and CM redirection",
        /// Ask for another port; the additional information says which.
        PortRedirection = 25 => "port redirection",
        /// The path MTU is more than the peer can take.
        InvalidPathMtu = 26 => "invalid path MTU",
        /// The peer can't take that many reads and atomics at once.
        InsufficientResponderResources = 27 => "insufficient responder resources",
        /// The peer's application said no; the private data may say why.
        ConsumerReject = 28 => "consumer reject",
        /// The RNR retry count.
        RnrRetryCountReject = 29 => "RNR retry count rejected",
        /// A request with this communication ID is under way already.
        DuplicateLocalCommId = 30 => "duplicate local communication ID",
        /// The peer's connection manager has another class version.
        InvalidClassVersion = 31 => "invalid class version",
        /// The primary path's flow label.
        InvalidPrimaryFlowLabel = 32 => "invalid primary flow label",
        /// The alternate path's flow label.
        InvalidAlternateFlowLabel = 33 => "invalid alternate flow label",
        /// The peer can't do what the [`Ece`](super::Ece) options ask for.
        VendorOptionNotSupported = 35 => "vendor option not supported",
    }
}

codes! {
    /// What became of a service ID resolution request (vol. 1, 12.11.2, table 120).
    ///
    /// ```
    /// use adverb_wire::cm::SidrStatus;
    ///
    /// assert_eq!(SidrStatus::from_code(1).to_string(), "service ID not supported (1)");
    /// ```
    pub enum SidrStatus(u8) {
        /// The queue pair number and Q_Key are valid.
        Valid = 0 => "valid",
        /// Nobody listens at the service ID.
        ServiceIdNotSupported = 1 => "service ID not supported",
        /// The service's provider said no.
        Rejected = 2 => "rejected by the service provider",
        /// No queue pair is available.
        NoQueuePair = 3 => "no queue pair available",
        /// Ask elsewhere; the additional information says where.
        Redirected = 4 => "redirected",
        /// The peer's connection manager has another class version.
        UnsupportedVersion = 5 => "class version not supported",
    }
}

small_field!(RejectReason, 16, |bits| RejectReason::from_code(SmallField::from_bits(bits)), |reason| reason
    .code()
    .into());
small_field!(SidrStatus, 8, |bits| SidrStatus::from_code(SmallField::from_bits(bits)), |status| status
    .code()
    .into());

/// A code that has no name here. Only `from_code` makes one, so that each meaning has one form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct UnlistedCode<T>(T);

impl<T: Copy> UnlistedCode<T> {
    /// The code.
    pub const fn get(self) -> T {
        self.0
    }
}

/// Which message a REJ rejects or an MRA acknowledges (vol. 1, 12.6.6 and 12.6.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum MessageKind {
    /// A request for communication.
    Req = 0,
    /// The reply to one.
    Rep = 1,
    /// Another one: in an MRA the LAP, in a REJ none in particular.
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
    |subject| (subject as u8).into()
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

/// The kind of transport that a REQ asks for (vol. 1, 12.6.5, table 106).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TransportService {
    /// A reliable connection.
    ReliableConnection = 0,
    /// An unreliable connection.
    UnreliableConnection = 1,
    /// A reliable datagram channel, which RoCE doesn't have.
    ReliableDatagram = 2,
    /// What [`Req::extended_transport`](super::Req::extended_transport) says: 1 is an extended reliable
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

/// Whether a REP takes the request's alternate path (vol. 1, 12.6.8, table 110).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Failover {
    /// The alternate path is taken.
    Accepted = 0,
    /// The peer can't change paths.
    NotSupported = 1,
    /// The peer can change paths, but not to this one.
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
    fn every_code_survives_its_enum() {
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
