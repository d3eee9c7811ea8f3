//! Checks of the packages.

pub(crate) mod image;
