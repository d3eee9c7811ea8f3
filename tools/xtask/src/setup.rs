//! `cargo xtask setup`: installation of the packages and tools that the other commands need.

use anyhow::Result;
use support::packages;

use crate::tools;

/// Installs missing packages and tools. If nothing is missing, it needs no privileges.
pub(crate) fn run() -> Result<()> {
    packages::ensure(packages::BUILD)?;
    packages::ensure(packages::VM)?;
    packages::ensure(packages::ROOTS)?;
    tools::ensure_all()
}
