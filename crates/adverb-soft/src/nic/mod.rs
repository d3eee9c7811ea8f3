//! The adapter.

mod cm;
mod engine;
mod gsi;
mod progress;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adverb_proto::memory::{Pd, RegisterError, Registration, RemoteInvalidate};
use adverb_proto::types::{Access, Completion, Gid, PathMtu, RecvRequest, SendRequest};
use adverb_proto::{
    AddressVector, Cq, Notice, Path, QpConfig, QpStatus, ResourceCounts, Srq, SrqConfig, SrqStatus,
    Statistics, Transition, Wake,
};
use adverb_wire::Qpn;
use parking_lot::Mutex;

use crate::channel::Channel;
use crate::error::{BatchPostError, Error};
use crate::link::Link;
pub use cm::Cm;
use engine::{Engine, Work};

/// What an adapter is opened with.
pub struct NicOptions {
    addresses: Vec<IpAddr>,
    link: Option<Box<dyn Link>>,
    mtu: PathMtu,
    loopback_via_link: bool,
}

impl NicOptions {
    /// An adapter that only talks to itself, at 127.0.0.1 and ::1.
    pub fn loopback() -> NicOptions {
        let addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        NicOptions { addresses, link: None, mtu: PathMtu::Mtu4096, loopback_via_link: false }
    }

    /// An adapter with these addresses, whose packets to others go over a link. Where that receives at another UDP port than
    /// 4791, the address says so ([`Gid::udp_address`]).
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>, link: impl Link + 'static) -> NicOptions {
        NicOptions::boxed(addresses, Box::new(link))
    }

    /// The same, of a link whose type isn't known.
    pub fn boxed(addresses: impl IntoIterator<Item = IpAddr>, link: Box<dyn Link>) -> NicOptions {
        NicOptions {
            addresses: addresses.into_iter().collect(),
            link: Some(link),
            mtu: PathMtu::Mtu4096,
            loopback_via_link: false,
        }
    }

    /// The payload of the longest packet that the link carries; at first 4096 bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: PathMtu) -> NicOptions {
        self.mtu = mtu;
        self
    }

    /// Whether packets to itself go over the link, too, and come back over it, instead of the short way: for those who want
    /// to see, or harm, what its queue pairs send each other.
    #[must_use]
    pub fn loopback_via_link(mut self, loopback_via_link: bool) -> NicOptions {
        self.loopback_via_link = loopback_via_link;
        self
    }
}

impl fmt::Debug for NicOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NicOptions").field("addresses", &self.addresses).field("mtu", &self.mtu).finish()
    }
}

/// What happened to an adapter or to something of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum NicEvent {
    /// What the engine has to say. It is never [`Notice::Completion`], which channels announce.
    Notice(Notice),
    /// The adapter has failed: everything on it has come back with an error.
    Failed,
}

/// An RDMA adapter made of memory and a link.
///
/// Whoever posts or polls does the adapter's work on its own core, as far as there is any; a thread of the adapter's does
/// it while nobody does. It sleeps until the link has something or a timer is due. So peers are served while the
/// application does nothing, and an adapter with nothing to do uses no processor.
///
/// If the engine panics, or the link fails, the adapter has failed: whatever was posted completes with an error, an
/// event says so, and nothing can be posted any more.
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
    /// The process that opened it, which is the only one where the thread is.
    owner: u32,
}

/// What the adapter shares with its thread.
struct Shared {
    engine: Mutex<Engine>,
    /// Wakes the thread.
    kick: Channel,
    /// Says when the link has something.
    readiness: Option<OwnedFd>,
}

impl Nic {
    /// Opens an adapter.
    ///
    /// # Errors
    ///
    /// If the process may have no more threads or descriptors, or the system has no random numbers.
    pub fn open(options: NicOptions) -> io::Result<Nic> {
        // Later nobody could be told.
        getrandom::u32().map_err(io::Error::other)?;
        let NicOptions { addresses, link, mtu, loopback_via_link } = options;
        let readiness = link.as_ref().and_then(|link| link.readiness());
        let readiness = readiness.map(|descriptor| descriptor.try_clone_to_owned()).transpose()?;
        let event_channel = Arc::new(Channel::new()?);
        let ports = addresses.iter().map(|address| Gid::from(*address).udp_address()).collect();
        let engine = Engine::new(ports, link, Arc::clone(&event_channel), mtu);
        let mut engine = engine.map_err(io::Error::other)?;
        engine.loopback_via_link = loopback_via_link;
        let shared = Arc::new(Shared { engine: Mutex::new(engine), kick: Channel::new()?, readiness });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("adverb-nic".to_owned())
            .spawn(move || progress::run(&served))?;
        let owner = std::process::id();
        Ok(Nic { shared, event_channel, addresses, mtu, thread: Some(thread), owner })
    }

