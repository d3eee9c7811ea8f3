//! The end of the process.

/// Calls a function when the process exits: when `main` returns, or by `exit`. Not in a process that is killed.
pub fn call_at_exit(function: extern "C" fn()) {
    // SAFETY: the function has no preconditions. If it can't be registered, it isn't called.
    unsafe { libc::atexit(function) };
}
