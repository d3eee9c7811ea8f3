//! Identifiers of librdmacm, each with its own event channel.
//!
//! Queue pairs aren't created on the identifiers: the connection manager gets only their numbers, and returns the
//! attributes of their transitions. A queue pair can therefore belong to any context of the device, and neither object
//! holds the other.

mod address;
mod event;

use std::ffi::CStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Duration;

use adverb_proto::explain::Call;
use adverb_proto::types::{Gid, PathMtu, Psn, Qpn, Transport};
use adverb_sys::{
    self as sys, Ibverbs, RdmaCm, ibv_qp_attr, rdma_cm_id, rdma_conn_param, rdma_event_channel,
};

use self::address::RawAddress;
use super::completion_queue::wait_readable;
use super::{check, node_error, not_installed};
use crate::backend::connection_manager::{Parameters, Path, Purpose};
use crate::backend::{Address, PeerEnd, ReadyToSend};
use crate::error::{Result, WithCauses, call_failed};

pub(crate) struct Identifier {
    library: &'static RdmaCm,
    handle: NonNull<rdma_cm_id>,
    /// The purpose, which determines the type of the parameters of its events.
    purpose: Purpose,
    /// The identifier's own channel, so that no caller consumes an event of another identifier.
    channel: Channel,
}

// SAFETY: librdmacm's identifiers may be used from any thread.
unsafe impl Send for Identifier {}
// SAFETY: as above. The library writes to the fields of an identifier only when it is bound or resolved, and when an
// event that resolves it is read. All of this happens before the owner shares it with other threads.
unsafe impl Sync for Identifier {}

impl Identifier {
    pub(in crate::backend) fn new(purpose: Purpose) -> Result<Identifier> {
        let library = library()?;
        let channel = Channel::new(library)?;
        let mut handle = std::ptr::null_mut();
        let port_space = match purpose {
            Purpose::Connections => sys::RDMA_PS_TCP,
            Purpose::Datagrams => sys::RDMA_PS_UDP,
        };
        // SAFETY: the channel exists, and the identifier may be written. No context is passed, and none is read.
        let code = unsafe {
            let channel = channel.handle.as_ptr();
            library.rdma_create_id(channel, &mut handle, std::ptr::null_mut(), port_space)
        };
        check(Call::CmChannel, code, || "creating a connection manager ID".to_owned())?;
        let handle = NonNull::new(handle).ok_or_else(|| {
            let error = io::Error::from(io::ErrorKind::OutOfMemory);
            call_failed(Call::CmChannel, "creating a connection manager ID", error)
        })?;
        Ok(Identifier { library, handle, purpose, channel })
    }

    /// Takes ownership of the identifier of a request.
    ///
    /// # Safety
    ///
    /// The identifier exists and has this purpose, nothing else uses it, and it has no unacknowledged event.
    unsafe fn adopt(
        library: &'static RdmaCm,
        handle: NonNull<rdma_cm_id>,
        purpose: Purpose,
    ) -> Result<Identifier> {
        let moved = Channel::new(library).and_then(|channel| {
            // SAFETY: both objects exist. The call doesn't wait, because no event of the identifier is unacknowledged.
            let code = unsafe { library.rdma_migrate_id(handle.as_ptr(), channel.handle.as_ptr()) };
            check(Call::CmChannel, code, || "moving a connect request to its event channel".to_owned())
                .map(|()| channel)
        });
        match moved {
            Ok(channel) => Ok(Identifier { library, handle, purpose, channel }),
            Err(error) => {
                // SAFETY: the caller guarantees that the identifier exists and that nothing else uses it. This rejects
                // the request.
                unsafe { library.rdma_destroy_id(handle.as_ptr()) };
                Err(error)
            }
        }
    }

