//! The NIC.

mod blocked;
mod cm;
mod engine;
mod gsi;
mod lock;
mod options;
mod post;
mod progress;
mod recording;
mod schedule;
mod transmit_queue;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use adverb_proto::memory::{Pd, RegisterError, Registration, RemoteInvalidate};
use adverb_proto::types::{Access, ArmFor, Completion, Gid, PathMtu};
use adverb_proto::{
    Cq, EventSink, Path, QpConfig, QpStatus, QueueEvent, ResourceCounts, Route, Srq, SrqConfig, SrqStatus,
    Statistics, Timestamp, Transition,
};
use adverb_wire::Qpn;

use crate::channel::Channel;
use crate::error::Error;
use crate::link::PathSocket;
pub use cm::Cm;
use engine::{Engine, Work};
use lock::EngineLock;
pub use options::NicOptions;
pub use post::MAX_INLINE;

/// An asynchronous event of a NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NicEvent {
    /// An asynchronous event of a queue pair, completion queue or shared receive queue.
    Queue(QueueEvent),
    /// The NIC has failed: all outstanding requests have completed with an error.
    Failed,
}

/// A software RDMA NIC.
///
/// A thread that posts requests or polls completions drives the link and the protocol itself, on its own core. At other
/// times the NIC's progress thread drives the link and the protocol, and sleeps until a packet arrives or a timer
/// expires. The NIC therefore serves its peers while the application is idle, and an idle NIC uses no CPU time.
///
/// If the protocol engine panics or the link fails, the NIC fails: all outstanding requests complete with an error, the
/// NIC delivers [`NicEvent::Failed`], and further requests are rejected with [`Error::NicFailed`].
///
/// ```
/// use adverb_proto::types::QpState;
/// use adverb_proto::{Init, QpConfig, Transition};
/// use adverb_soft::{Nic, NicOptions};
///
/// let nic = Nic::open(NicOptions::loopback())?;
/// let pd = nic.create_domain()?;
/// let cq = nic.create_cq(16, None)?;
/// let qpn = nic.create_qp(QpConfig::ud(pd, cq, cq))?;
/// nic.modify_qp(qpn, &Transition::Init(Init::datagrams(0x1111)))?;
/// assert_eq!(nic.query_qp(qpn).unwrap().state, QpState::Init);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Nic {
    shared: Arc<Shared>,
    event_channel: Arc<Channel>,
    addresses: Vec<IpAddr>,
    mtu: PathMtu,
    thread: Option<JoinHandle<()>>,
    clock_origin: Instant,
    /// The process that opened the NIC: only this process has the progress thread.
    owner: u32,
}

/// State shared with the progress thread.
struct Shared {
    engine: EngineLock,
    /// The channel that wakes the progress thread.
    wake_channel: Arc<Channel>,
    /// A descriptor that is readable when the link has packets.
    readiness: Option<OwnedFd>,
}

impl Nic {
    /// Opens a NIC.
    ///
    /// # Errors
    ///
    /// Returns an error if the process can't create more threads or file descriptors, or if the operating system
    /// provides no random numbers.
    pub fn open(options: NicOptions) -> io::Result<Nic> {
        // A later failure could not be returned to the caller.
        getrandom::u32().map_err(io::Error::other)?;
        let NicOptions { addresses, link, mtu, loopback_via_link } = options;
        let readiness = link.as_ref().and_then(|link| link.readiness_fd());
        let readiness = readiness.map(|descriptor| descriptor.try_clone_to_owned()).transpose()?;
        let event_channel = Arc::new(Channel::new()?);
        let udp_addrs = addresses.iter().map(|address| Gid::from(*address).udp_addr()).collect();
        let engine = Engine::new(udp_addrs, link, Arc::clone(&event_channel), mtu);
        let mut engine = engine.map_err(io::Error::other)?;
        engine.loopback.via_link = loopback_via_link;
        let clock_origin = engine.clock.origin();
        let (engine, wake_channel) = (EngineLock::new(engine), Arc::new(Channel::new()?));
        let shared = Arc::new(Shared { engine, wake_channel, readiness });
        let thread_shared = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("adverb-nic".to_owned())
            .spawn(move || progress::run(&thread_shared))?;
        let owner = std::process::id();
        Ok(Nic { shared, event_channel, addresses, mtu, thread: Some(thread), clock_origin, owner })
    }

