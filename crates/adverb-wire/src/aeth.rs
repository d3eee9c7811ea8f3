//! The acknowledge extended transport header (AETH): a responder's ACK or NAK.

use core::fmt;
use core::time::Duration;

/// The acknowledge extended transport header (AETH): a syndrome and a message sequence number (vol. 1, 9.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The kind of acknowledgement: ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// The message sequence number (MSN): the number of messages that the responder has completed. Only the low 24 bits
    /// are sent.
    pub msn: u32,
}

impl Aeth {
    pub(crate) const fn from_bytes(bytes: [u8; 4]) -> Aeth {
        let [syndrome, a, b, c] = bytes;
        Aeth { syndrome: Syndrome::from_byte(syndrome), msn: u32::from_be_bytes([0, a, b, c]) }
    }

    pub(crate) const fn to_bytes(self) -> [u8; 4] {
        let [_, a, b, c] = self.msn.to_be_bytes();
        [self.syndrome.byte(), a, b, c]
    }
}

/// The kind of an acknowledgement, with its parameter (vol. 1, tables 43 to 46).
///
/// Every byte decodes to a syndrome, so that a decoder can print every value. Reserved values decode to
/// [`Reserved`](Syndrome::Reserved); a transport drops packets with reserved values.
///
/// ```
/// use adverb_wire::{Credits, NakCode, Syndrome};
///
/// assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(Credits::UNLIMITED));
/// assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::SequenceError));
/// assert_eq!(Syndrome::Nak(NakCode::RemoteAccess).byte(), 0x62);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// An ACK: the responder has received all packets up to the PSN of the ACK. The credits are the number of
    /// messages that the requester may still send.
    Ack(Credits),
    /// A receiver-not-ready (RNR) NAK: the responder has no receive request posted. The requester retries after the
    /// RNR backoff.
    RnrNak(RnrTimer),
    /// A NAK: the responder rejected the request.
    Nak(NakCode),
    /// A value that the specification reserves.
    Reserved(ReservedSyndrome),
}

impl Syndrome {
    /// Returns the syndrome that `byte` encodes.
    pub const fn from_byte(byte: u8) -> Syndrome {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Syndrome::Ack(Credits(value)),
            0b001 => Syndrome::RnrNak(RnrTimer(value)),
            0b011 => match value {
                0 => Syndrome::Nak(NakCode::SequenceError),
                1 => Syndrome::Nak(NakCode::InvalidRequest),
                2 => Syndrome::Nak(NakCode::RemoteAccess),
                3 => Syndrome::Nak(NakCode::RemoteOperational),
                4 => Syndrome::Nak(NakCode::InvalidRdRequest),
                _ => Syndrome::Reserved(ReservedSyndrome(byte)),
            },
            _ => Syndrome::Reserved(ReservedSyndrome(byte)),
        }
    }

    /// Returns the byte on the wire.
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits.0,
            Syndrome::RnrNak(timer) => 0x20 | timer.0,
            Syndrome::Nak(code) => 0x60 | code as u8,
            Syndrome::Reserved(reserved) => reserved.0,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack(credits) => match credits.count() {
                Some(count) => write!(f, "ack, {count} credits"),
                None => f.write_str("ack"),
            },
            Syndrome::RnrNak(timer) => write!(f, "RNR nak, wait {:?}", timer.duration()),
            Syndrome::Nak(code) => write!(f, "nak: {code}"),
            Syndrome::Reserved(reserved) => write!(f, "reserved syndrome {:#04x}", reserved.0),
        }
    }
}

/// A reserved syndrome byte. Only parsing creates values of this type, so that each syndrome has a single
/// representation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedSyndrome(u8);