    pub(in crate::backend) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live as long as the identifier, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.channel.fd()) }
    }

    pub(in crate::backend) fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        wait_readable(self.channel.fd(), timeout)
    }

    pub(in crate::backend) fn reuse_addr(&self) -> Result<()> {
        let mut yes: libc::c_int = 1;
        let code = self.set_option(sys::RDMA_OPTION_ID_REUSEADDR, &mut yes);
        check(Call::CmAddress, code, || "setting the reuse-address option".to_owned())
    }

    pub(in crate::backend) fn set_ack_timeout(&self, mut code: u8) {
        // Linux supports this since 5.1. Before that, only this side's queue pair gets the timeout, and the peer's
        // doesn't.
        if self.set_option(sys::RDMA_OPTION_ID_ACK_TIMEOUT, &mut code) != 0 {
            let error = io::Error::last_os_error();
            tracing::debug!(%error, "setting the ACK timeout failed");
        }
    }

    pub(in crate::backend) fn set_traffic_class(&self, mut traffic_class: u8) -> Result<()> {
        let code = self.set_option(sys::RDMA_OPTION_ID_TOS, &mut traffic_class);
        check(Call::CmAddress, code, || format!("setting the traffic class {traffic_class:#04x}"))
    }

    /// Sets an option to a value of the option's type, which is a plain number.
    fn set_option<T: Copy>(&self, name: libc::c_int, value: &mut T) -> libc::c_int {
        let value = std::ptr::from_mut(value).cast();
        // SAFETY: the identifier exists, and the value has the given size.
        unsafe { self.library.rdma_set_option(self.id(), sys::RDMA_OPTION_ID, name, value, size_of::<T>()) }
    }

    pub(in crate::backend) fn bind(&self, address: SocketAddr) -> Result<()> {
        let mut raw = RawAddress::from(address);
        // SAFETY: the identifier exists, and the address has the size of its family.
        let code = unsafe { self.library.rdma_bind_addr(self.id(), raw.as_mut_ptr()) };
        check(Call::CmAddress, code, || format!("binding to {address}"))
    }

    pub(in crate::backend) fn listen(&self, backlog: u32) -> Result<()> {
        let backlog = libc::c_int::try_from(backlog).unwrap_or(libc::c_int::MAX);
        // SAFETY: the identifier exists.
        let code = unsafe { self.library.rdma_listen(self.id(), backlog) };
        check(Call::CmAddress, code, || "listening".to_owned())
    }

    pub(in crate::backend) fn resolve_address(
        &self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<()> {
        let mut raw_local = local.map(RawAddress::from);
        let mut raw_peer = RawAddress::from(peer);
        let local = raw_local.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: the identifier exists, and the addresses have the sizes of their families.
        let code = unsafe {
            self.library.rdma_resolve_addr(self.id(), local, raw_peer.as_mut_ptr(), milliseconds(timeout))
        };
        check(Call::CmAddress, code, || format!("resolving the address {peer}"))
    }

    pub(in crate::backend) fn resolve_route(&self, timeout: Duration) -> Result<()> {
        // SAFETY: the identifier exists.
        let code = unsafe { self.library.rdma_resolve_route(self.id(), milliseconds(timeout)) };
        check(Call::CmAddress, code, || "resolving the route".to_owned())
    }

    pub(in crate::backend) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the identifier exists, and its field holds an address of any family.
        unsafe { address::read(sys::rdma_get_local_addr(self.id())) }
    }

    fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        unsafe { address::read(sys::rdma_get_peer_addr(self.id())) }
    }

    pub(in crate::backend) fn path(&self) -> Result<Path> {
        let no_device_error = || {
            let error = io::Error::from_raw_os_error(libc::ENODEV);
            call_failed(Call::CmAddress, "querying the device of a connection", error)
        };
        let verbs = Ibverbs::load().map_err(not_installed)?;
        let id = self.id();
        // SAFETY: the identifier exists, and the fields are plain values.
        let (context, port, gid) =
            unsafe { ((*id).verbs, (*id).port_num, (*id).route.addr.addr.ibaddr.sgid.octets()) };
        let context = NonNull::new(context).ok_or_else(no_device_error)?;
        // SAFETY: the library keeps the context open while an identifier uses it, and the device exists as long as the
        // context. Its name is a C string.
        let name = unsafe { CStr::from_ptr(verbs.ibv_get_device_name((*context.as_ptr()).device)) };
        let (local, peer) = self.local_addr().zip(self.peer_addr()).ok_or_else(no_device_error)?;
        Ok(Path {
            device: name.to_string_lossy().into_owned(),
            port,
            gid: Gid::new(gid),
            pkey_index: self.attributes(sys::IBV_QPS_INIT)?.pkey_index,
            local,
            peer,
        })
    }

    pub(in crate::backend) fn qp_attributes(&self, transport: Transport) -> Result<(PeerEnd, ReadyToSend)> {
        let receive = self.attributes(sys::IBV_QPS_RTR)?;
        let send = self.attributes(sys::IBV_QPS_RTS)?;
        let connection = PeerEnd {
            address: decode_address(&receive.ah_attr),
            qpn: Qpn::truncate(receive.dest_qp_num),
            psn: Psn::wrapping(receive.rq_psn),
            mtu: u8::try_from(receive.path_mtu).ok().and_then(PathMtu::from_code).unwrap_or(PathMtu::Mtu256),
            max_dest_rd_atomic: receive.max_dest_rd_atomic,
            min_rnr_timer: receive.min_rnr_timer,
        };
        let send = ReadyToSend {
            transport,
            psn: Psn::wrapping(send.sq_psn),
            timeout: send.timeout,
            retry_count: send.retry_cnt,
            rnr_retry: send.rnr_retry,
            max_rd_atomic: send.max_rd_atomic,
        };
        Ok((connection, send))
    }

    /// Returns the attributes that move a queue pair to a state.
    fn attributes(&self, state: sys::ibv_qp_state) -> Result<ibv_qp_attr> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier exists, and both values may be written.
        let code = unsafe { self.library.rdma_init_qp_attr(self.id(), &mut attr, &mut mask) };
        let action = || "querying the connection manager for queue pair attributes".to_owned();
        check(Call::CmAttributes, code, action)?;
        Ok(attr)
    }

    pub(in crate::backend) fn connect(&self, parameters: &Parameters<'_>) -> Result<()> {
        let mut raw = encode_params(parameters);
        // SAFETY: the identifier exists, and the parameters and the private data can be read.
        let code = unsafe { self.library.rdma_connect(self.id(), &mut raw) };
        check(Call::CmConnect, code, || "sending the connect request".to_owned())
    }

    pub(in crate::backend) fn accept(&self, parameters: &Parameters<'_>) -> Result<()> {
        let mut raw = encode_params(parameters);
        // SAFETY: the identifier exists, and the parameters and the private data can be read.
        let code = unsafe { self.library.rdma_accept(self.id(), &mut raw) };
        check(Call::CmAccept, code, || "accepting a connect request".to_owned())
    }

    pub(in crate::backend) fn resolve_service(&self, private_data: &[u8]) -> Result<()> {
        let mut raw = encode_sidr_params(Qpn::truncate(0), private_data);
        // SAFETY: the identifier exists, and the parameters and the private data can be read.
        let code = unsafe { self.library.rdma_connect(self.id(), &mut raw) };
        check(Call::CmConnect, code, || "sending the service ID resolution request".to_owned())
    }

    pub(in crate::backend) fn accept_query(&self, qpn: Qpn, private_data: &[u8]) -> Result<()> {
        let mut raw = encode_sidr_params(qpn, private_data);
        // SAFETY: the identifier exists, and the parameters and the private data can be read.
        let code = unsafe { self.library.rdma_accept(self.id(), &mut raw) };
        check(Call::CmAccept, code, || "answering the service ID resolution request".to_owned())
    }

    pub(in crate::backend) fn reject(&self, private_data: &[u8]) -> Result<()> {
        let len = short_len(private_data);
        // SAFETY: the identifier exists, and the private data can be read.
        let code = unsafe { self.library.rdma_reject(self.id(), private_data.as_ptr().cast(), len) };
        check(Call::CmAccept, code, || "rejecting a request".to_owned())
    }

    pub(in crate::backend) fn establish(&self) -> Result<()> {
        // SAFETY: the identifier exists.
        let code = unsafe { self.library.rdma_establish(self.id()) };
        check(Call::CmAccept, code, || "establishing the connection".to_owned())
    }

    pub(in crate::backend) fn disconnect(&self) -> Result<()> {
        // SAFETY: the identifier exists.
        let code = unsafe { self.library.rdma_disconnect(self.id()) };
        check(Call::CmConnect, code, || "disconnecting".to_owned())
    }

    fn id(&self) -> *mut rdma_cm_id {
        self.handle.as_ptr()
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        if !self.channel.is_owned() {
            return;
        }
        // SAFETY: the identifier is destroyed once, before its channel. The call doesn't wait, because events are
        // acknowledged when they are read. No queue pair was created on the identifier.
        let code = unsafe { self.library.rdma_destroy_id(self.id()) };
        if let Err(error) = check(Call::Destroy, code, || "destroying a connection manager ID".to_owned()) {
            tracing::error!(error = %WithCauses(&error), "destroying a connection manager ID failed");
            // The library would still use the channel.
            self.channel.leaked = true;
        }
    }
}

