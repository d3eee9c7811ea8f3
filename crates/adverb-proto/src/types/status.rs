//! Completion statuses.

use core::fmt;

/// Declares the statuses: code, description, hint.
macro_rules! statuses {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $words:literal, $hint:expr;)*) => {
        /// The status of a completed request (vol. 1, 11.6.2). The codes are those of `ibv_wc_status`.
        ///
        /// ```
        /// use adverb_proto::types::Status;
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

            /// Describes the status.
            const fn words(self) -> &'static str {
                match self {
                    $(Status::$variant => $words,)*
                    Status::Other(_) => "unknown status",
                }
            }

            /// Returns advice on how to find or remove the cause, or `None` if there is no advice.
            pub const fn hint(self) -> Option<&'static str> {
                match self {
                    $(Status::$variant => $hint,)*
                    Status::Other(_) => None,
                }
            }
        }
    };
}

statuses! {
    /// The request succeeded.
    Success = 0, "success", None;
    /// A message was longer than its buffer, or than the transport allows.
    LocalLength = 1, "the message does not fit in the buffer (local length error)",
        Some("post receive buffers of the peer's maximum message size, plus 40 bytes for UD");
    /// The queue pair couldn't execute the request.
    LocalQpOperation = 2, "the queue pair could not execute the request (local QP operation error)",
        Some("check the request's segments and keys against the queue pair's limits");
    /// An error of reliable datagrams, which RoCE doesn't have.
    LocalEecOperation = 3, "local EEC operation error", None;
    /// A segment of the request is not within the memory region of its key.
    LocalProtection = 4, "a segment is outside its memory region, or its key is wrong (local protection error)",
        Some("check that the region is registered, belongs to the queue pair's protection domain, and has LOCAL_WRITE access");
    /// The queue pair moved to the error state before the request was executed.
    Flushed = 5, "flushed: the queue pair entered the error state before the request was executed",
        Some("check the first failed completion of this queue pair with another status: it has the cause");
    /// A memory window couldn't be bound.
    WindowBind = 6, "the memory window could not be bound",
        Some("use a region that has WINDOW_BIND and all access flags of the window, and contains its range");
    /// The peer sent an invalid response.
    BadResponse = 7, "the peer's response was invalid (bad response)", None;
    /// The device has no write access to the local buffer.
    LocalAccess = 8, "the device has no access to the buffer (local access error)",
        Some("register receive buffers and the local memory of READ requests with LOCAL_WRITE");
    /// The peer rejected the request as invalid.
    RemoteInvalidRequest = 9, "the peer rejected the request as invalid (remote invalid request)",
        Some("check that the message fits in the peer's receive buffer, and that the peer's queue pair allows the operation");
    /// The access rights of the peer's memory don't allow the request.
    RemoteAccess = 10, "the peer's memory does not allow the access (remote access error)",
        Some("check the remote key, the address range, the region's access flags, and that it is still registered");
    /// The peer couldn't complete the request.
    RemoteOperation = 11, "the peer could not complete the request (remote operation error)",
        Some("check the completions of the peer's queue pair for the cause");
    /// The peer acknowledged neither the request nor its retransmissions.
    RetryExceeded = 12, "the peer did not acknowledge the request (transport retries exceeded)",
        Some("check that the peer is up, that its queue pair is ready to receive, and that path, GID and MTU are right");
    /// The peer responded to the request and its retransmissions with RNR NAKs, because it had no receive posted.
    RnrRetryExceeded = 13, "the peer had no receive buffer (receiver-not-ready retries exceeded)",
        Some("post receive requests at the peer before sending, raise `rnr_retry`, or use credits");
    /// An error of reliable datagrams, which RoCE doesn't have.
    LocalRddViolation = 14, "local RDD violation", None;
    /// An error of reliable datagrams, which RoCE doesn't have.
    RemoteInvalidRdRequest = 15, "remote invalid RD request", None;
    /// The peer aborted the request.
    RemoteAborted = 16, "the peer aborted the request (remote aborted)", None;
    /// An error of reliable datagrams, which RoCE doesn't have.
    InvalidEecNumber = 17, "invalid EEC number", None;
    /// An error of reliable datagrams, which RoCE doesn't have.
    InvalidEecState = 18, "invalid EEC state", None;
    /// The device has failed.
    Fatal = 19, "the device has failed (fatal error)",
        Some("check the kernel's log, then close the device and open it again");
    /// The peer's response did not arrive in time.
    ResponseTimeout = 20, "the peer did not respond in time (response timeout)", None;
    /// Another error.
    General = 21, "general error", None;
    /// A tag-matching error.
    TagMatching = 22, "tag matching error", None;
    /// A tag-matching rendezvous was not completed by the device, so software must complete it.
    TagMatchingRendezvousIncomplete = 23, "tag matching rendezvous incomplete", None;
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Other(code) => write!(f, "unknown status {code}"),
            _ => f.write_str(self.words()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_keeps_its_value() {
        for code in 0..100 {
            assert_eq!(Status::from_code(code).code(), code);
        }
    }
}
