//! Error numbers of Linux that verbs return.

use super::{Explanation, Kind, errno};

/// A group of calls in which an error number has a specific meaning.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Call {
    /// Listing and opening devices.
    OpenDevice,
    /// Opening a software NIC of Adverb.
    OpenSoftDevice,
    /// Creating queue pairs, completion queues and other objects.
    Create,
    /// Destroying an object.
    Destroy,
    /// Querying devices, ports and queue pairs.
    Query,
    /// Reading a device's counters.
    Counters,
    /// Registering memory.
    RegisterMemory,
    /// Registering a dma-buf.
    RegisterDmabuf,
    /// Moving a queue pair to another state.
    ModifyQueuePair,
    /// Connecting a queue pair to a peer, or creating an address handle: the calls that resolve a peer's address.
    ResolvePeer,
    /// Joining and leaving multicast groups.
    Multicast,
    /// Posting requests.
    Post,
    /// Polling completions and reading events.
    Poll,
    /// Creating an event channel of the connection manager.
    CmChannel,
    /// Binding, listening at and resolving addresses with the connection manager.
    CmAddress,
    /// Establishing a connection with the connection manager.
    CmConnect,
    /// Accepting or rejecting a connect request.
    CmAccept,
    /// Querying the connection manager for queue pair attributes.
    CmAttributes,
    /// Other calls to the operating system, such as starting threads and creating pipes.
    System,
}

impl Call {
    /// Returns the names of the functions of rdma-core or Adverb, such as `ibv_reg_mr`, and of the event that reports
    /// an error number.
    pub const fn name(self) -> &'static str {
        match self {
            Call::OpenDevice => "ibv_get_device_list, ibv_open_device",
            Call::OpenSoftDevice => "Device::open(\"soft…\")",
            Call::Create => "ibv_create_qp, ibv_create_cq, ibv_create_srq",
            Call::Destroy => "ibv_dereg_mr, ibv_dealloc_pd, ibv_destroy_…",
            Call::Query => "ibv_query_device, ibv_query_port, ibv_query_gid_table, ibv_query_qp",
            Call::Counters => "/sys/class/infiniband",
            Call::RegisterMemory => "ibv_reg_mr",
            Call::RegisterDmabuf => "ibv_reg_dmabuf_mr",
            Call::ModifyQueuePair => "ibv_modify_qp",
            Call::ResolvePeer => "ibv_modify_qp (to RTR), ibv_create_ah",
            Call::Multicast => "ibv_attach_mcast, IP_ADD_MEMBERSHIP",
            Call::Post => "ibv_post_send, ibv_post_recv",
            Call::Poll => "ibv_start_poll, ibv_get_cq_event, ibv_get_async_event",
            Call::CmChannel => "rdma_create_event_channel",
            Call::CmAddress => "rdma_bind_addr, rdma_listen, rdma_resolve_addr",
            Call::CmConnect => "rdma_connect, RDMA_CM_EVENT_UNREACHABLE",
            Call::CmAccept => "rdma_accept, rdma_reject, rdma_establish",
            Call::CmAttributes => "rdma_init_qp_attr",
            Call::System => "pthread_create, pipe",
        }
    }
}

/// The meaning of an error number in a group of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ErrnoCase {
    /// The calls.
    pub call: Call,
    /// The cause.
    pub cause: &'static str,
    /// An action, in one line. Errors of these calls print it.
    pub hint: Option<&'static str>,
}

/// Returns the hint for an error number in a group of calls, or `None` if the number has no specific meaning there, or
/// its meaning there has no hint. [`Explanation::hint`] is the hint for other calls.
///
/// ```
/// # mod adverb { pub use adverb_proto as verbs; }
/// use adverb::verbs::explain::{Call, errno_hint};
///
/// let (enomem, eaddrinuse) = (12, 98);
/// assert!(errno_hint(enomem, Call::RegisterMemory).unwrap().contains("ulimit -l"));
/// assert!(errno_hint(eaddrinuse, Call::CmAddress).unwrap().contains("another port"));
/// assert_eq!(errno_hint(eaddrinuse, Call::RegisterMemory), None);
/// ```
pub fn errno_hint(number: i32, call: Call) -> Option<&'static str> {
    errno(number)?.cases.iter().find(|case| case.call == call)?.hint
}

