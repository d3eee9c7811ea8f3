//! Calls that failed, for the report.

use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::time::Duration;

use libc::c_int;

use crate::fork::PerProcess;

/// A verb that failed with one cause.
pub(crate) struct FailedCall {
    name: &'static str,
    errno: c_int,
    reason: Option<String>,
    count: u64,
}

pub(crate) static FAILED: PerProcess<Vec<FailedCall>> = PerProcess::new();

thread_local! {
    /// The reason of the calling thread's last failure, until the call that failed returns.
    static REASON: RefCell<Option<String>> = const { RefCell::new(None) };
    /// The number of exported functions that the calling thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Returns an errno value, and notes the reason for the report.
#[cold]
pub(crate) fn explain(errno: c_int, reason: impl Display) -> c_int {
    // A thread that is ending has no place for it.
    _ = REASON.try_with(|place| place.replace(Some(reason.to_string())));
    errno
}

/// Returns EINVAL, and notes the reason for the report.
#[cold]
pub(crate) fn invalid(reason: impl Display) -> c_int {
    explain(libc::EINVAL, reason)
}

/// The time that a thread spends in an exported function, which may call others: only the outermost one is counted.
pub(crate) struct Nested;

impl Nested {
    pub(crate) fn begin() -> Nested {
        _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Nested
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        _ = DEPTH.try_with(|depth| depth.set(depth.get() - 1));
    }
}

/// Forgets the reason of a failure that the calling function handled.
pub(crate) fn forget_reason() {
    if DEPTH.try_with(Cell::get) == Ok(0) {
        _ = REASON.try_with(|reason| reason.take());
    }
}

/// Counts a call that failed, unless it is part of another call.
#[cold]
pub(crate) fn count(name: &'static str, errno: c_int) {
    // These values are no failures, because programs wait and try again: EAGAIN, EINTR, and ENOMEM from a post, whose
    // queue is full.
    let is_post = name.starts_with("ibv_post_") || name == "ibv_wr_complete";
    let is_full = is_post && errno == libc::ENOMEM;
    if is_full || DEPTH.try_with(Cell::get) != Ok(0) || matches!(errno, libc::EAGAIN | libc::EINTR) {
        return;
    }
    let reason = REASON.try_with(|reason| reason.take()).ok().flatten();
    let Some(mut failed) = FAILED.value().try_lock_for(LOCK_TIMEOUT) else { return };
    let failed = failed.get_or_insert_with(Vec::new);
    let known = |call: &&mut FailedCall| call.name == name && call.errno == errno && call.reason == reason;
    if let Some(call) = failed.iter_mut().find(known) {
        call.count += 1;
    } else if failed.len() < MAX_CAUSES {
        failed.push(FailedCall { name, errno, reason, count: 1 });
    } else if let Some(call) = failed.iter_mut().find(|call| call.name == name && call.errno == errno) {
        // The numbers in reasons may differ each time.
        call.count += 1;
    }
}

/// Returns the failed calls as text, with their numbers.
pub(crate) fn failed() -> Vec<(String, u64)> {
    let failed = FAILED.value().try_lock_for(LOCK_TIMEOUT);
    let text = |call: &FailedCall| {
        let errno = match adverb_proto::explain::errno(call.errno) {
            Some(explanation) => explanation.name.to_owned(),
            None => format!("errno {}", call.errno),
        };
        // The report separates its columns with tabs, and its rows with line feeds.
        let reason = call.reason.as_deref().map(|reason| format!(": {}", reason.replace(['\t', '\n'], " ")));
        (format!("{} failed with {errno}{}", call.name, reason.unwrap_or_default()), call.count)
    };
    failed.iter().flat_map(|failed| failed.iter().flatten()).map(text).collect()
}

/// The maximum number of causes that are distinguished.
const MAX_CAUSES: usize = 16;

/// The time limit for the lock: the calling thread may have been interrupted by a signal while it held the lock.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);
