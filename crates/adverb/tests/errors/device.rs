//! Situations that need an RDMA device: the software NIC has no device file, locks no memory, and can't be removed.
//!
//! They change the permissions of the device's files, and remove the device, so they run only as root and only on the
//! soft-RoCE device that `ADVERB_DEVICE` names. `cargo xtask device-tests` runs them in a virtual machine.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, scope, sleep};
use std::time::{Duration, Instant};

use adverb::net::blocking::{Connection, Connector, Listener};
use adverb::net::{Bootstrap, ConnectError, ConnectionError, Options, RecvError, RefusalReason};
use adverb::verbs::cm;
use adverb::verbs::explain::Call;
use adverb::verbs::{Access, Device, DeviceEvent, Error, GidType, Transport};

use crate::process::{self, Process};
use crate::{TIMEOUT, options, show};

#[test]
fn each_situation_of_a_device_has_an_error_that_a_match_tells_apart() {
    match SoftRoce::find() {
        Ok(device) => device.show_all(),
        Err(reason) => println!("9, 10, 25: skipped: {reason}\n"),
    }
}

/// A soft-RoCE device of the kernel.
struct SoftRoce {
    name: String,
    /// Its network interface.
    netdev: String,
}

impl SoftRoce {
    /// Returns the device that `ADVERB_DEVICE` names, or the reason why the situations can't be shown.
    fn find() -> Result<SoftRoce, String> {
        let name = std::env::var("ADVERB_DEVICE").map_err(|_| "ADVERB_DEVICE names no soft-RoCE device")?;
        let netdev = fs::read_to_string(directory(&name).join("parent"))
            .map_err(|error| format!("{name} is not a soft-RoCE device: {error}"))?;
        if fs::metadata("/proc/self").unwrap().uid() != 0 {
            return Err("only root can remove a device".to_owned());
        }
        Ok(SoftRoce { name, netdev: netdev.trim().to_owned() })
    }

    fn show_all(&self) {
        let name = &self.name;
        {
            let _files = [self.file(), RDMA_CM.into()].map(DeniedFile::new);
            process::run(&format!("no-permission {name}"));
        }
        process::run(&format!("memlock {name}"));
        process::run(&format!("removed {name}"));
        self.restore();
    }

    /// Returns the device file.
    fn file(&self) -> PathBuf {
        let directories = fs::read_dir("/sys/class/infiniband_verbs").unwrap().flatten();
        let is_own = |directory: &fs::DirEntry| {
            fs::read_to_string(directory.path().join("ibdev")).is_ok_and(|name| name.trim() == self.name)
        };
        let found = directories.into_iter().find(is_own).expect("each device has a file");
        Path::new("/dev/infiniband").join(found.file_name())
    }

    /// Waits until the device is removed, and creates it again.
    fn restore(&self) {
        wait_until("the device is removed", || !directory(&self.name).exists());
        let words = ["link", "add", &self.name, "type", "rxe", "netdev", &self.netdev];
        assert!(Command::new("rdma").args(words).status().unwrap().success());
        // The kernel fills the GID table in the background.
        wait_until("the device has an IPv4 address", || {
            Device::open(&self.name).is_ok_and(|device| ipv4_address(&device).is_some())
        });
    }
}

/// The file of the connection manager.
const RDMA_CM: &str = "/dev/infiniband/rdma_cm";

/// A file that only root may use until this value is dropped.
struct DeniedFile(PathBuf, Permissions);

impl DeniedFile {
    fn new(path: PathBuf) -> DeniedFile {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        DeniedFile(path, before)
    }
}

impl Drop for DeniedFile {
    fn drop(&mut self) {
        fs::set_permissions(&self.0, self.1.clone()).unwrap();
    }
}

