//! What a device knows of a queue pair.

use adverb_proto::types::{QueuePairAttributes, Transport};

use super::QueuePair;
use crate::error::Result;

impl QueuePair {
    /// Asks the device what it knows of the queue pair.
    ///
    /// # Errors
    ///
    /// If it can't be asked.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let mut attributes = self.backend.query()?;
        if self.transport == Transport::Ud {
            attributes.peer = None;
        }
        Ok(attributes)
    }
}
