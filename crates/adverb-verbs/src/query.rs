//! Queries of a queue pair's attributes.

use adverb_proto::types::{QueuePairAttributes, Transport};

use super::QueuePair;
use crate::error::Result;

impl QueuePair {
    /// Queries the queue pair's attributes from the device.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Verb`](crate::Error::Verb) if the query fails.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let mut attributes = self.backend.query()?;
        if self.transport == Transport::Ud {
            attributes.peer = None;
        }
        Ok(attributes)
    }
}