    /// Whether this process opened the NIC. A forked child must not use its parent's NIC: the child has no progress
    /// thread, and the NIC may stay locked forever.
    pub fn is_owned_by_this_process(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Whether a thread holds the NIC's lock. A thread that was interrupted by a signal may hold it while the handler of
    /// the signal runs, and a call would wait for it forever.
    pub fn is_locked(&self) -> bool {
        self.shared.engine.is_locked()
    }

    /// Whether the NIC has failed.
    pub fn has_failed(&self) -> bool {
        self.shared.engine.lock().schedule.has_failed()
    }

    /// Returns the NIC's addresses, which may encode a UDP port ([`Gid::udp_addr`]).
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Returns the path MTU: the maximum RDMA payload per packet.
    pub fn mtu(&self) -> PathMtu {
        self.mtu
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NicFailed`] if the NIC has failed.
    pub fn create_domain(&self) -> Result<Pd, Error> {
        self.call_engine(|engine| Ok(engine.device.create_domain()))
    }

    /// Destroys a protection domain.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Domain`] if the domain doesn't exist or isn't empty.
    pub fn destroy_domain(&self, pd: Pd) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| Ok(engine.device.destroy_domain(pd)?))
    }

    /// Registers `length` bytes at `address`, and returns their key. In requests, the address of the first byte is
    /// `iova`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Register`] if the range is empty or wraps around the address space, the access rights are
    /// inconsistent or unsupported, or the domain doesn't exist.
    ///
    /// # Safety
    ///
    /// Until the key is [deregistered](Nic::deregister) or the NIC is dropped:
    ///
    /// - the bytes stay allocated at `address`;
    /// - any thread may read them, and write them if `access` allows local or remote writes;
    /// - other code in this process accesses them only with copies like [`copy_out`](crate::memory::copy_out), with
    ///   atomic operations on aligned words of eight bytes, or while no request or peer can reach them.
    pub unsafe fn register(
        &self,
        pd: Pd,
        address: NonNull<u8>,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<u32, Error> {
        // The memory doesn't survive a power loss.
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(Error::Register(RegisterError::InvalidAccess));
        }
        self.call_engine(|engine| {
            // SAFETY: the caller guarantees the conditions of `add`. The storage is removed with its only region.
            let storage = unsafe { engine.memory.add(address, length) };
            let registration = Registration {
                addr: iova,
                length: length as u64,
                access,
                storage,
                remote_invalidate: RemoteInvalidate::Denied,
            };
            let registered = engine.device.register(pd, registration, random);
            if registered.is_err() {
                engine.memory.remove(storage);
            }
            Ok(registered?)
        })
    }

    /// Changes a memory region: its key stays the same, and everything else is as in [`register`](Nic::register).
    /// Outstanding requests that use the key use the new memory, or fail.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`register`](Nic::register) and [`deregister`](Nic::deregister). The region is then
    /// unchanged.
    ///
    /// # Safety
    ///
    /// The same as for [`register`](Nic::register).
    pub unsafe fn reregister(
        &self,
        key: u32,
        pd: Pd,
        address: NonNull<u8>,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<(), Error> {
        // SAFETY: the caller guarantees the conditions of `register`. This registration checks all arguments.
        let checked = unsafe { self.register(pd, address, length, iova, access) }?;
        self.call_engine(|engine| {
            let old = match engine.device.deregister(key) {
                Ok(old) => old,
                Err(error) => {
                    let unused = engine.device.deregister(checked)?;
                    engine.memory.remove(unused.storage);
                    return Err(error.into());
                }
            };
            let registration = engine.device.deregister(checked)?;
            // The key was just freed, so it is the first one tried.
            engine.device.register(pd, registration, || key)?;
            engine.memory.remove(old.storage);
            Ok(())
        })
    }

    /// Deregisters memory. Afterwards the NIC no longer accesses the bytes, not even for requests in flight.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Deregister`] if no region has this key, or memory windows are bound to the region.
    pub fn deregister(&self, key: u32) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| {
            let registration = engine.device.deregister(key)?;
            engine.memory.remove(registration.storage);
            Ok(())
        })
    }

    /// Creates a memory window of type 2B, and returns its key.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Window`] if the domain doesn't exist.
    pub fn create_window(&self, pd: Pd) -> Result<u32, Error> {
        self.call_engine(|engine| Ok(engine.device.create_window(pd, random)?))
    }

    /// Destroys a memory window: peers can no longer access memory through it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Window`] if the window doesn't exist.
    pub fn destroy_window(&self, key: u32) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| Ok(engine.device.destroy_window(key)?))
    }

    /// Creates a completion queue. It delivers events to `channel` when it is [armed](Nic::arm_cq). `capacity` is the
    /// maximum number of completions in the queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NicFailed`] if the NIC has failed.
    pub fn create_cq(&self, capacity: u32, channel: Option<Arc<Channel>>) -> Result<Cq, Error> {
        self.call_engine(|engine| {
            let cq = engine.device.create_cq(capacity);
            engine.events.add_cq(cq, channel);
            Ok(cq)
        })
    }

    /// Creates a completion queue like [`create_cq`](Nic::create_cq), with timestamps: each completion has the time at
    /// which its request completed, which [`poll_timed`](Nic::poll_timed) returns.
    ///
    /// - A receive has the time at which the link received the message's last packet. The receive time of [`UdpLink`] is
    ///   the kernel's; all packets of a GRO batch have the time of the batch's first packet. The receive time of
    ///   [`MemLink`] is the time at which the sender's link delivered the packet. A packet from another process at the
    ///   same address has the time at which the NIC reads it.
    /// - A send request of a reliable connection has the receive time of the acknowledgement or of the last response.
    /// - A send request of an unreliable connection or a datagram has the time right before the link sent the request's
    ///   last packet. The link sends each such packet by itself, not in a GSO batch.
    /// - Requests between queue pairs of this NIC have the time at which the NIC delivered the packet, unless the packet
    ///   went through the link.
    ///
    /// While such a queue exists, the kernel stamps every packet that the NIC receives.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TimestampsFailed`] if the link can't stamp packets, and [`Error::NicFailed`] if the NIC has
    /// failed.
    ///
    /// [`UdpLink`]: crate::link::UdpLink
    /// [`MemLink`]: crate::link::MemLink
    pub fn create_timed_cq(&self, capacity: u32, channel: Option<Arc<Channel>>) -> Result<Cq, Error> {
        self.call_engine(|engine| {
            let created = engine.create_timed_cq(capacity);
            let cq = created.map_err(|error| Error::TimestampsFailed(error.kind()))?;
            engine.events.add_cq(cq, channel);
            Ok(cq)
        })
    }

    /// Creates a completion queue like [`create_timed_cq`](Nic::create_timed_cq), with the kernel's send times: while such
    /// a queue exists, the NIC requests from the kernel the send time of each datagram that has a timestamp. Over a
    /// [`UdpLink`], the timestamp is then the time at which the kernel passed the packet to the network interface. If the
    /// kernel doesn't return that time within 50 µs, or the link doesn't know it, the timestamp is the same as without
    /// this option; [`Timestamp::source`] returns which of the two it is.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`create_timed_cq`](Nic::create_timed_cq).
    ///
    /// [`UdpLink`]: crate::link::UdpLink
    pub fn create_send_timed_cq(&self, capacity: u32, channel: Option<Arc<Channel>>) -> Result<Cq, Error> {
        self.call_engine(|engine| {
            let created = engine.create_send_timed_cq(capacity);
            let cq = created.map_err(|error| Error::TimestampsFailed(error.kind()))?;
            engine.events.add_cq(cq, channel);
            Ok(cq)
        })
    }

    /// Returns the time that timestamps count from: a timestamp is the number of nanoseconds since then.
    pub const fn clock_origin(&self) -> Instant {
        self.clock_origin
    }

    /// Changes the capacity of a completion queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidCompletionQueue`] if the queue doesn't exist or holds more completions than `capacity`.
    pub fn resize_cq(&self, cq: Cq, capacity: u32) -> Result<(), Error> {
        self.call_engine(|engine| {
            engine.device.resize_cq(cq, capacity).then_some(()).ok_or(Error::InvalidCompletionQueue)
        })
    }

    /// Destroys a completion queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidCompletionQueue`] if the queue doesn't exist or queue pairs use it.
    pub fn destroy_cq(&self, cq: Cq) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| {
            if !engine.destroy_cq(cq) {
                return Err(Error::InvalidCompletionQueue);
            }
            engine.events.remove_cq(cq);
            engine.discard_events(|event| *event == QueueEvent::CqOverflow(cq));
            Ok(())
        })
    }

    /// Drives the NIC, then passes up to `max` completions to `each` and returns their number.
    pub fn poll(&self, cq: Cq, max: usize, each: impl FnMut(Completion)) -> usize {
        self.poll_with(cq, max, |engine| engine.device.poll_completion(cq), each)
    }

    /// Does the same as [`poll`](Nic::poll), and passes each completion with its timestamp, if the queue [has
    /// timestamps](Nic::create_timed_cq).
    pub fn poll_timed(
        &self,
        cq: Cq,
        max: usize,
        mut each: impl FnMut(Completion, Option<Timestamp>),
    ) -> usize {
        let poll = |engine: &mut Engine| engine.device.poll_timed_completion(cq);
        self.poll_with(cq, max, poll, |(completion, time)| each(completion, time))
    }

    /// Drives the NIC, then passes up to `max` results of `poll` to `each`.
    #[inline]
    fn poll_with<T>(
        &self,
        cq: Cq,
        max: usize,
        poll: impl Fn(&mut Engine) -> Option<T>,
        mut each: impl FnMut(T),
    ) -> usize {
        let mut engine = self.shared.engine.lock();
        let work = self.drive(&mut engine, |engine| engine.drive_for(cq));
        if engine.device.sink().is_recording() {
            engine.record_polled(cq, max);
        }
        let mut count = 0;
        while count < max
            && let Some(polled) = poll(&mut engine)
        {
            count += 1;
            each(polled);
        }
        progress::wake(&self.shared, &mut engine, work);
        count
    }

    /// Removes the completions of a queue pair from a completion queue. Drivers of RDMA NICs do this when a queue pair is
    /// reset or destroyed.
    pub fn discard_completions(&self, cq: Cq, qpn: Qpn) {
        self.shared.engine.lock().device.discard_completions(cq, qpn);
    }

    /// Arms a completion queue: the next completion delivers one event to the queue's channel. Completions that are
    /// already in the queue deliver no event, so the caller must poll again after arming.
    ///
    /// # Errors
    ///
    /// Returns [`Error::NicFailed`] if the NIC has failed.
    pub fn arm_cq(&self, cq: Cq, arm_for: ArmFor) -> Result<(), Error> {
        self.call_engine(|engine| {
            engine.device.arm_cq(cq, arm_for);
            if engine.schedule.arm() {
                engine.notifications.push(&self.shared.wake_channel);
            }
            Ok(())
        })
    }

    /// Creates a queue pair, and returns its number, which is random. The queue pair's [`window`](QpConfig::window) and
    /// [`read_window`](QpConfig::read_window) are reduced if the data in flight would not fit the link's receive
    /// buffer. The peer's receive buffer is assumed to have the same size.
    ///
    /// # Errors
    ///
    /// Returns [`Error::CreateQp`] if the domain, a completion queue or the shared receive queue doesn't exist.
    pub fn create_qp(&self, mut config: QpConfig) -> Result<Qpn, Error> {
        self.call_engine(|engine| {
            engine.limits.apply(&mut config, engine.qps.len())?;
            // The number of a closed connection isn't reused for a while, because its packets may still be in flight.
            let gsi = &engine.gsi;
            let qpn = engine.device.create_qp(config, || gsi.fresh_qpn(random))?;
            engine.qps.insert(qpn);
            Ok(qpn)
        })
    }

    /// Destroys a queue pair in any state, and returns whether it existed. Afterwards the NIC no longer accesses the
    /// memory of the queue pair's requests. Outstanding requests don't complete.
    pub fn destroy_qp(&self, qpn: Qpn) -> bool {
        // The messages that were received before are acknowledged first.
        self.flush_delayed_acks();
        let result = self.call_engine_even_if_failed(|engine| {
            let existed = engine.device.destroy_qp(qpn);
            engine.qps.remove(&qpn);
            engine.leave();
            engine.discard_events(|event| match event {
                QueueEvent::Established(event_qpn)
                | QueueEvent::LastReceiveReached(event_qpn)
                | QueueEvent::SendQueueDrained(event_qpn)
                | QueueEvent::RequestError(event_qpn)
                | QueueEvent::AccessError(event_qpn)
                | QueueEvent::Fatal(event_qpn) => *event_qpn == qpn,
                _ => false,
            });
            Ok(existed)
        });
        result.unwrap_or(false)
    }

    /// Moves a queue pair to another state.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Modify`] if the queue pair doesn't exist, its state doesn't allow the transition, or a value is
    /// out of range.
    pub fn modify_qp(&self, qpn: Qpn, transition: &Transition) -> Result<(), Error> {
        self.flush_delayed_acks();
        self.call_and_drive(|engine| Ok(engine.device.modify_qp(engine.now(), qpn, transition)?))
    }

    /// Returns the status of a queue pair, or `None` if it doesn't exist.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpStatus> {
        self.shared.engine.lock().device.query_qp(qpn)
    }

    /// Returns the path of packets between two addresses, for a flow with this preferred source port. Returns `None` if
    /// one address is IPv4 and the other IPv6.
    pub fn path(&self, local: IpAddr, remote: IpAddr, preferred_port: u16) -> Option<Path> {
        self.shared.engine.lock().port.path(local, remote, preferred_port)
    }

    /// Opens the path of packets between two addresses for a flow label: packets are sent from the [source port of that
    /// label](Path::source_port_of_label) if the link can open it, and otherwise from one of the link's permanent ports.
    /// [`Path::source_port`] returns the actual port. The port stays open until [`close_path`](Nic::close_path) is
    /// called with the path. Returns `None` if one address is IPv4 and the other IPv6.
    ///
    /// The path's [route](Path::route) has the flow label.
    pub fn open_path(&self, local: IpAddr, remote: IpAddr, flow_label: u32) -> Option<Path> {
        let preferred_port = Path::source_port_of_label(flow_label);
        let path = self.shared.engine.lock().port.open_path(local, remote, preferred_port)?;
        Some(path.with_route(Route { flow_label, ..path.route() }))
    }

    /// Ends the use of a path that [`open_path`](Nic::open_path) returned. The link may close the path's source port
    /// afterwards, so no queue pair and no address handle may use the path any more: their packets could be dropped.
    pub fn close_path(&self, path: &Path) {
        self.shared.engine.lock().port.close_path(path);
    }

    /// Returns a socket that traces the path of packets from a local address and source port: see
    /// [`SourcePorts::path_socket`](crate::link::SourcePorts::path_socket).
    ///
    /// # Errors
    ///
    /// Returns `Unsupported` if the NIC has no sockets for this address, and `AddrInUse` if another program uses the
    /// port.
    pub fn path_socket(&self, local: IpAddr, port: u16) -> io::Result<PathSocket> {
        self.shared.engine.lock().port.path_socket(local, port)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Srq`] if the domain doesn't exist.
    pub fn create_srq(&self, config: SrqConfig) -> Result<Srq, Error> {
        self.call_engine(|engine| Ok(engine.device.create_srq(config)?))
    }

    /// Destroys a shared receive queue. Afterwards the NIC no longer accesses the memory of the queue's requests.
    /// Outstanding requests don't complete.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Srq`] if the queue doesn't exist or queue pairs use it.
    pub fn destroy_srq(&self, srq: Srq) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| {
            engine.device.destroy_srq(srq)?;
            engine.discard_events(|event| *event == QueueEvent::SrqLimit(srq));
            Ok(())
        })
    }

    /// Arms a shared receive queue: it delivers one event when fewer than `limit` requests remain in the queue. A limit
    /// of 0 disarms the queue.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Srq`] if the queue doesn't exist, or `limit` exceeds its depth.
    pub fn arm_srq(&self, srq: Srq, limit: u32) -> Result<(), Error> {
        self.call_engine(|engine| Ok(engine.device.arm_srq(srq, limit)?))
    }

    /// Returns the status of a shared receive queue, or `None` if it doesn't exist.
    pub fn query_srq(&self, srq: Srq) -> Option<SrqStatus> {
        self.shared.engine.lock().device.query_srq(srq)
    }

    /// Attaches a UD queue pair to a multicast group: the queue pair receives the datagrams sent to the group.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Multicast`] if the queue pair doesn't exist, isn't UD or is already attached, or if the address
    /// isn't a multicast address. Returns [`Error::JoinFailed`] if the link can't join the group.
    pub fn attach_multicast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.call_engine(|engine| {
            engine.device.attach_multicast(qpn, group)?;
            engine.join(group).map_err(|error| {
                _ = engine.device.detach_multicast(qpn, group);
                Error::JoinFailed(error.kind())
            })
        })
    }

    /// Detaches a UD queue pair from a multicast group.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Multicast`] if the queue pair doesn't exist or isn't attached to the group.
    pub fn detach_multicast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.call_engine_even_if_failed(|engine| {
            engine.device.detach_multicast(qpn, group)?;
            engine.leave();
            Ok(())
        })
    }

    /// Removes and returns the oldest asynchronous event, or returns `None` if no event is pending.
    pub fn next_event(&self) -> Option<NicEvent> {
        // The channel may have a notification of an event that was discarded with its object.
        _ = self.event_channel.take();
        self.shared.engine.lock().events.pop()
    }

    /// Returns a file descriptor that is readable while an event is pending for [`next_event`](Nic::next_event). The
    /// descriptor may also be readable without an event.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_channel.as_fd()
    }

    /// Returns the NIC's statistics.
    pub fn statistics(&self) -> Statistics {
        self.shared.engine.lock().statistics()
    }

    /// Returns the numbers of objects that the NIC holds, to detect leaks.
    pub fn resource_counts(&self) -> ResourceCounts {
        self.shared.engine.lock().device.resource_counts()
    }

    /// Calls the engine for an operation that sends no packet.
    fn call_engine<T>(&self, call: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        let mut engine = self.shared.engine.lock();
        if engine.schedule.has_failed() { Err(Error::NicFailed) } else { guard(&mut engine, call) }
    }

    /// Calls the engine for an operation that must also work if the NIC has failed, such as destroying an object.
    fn call_engine_even_if_failed<T>(
        &self,
        call: impl FnOnce(&mut Engine) -> Result<T, Error>,
    ) -> Result<T, Error> {
        guard(&mut self.shared.engine.lock(), call)
    }

    /// Calls the engine, then drives it.
    fn call_and_drive<T>(&self, call: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        let mut engine = self.shared.engine.lock();
        if engine.schedule.has_failed() {
            return Err(Error::NicFailed);
        }
        let result = guard(&mut engine, call);
        let work = self.drive(&mut engine, Engine::drive);
        progress::wake(&self.shared, &mut engine, work);
        result
    }

    /// Sends delayed ACKs.
    fn flush_delayed_acks(&self) {
        let mut engine = self.shared.engine.lock();
        let work = self.drive(&mut engine, Engine::flush_delayed_acks);
        progress::wake(&self.shared, &mut engine, work);
    }

    /// Drives the engine. An error or a panic makes the NIC fail.
    fn drive(&self, engine: &mut Engine, drive: impl FnOnce(&mut Engine) -> io::Result<Work>) -> Work {
        let driven = catch_unwind(AssertUnwindSafe(|| drive(engine)));
        if let Ok(Ok(work)) = driven {
            return work;
        }
        engine.fail();
        engine.notifications.push(&self.shared.wake_channel);
        Work::Done
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // A forked child has no progress thread to join, and the lock may be held forever.
        if !self.is_owned_by_this_process() {
            return std::mem::forget((thread, Arc::clone(&self.shared)));
        }
        self.flush();
        self.shared.engine.lock().schedule.close();
        self.shared.wake_channel.notify();
        // The thread catches its own panics.
        _ = thread.join();
    }
}

impl fmt::Debug for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nic")
            .field("addresses", &self.addresses)
            .field("mtu", &self.mtu)
            .finish_non_exhaustive()
    }
}

/// Calls the engine. If it panics, the NIC fails.
#[inline]
fn guard<T>(engine: &mut Engine, call: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(|| call(engine))).unwrap_or_else(|_| {
        engine.fail();
        Err(Error::NicFailed)
    })
}

/// Returns an unpredictable number.
fn random() -> u32 {
    // `open` checked that random numbers are available. If they no longer are, the NIC fails.
    getrandom::u32().expect("reading random bytes from the system failed")
}

#[cfg(test)]
mod tests;