const fn case(call: Call, cause: &'static str) -> ErrnoCase {
    ErrnoCase { call, cause, hint: None }
}

const fn case_with_hint(call: Call, cause: &'static str, hint: &'static str) -> ErrnoCase {
    ErrnoCase { call, cause, hint: Some(hint) }
}

/// The fields that all error numbers share.
const ERRNO: Explanation = Explanation {
    kind: Kind::Errno,
    reference: "Linux, `errno.h`; the manual pages of rdma-core",
    ..Explanation::EMPTY
};

const UVERBS_HINT: &str = "allow the process to read and write /dev/infiniband/uverbs*";
const RDMA_CM_HINT: &str = "allow the process to read and write /dev/infiniband/rdma_cm";
const DEVICE_GONE_HINT: &str = "check the kernel's log: the device may have failed or been removed";
const RDMA_UCM_HINT: &str = "check that an RDMA device exists, and load the kernel module rdma_ucm, which creates /dev/infiniband/rdma_cm";
const CM_FILES_HINT: &str =
    "raise the limit of open files (ulimit -n): each connection needs a file descriptor";
const SOFT_LIMITS_HINT: &str =
    "check `ulimit -n` and `ulimit -u`: a software device needs a thread and a few dozen file descriptors";
const REQUEST_GONE_HINT: &str = "accept a new connect request: the peer may have canceled this one";
const DMABUF_HINT: &str = "check that the file descriptor is a dma-buf, that it contains the range, and that address and offset \
                           have the same offset within their pages";
const CM_REACH_HINT: &str =
    "use an address that an RDMA device of this machine can reach: `Device::gids` lists a device's addresses";
const SOFT_ADDRESS_HINT: &str = "use an address of this machine: `adverb devices` and `ip address` list them; for a loopback address, set \
                                 the loopback interface up (`ip link set lo up`)";
const PEER_ROUTE_HINT: &str = "check that a route leads from the local address to the peer's, and that both are of the same kind: \
                               `QueuePairBuilder::local_addr` selects the local one";
const CM_ROUTE_HINT: &str = "add a route to that address, or use another one";

/// The fields that the error numbers for missing support share.
const UNSUPPORTED: Explanation = Explanation {
    summary: "the device, its driver, the library or the kernel does not support the operation",
    checks: &[
        "check the capabilities of the device (`ibv_devinfo -v`, `adverb devices`)",
        "check the versions of rdma-core and the kernel: the library can be newer than the kernel",
    ],
    ..ERRNO
};

