//! The errors of listeners.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use adverb_verbs as verbs;

use super::connect::{host_name, resolve_hint};
use super::{DESCRIPTORS_HINT, FOREIGN_POOL_HINT, into_io_error, is_descriptor_shortage, os_error};

/// The error of a listener that could not be bound to an address.
///
/// If a host name has several addresses, this is the error of the last one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The host name could not be resolved.
    #[error("resolving {host} failed")]
    Resolve {
        /// The host name and port.
        host: Box<str>,
        /// The cause. Its kind is [`InvalidInput`](io::ErrorKind::InvalidInput) if the text is no host with a port.
        source: io::Error,
    },
    /// Another socket or connection manager uses the port.
    #[error("listening at {address} failed: the port is in use")]
    AddrInUse {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The address does not belong to this machine.
    #[error("listening at {address} failed: the address does not belong to this machine")]
    AddrNotAvailable {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// The user may not bind to this port.
    #[error("listening at {address} is not permitted")]
    PermissionDenied {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// No RDMA device has the address or, for a wildcard address, no RDMA device exists.
    #[error("no RDMA device serves {address}")]
    NoDevice {
        /// The address.
        address: SocketAddr,
        /// The cause, if there is one besides that no device exists.
        source: Option<Box<verbs::Error>>,
    },
    /// The process or the system has no file descriptors left.
    #[error("listening failed for lack of file descriptors")]
    DescriptorLimit {
        /// The cause.
        source: io::Error,
    },
    /// An option is outside its range.
    #[error("`Options::{option}` is {value}, but must be from {min} to {max}")]
    InvalidOption {
        /// The name of the option's setter.
        option: &'static str,
        /// The value.
        value: u64,
        /// The minimum.
        min: u64,
        /// The maximum.
        max: u64,
    },
    /// The options have a device, and a pool of another device.
    #[error("`Options::pool` is a pool of {of_pool}, but `Options::device` is {device}")]
    ForeignPool {
        /// The name of the device.
        device: Box<str>,
        /// The name of the pool's device.
        of_pool: Box<str>,
    },
    /// The name of a region that the listener exposes is too long.
    #[error("the name of an exposed region has {len} bytes, but the maximum is {max}")]
    RegionName {
        /// The length of the name in bytes.
        len: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// Two regions that the listener exposes have the same name.
    #[error("two exposed regions have the name {name:?}")]
    DuplicateRegionName {
        /// The name.
        name: Box<str>,
    },
    /// A region that the listener exposes could not be registered.
    #[error("registering the exposed region {name:?} failed")]
    Region {
        /// The name of the region.
        name: Box<str>,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// A call to an RDMA device or a connection manager failed. [`verbs::Error`] tells lack of permission and of other
    /// resources apart.
    #[error("preparing the RDMA device to listen at {address} failed")]
    Device {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// A call to the operating system or the runtime failed.
    #[error("listening at {address} failed")]
    System {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// The error of a listener that cannot accept a connection.
///
/// A handshake that fails is no error of the listener, which logs the reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The listener is stopped. It can be started again.
    #[error("the listener at {address} is stopped")]
    Stopped {
        /// The listener's address.
        address: SocketAddr,
    },
    /// The process or the system has no file descriptors left for another connection.
    #[error("accepting a connection failed for lack of file descriptors")]
    DescriptorLimit {
        /// The cause.
        source: io::Error,
    },
    /// A call to an RDMA device or a connection manager failed.
    #[error("accepting a connection from the RDMA device at {address} failed")]
    Device {
        /// The listener's address.
        address: SocketAddr,
        /// The cause.
        source: Box<verbs::Error>,
    },
    /// A call to the operating system or the runtime failed.
    #[error("accepting a connection at {address} failed")]
    System {
        /// The listener's address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

impl BindError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        let hint = match self {
            BindError::Resolve { source, .. } => resolve_hint(source),
            BindError::AddrInUse { .. } => {
                "use another port, or end the program that listens there: `ss -ltnp` lists it"
            }
            BindError::AddrNotAvailable { .. } => "use an address of this machine: `ip addr` lists them",
            BindError::PermissionDenied { .. } => {
                "use a port above 1023, or run as a user that may bind to this port"
            }
            BindError::DescriptorLimit { .. } => DESCRIPTORS_HINT,
            BindError::NoDevice { source: None, .. } => {
                "check the output of `ibv_devices`, or enable the feature `soft` for a software device"
            }
            BindError::RegionName { .. } => "use a shorter name",
            BindError::DuplicateRegionName { .. } => "use another name for one of the regions",
            BindError::NoDevice { source: Some(source), .. }
            | BindError::Region { source, .. }
            | BindError::Device { source, .. } => return source.hint(),
            BindError::ForeignPool { .. } => FOREIGN_POOL_HINT,
            BindError::InvalidOption { .. } | BindError::System { .. } => return None,
        };
        Some(hint.into())
    }

    /// Whether binding again later can succeed, without a change of the program or the configuration: the port may
    /// become free.
    pub fn is_retryable(&self) -> bool {
        match self {
            BindError::Resolve { source, .. } => source.kind() != io::ErrorKind::InvalidInput,
            BindError::AddrInUse { .. } | BindError::DescriptorLimit { .. } => true,
            BindError::NoDevice { source: Some(source), .. }
            | BindError::Region { source, .. }
            | BindError::Device { source, .. } => source.is_retryable(),
            BindError::AddrNotAvailable { .. }
            | BindError::PermissionDenied { .. }
            | BindError::NoDevice { source: None, .. }
            | BindError::InvalidOption { .. }
            | BindError::ForeignPool { .. }
            | BindError::RegionName { .. }
            | BindError::DuplicateRegionName { .. }
            | BindError::System { .. } => false,
        }
    }

    /// Returns the error of an address or a host name that can't be resolved. `host` is its `Debug` text.
    pub(crate) fn resolve(host: &str, source: io::Error) -> BindError {
        if is_descriptor_shortage(&source) {
            return BindError::DescriptorLimit { source };
        }
        BindError::Resolve { host: host_name(host), source }
    }

    /// Returns the error of a socket.
    pub(crate) fn socket(address: SocketAddr, source: io::Error) -> BindError {
        match source.kind() {
            _ if is_descriptor_shortage(&source) => BindError::DescriptorLimit { source },
            io::ErrorKind::AddrInUse => BindError::AddrInUse { address, source },
            io::ErrorKind::AddrNotAvailable => BindError::AddrNotAvailable { address, source },
            io::ErrorKind::PermissionDenied => BindError::PermissionDenied { address, source },
            _ => BindError::System { address, source },
        }
    }

    /// Returns the error of a connection manager.
    pub(crate) fn manager(address: SocketAddr, error: verbs::Error) -> BindError {
        if os_error(&error) == Some(libc::EADDRINUSE) {
            return BindError::AddrInUse { address, source: error.into() };
        }
        BindError::device(address, error)
    }

    /// Returns the error of an exposed region that can't be registered.
    pub(crate) fn region(name: &str, error: verbs::Error) -> BindError {
        BindError::Region { name: name.into(), source: Box::new(error) }
    }

    /// Returns the error of a device.
    pub(crate) fn device(address: SocketAddr, error: verbs::Error) -> BindError {
        match &error {
            verbs::Error::NoDevice { .. } => BindError::NoDevice { address, source: Some(Box::new(error)) },
            _ if is_descriptor_shortage(&error) => BindError::DescriptorLimit { source: error.into() },
            _ => BindError::Device { address, source: Box::new(error) },
        }
    }
}

impl AcceptError {
    /// Returns an action that may solve the problem, if one is known.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            AcceptError::Stopped { .. } => Some("call `start` to listen again".into()),
            AcceptError::DescriptorLimit { .. } => Some(DESCRIPTORS_HINT.into()),
            AcceptError::Device { source, .. } => source.hint(),
            AcceptError::System { .. } => None,
        }
    }

    /// Whether accepting again later can succeed, without a change of the program or the configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            AcceptError::DescriptorLimit { .. } => true,
            AcceptError::Device { source, .. } => source.is_retryable(),
            AcceptError::Stopped { .. } | AcceptError::System { .. } => false,
        }
    }

    /// Returns the error of a call to the system.
    pub(crate) fn system(address: SocketAddr, source: io::Error) -> AcceptError {
        if is_descriptor_shortage(&source) {
            return AcceptError::DescriptorLimit { source };
        }
        AcceptError::System { address, source }
    }

    /// Returns the error of a device or a connection manager.
    pub(crate) fn device(address: SocketAddr, error: verbs::Error) -> AcceptError {
        if is_descriptor_shortage(&error) {
            return AcceptError::DescriptorLimit { source: error.into() };
        }
        AcceptError::Device { address, source: Box::new(error) }
    }
}

into_io_error! {
    BindError: |error| match error {
        BindError::Resolve { source, .. }
        | BindError::AddrInUse { source, .. }
        | BindError::AddrNotAvailable { source, .. }
        | BindError::PermissionDenied { source, .. }
        | BindError::DescriptorLimit { source }
        | BindError::System { source, .. } => source.kind(),
        BindError::NoDevice { .. } => io::ErrorKind::NotFound,
        BindError::InvalidOption { .. }
        | BindError::ForeignPool { .. }
        | BindError::RegionName { .. }
        | BindError::DuplicateRegionName { .. } => io::ErrorKind::InvalidInput,
        BindError::Region { .. } => io::ErrorKind::OutOfMemory,
        BindError::Device { .. } => io::ErrorKind::Other,
    },
    AcceptError: |error| match error {
        AcceptError::Stopped { .. } => io::ErrorKind::NotConnected,
        AcceptError::DescriptorLimit { source } | AcceptError::System { source, .. } => source.kind(),
        AcceptError::Device { .. } => io::ErrorKind::Other,
    },
}
