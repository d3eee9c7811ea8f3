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

    /// Returns the event that moved the queue pair to the error state, for example a violation of access rights by the
    /// peer, which no completion of this side reports. Resetting the queue pair discards the event.
    ///
    /// Only the software NIC stores it. For devices of rdma-core, the result is `None`: they report such events only
    /// through [`Device::wait_event`](crate::Device::wait_event).
    pub fn error_event(&self) -> Option<DeviceEvent> {
        self.backend.error_event()
    }
}
