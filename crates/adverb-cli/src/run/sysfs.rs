//! The sysfs files of the software device, for programs that read them.

use std::fs::{self, DirBuilder};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A directory with the files that sysfs has for an RDMA device. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
    reports: PathBuf,
}

impl Sysfs {
    /// Creates the files of a device with this address, if the address is known.
    pub(super) fn create(address: Option<IpAddr>) -> io::Result<Sysfs> {
        let root = new_directory()?;
        let sysfs = Sysfs { reports: root.join("reports"), root };
        fs::create_dir(&sysfs.reports)?;
        let device = "sys/class/infiniband/adverb0";
        let port = format!("{device}/ports/1");
        let mut files = vec![
            (format!("{device}/node_type"), "1: CA".to_owned()),
            (format!("{device}/node_desc"), "adverb0".to_owned()),
            (format!("{device}/fw_ver"), env!("CARGO_PKG_VERSION").to_owned()),
            (format!("{device}/device/numa_node"), "-1".to_owned()),
            (format!("{device}/device/infiniband_verbs/uverbs0/ibdev"), "adverb0".to_owned()),
            (format!("{port}/state"), "4: ACTIVE".to_owned()),
            (format!("{port}/phys_state"), "5: LinkUp".to_owned()),
            (format!("{port}/rate"), "40 Gb/sec (4X QDR)".to_owned()),
            (format!("{port}/link_layer"), "Ethernet".to_owned()),
            (format!("{port}/lid"), "0x0".to_owned()),
            (format!("{port}/pkeys/0"), "0xffff".to_owned()),
            (format!("{port}/gid_attrs/types/0"), "RoCE v2".to_owned()),
            ("sys/class/infiniband_verbs/abi_version".to_owned(), "6".to_owned()),
            ("sys/class/infiniband_verbs/uverbs0/ibdev".to_owned(), "adverb0".to_owned()),
            ("sys/class/infiniband_verbs/uverbs0/abi_version".to_owned(), "1".to_owned()),
        ];
        // Without a given address, the device is on the loopback interface.
        if address.is_none_or(|address| address.is_loopback()) {
            files.push((format!("{port}/gid_attrs/ndevs/0"), "lo".to_owned()));
        }
        if let Some(address) = address {
            files.push((format!("{port}/gids/0"), gid(address)));
        }
        for (path, text) in files {
            let path = sysfs.root.join(path);
            if let Some(directory) = path.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(path, text + "\n")?;
        }
        Ok(sysfs)
    }

    /// Returns the directory of the processes' reports, which is removed with the files.
    pub(super) fn reports(&self) -> &Path {
        &self.reports
    }

    /// Returns the directory that contains `sys`.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.root);
    }
}

/// Creates a new directory that other users can't change.
fn new_directory() -> io::Result<PathBuf> {
    for attempt in 0..100 {
        let name = format!("adverb-run-{}-{attempt}", std::process::id());
        let path = std::env::temp_dir().join(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Returns the GID of an address in sysfs's form.
fn gid(address: IpAddr) -> String {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    groups(address).join(":")
}

fn groups(address: Ipv6Addr) -> Vec<String> {
    address.segments().iter().map(|group| format!("{group:04x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_exist_until_the_directory_is_dropped() {
        let sysfs = Sysfs::create(Some("127.1.2.3".parse().unwrap())).unwrap();
        let root = sysfs.root().to_owned();
        let port = root.join("sys/class/infiniband/adverb0/ports/1");
        assert_eq!(
            fs::read_to_string(port.join("gids/0")).unwrap(),
            "0000:0000:0000:0000:0000:ffff:7f01:0203\n"
        );
        assert_eq!(fs::read_to_string(port.join("gid_attrs/types/0")).unwrap(), "RoCE v2\n");
        drop(sysfs);
        assert!(!root.exists());
    }
}
