//! The operations of the API, once for tasks and threads.
//!
//! Each file contains a module as a macro, which `tasks` and `threads` expand. Code and documentation are the same for
//! both, except for these parts:
//!
//! - `$($async)?` and `$(.$await)?` make methods of tasks asynchronous, and are empty for threads.
//! - `$(#[$tasks] …)?` and `$(#[$threads] …)?` enclose documentation for one of them; the attribute is an empty line.
//!
//! The parent module has the parts that differ: the constructor of `Connection`, its method `wait`, which waits until a
//! function of the [driver](crate::driver::Driver) returns a value, and functions that look up host names, open a
//! listener, and wait for a descriptor.

mod connection;
mod endpoint;
mod one_sided;
mod stream;

pub(crate) use connection::connection;
pub(crate) use endpoint::endpoint;
pub(crate) use one_sided::one_sided;
pub(crate) use stream::stream;