/// The event channel of an identifier.
struct Channel {
    library: &'static RdmaCm,
    handle: NonNull<rdma_event_channel>,
    /// The process that created the channel.
    owner: u32,
    leaked: bool,
}

impl Channel {
    fn new(library: &'static RdmaCm) -> Result<Channel> {
        // SAFETY: the function has no requirements.
        let handle = unsafe { library.rdma_create_event_channel() };
        let create_error =
            |error| call_failed(Call::CmChannel, "creating a connection manager event channel", error);
        let Some(handle) = NonNull::new(handle) else {
            let error = io::Error::last_os_error();
            let denied =
                node_error("rdma_cm").filter(|error| error.kind() == io::ErrorKind::PermissionDenied);
            return Err(create_error(denied.unwrap_or(error)));
        };
        let channel = Channel { library, handle, owner: std::process::id(), leaked: false };
        let fd = channel.fd();
        // SAFETY: the descriptor is open.
        let result =
            unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
        if result < 0 {
            return Err(create_error(io::Error::last_os_error()));
        }
        Ok(channel)
    }

    fn fd(&self) -> libc::c_int {
        // SAFETY: the channel exists.
        unsafe { (*self.handle.as_ptr()).fd }
    }

    /// Whether this process created the channel. A forked child must not change the parent's connections.
    fn is_owned(&self) -> bool {
        self.owner == std::process::id()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.is_owned() && !self.leaked {
            // SAFETY: the channel is destroyed once, after the only identifier that used it.
            unsafe { self.library.rdma_destroy_event_channel(self.handle.as_ptr()) };
        }
    }
}

