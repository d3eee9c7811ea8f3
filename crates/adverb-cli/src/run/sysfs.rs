//! The sysfs files of the software device, for programs that read them.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::geteuid;

use super::owner;

/// A directory with the files that sysfs has for an RDMA device. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
    reports: PathBuf,
}

impl Sysfs {
    /// Creates the files of a device with this address, if the address is known, in the first of these directories where
    /// that succeeds.
    ///
    /// # Errors
    ///
    /// Returns a message that names the directories if no directory is writable.
    pub(super) fn create(address: Option<IpAddr>, directories: &[PathBuf]) -> Result<Sysfs, String> {
        first(directories, |directory| Sysfs::create_in(address, directory))
    }

    /// Creates the files in a directory.
    fn create_in(address: Option<IpAddr>, directory: &Path) -> io::Result<Sysfs> {
        // Programs may change their working directory, and a symbolic link may be another user's.
        let root = new_directory(&directory.canonicalize()?)?;
        let sysfs = Sysfs { reports: root.join("reports"), root };
        fs::create_dir(&sysfs.reports)?;
        write_files(&sysfs.root, address)?;
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

/// Writes the files of a device with this address, in the first of these directories that other users can't change.
/// Returns the directory that contains `sys`. It remains, and later calls of this user return the same one.
///
/// # Errors
///
/// Returns a message that names the directories if none is usable.
pub(super) fn of_user(address: Option<IpAddr>, directories: &[PathBuf]) -> Result<PathBuf, String> {
    first(directories, |directory| {
        let user = resolve(directory)?.join(format!("adverb-env-{}", geteuid()));
        claim(&user)?;
        let root = user.join(address.map_or_else(|| "default".to_owned(), |address| address.to_string()));
        write_files(&root, address)?;
        Ok(root)
    })
}

/// Returns the first result that isn't an error, or a message with all errors.
fn first<T>(directories: &[PathBuf], attempt: impl Fn(&Path) -> io::Result<T>) -> Result<T, String> {
    let mut failures = Vec::new();
    for directory in directories {
        match attempt(directory) {
            Ok(result) => return Ok(result),
            Err(error) => failures.push(format!("{}: {error}", directory.display())),
        }
    }
    Err(failures.join(", "))
}

/// Returns the path of a directory without symbolic links, which another user may be able to change.
///
/// # Errors
///
/// Fails if other users than root can rename the entries of the directory or of a directory above.
fn resolve(directory: &Path) -> io::Result<PathBuf> {
    let directory = directory.canonicalize()?;
    for (distance, ancestor) in directory.ancestors().enumerate() {
        let metadata = fs::metadata(ancestor)?;
        // The directories above may be writable by their groups, which are groups of administrators, as for /usr/local.
        let others = if distance == 0 { 0o022 } else { 0o002 };
        let is_protected = metadata.mode() & 0o1000 != 0 || metadata.mode() & others == 0;
        // The owner of a directory can rename all entries, even if the directory is sticky.
        if !is_protected || !owner::is_trusted(metadata.uid()) {
            let message = format!("another user can change {}", ancestor.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
    }
    Ok(directory)
}

/// Creates a directory that only its owner can read, or checks that an existing one is that.
fn claim(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return created,
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(directory)?;
    if opened.metadata()?.uid() != geteuid().as_raw() {
        let message = format!("{} belongs to another user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    // In a user namespace, other owners can have the same number. The kernel lets only the true owner do this.
    opened.set_permissions(Permissions::from_mode(0o700))
}

/// Writes the files of a device with this address, if the address is known. Files that are as they should be are left
/// alone, and others are replaced, because programs may be reading them.
fn write_files(root: &Path, address: Option<IpAddr>) -> io::Result<()> {
    for (path, text) in files(address) {
        let (path, text) = (root.join(path), text + "\n");
        if fs::read_to_string(&path).is_ok_and(|existing| existing == text) {
            continue;
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut new = path.clone().into_os_string();
        new.push(format!(".{}", std::process::id()));
        fs::write(&new, text)?;
        fs::rename(new, path)?;
    }
    Ok(())
}

/// Returns the paths and texts of the files of a device.
fn files(address: Option<IpAddr>) -> Vec<(String, String)> {
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
    files
}

/// Returns the directories for temporary files.
pub(super) fn directories() -> Vec<PathBuf> {
    let of_user = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    [std::env::temp_dir(), "/dev/shm".into()].into_iter().chain(of_user).collect()
}

/// Returns the directories for files that remain.
pub(super) fn directories_of_user() -> Vec<PathBuf> {
    let mut directories = directories();
    // A third directory, which is that of the user, is tried first.
    let is_given = directories.len() > 2;
    directories.rotate_right(usize::from(is_given));
    directories
}

/// Creates a new directory that other users can't change.
fn new_directory(directory: &Path) -> io::Result<PathBuf> {
    for attempt in 0..100 {
        let name = format!("adverb-run-{}-{attempt}", std::process::id());
        let path = directory.join(name);
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
        // The first directory isn't writable.
        let directories = ["/proc/self/fdinfo".into(), std::env::temp_dir()];
        let sysfs = Sysfs::create(Some("127.1.2.3".parse().unwrap()), &directories).unwrap();
        let root = sysfs.root().to_owned();
        let port = root.join("sys/class/infiniband/adverb0/ports/1");
        assert_eq!(
            fs::read_to_string(port.join("gids/0")).unwrap(),
            "0000:0000:0000:0000:0000:ffff:7f01:0203\n"
        );
        assert_eq!(fs::read_to_string(port.join("gid_attrs/types/0")).unwrap(), "RoCE v2\n");
        drop(sysfs);
        assert!(!root.exists());
        let error = Sysfs::create(None, &directories[..1]).unwrap_err();
        assert!(error.starts_with("/proc/self/fdinfo: "), "{error}");
    }

    #[test]
    fn files_of_a_user_remain_and_are_repaired() {
        let parent = new_directory(&std::env::temp_dir()).unwrap();
        let address = Some("127.1.2.3".parse().unwrap());
        let root = of_user(address, std::slice::from_ref(&parent)).unwrap();
        let user = root.parent().unwrap();
        assert_eq!(fs::metadata(user).unwrap().mode() & 0o777, 0o700);
        let state = root.join("sys/class/infiniband/adverb0/ports/1/state");
        let written = || fs::metadata(&state).unwrap().ino();
        let first = written();
        assert_eq!(of_user(address, std::slice::from_ref(&parent)).unwrap(), root);
        assert_eq!(written(), first, "an intact file is left alone");
        fs::write(&state, "").unwrap();
        fs::set_permissions(user, Permissions::from_mode(0o755)).unwrap();
        of_user(address, std::slice::from_ref(&parent)).unwrap();
        assert_eq!(fs::read_to_string(&state).unwrap(), "4: ACTIVE\n");
        assert_eq!(fs::metadata(user).unwrap().mode() & 0o777, 0o700);
        assert_ne!(of_user(None, std::slice::from_ref(&parent)).unwrap(), root);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn directories_of_other_users_are_not_used() {
        let parent = new_directory(&std::env::temp_dir()).unwrap();
        let directories = std::slice::from_ref(&parent);
        let user = parent.join(format!("adverb-env-{}", geteuid()));
        std::os::unix::fs::symlink("/", &user).unwrap();
        of_user(None, directories).unwrap_err();
        fs::remove_file(&user).unwrap();
        if geteuid().is_root() {
            fs::create_dir(&user).unwrap();
            std::os::unix::fs::chown(&user, Some(65534), None).unwrap();
            let error = of_user(None, directories).unwrap_err();
            assert!(error.contains("belongs to another user"), "{error}");
        } else {
            println!("skipped in part, because only root can create another user's directory");
        }
        // Below another user's directory, or behind a symbolic link, which is resolved.
        let below = parent.join("below");
        DirBuilder::new().mode(0o700).create(&below).unwrap();
        let link = parent.join("link");
        std::os::unix::fs::symlink(&below, &link).unwrap();
        assert!(of_user(None, &[link]).unwrap().starts_with(below.canonicalize().unwrap()));
        fs::set_permissions(&parent, Permissions::from_mode(0o777)).unwrap();
        let error = of_user(None, std::slice::from_ref(&below)).unwrap_err();
        assert!(error.contains("another user can change"), "{error}");
        if geteuid().is_root() {
            // The sticky bit doesn't bind the owner of the directory.
            fs::set_permissions(&parent, Permissions::from_mode(0o1777)).unwrap();
            std::os::unix::fs::chown(&parent, Some(1000), None).unwrap();
            of_user(None, directories).unwrap_err();
            of_user(None, &[below]).unwrap_err();
            std::os::unix::fs::chown(&parent, Some(0), None).unwrap();
        }
        for (mode, is_usable) in [(0o777, false), (0o1777, true)] {
            _ = fs::remove_dir_all(&user);
            fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
            let result = of_user(None, directories);
            assert_eq!(result.is_ok(), is_usable, "{mode:o}: {result:?}");
        }
        fs::remove_dir_all(parent).unwrap();
    }
}
