//! The rules of the connection manager, one test each.

mod duplicates;
mod ending;
mod harness;
mod hostile;
mod loss;
mod opening;
mod peers;
mod private_data;
mod refusing;
mod sidr;
mod timewait;
