//! The kernel's RDMA devices in sysfs.
//!
//! rdma-core lists only the devices that it can drive. The kernel lists all of them, so the difference shows the
//! devices that a user misses.

use std::fs;
use std::path::{Path, PathBuf};

use super::inventory::Unusable;

/// The kernel's RDMA files.
pub(crate) struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// Returns the files of this machine.
    pub(super) fn new() -> Kernel {
        Kernel::at("/".as_ref())
    }

    /// Returns the files below a directory.
    pub(crate) fn at(root: &Path) -> Kernel {
        Kernel { root: root.to_owned() }
    }

    /// Returns the sorted names of the kernel's devices.
    pub(crate) fn devices(&self) -> Vec<String> {
        names_in(&self.root.join(CLASS))
    }

    pub(super) fn guid(&self, device: &str) -> Option<String> {
        let text = fs::read_to_string(self.root.join(CLASS).join(device).join("node_guid")).ok()?;
        Some(text.trim().to_owned())
    }

    /// Returns the reason why rdma-core doesn't list a device of the kernel.
    pub(super) fn unlisted_reason(&self, device: &str) -> Unusable {
        self.missing_file(device).unwrap_or_else(|| Unusable {
            reason: "rdma-core has no driver for it".to_owned(),
            hint: Some(
                "install the drivers: `apt install ibverbs-providers` on Debian and Ubuntu, \
                 the package rdma-core elsewhere"
                    .to_owned(),
            ),
        })
    }

    /// Returns the reason why a device of the kernel has no file in /dev, or `None` if it has one.
    pub(crate) fn missing_file(&self, device: &str) -> Option<Unusable> {
        let Some(node) = self.node(device) else {
            return Some(Unusable {
                reason: "the kernel does not expose it to programs".to_owned(),
                hint: Some("load the kernel module: `modprobe ib_uverbs`".to_owned()),
            });
        };
        let file = self.file(device).filter(|file| file.exists());
        file.is_none().then(|| Unusable {
            reason: format!("its device file /dev/infiniband/{node} does not exist"),
            hint: Some(
                "pass the device files to the container: `docker run --device=/dev/infiniband`".to_owned(),
            ),
        })
    }

    /// Returns the path of a device's file, whether it exists or not.
    pub(crate) fn file(&self, device: &str) -> Option<PathBuf> {
        Some(self.root.join("dev/infiniband").join(self.node(device)?))
    }

    /// Returns the name of a device's file in /dev/infiniband, such as `uverbs0`.
    fn node(&self, device: &str) -> Option<String> {
        let class = self.root.join("sys/class/infiniband_verbs");
        let is_of_device = |node: &String| {
            fs::read_to_string(class.join(node).join("ibdev")).is_ok_and(|name| name.trim() == device)
        };
        names_in(&class).into_iter().find(is_of_device)
    }
}

const CLASS: &str = "sys/class/infiniband";

/// Returns the sorted names of a directory's entries, or none if it doesn't exist.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary directory of files, which is removed on drop.
    struct Files(Kernel);

    impl Files {
        fn new(test: &str, files: &[(&str, &str)]) -> Files {
            let root = std::env::temp_dir().join(format!("adverb-{test}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Files(Kernel { root })
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.root);
        }
    }

    const GUID: (&str, &str) = ("sys/class/infiniband/rxe0/node_guid", "0000:00ff:fe00:7701\n");
    const NODE: (&str, &str) = ("sys/class/infiniband_verbs/uverbs3/ibdev", "rxe0\n");
    /// A file beside the device entries.
    const VERSION: (&str, &str) = ("sys/class/infiniband_verbs/abi_version", "6\n");
    const DEV: (&str, &str) = ("dev/infiniband/uverbs3", "");

    #[test]
    fn kernel_without_rdma_has_no_devices() {
        let files = Files::new("none", &[]);
        assert!(files.0.devices().is_empty());
    }

    #[test]
    fn devices_of_the_kernel_have_their_guid() {
        let files = Files::new("guid", &[GUID, VERSION]);
        assert_eq!(files.0.devices(), ["rxe0"]);
        assert_eq!(files.0.guid("rxe0").as_deref(), Some("0000:00ff:fe00:7701"));
        assert_eq!(files.0.guid("rxe1"), None);
    }

    #[test]
    fn device_without_ib_uverbs_has_a_hint() {
        let files = Files::new("uverbs", &[GUID]);
        let unusable = files.0.unlisted_reason("rxe0");
        assert!(unusable.hint.unwrap().contains("modprobe ib_uverbs"));
    }

    #[test]
    fn device_without_its_file_in_dev_has_a_hint_about_containers() {
        let files = Files::new("dev", &[GUID, VERSION, NODE]);
        let unusable = files.0.unlisted_reason("rxe0");
        assert!(unusable.reason.contains("/dev/infiniband/uverbs3"), "{}", unusable.reason);
        assert!(unusable.hint.unwrap().contains("container"));
    }

    #[test]
    fn device_with_all_its_files_lacks_a_driver_of_rdma_core() {
        let files = Files::new("driver", &[GUID, VERSION, NODE, DEV]);
        let unusable = files.0.unlisted_reason("rxe0");
        assert!(unusable.hint.unwrap().contains("ibverbs-providers"));
    }
}
