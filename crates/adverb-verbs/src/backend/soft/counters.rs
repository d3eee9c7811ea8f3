//! Counters of a device.

use std::collections::BTreeMap;

use adverb_proto::ResourceCounts;

use super::Device;
use crate::error::Result;

impl Device {
    pub(in crate::backend) fn resource_counts(&self) -> ResourceCounts {
        self.nic.resource_counts()
    }

    pub(in crate::backend) fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        self.check_port(port)?;
        let statistics = self.nic.statistics();
        Ok(statistics.counters().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
