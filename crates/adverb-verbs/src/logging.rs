//! Logs from code that must not unwind.

/// Logs from code that must not unwind: a panic of the log's subscriber is caught.
pub(crate) fn log_without_unwinding(log: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(log)) {
        // Dropping the panic's payload may panic, too.
        std::mem::forget(panic);
    }
}