/// The explanations of error numbers, in the order of their codes, which are the same on x86-64 and aarch64.
pub(super) const ERRNOS: &[Explanation] = &[
    Explanation {
        name: "EPERM",
        aliases: &["Operation not permitted"],
        codes: &[1..=1],
        summary: "the process lacks a privilege",
        meaning: "The operation needs a privilege (capability) that the process does not have.",
        causes: &[
            "raw packet queue pairs and flow rules need CAP_NET_RAW",
            "a container or a security module (SELinux, AppArmor, seccomp) forbids access to the device",
        ],
        checks: &[
            "check the permissions of /dev/infiniband/* and the groups of the user",
            "in a container, pass the devices (`--device /dev/infiniband`) and the capabilities that the operation needs",
        ],
        hint: Some(UVERBS_HINT),
        cases: &[
            case(Call::OpenDevice, "the process may not use the character device of the RDMA device"),
            case_with_hint(
                Call::CmChannel,
                "the process may not use the character device of the connection manager",
                RDMA_CM_HINT,
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENOENT",
        aliases: &["No such file or directory"],
        codes: &[2..=2],
        summary: "a file or an object does not exist",
        meaning: "A device file, an object or an entry that the call names does not exist.",
        causes: &["a kernel module is not loaded, so that its device file is missing"],
        checks: &["check /dev/infiniband, and the loaded modules (`lsmod`): ib_uverbs, rdma_ucm"],
        cases: &[
            case_with_hint(
                Call::Counters,
                "the kernel's description of the device is not visible in this file system",
                "make /sys/class/infiniband available: the kernel shows the counters there, and a container may lack it",
            ),
            case(
                Call::Poll,
                "`ibv_start_poll` and `ibv_next_poll`: the completion queue is empty, which is not an error",
            ),
            case_with_hint(
                Call::CmChannel,
                "the kernel module rdma_ucm is not loaded, or no RDMA device exists",
                RDMA_UCM_HINT,
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EINTR",
        aliases: &["Interrupted system call"],
        codes: &[4..=4],
        summary: "a signal interrupted a waiting call",
        meaning: "A signal arrived while the call waited. Nothing is lost.",
        causes: &["a timer, a debugger or another process sent a signal"],
        checks: &["call the function again"],
        cases: &[case(Call::Poll, "a signal interrupted the wait for an event")],
        ..ERRNO
    },
    Explanation {
        name: "EIO",
        aliases: &["Input/output error"],
        codes: &[5..=5],
        summary: "the device has failed or was removed",
        meaning: "The device does not execute commands any more. Linux returns the number for every call on a device that was \
                  removed while a program had it open.",
        causes: &[
            "the device's hardware or firmware failed, or its driver reset or removed it",
            "with the software NIC: its progress thread panicked, or its link failed",
        ],
        checks: &["check the kernel's log for messages of the driver", "close the device, and open it again"],
        hint: Some(DEVICE_GONE_HINT),
        ..ERRNO
    },
    Explanation {
        name: "EBADF",
        aliases: &["Bad file descriptor"],
        codes: &[9..=9],
        summary: "a file descriptor is not open",
        meaning: "A file descriptor that the call uses is not open, or is not of the expected type.",
        causes: &["the program closed the descriptor of a device, an event channel or a dma-buf too early"],
        checks: &["check the order in which the program closes descriptors and destroys objects"],
        cases: &[case_with_hint(Call::RegisterDmabuf, "the descriptor is not an open dma-buf", DMABUF_HINT)],
        ..ERRNO
    },
    Explanation {
        name: "EAGAIN",
        aliases: &["EWOULDBLOCK", "Resource temporarily unavailable", "Try again"],
        codes: &[11..=11],
        summary: "nothing is available now, or a limit is reached for the moment",
        meaning: "A non-blocking call would have to wait, or a resource is temporarily exhausted. The same call may succeed \
                  later.",
        causes: &[
            "a non-blocking event channel has no event",
            "the process or the user has reached the limit of threads",
        ],
        checks: &["wait until the descriptor is readable, or check `ulimit -u`"],
        cases: &[
            case(Call::Poll, "no event is pending on a non-blocking descriptor, which is not an error"),
            case_with_hint(Call::OpenSoftDevice, "the limit of threads is reached", SOFT_LIMITS_HINT),
            case_with_hint(
                Call::System,
                "the limit of threads is reached",
                "raise the limit of threads (ulimit -u), or of the tasks of a service or container",
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENOMEM",
        aliases: &["Cannot allocate memory", "Out of memory"],
        codes: &[12..=12],
        summary: "a queue, the device, the machine or the limit of locked memory is exhausted",
        meaning: "The call needs more memory, queue entries or device resources than are available. With RDMA the cause is \
                  seldom a lack of main memory.",
        causes: &[
            "registering memory exceeds the limit of locked memory (RLIMIT_MEMLOCK)",
            "the send or receive queue is full, because the program posts faster than it polls completions",
            "the device has reached its maximum of queue pairs, completion queues or regions",
        ],
        checks: &[
            "check `ulimit -l` in the environment of the process: services and containers have limits of their own",
            "poll completions before posting; unsignaled requests keep their entries until a later completion is polled",
            "check the resources in use (`rdma resource`) against the maxima of the device (`ibv_devinfo -v`)",
        ],
        hint: Some(
            "register less memory, or create smaller queues: the device or the machine has too little",
        ),
        cases: &[
            case_with_hint(
                Call::RegisterMemory,
                "the limit of locked memory is too low: registered memory is locked",
                "raise the limit of locked memory (ulimit -l): memlock in /etc/security/limits.conf, LimitMEMLOCK= of a \
                 service, or --ulimit memlock of a container",
            ),
            case(
                Call::Post,
                "the queue is full, or a request has more inline bytes than the queue pair supports",
            ),
            case(Call::Create, "the device or the machine lacks resources for an object of this size"),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EACCES",
        aliases: &["Permission denied"],
        codes: &[13..=13],
        summary: "the process may not access a file or an address",
        meaning: "The permissions of a device file do not allow the access.",
        causes: &["the user may not read and write /dev/infiniband/uverbs* or rdma_cm"],
        checks: &[
            "check the permissions of /dev/infiniband/*, the groups of the user, and the rules of udev",
        ],
        hint: Some(UVERBS_HINT),
        cases: &[
            case(Call::OpenDevice, "the process may not open the character device of the RDMA device"),
            case_with_hint(
                Call::CmChannel,
                "the process may not open the character device of the connection manager",
                RDMA_CM_HINT,
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EFAULT",
        aliases: &["Bad address"],
        codes: &[14..=14],
        summary: "an address is not mapped, or not writable",
        meaning: "The kernel could not access memory of the process at an address that the call passes.",
        causes: &[
            "the range is not mapped completely, or was unmapped",
            "the range is mapped read-only, but is registered with LOCAL_WRITE",
            "the range is memory of a device that the kernel cannot pin",
        ],
        checks: &["compare address and length with /proc/PID/maps"],
        cases: &[case(
            Call::RegisterMemory,
            "a part of the range is not mapped, or not writable although LOCAL_WRITE is requested",
        )],
        ..ERRNO
    },
    Explanation {
        name: "EBUSY",
        aliases: &["Device or resource busy"],
        codes: &[16..=16],
        summary: "another object still uses this one",
        meaning: "The object cannot be destroyed or changed, because other objects depend on it.",
        causes: &["the program destroys objects in the wrong order"],
        checks: &[
            "destroy in the reverse order of creation: queue pairs, then completion queues and regions, then the domain",
        ],
        cases: &[case(
            Call::Destroy,
            "a protection domain still has regions or queue pairs, a completion queue still has queue pairs, or a region \
                 still has bound windows",
        )],
        ..ERRNO
    },
    Explanation {
        name: "ENODEV",
        aliases: &["No such device"],
        codes: &[19..=19],
        summary: "no RDMA device fits, or the device was removed",
        meaning: "No RDMA device belongs to the address or the name, or the device has disappeared.",
        causes: &[
            "the address belongs to an interface without an RDMA device, or to the loopback interface",
            "the device was removed, or its driver was unloaded",
        ],
        checks: &[
            "list devices and their addresses (`adverb devices`, `rdma link`)",
            "look for the reason (`adverb doctor`): drivers, device files, ports, addresses",
        ],
        hint: Some(DEVICE_GONE_HINT),
        cases: &[
            case_with_hint(
                Call::Multicast,
                "the network interface is down or has no address",
                "set the network interface up",
            ),
            case_with_hint(
                Call::CmAddress,
                "no RDMA device has the address or a route to it",
                "use an address that an RDMA device has or can reach: `Device::gids` lists the addresses of a device",
            ),
            case_with_hint(Call::CmConnect, "no RDMA device can reach the peer's address", CM_REACH_HINT),
            case_with_hint(
                Call::CmChannel,
                "no RDMA device exists, or the kernel module rdma_ucm is not loaded",
                RDMA_UCM_HINT,
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EINVAL",
        aliases: &["Invalid argument"],
        codes: &[22..=22],
        summary: "an argument is invalid, or not allowed in this state",
        meaning: "The library, the driver or the kernel refused an argument, or the combination of arguments with the state \
                  of the object. The number does not say which one.",
        causes: &[
            "a value exceeds a maximum of the device",
            "a queue pair is not in the state that the call needs, or the attribute mask is incomplete",
            "flags contradict each other, for example remote write without LOCAL_WRITE",
        ],
        checks: &[
            "compare the arguments with the attributes of device and port (`ibv_devinfo -v`)",
            "check the kernel's log, where some drivers print the reason",
        ],
        cases: &[
            case(Call::Create, "a depth or a number of segments is 0 or exceeds the maximum of the device"),
            case(
                Call::RegisterMemory,
                "the access flags contradict each other, or address and length overflow",
            ),
            case_with_hint(
                Call::RegisterDmabuf,
                "the descriptor is not a dma-buf, or the range does not fit",
                DMABUF_HINT,
            ),
            case(
                Call::ModifyQueuePair,
                "the transition is not allowed from the current state, the attribute mask lacks an attribute, or GID index, \
                 port or P_Key index are wrong",
            ),
            case_with_hint(
                Call::ResolvePeer,
                "the addresses of both ends are of different kinds, or the GID index is wrong",
                PEER_ROUTE_HINT,
            ),
            case(
                Call::Post,
                "the queue pair is in the wrong state, a request has too many segments, or its operation is not supported",
            ),
            case_with_hint(
                Call::CmAddress,
                "the addresses are of different families, or the call is not allowed in the ID's state",
                "use addresses of one family, and a scope (interface) with a link-local address",
            ),
            case_with_hint(
                Call::CmAccept,
                "the connect request exists no longer, or the ID is in the wrong state",
                REQUEST_GONE_HINT,
            ),
            case_with_hint(Call::CmAttributes, "the connect request exists no longer", REQUEST_GONE_HINT),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENFILE",
        aliases: &["Too many open files in system"],
        codes: &[23..=23],
        summary: "the system's limit of open files is reached",
        meaning: "All processes together have reached the system's limit of open files.",
        causes: &["many connections, each with file descriptors of its own"],
        checks: &["check /proc/sys/fs/file-nr against fs.file-max"],
        hint: Some("raise the system's limit of open files (fs.file-max)"),
        cases: &[
            case_with_hint(Call::CmChannel, "each event channel is a file descriptor", CM_FILES_HINT),
            case_with_hint(Call::OpenSoftDevice, "a software NIC needs sockets", SOFT_LIMITS_HINT),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EMFILE",
        aliases: &["Too many open files"],
        codes: &[24..=24],
        summary: "the process's limit of open files is reached",
        meaning: "The process has as many open file descriptors as RLIMIT_NOFILE allows.",
        causes: &[
            "many connections, event channels or completion channels, each with a file descriptor of its own",
        ],
        checks: &["compare `ls /proc/PID/fd | wc -l` with `ulimit -n`"],
        hint: Some("raise the limit of open files (ulimit -n)"),
        cases: &[
            case_with_hint(Call::CmChannel, "each event channel is a file descriptor", CM_FILES_HINT),
            case_with_hint(Call::OpenSoftDevice, "a software NIC needs sockets", SOFT_LIMITS_HINT),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENOTTY",
        aliases: &["Inappropriate ioctl for device"],
        codes: &[25..=25],
        meaning: "The kernel does not know the command that the library sent.",
        causes: &["the kernel is older than the library's feature"],
        ..UNSUPPORTED
    },
    Explanation {
        name: "ENOSPC",
        aliases: &["No space left on device"],
        codes: &[28..=28],
        summary: "a table of the device or a buffer is full",
        meaning: "The device or the kernel has no entry left for the object, or an answer does not fit in the caller's buffer.",
        causes: &["the device has reached its maximum of objects, flow rules or multicast members"],
        checks: &[
            "check the resources in use (`rdma resource`) against the maxima of the device (`ibv_devinfo -v`)",
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENOSYS",
        aliases: &["Function not implemented"],
        codes: &[38..=38],
        meaning: "The function does not exist. Old versions of libibverbs return it where new ones return EOPNOTSUPP.",
        causes: &["the kernel has no RDMA support, or the driver does not implement the verb"],
        cases: &[
            case(Call::OpenDevice, "the kernel has no RDMA support: the module ib_uverbs is not loaded"),
            case_with_hint(Call::CmChannel, "the kernel module rdma_ucm is not loaded", RDMA_UCM_HINT),
        ],
        ..UNSUPPORTED
    },
    Explanation {
        name: "ENODATA",
        aliases: &["No data available"],
        codes: &[61..=61],
        summary: "an entry is empty, or the kernel answered with less than expected",
        meaning: "The requested entry exists and has no content, or the kernel's answer was incomplete.",
        causes: &[
            "a GID index is within the table, and the entry is empty (`ibv_query_gid_ex`)",
            "librdmacm and the kernel disagree about the length of a command",
        ],
        checks: &["list the GID table (`adverb devices`), and use an index with an address"],
        ..ERRNO
    },
    Explanation {
        name: "EPROTONOSUPPORT",
        aliases: &["Protocol not supported"],
        codes: &[93..=93],
        meaning: "The kernel's driver does not support the method or the attribute that the library uses.",
        causes: &["the kernel or its driver is older than the library's feature"],
        ..UNSUPPORTED
    },
    Explanation {
        name: "EOPNOTSUPP",
        aliases: &["ENOTSUP", "Operation not supported"],
        codes: &[95..=95],
        meaning: "The library, the device's provider, the driver or the device does not support the operation or one of its \
                  options. Trying again does not help.",
        causes: &[
            "the device lacks the feature, or its firmware or configuration disables it",
            "the rdma-core provider or the kernel driver is older than the feature",
        ],
        cases: &[
            case(Call::RegisterDmabuf, "the provider or the driver does not support dma-bufs"),
            case_with_hint(
                Call::CmAttributes,
                "librdmacm is too old",
                "install rdma-core 23 or newer: librdmacm is too old",
            ),
        ],
        ..UNSUPPORTED
    },
    Explanation {
        name: "EADDRINUSE",
        aliases: &["Address already in use"],
        codes: &[98..=98],
        summary: "another program or connection has the port",
        meaning: "The port is taken, in the port space of the connection manager or of the software NIC.",
        causes: &["a listener or a connection has the port", "an earlier instance of the program still runs"],
        checks: &["list listeners and connections (`rdma resource show cm_id`)"],
        cases: &[
            case_with_hint(
                Call::OpenSoftDevice,
                "another process has a software device at the address",
                "listen at another address (127.0.0.2, for example), or at all addresses (0.0.0.0 or ::): another process \
                 has a software device at this one",
            ),
            case_with_hint(
                Call::CmAddress,
                "a listener or a connection has the port",
                "use another port: this one is taken; port 0 selects a free one",
            ),
            case_with_hint(
                Call::CmConnect,
                "the local port that the program chose is taken",
                "use another local port: a connection or a listener has this one; port 0 selects a free one",
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EADDRNOTAVAIL",
        aliases: &["Cannot assign requested address"],
        codes: &[99..=99],
        summary: "the machine does not have the address, or no port is free",
        meaning: "The local address of the call is not an address of this machine, or all ports are taken.",
        causes: &["the address is misspelled, or was removed from the interface", "the interface is down"],
        checks: &["list the addresses (`ip address`, `adverb devices`)"],
        cases: &[
            case_with_hint(
                Call::CmAddress,
                "the address is not an address of this machine, or no port is free",
                "use an address of this machine, and a port that is free on all of its addresses",
            ),
            case_with_hint(Call::CmConnect, "no RDMA device has a suitable local address", CM_REACH_HINT),
            case_with_hint(
                Call::OpenSoftDevice,
                "the address in the device's name is not an address of this machine",
                SOFT_ADDRESS_HINT,
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ENETDOWN",
        aliases: &["Network is down"],
        codes: &[100..=100],
        summary: "the network interface is down",
        meaning: "The interface that the route or the device uses is disabled.",
        causes: &["the interface was set down, or has lost its link"],
        checks: &["check `ip link`, and set the interface up"],
        ..ERRNO
    },
    Explanation {
        name: "ENETUNREACH",
        aliases: &["Network is unreachable"],
        codes: &[101..=101],
        summary: "the machine has no route to the network of the address",
        meaning: "The routing table has no route to the peer's address from the local address.",
        causes: &["a route or an address is missing, or the local address belongs to another network"],
        checks: &["check the route (`ip route get ADDRESS`)"],
        cases: &[
            case_with_hint(
                Call::ResolvePeer,
                "no route leads to the peer's network, or the addresses are of different IP versions",
                PEER_ROUTE_HINT,
            ),
            case_with_hint(Call::CmAddress, "no route leads to the address", CM_ROUTE_HINT),
            case_with_hint(
                Call::CmConnect,
                "no route leads to the peer's network",
                "add a route to that network, or use another address",
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ECONNRESET",
        aliases: &["Connection reset by peer"],
        codes: &[104..=104],
        summary: "the peer ended the connection",
        meaning: "The peer closed or aborted the connection before or after it was established.",
        causes: &["the peer's process exited, or its program dropped the connection"],
        checks: &["check the log of the peer's program"],
        cases: &[case(Call::CmConnect, "the peer ended the connection before it was established")],
        ..ERRNO
    },
    Explanation {
        name: "ENOBUFS",
        aliases: &["No buffer space available"],
        codes: &[105..=105],
        summary: "the kernel has no buffers for a packet or a socket",
        meaning: "The kernel refused a packet or a socket because its buffers are exhausted. The software NIC tries packets \
                  again later.",
        causes: &["the transmit queue of the interface or the memory of sockets is exhausted"],
        checks: &["check the drops of the interface (`ip -s link`), and net.core.wmem_max"],
        cases: &[case_with_hint(
            Call::Multicast,
            "the process is a member of as many groups as the kernel allows",
            "raise net.ipv4.igmp_max_memberships",
        )],
        ..ERRNO
    },
    Explanation {
        name: "EISCONN",
        aliases: &["Transport endpoint is already connected"],
        codes: &[106..=106],
        summary: "the connection is already established",
        meaning: "The call establishes a connection that is already established.",
        causes: &[
            "the last message of the connection manager arrived before `rdma_notify`, which is harmless",
        ],
        checks: &["continue: the connection can be used"],
        ..ERRNO
    },
    Explanation {
        name: "ENOTCONN",
        aliases: &["Transport endpoint is not connected"],
        codes: &[107..=107],
        summary: "the connection does not exist any more, or not yet",
        meaning: "The call needs a connection, and the ID has none.",
        causes: &["the peer disconnected or canceled the request first"],
        checks: &["read the events of the ID: they tell when the connection ended"],
        cases: &[case_with_hint(Call::CmAccept, "the peer canceled the connect request", REQUEST_GONE_HINT)],
        ..ERRNO
    },
    Explanation {
        name: "ETIMEDOUT",
        aliases: &["Connection timed out"],
        codes: &[110..=110],
        summary: "the peer or a service did not reply in time",
        meaning: "A request to the network had no answer within its time limit.",
        causes: &[
            "the peer is down, or the address is wrong",
            "the network drops ARP, neighbor discovery or UDP port 4791",
            "on InfiniBand, the subnet manager does not reply",
        ],
        checks: &[
            "check that the peer answers `ping` from the local address of the connection",
            "check the firewalls on the path for UDP port 4791",
            "test the path: `adverb doctor PEER` tests TCP, RoCE packets and the path MTU",
        ],
        cases: &[
            case_with_hint(
                Call::ResolvePeer,
                "on RoCE, the kernel could not resolve the peer's GID to an Ethernet address: the peer is down, or the GID \
                 index belongs to another network",
                PEER_ROUTE_HINT,
            ),
            case(
                Call::CmAddress,
                "address resolution (ARP, neighbor discovery) or route resolution had no answer",
            ),
            case(
                Call::CmConnect,
                "the peer's connection manager did not answer: no RDMA device has the address, or packets are lost",
            ),
        ],
        ..ERRNO
    },
    Explanation {
        name: "ECONNREFUSED",
        aliases: &["Connection refused"],
        codes: &[111..=111],
        summary: "the peer rejected the connection",
        meaning: "The peer's connection manager or program rejected the connect request. Synchronous calls of librdmacm return \
                  the number for every reject reason; over TCP, it means that no program listens.",
        causes: &["no program listens on the port", "the peer's program rejected the request"],
        checks: &[
            "read the reject reason in the event RDMA_CM_EVENT_REJECTED, and explain it: `adverb explain reject N`",
        ],
        cases: &[case(
            Call::CmConnect,
            "the peer rejected the connect request; the reject reason has the cause",
        )],
        ..ERRNO
    },
    Explanation {
        name: "EHOSTUNREACH",
        aliases: &["No route to host"],
        codes: &[113..=113],
        summary: "the host cannot be reached",
        meaning: "The host's Ethernet address could not be resolved, or a router reports that the host is unreachable.",
        causes: &["the host is down, or the address is wrong", "a firewall rejects packets"],
        checks: &["check `ip neigh` and `ping` for the address"],
        cases: &[
            case_with_hint(Call::ResolvePeer, "no route leads to the peer", PEER_ROUTE_HINT),
            case_with_hint(Call::CmAddress, "no route leads to the host", CM_ROUTE_HINT),
        ],
        ..ERRNO
    },
    Explanation {
        name: "EREMOTEIO",
        aliases: &["Remote I/O error"],
        codes: &[121..=121],
        summary: "the device's firmware refused a command",
        meaning: "The driver passed a command to the firmware, and the firmware refused it with a code of its own.",
        causes: &["an argument that the firmware does not accept, or a firmware that lacks the feature"],
        checks: &["check the kernel's log for the firmware's status and syndrome (mlx5 prints both)"],
        ..ERRNO
    },
];
