//! Queries of a queue pair's attributes.

use adverb_proto::types::{DeviceEvent, QueuePairAttributes, Transport};

use super::QueuePair;
use crate::error::Result;

impl QueuePair {
    /// Queries the queue pair's attributes from the device.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CallFailed`](crate::Error::CallFailed) if the query fails.
    pub fn query(&self) -> Result<QueuePairAttributes> {
        let mut attributes = self.backend.query()?;
        if self.transport == Transport::Ud {
            attributes.peer = None;
        }
        Ok(attributes)
    }

    /// Returns the event that moved the queue pair to the error state. The software NIC stores it. rdma-core reports it
    /// only as an event of the device.
    pub(crate) fn error_event(&self) -> Option<DeviceEvent> {
        self.backend.error_event()
    }
}
