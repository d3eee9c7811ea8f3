//! Functions of the operating system for both backends: clocks, waits for file descriptors, functions at exit, and the
//! process that an object belongs to.

mod clock;
mod exit;
mod process;
mod wait;

pub(crate) use clock::clock_origin;
pub use exit::call_at_exit;
pub use process::OwnerProcess;
pub use wait::{Interest, Watch, start_connect, wait_either, wait_many};
