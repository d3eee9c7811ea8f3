//! Items for tests of Adverb. They are not public API and may change in any version.

use adverb_verbs::Result;

use crate::tasks::Connection;

/// Moves the queue pair under a connection to the error state, as a failure of the network does.
///
/// # Errors
///
/// Returns [`Error::CallFailed`](adverb_verbs::Error::CallFailed) if the operation fails.
pub fn break_lane(connection: &Connection) -> Result<()> {
    connection.break_lane()
}
