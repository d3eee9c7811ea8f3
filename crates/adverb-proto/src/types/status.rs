//! Completion statuses.

use core::fmt;

use crate::explain;

/// Declares the statuses and their codes. The texts are in [`explain`].
macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// The status of a completed request (vol. 1, 11.6.2). The codes are those of `ibv_wc_status`.
        ///
        /// ```
        /// # mod adverb { pub use adverb_proto::types as verbs; }
        /// use adverb::verbs::Status;
        ///
        /// let status = Status::from_code(12);
        /// assert_eq!(status, Status::RetryExceeded);
        /// assert_eq!(status.to_string(), "the peer did not acknowledge the request (transport retries exceeded)");
        /// assert!(status.hint().unwrap().contains("peer"));
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum Status {
            $($(#[$doc])* $variant,)*
            /// A code that Adverb doesn't know.
            Other(u32),
        }

        impl Status {
            /// Returns the status with this code.
            pub const fn from_code(code: u32) -> Status {
                match code {
                    $($code => Status::$variant,)*
                    other => Status::Other(other),
                }
            }

            /// Returns the code.
            pub const fn code(self) -> u32 {
                match self {
                    $(Status::$variant => $code,)*
                    Status::Other(code) => code,
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    Success = 0,
    /// A message was longer than its buffer, or than the transport allows.
    LocalLength = 1,
    /// The queue pair couldn't execute the request.
    LocalQpOperation = 2,
    /// An error of reliable datagrams, which RoCE doesn't have.
    LocalEecOperation = 3,
    /// A segment of the request is not within the memory region of its key, or the region doesn't allow the access.
    LocalProtection = 4,
    /// The queue pair or its send queue moved to the error state before the request completed.
    Flushed = 5,
    /// A memory window couldn't be bound.
    WindowBind = 6,
    /// The peer sent an invalid response.
    BadResponse = 7,
    /// The device has no write access to the local buffer.
    LocalAccess = 8,
    /// The peer rejected the request as invalid.
    RemoteInvalidRequest = 9,
    /// The access rights of the peer's memory don't allow the request.
    RemoteAccess = 10,
    /// The peer couldn't complete the request.
    RemoteOperation = 11,
    /// The peer acknowledged neither the request nor its retransmissions.
    RetryExceeded = 12,
    /// The peer responded to the request and its retransmissions with RNR NAKs, because it had no receive posted.
    RnrRetryExceeded = 13,
    /// An error of reliable datagrams, which RoCE doesn't have.
    LocalRddViolation = 14,
    /// An error of reliable datagrams, which RoCE doesn't have.
    RemoteInvalidRdRequest = 15,
    /// The peer aborted the request.
    RemoteAborted = 16,
    /// An error of reliable datagrams, which RoCE doesn't have.
    InvalidEecNumber = 17,
    /// An error of reliable datagrams, which RoCE doesn't have.
    InvalidEecState = 18,
    /// The device has failed.
    Fatal = 19,
    /// The peer's response did not arrive in time.
    ResponseTimeout = 20,
    /// Another error.
    General = 21,
    /// A tag-matching error.
    TagMatching = 22,
    /// A tag-matching rendezvous was not completed by the device, so software must complete it.
    TagMatchingRendezvousIncomplete = 23,
}

impl Status {
    /// Returns advice on how to find or remove the cause, or `None` if there is no advice. [`explain::status`] returns
    /// the complete explanation.
    pub const fn hint(self) -> Option<&'static str> {
        match explain::status(self) {
            Some(explanation) => explanation.hint,
            None => None,
        }
    }
}

/// Prints the summary of the status's explanation.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match explain::status(*self) {
            Some(explanation) => f.write_str(explanation.summary),
            None => write!(f, "unknown status {}", self.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_round_trips() {
        for code in 0..100 {
            assert_eq!(Status::from_code(code).code(), code);
        }
    }
}
