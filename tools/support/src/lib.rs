//! Paths, processes and packages: the helpers that Adverb's developer tools share.

pub mod leaf_spine;
pub mod packages;
pub mod paths;
pub mod process;
