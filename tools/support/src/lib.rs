//! Paths, processes and packages: the helpers that Adverb's developer tools share.

pub mod packages;
pub mod paths;
pub mod process;
