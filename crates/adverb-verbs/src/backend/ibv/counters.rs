//! Counters of a device, which the kernel shows in sysfs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use adverb_proto::explain::Call;

use super::Device;
use crate::error::{Result, call_failed};

impl Device {
    /// Reads the counters of a port: the driver's own counters, and those of the InfiniBand specification, if there are
    /// any.
    pub(in crate::backend) fn counters(&self, port: u8) -> Result<BTreeMap<String, u64>> {
        // Names of devices contain no slashes, because the kernel uses them as names of directories.
        let directory =
            Path::new("/sys/class/infiniband").join(&self.name).join("ports").join(port.to_string());
        read_counters(&directory).map_err(|error| {
            call_failed(
                Call::Counters,
                format!("reading the counters of port {port} of {}", self.name),
                error,
            )
        })
    }
}

/// Reads the counters in a port's directory. A port without counters is no error, but a missing port is.
fn read_counters(port: &Path) -> std::io::Result<BTreeMap<String, u64>> {
    fs::metadata(port)?;
    let mut counters = BTreeMap::new();
    // If both directories have a counter of this name, the driver's own counter is used.
    for directory in ["counters", "hw_counters"] {
        let Ok(entries) = fs::read_dir(port.join(directory)) else { continue };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            // This file is a setting: the time for which the kernel caches the counters, in milliseconds.
            if name == "lifespan" {
                continue;
            }
            // A counter that isn't available contains a text ("N/A (no PMA)"), or can't be read.
            let value = fs::read_to_string(entry.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(value) = value {
                counters.insert(name, value);
            }
        }
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numeric_counters_are_read() {
        let port = std::env::temp_dir().join(format!("adverb-counters-{}", std::process::id()));
        let write = |path: &str, text: &str| fs::write(port.join(path), text).unwrap();
        fs::create_dir_all(port.join("hw_counters")).unwrap();
        write("hw_counters/rcvd_pkts", "1234\n");
        write("hw_counters/lifespan", "10\n");
        let without_standard = read_counters(&port).unwrap();
        fs::create_dir_all(port.join("counters")).unwrap();
        write("counters/port_rcv_errors", "7\n");
        write("counters/rcvd_pkts", "9\n");
        write("counters/port_xmit_wait", "N/A (no PMA)\n");
        let all = read_counters(&port).unwrap();
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(without_standard, BTreeMap::from([("rcvd_pkts".to_owned(), 1234)]));
        let expected = [("port_rcv_errors".to_owned(), 7), ("rcvd_pkts".to_owned(), 1234)];
        assert_eq!(all, BTreeMap::from(expected));
        assert!(read_counters(&port).is_err(), "a port that doesn't exist");
    }
}