/// Opens a device as a user who may not open its file.
pub(crate) fn lack_permission(name: &str) {
    let address = ipv4_address(&Device::open(name).unwrap()).unwrap();
    drop_privileges();
    let error = Device::open(name).unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { call: Call::OpenDevice, .. }), "{error:?}");
    assert!(!error.is_retryable());
    show("9: no permission for the device file", error);

    let error = cm::Listener::bind(address).unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { call: Call::CmChannel, .. }), "{error:?}");
    show("9: no permission for the file of the connection manager", error);
}

/// The limit of locked memory, in bytes. Limits of 32 KiB or less cause a warning of libibverbs.
const MEMLOCK_LIMIT: u64 = 64 << 10;

/// Registers more memory than the limit allows.
pub(crate) fn exceed_the_memlock_limit(name: &str) {
    let connect = |address: &str| {
        let device = Device::open(name).unwrap();
        Connector::new().options(&options_on(&device)).connect(address).unwrap_err()
    };
    let [mut peer, mut limited] =
        ["listen-on", "listen-without-memory"].map(|role| Process::start(&format!("{role} {name}")));
    let [address, limited_address] = [&mut peer, &mut limited].map(|peer| peer.wait_for_line("listening "));
    // This process has no limit yet.
    let rejection = connect(&limited_address);
    limit_memory(MEMLOCK_LIMIT);
    let device = Device::open(name).unwrap();
    let domain = device.create_protection_domain().unwrap();
    let error = domain.allocate_region(1 << 20, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, Error::MemlockLimit { limit: MEMLOCK_LIMIT, .. }), "{error:?}");
    assert!(error.is_retryable());
    show("10: memlock limit", error);
    // Less memory can be registered.
    drop(domain.allocate_region(4096, Access::LOCAL_WRITE).unwrap());

    let error = connect(&address);
    let ConnectError::Device { source, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**source, Error::MemlockLimit { limit: MEMLOCK_LIMIT, .. }), "{error:?}");
    show("10: the memory of a connection exceeds the memlock limit", error);

    limit_locked(0);
    let error = domain.allocate_region(4096, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, Error::MemlockLimit { limit: 0, .. }), "{error:?}");
    show("10: no memory may be locked", error);

    assert!(
        matches!(rejection, ConnectError::Rejected { reason: RefusalReason::Internal, .. }),
        "{rejection:?}"
    );
    assert!(rejection.is_retryable());
    show("10: the listener's process may lock no memory", rejection);
}

/// Limits the memory that this process may lock, in bytes.
fn limit_memory(limit: u64) {
    limit_locked(limit);
    // A process with CAP_IPC_LOCK has no limit.
    drop_privileges();
}

fn limit_locked(limit: u64) {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the structure is valid during the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit) }, 0);
}

/// Listens on a device, and accepts connections, for which no memory can be locked.
pub(crate) fn listen_without_memory(name: &str) {
    limit_memory(0);
    listen_on(name);
}

/// Listens on a device, and accepts connections.
pub(crate) fn listen_on(name: &str) {
    let device = Device::open(name).unwrap();
    let listener =
        Listener::builder().options(&options_on(&device)).bind(ipv4_address(&device).unwrap()).unwrap();
    println!("listening {}", listener.local_addr());
    thread::spawn(move || while listener.accept().is_ok() {});
    // The parent may not be permitted to kill this process.
    process::wait_for_parent();
}

/// Uses a device while it is removed.
pub(crate) fn lose_device(name: &str) {
    let device = Device::open(name).unwrap();
    let address = ipv4_address(&device).unwrap();
    let manager = cm::Listener::bind(address).unwrap();
    let (left, right) = connect(&device);
    let removal = Removal::start(name);

    let error = manager.accept_timeout(TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { .. }), "{error:?}");
    assert!(!error.is_retryable());
    show("25: the device is removed while the connection manager listens", error);

    // Each end is told about the removal. One of them may be told about the end of the other first.
    let lost = [left.recv(), right.recv()].map(|received| match received.unwrap_err() {
        RecvError::ConnectionLost(ConnectionError::Device { source, peer }) => {
            assert!(matches!(*source, Error::DeviceFailed { .. }), "{source:?}");
            Some(ConnectionError::Device { source, peer })
        }
        RecvError::ConnectionLost(ConnectionError::PeerLost { .. } | ConnectionError::PeerAborted { .. }) => {
            None
        }
        error => panic!("{error:?}"),
    });
    let error = lost.into_iter().flatten().next().expect("one of the ends is told first");
    show("25: the device of a connection is removed", error);

    let error = Device::open(name).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
    show("25: the device was removed before it is opened", error);
    use_removed(&device, removal);
}

