//! What a device counts.

use std::collections::BTreeMap;

use adverb_proto::Holdings;

use super::Device;
use crate::error::Result;

impl Device {
    pub(crate) fn holdings(&self) -> Holdings {
        self.nic.holdings()
    }

    pub(crate) fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        self.check_port(port)?;
        let statistics = self.nic.statistics();
        Ok(statistics.counters().map(|(name, value)| (name.to_owned(), value)).collect())
    }
}