/// The reason for a NAK (vol. 1, table 46).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum NakCode {
    /// A packet is missing. The requester retransmits from the PSN of this NAK.
    SequenceError = 0,
    /// The request has a wrong opcode sequence, is too long, or is not allowed on this queue pair.
    InvalidRequest = 1,
    /// The remote key, the address range or the access rights don't permit the request.
    RemoteAccess = 2,
    /// The responder failed to complete the request because of an error on its side.
    RemoteOperational = 3,
    /// The reliable datagram request is invalid. RoCEv2 has no reliable datagrams.
    InvalidRdRequest = 4,
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NakCode::SequenceError => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccess => "remote access error",
            NakCode::RemoteOperational => "remote operational error",
            NakCode::InvalidRdRequest => "invalid RD request",
        })
    }
}

/// End-to-end credits: the number of messages that the responder can receive, as a 5-bit code (vol. 1, table 45).
///
/// ```
/// use adverb_wire::Credits;
///
/// assert_eq!(Credits::at_most(5).count(), Some(4)); // there is no code for 5
/// assert_eq!(Credits::UNLIMITED.count(), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credits(u8);

impl Credits {
    /// No credit limit: the responder has a shared receive queue, or end-to-end flow control is off.
    pub const UNLIMITED: Credits = Credits(31);

    /// Returns the largest representable credit count that is at most `count`.
    pub fn at_most(count: u32) -> Credits {
        let codes_within = (0u8..).zip(CREDITS).take_while(|(_, credits)| *credits <= count);
        Credits(codes_within.last().map_or(0, |(code, _)| code))
    }

    /// Returns the number of messages, or `None` if the number is unlimited.
    pub fn count(self) -> Option<u32> {
        CREDITS.get(usize::from(self.0)).copied()
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The RNR backoff: the requester's wait after an RNR NAK, as a 5-bit code (vol. 1, table 47).
///
/// ```
/// use adverb_wire::RnrTimer;
/// use core::time::Duration;
///
/// assert_eq!(RnrTimer::at_least(Duration::from_millis(1)).duration(), Duration::from_micros(1280));
/// assert_eq!(RnrTimer::new(0).unwrap().duration(), Duration::from_micros(655_360)); // code 0 is the maximum
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The maximum RNR backoff: 655.36 ms, which has code 0.
    pub const MAX: RnrTimer = RnrTimer(0);

    /// Creates the timer with the code `code`. Returns `None` if `code` has more than 5 bits.
    pub const fn new(code: u8) -> Option<RnrTimer> {
        if code < 32 { Some(RnrTimer(code)) } else { None }
    }

    /// Returns the smallest representable RNR backoff that is at least `wait`, or [`RnrTimer::MAX`] if `wait` exceeds
    /// 655.36 ms.
    pub fn at_least(wait: Duration) -> RnrTimer {
        (1..32).map(RnrTimer).find(|timer| timer.duration() >= wait).unwrap_or(RnrTimer(0))
    }

    /// Returns the RNR backoff as a duration.
    pub fn duration(self) -> Duration {
        let tens = RNR_TIMERS.get(usize::from(self.0)).copied().unwrap_or_default();
        Duration::from_micros(u64::from(tens) * 10)
    }

    /// Returns the 5-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// Table 45: messages per credit code.
const CREDITS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Table 47: units of 10 µs per timer code.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_round_trips() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
    }

    #[test]
    fn credits_never_exceed_the_count() {
        for count in 0..70_000 {
            let credits = Credits::at_most(count);
            assert!(credits.count().unwrap() <= count, "{count}");
            let next = CREDITS.get(usize::from(credits.code()) + 1);
            assert!(next.is_none_or(|next| *next > count), "{count} would fit the next code");
        }
    }

    #[test]
    fn rnr_timer_is_at_least_the_requested_wait_up_to_the_maximum() {
        for micros in (0..655_360).step_by(7) {
            let wait = Duration::from_micros(micros);
            assert!(RnrTimer::at_least(wait).duration() >= wait, "{micros}");
        }
        assert_eq!(RnrTimer::at_least(Duration::from_secs(9)).duration(), Duration::from_micros(655_360));
    }
}