/// Uses a device that was removed while it is open, if its driver allows that.
fn use_removed(device: &Device, mut removal: Removal) {
    if !removal.ends_within(Duration::from_secs(1)) {
        // Its objects are usable, and it has reported nothing.
        let domain = device.create_protection_domain().unwrap();
        let completions = device.completion_queue(64).create().unwrap();
        domain.queue_pair(Transport::Rc).completion_queue(&completions).depth(4, 4).create().unwrap();
        assert_eq!(device.wait_event(Duration::ZERO).unwrap(), None);
        return println!(
            "25: the calls of an open device after its removal: skipped: the driver rxe of this kernel cannot take a \
             device away from a process (it has no `disassociate_ucontext`): the removal waits until the process has \
             closed all files of the device, and the device works until then\n"
        );
    }
    let event = device.wait_event(TIMEOUT).unwrap();
    assert_eq!(event, Some(DeviceEvent::DeviceFatal));
    let error = device.create_protection_domain().unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { .. }), "{error:?}");
    show("25: the device was removed while it is open", error);
}

/// Connects a device to itself.
fn connect(device: &Device) -> (Connection, Connection) {
    let options = options_on(device);
    let listener = Listener::builder().options(&options).bind(ipv4_address(device).unwrap()).unwrap();
    scope(|scope| {
        let right = scope.spawn(|| listener.accept().unwrap());
        let left = Connector::new().options(&options).connect(listener.local_addr()).unwrap();
        (left, right.join().unwrap())
    })
}

/// Returns options for connections on this device, by its connection manager.
fn options_on(device: &Device) -> Options {
    options().device(device).bootstrap(Bootstrap::ConnectionManager)
}

/// The removal of a soft-RoCE device, by a process that ends when the device is removed.
struct Removal(Child);

impl Removal {
    fn start(name: &str) -> Removal {
        let mut command = Command::new("rdma");
        // It may outlive this process, whose output has a reader that waits for its end.
        command.args(["link", "delete", name]).stdout(Stdio::null()).stderr(Stdio::null());
        Removal(command.spawn().unwrap())
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success());
                return true;
            }
            sleep(POLL_INTERVAL);
        }
        false
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(20);

fn wait_until(state: &str, mut is_reached: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !is_reached() {
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {state}");
        sleep(POLL_INTERVAL);
    }
}

/// Returns the directory of a device in sysfs.
fn directory(name: &str) -> PathBuf {
    Path::new("/sys/class/infiniband").join(name)
}

/// Returns the IPv4 address of a device, with port 0.
fn ipv4_address(device: &Device) -> Option<SocketAddr> {
    let gids = device.gids().ok()?;
    let found = gids.iter().find(|entry| entry.gid_type == GidType::RoceV2 && entry.gid.ip().is_ipv4());
    found.map(|entry| SocketAddr::new(entry.gid.ip(), 0))
}

/// Makes this process one of the user `nobody`, without capabilities.
fn drop_privileges() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: the calls have no requirements. An empty list of groups is not read.
    let results = unsafe {
        [
            libc::setgroups(0, std::ptr::null()),
            libc::setresgid(NOBODY, NOBODY, NOBODY),
            libc::setresuid(NOBODY, NOBODY, NOBODY),
        ]
    };
    assert_eq!(results, [0; 3], "{}", std::io::Error::last_os_error());
}