    /// Whether this process opened it. A forked child didn't: the adapter's thread isn't there, its lock may be held for
    /// ever, and the child must leave the adapter alone.
    pub fn is_owned_by_this_process(&self) -> bool {
        self.owner == std::process::id()
    }

    /// Whether the adapter has failed.
    pub fn has_failed(&self) -> bool {
        self.shared.engine.lock().failed
    }

    /// The adapter's addresses, which may say a UDP port ([`Gid::udp_address`]).
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The payload of the longest packet that it sends.
    pub fn mtu(&self) -> PathMtu {
        self.mtu
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    ///
    /// If the adapter has failed.
    pub fn create_domain(&self) -> Result<Pd, Error> {
        self.ask(|engine| Ok(engine.device.create_domain()))
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    ///
    /// If something belongs to it.
    pub fn destroy_domain(&self, pd: Pd) -> Result<(), Error> {
        self.end(|engine| Ok(engine.device.destroy_domain(pd)?))
    }

    /// Registers `length` bytes at `address`, which requests and peers name by addresses from `iova` on, and gives their
    /// key.
    ///
    /// # Errors
    ///
    /// If the range is empty or wraps, the rights don't go together or can't be given, or there is no such domain.
    ///
    /// # Safety
    ///
    /// Until the key is [deregistered](Nic::deregister), or the adapter is gone, the bytes stay there, may be read from any
    /// thread (and written, if `access` lets anybody write), and others in this process touch them only by copies like
    /// [`copy_out`](crate::memory::copy_out), by atomics on aligned words of eight bytes, or while no request or peer can reach
    /// them.
    pub unsafe fn register(
        &self,
        pd: Pd,
        address: NonNull<u8>,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<u32, Error> {
        // Nothing here outlasts a loss of power.
        if access.contains(Access::FLUSH_PERSISTENT) {
            return Err(Error::Register(RegisterError::InvalidAccess));
        }
        self.ask(|engine| {
            // SAFETY: as the caller says; the backing is removed with its only region.
            let backing = unsafe { engine.memory.add(address, length) };
            let registration = Registration {
                addr: iova,
                length: length as u64,
                access,
                backing,
                remote_invalidate: RemoteInvalidate::Denied,
            };
            let registered = engine.device.register(pd, registration, random);
            if registered.is_err() {
                engine.memory.remove(backing);
            }
            Ok(registered?)
        })
    }

    /// Ends a registration, also for requests under way: after this the bytes aren't touched.
    ///
    /// # Errors
    ///
    /// If there is no region of this key, or memory windows show a part of it.
    pub fn deregister(&self, key: u32) -> Result<(), Error> {
        self.end(|engine| {
            let registration = engine.device.deregister(key)?;
            engine.memory.remove(registration.backing);
            Ok(())
        })
    }

    /// Makes a memory window of type 2B, and gives its key.
    ///
    /// # Errors
    ///
    /// If there is no such domain.
    pub fn create_window(&self, pd: Pd) -> Result<u32, Error> {
        self.ask(|engine| Ok(engine.device.create_window(pd, random)?))
    }

    /// Ends a memory window: nobody reaches anything through it any more.
    ///
    /// # Errors
    ///
    /// If there is no such window.
    pub fn destroy_window(&self, key: u32) -> Result<(), Error> {
        self.end(|engine| Ok(engine.device.destroy_window(key)?))
    }

    /// Makes a completion queue with room for this many completions, announced on `channel` when it is
    /// [armed](Nic::arm_cq).
    ///
    /// # Errors
    ///
    /// If the adapter has failed.
    pub fn create_cq(&self, capacity: u32, channel: Option<Arc<Channel>>) -> Result<Cq, Error> {
        self.ask(|engine| {
            let cq = engine.device.create_cq(capacity);
            engine.channels.extend(channel.map(|channel| (cq, channel)));
            Ok(cq)
        })
    }

    /// Gives a completion queue room for this many completions.
    ///
    /// # Errors
    ///
    /// If there is none, or more than that are in it.
    pub fn resize_cq(&self, cq: Cq, capacity: u32) -> Result<(), Error> {
        self.ask(|engine| {
            engine.device.resize_cq(cq, capacity).then_some(()).ok_or(Error::InvalidCompletionQueue)
        })
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    ///
    /// If there is none, or queue pairs complete there.
    pub fn destroy_cq(&self, cq: Cq) -> Result<(), Error> {
        self.end(|engine| {
            if !engine.device.destroy_cq(cq) {
                return Err(Error::InvalidCompletionQueue);
            }
            engine.channels.remove(&cq);
            engine.forget(|notice| *notice == Notice::CqOverflow(cq));
            Ok(())
        })
    }

    /// Takes completions, but no more than `most`, and says how many there were. Before that, the adapter's work is done.
    pub fn poll(&self, cq: Cq, max: usize, mut each: impl FnMut(Completion)) -> usize {
        let mut engine = self.shared.engine.lock();
        let work = self.drive(&mut engine, |engine| engine.drive_for(cq));
        let mut count = 0;
        while count < max
            && let Some(completion) = engine.device.poll_completion(cq)
        {
            count += 1;
            each(completion);
        }
        progress::wake(&self.shared, &mut engine, work);
        count
    }

    /// Asks for one event of the queue's channel, at the next completion. Completions that are there already don't cause
    /// it: poll again after this.
    ///
    /// # Errors
    ///
    /// If the adapter has failed.
    pub fn arm_cq(&self, cq: Cq, wake: Wake) -> Result<(), Error> {
        self.ask(|engine| {
            engine.device.wake_on_completion(cq, wake);
            // Who arms is about to sleep: the thread takes over.
            engine.armed = true;
            if engine.resting {
                engine.resting = false;
                engine.asleep_until = adverb_proto::Time::MAX;
                self.shared.kick.announce();
            }
            Ok(())
        })
    }

    /// Waits for an event of a completion queue's channel, and takes it; `false` if none came in time, and `None` is no
    /// limit. Meanwhile the adapter's work is done here, unless somebody who waits does it already.
    ///
    /// # Errors
    ///
    /// If the system can't wait.
    pub fn wait(&self, channel: &Channel, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let watch = progress::Watch::begin(&self.shared);
        let readiness = watch.as_ref().and(self.shared.readiness.as_ref());
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            progress::sleep(channel, readiness, left)?;
            if channel.take()? {
                return Ok(true);
            }
            if watch.is_some() {
                let mut engine = self.shared.engine.lock();
                // If there is more the thread does it: nothing need come for it, and what comes ends this wait.
                let work = self.drive(&mut engine, Engine::drive);
                progress::wake(&self.shared, &mut engine, work);
                drop(engine);
                if channel.take()? {
                    return Ok(true);
                }
            }
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
        }
    }

    /// Makes a queue pair, and gives its number, which can't be guessed. Its windows are made smaller if what is under way
    /// wouldn't fit the link's receive buffer: the peer's is taken to be alike.
    ///
    /// # Errors
    ///
    /// If the domain, a completion queue or the shared receive queue isn't there.
    pub fn create_qp(&self, mut config: QpConfig) -> Result<Qpn, Error> {
        self.ask(|engine| {
            config.window = config.window.min(engine.window);
            config.read_window = config.read_window.min(engine.read_window);
            config.gather = config.gather.max(engine.gather);
            // A number rests for a while when its connection is over: packets of that may still be under way.
            let gsi = &engine.gsi;
            let qpn = engine.device.create_qp(config, || gsi.rested_number(random))?;
            engine.qps.insert(qpn);
            Ok(qpn)
        })
    }

    /// Ends a queue pair, in whatever state it is, and says whether there was one. After this none of its requests' memory
    /// is touched; those that hadn't completed never do.
    pub fn destroy_qp(&self, qpn: Qpn) -> bool {
        // What was received before counts, and its sender is to know that.
        self.acknowledge();
        let ended = self.end(|engine| {
            let was_there = engine.device.destroy_qp(qpn);
            engine.qps.remove(&qpn);
            engine.leave();
            engine.forget(|notice| match notice {
                Notice::Established(of)
                | Notice::LastReceiveReached(of)
                | Notice::SendQueueDrained(of)
                | Notice::RequestError(of)
                | Notice::AccessError(of)
                | Notice::Fatal(of) => *of == qpn,
                _ => false,
            });
            Ok(was_there)
        });
        ended.unwrap_or(false)
    }

    /// Takes a queue pair into another state.
    ///
    /// # Errors
    ///
    /// If there is no such queue pair, no such way from its state, or a value is out of its range.
    pub fn modify_qp(&self, qpn: Qpn, transition: &Transition) -> Result<(), Error> {
        self.acknowledge();
        self.work(|engine| Ok(engine.device.modify_qp(engine.now(), qpn, transition)?))
    }

    /// How a queue pair stands, or `None` if there is none.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpStatus> {
        self.shared.engine.lock().device.query_qp(qpn)
    }

    /// The path of packets between two addresses, for a flow that would have this source port. `None` if one is IPv4 and
    /// the other IPv6.
    pub fn path(&self, local: IpAddr, remote: IpAddr, wanted_port: u16) -> Option<Path> {
        self.shared.engine.lock().path(local, remote, wanted_port)
    }

    /// Posts send requests, each with its bytes if they are posted inline, and sends as much as is soon sent.
    ///
    /// # Errors
    ///
    /// At the first request that can't be posted; those before it were.
    #[inline]
    pub fn post_sends<'a, Handle: AddressVector>(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = (SendRequest<'a, Handle>, Option<&'a [u8]>)>,
    ) -> Result<(), BatchPostError> {
        self.post(true, requests, |engine, now, (request, inline)| {
            match inline {
                None => engine.device.post_send(now, qpn, &request)?,
                Some(bytes) => engine.device.post_send_inline(now, qpn, &request, bytes)?,
            }
            Ok(())
        })
    }

    /// Posts receive requests.
    ///
    /// # Errors
    ///
    /// At the first request that can't be posted; those before it were.
    #[inline]
    pub fn post_recvs<'a>(
        &self,
        qpn: Qpn,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), BatchPostError> {
        self.post(false, requests, |engine, now, request| Ok(engine.device.post_recv(now, qpn, &request)?))
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    ///
    /// If there is no such domain.
    pub fn create_srq(&self, config: SrqConfig) -> Result<Srq, Error> {
        self.ask(|engine| Ok(engine.device.create_srq(config)?))
    }

    /// Ends a shared receive queue. After this none of its requests' memory is touched; they never complete.
    ///
    /// # Errors
    ///
    /// If there is none, or queue pairs share it.
    pub fn destroy_srq(&self, srq: Srq) -> Result<(), Error> {
        self.end(|engine| {
            engine.device.destroy_srq(srq)?;
            engine.forget(|notice| *notice == Notice::SrqLimit(srq));
            Ok(())
        })
    }

    /// Posts receive requests to a shared receive queue.
    ///
    /// # Errors
    ///
    /// At the first request that can't be posted; those before it were.
    pub fn post_srq_recvs<'a>(
        &self,
        srq: Srq,
        requests: impl IntoIterator<Item = RecvRequest<'a>>,
    ) -> Result<(), BatchPostError> {
        self.post(false, requests, |engine, now, request| {
            Ok(engine.device.post_srq_recv(now, srq, &request)?)
        })
    }

