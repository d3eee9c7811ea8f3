//! Paths, processes, packages and a test network: the helpers that Adverb's developer tools and tests share.

pub mod leaf_spine;
pub mod packages;
pub mod paths;
pub mod process;
pub mod programs;
