//! `cargo xtask setup`: installation of the packages and tools that the other commands need.

use anyhow::Result;
use support::packages;

use crate::tools;

/// Installs missing packages and tools. If nothing is missing, it needs no privileges.
pub(crate) fn run() -> Result<()> {
    packages::ensure(&[packages::BUILD, packages::VM, packages::ROOTS, packages::PRELOAD].concat())?;
    tools::ensure_all()
}