    /// Asks for one event when fewer than `limit` requests are left in a shared receive queue; 0 takes that back.
    ///
    /// # Errors
    ///
    /// If there is no such queue, or it can never hold so many.
    pub fn arm_srq(&self, srq: Srq, limit: u32) -> Result<(), Error> {
        self.ask(|engine| Ok(engine.device.arm_srq(srq, limit)?))
    }

    /// How a shared receive queue stands, or `None` if there is none.
    pub fn query_srq(&self, srq: Srq) -> Option<SrqStatus> {
        self.shared.engine.lock().device.query_srq(srq)
    }

    /// Makes a datagram queue pair receive what is sent to a group.
    ///
    /// # Errors
    ///
    /// If there is no such queue pair, it isn't for datagrams, the address isn't a group's, it is attached already, or the
    /// link can't join the group.
    pub fn attach_multicast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.ask(|engine| {
            engine.device.attach_multicast(qpn, group)?;
            engine.join(group).map_err(|error| {
                _ = engine.device.detach_multicast(qpn, group);
                Error::JoinFailed(error.kind())
            })
        })
    }

    /// Ends what [`attach_multicast`](Nic::attach_multicast) began.
    ///
    /// # Errors
    ///
    /// If there is no such queue pair, or it isn't attached to the group.
    pub fn detach_multicast(&self, qpn: Qpn, group: Gid) -> Result<(), Error> {
        self.end(|engine| {
            engine.device.detach_multicast(qpn, group)?;
            engine.leave();
            Ok(())
        })
    }

    /// The oldest thing that has happened, if anything has.
    pub fn next_event(&self) -> Option<NicEvent> {
        // What is announced may have gone with what it was about.
        _ = self.event_channel.take();
        self.shared.engine.lock().events.pop_front()
    }

    /// A descriptor that is readable while [`next_event`](Nic::next_event) has something to say, and sometimes when it
    /// hasn't.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.event_channel.as_fd()
    }

    /// What has been counted.
    pub fn statistics(&self) -> Statistics {
        self.shared.engine.lock().statistics()
    }

    /// What the adapter holds: for finding leaks.
    pub fn resource_counts(&self) -> ResourceCounts {
        self.shared.engine.lock().device.resource_counts()
    }

    /// Has the engine do something that needs no packet.
    fn ask<T>(&self, ask: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        let mut engine = self.shared.engine.lock();
        if engine.failed { Err(Error::NicFailed) } else { guard(&mut engine, ask) }
    }

    /// Has the engine end something, which also an adapter that has failed does.
    fn end<T>(&self, ask: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        guard(&mut self.shared.engine.lock(), ask)
    }

    /// Has the engine do something, and what comes of it.
    fn work<T>(&self, ask: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
        let mut engine = self.shared.engine.lock();
        if engine.failed {
            return Err(Error::NicFailed);
        }
        let answer = guard(&mut engine, ask);
        let work = self.drive(&mut engine, Engine::drive);
        progress::wake(&self.shared, &mut engine, work);
        answer
    }

    #[inline]
    fn post<T>(
        &self,
        sends: bool,
        requests: impl IntoIterator<Item = T>,
        mut post: impl FnMut(&mut Engine, adverb_proto::Time, T) -> Result<(), Error>,
    ) -> Result<(), BatchPostError> {
        let mut posted_count = 0;
        let mut engine = self.shared.engine.lock();
        if engine.failed {
            return Err(BatchPostError { posted_count, error: Error::NicFailed });
        }
        let now = engine.now();
        let stopped = guard(&mut engine, |engine| {
            for request in requests {
                post(engine, now, request)?;
                posted_count += 1;
            }
            Ok(())
        });
        // What acknowledgements wait for isn't that there is room for more.
        if sends || engine.deferred.is_none() {
            let work = self.drive(&mut engine, |engine| engine.push(now));
            progress::wake(&self.shared, &mut engine, work);
        }
        stopped.map_err(|error| BatchPostError { posted_count, error })
    }

    /// Sends the acknowledgements that wait for who polls.
    fn acknowledge(&self) {
        let mut engine = self.shared.engine.lock();
        let work = self.drive(&mut engine, Engine::acknowledge);
        progress::wake(&self.shared, &mut engine, work);
    }

    /// Does the adapter's work; whatever goes wrong makes the adapter fail.
    fn drive(&self, engine: &mut Engine, drive: impl FnOnce(&mut Engine) -> io::Result<Work>) -> Work {
        let driven = catch_unwind(AssertUnwindSafe(|| drive(engine)));
        if let Ok(Ok(work)) = driven {
            return work;
        }
        engine.fail();
        self.shared.kick.announce();
        Work::Done
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // In a forked child there is no thread to wait for, and the lock may be held by nobody.
        if !self.is_owned_by_this_process() {
            return std::mem::forget((thread, Arc::clone(&self.shared)));
        }
        self.acknowledge();
        self.shared.engine.lock().closing = true;
        self.shared.kick.announce();
        // It ends without panicking: it catches its own.
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

/// Has the engine do something. If it panics, the adapter has failed.
#[inline]
fn guard<T>(engine: &mut Engine, ask: impl FnOnce(&mut Engine) -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(|| ask(engine))).unwrap_or_else(|_| {
        engine.fail();
        Err(Error::NicFailed)
    })
}

/// A number that nobody guesses.
fn random() -> u32 {
    // There were some when the adapter was opened; should the system have none any more, the adapter fails.
    getrandom::u32().expect("the system has no random numbers")
}

#[cfg(test)]
mod tests;
