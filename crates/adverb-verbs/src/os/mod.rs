//! Functions of the operating system for both engines: clocks, waits for file descriptors, and functions at exit.

mod clock;
mod exit;
mod wait;

pub(crate) use clock::clock_origin;
pub use exit::call_at_exit;
pub use wait::{Interest, Watch, start_connect, wait_either, wait_many};