/// Returns the library, or the error of loading it.
fn library() -> Result<&'static RdmaCm> {
    RdmaCm::load().map_err(not_installed)
}

/// Encodes parameters in the library's format, which borrows the private data.
fn encode_params(parameters: &Parameters<'_>) -> rdma_conn_param {
    rdma_conn_param {
        private_data: parameters.private_data.as_ptr().cast(),
        private_data_len: short_len(parameters.private_data),
        responder_resources: parameters.depths.max_dest_rd_atomic,
        initiator_depth: parameters.depths.max_rd_atomic,
        flow_control: 1,
        retry_count: parameters.retry_count,
        rnr_retry_count: parameters.rnr_retry,
        srq: parameters.shared_receives.into(),
        qp_num: parameters.qpn.get(),
    }
}

/// Encodes the parameters of a query or its reply in the library's format, which borrows the private data.
fn encode_sidr_params(qpn: Qpn, private_data: &[u8]) -> rdma_conn_param {
    let mut raw = rdma_conn_param::zeroed();
    raw.private_data = private_data.as_ptr().cast();
    raw.private_data_len = short_len(private_data);
    raw.qp_num = qpn.get();
    raw
}

/// Decodes an address of the library.
fn decode_address(attr: &sys::ibv_ah_attr) -> Address {
    Address {
        gid: Gid::new(attr.grh.dgid.octets()),
        lid: attr.dlid,
        port: attr.port_num,
        gid_index: attr.grh.sgid_index,
        uses_grh: attr.is_global != 0,
        traffic_class: attr.grh.traffic_class,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        service_level: attr.sl,
    }
}

/// Returns the length of private data, which the caller has checked to be below 256.
fn short_len(private_data: &[u8]) -> u8 {
    u8::try_from(private_data.len()).unwrap_or(0)
}

/// Converts a timeout to milliseconds, rounded up. The result is at least 1: with 0, the kernel wouldn't wait.
fn milliseconds(timeout: Duration) -> libc::c_int {
    libc::c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(libc::c_int::MAX).max(1)
}
