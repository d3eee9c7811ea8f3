//! `cargo xtask setup`: everything that the other commands need.

use anyhow::Result;
use support::packages;

use crate::tools;

/// Installs what is missing; where nothing is, takes no time and needs no rights.
pub(crate) fn run() -> Result<()> {
    packages::ensure(packages::BUILD)?;
    packages::ensure(packages::VM)?;
    tools::ensure_all()
}
