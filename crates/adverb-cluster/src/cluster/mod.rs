//! Clusters: members, and the sessions between their threads.

mod dialer;
mod driver;
mod error;
mod exchange;
#[cfg(all(test, feature = "soft"))]
mod hostile_tests;
mod key;
mod membership;
mod places;
#[cfg(all(test, feature = "soft"))]
mod tests;

use std::fmt;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use adverb_cluster_proto::{BrokerConfig, PeerId};
use adverb_verbs::internal::OwnerProcess;
use adverb_verbs::{ConnectOptions, Device, Key, ProtectionDomain};
use parking_lot::Mutex;

use crate::broker::{Broker, Command, Mailbox, Notice, Notices, clock_epoch};
use driver::{BrokerThread, ClusterState, Driver};
use exchange::Local;
use key::ExchangeKey;

pub use error::{ClusterError, EstablishError, MemberStatus};
pub use membership::{Member, Membership};

/// The maximum number of threads of a member.
const MAX_THREADS: usize = 4096;

type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// A member of a cluster, in this process.
///
/// Thread `i` of each member has a session with thread `i` of every other member. The number of a member, its index in the
/// list of members, is its [`PeerId`] in the brokers of the others.
///
/// A background thread of the cluster establishes the sessions: two members exchange the addresses of their queue pairs over
/// TCP, and the member with the larger number dials. If a session ends, it dials at once; if an attempt fails, it tries
/// again, with pauses that double from 10 ms to 1 s. A member that has [left](crate::EndReason::Left) is dialed every 10 s,
/// and at once when it asks for a session, as members that are not lazy do when they join. With
/// [`lazy`](ClusterBuilder::lazy) sessions, it tries only if a broker asks for the session. Brokers report sessions with
/// [`SessionOpened`](crate::Event::SessionOpened) and [`SessionEnded`](crate::Event::SessionEnded). A session is established
/// only while the threads of both members poll their brokers. [`status`](Cluster::status) returns the reasons why the last
/// attempt failed and why the last session ended. Failed attempts are also `tracing` events: warnings for the first failure
/// of a member and once per minute, and others at the level debug. A member that doesn't respond delays no other member.
///
/// Members with a [`key`](ClusterBuilder::key) authenticate each other in the exchange over TCP. Without a key, any host that
/// reaches the address of a member can replace its sessions. In both cases, RDMA itself is not authenticated: only members
/// may have access to the network.
///
/// When a member [leaves](Cluster::leave) the cluster, or its brokers are [dropped](Broker::leave), the brokers send leave
/// messages to the other members, whose sessions end at once. The sessions of a member that dies end when a request fails,
/// after the time that [`connect_options`](ClusterBuilder::connect_options) determines. A member that left or died may return
/// with a new epoch.
///
/// Dropping the cluster ends the background thread. Brokers keep their sessions, but establish no new ones. The manual's
/// chapter about clusters compares the ways to leave.
///
/// The manual's chapter about clusters has an example that runs in one program.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use adverb::cluster::{Cluster, Event, Member};
///
/// let cluster = Cluster::builder()
///     .member(Member::new("a", "10.0.0.1:7471"))
///     .member(Member::new("b", "10.0.0.2:7471"))
///     .threads(2)
///     .join("a")?;
/// std::thread::scope(|scope| {
///     for thread in 0..2 {
///         let mut broker = cluster.take_broker(thread).expect("each broker is taken once");
///         scope.spawn(move || loop {
///             broker.wait(None).expect("the device works");
///             let polled = broker.poll(|broker, event| match event {
///                 Event::SessionOpened { peer, .. } => broker.send(peer, b"hello").expect("a credit"),
///                 Event::Message { from, bytes } => println!("{from}: {bytes:?}"),
///                 _ => {}
///             });
///             polled.expect("the device works");
///         });
///     }
/// });
/// # Ok(())
/// # }
/// ```
pub struct Cluster {
    names: Vec<String>,
    shared: Arc<ClusterState>,
    domains: Vec<ProtectionDomain>,
    brokers: Mutex<Vec<Option<Broker>>>,
    driver: Option<JoinHandle<()>>,
    owner: OwnerProcess,
}

/// The options of a [`Cluster`], created by [`Cluster::builder`].
#[derive(Debug)]
#[must_use]
pub struct ClusterBuilder {
    members: Vec<Member>,
    membership: Option<Box<dyn Membership>>,
    threads: usize,
    config: BrokerConfig,
    devices: Vec<Device>,
    connect_options: ConnectOptions,
    listener: Option<TcpListener>,
    epoch: Option<u64>,
    key: Option<Key>,
    is_lazy: bool,
}

impl ClusterBuilder {
    /// Adds a member. Every member must add the same members, including itself, in the same order.
    pub fn member(mut self, member: Member) -> ClusterBuilder {
        self.members.push(member);
        self
    }

    /// Sets a source of members, which replaces those of [`member`](ClusterBuilder::member).
    pub fn membership(mut self, membership: impl Membership) -> ClusterBuilder {
        self.membership = Some(Box::new(membership));
        self
    }

    /// Sets the number of threads, which must be the same at all members. The default is 1.
    pub fn threads(mut self, count: usize) -> ClusterBuilder {
        self.threads = count;
        self
    }

    /// Sets the sizes of the brokers' queues and rings. [`slot_size`](BrokerConfig::slot_size) must be the same at all members.
    pub fn config(mut self, config: BrokerConfig) -> ClusterBuilder {
        self.config = config;
        self
    }

    /// Sets the devices: thread `i` uses device `i` modulo their number. By default, the threads share the RDMA NIC that has
    /// the member's IP address; without one, each thread has a software NIC at that address.
    pub fn devices(mut self, devices: impl IntoIterator<Item = Device>) -> ClusterBuilder {
        self.devices = devices.into_iter().collect();
        self
    }

    /// Sets the options of the connections. The ACK timeout and the retry count determine how long a member may be
    /// unresponsive before its sessions end.
    pub fn connect_options(mut self, options: ConnectOptions) -> ClusterBuilder {
        self.connect_options = options;
        self
    }

    /// Sets the TCP listener, instead of one that is bound to the member's address.
    pub fn listener(mut self, listener: TcpListener) -> ClusterBuilder {
        self.listener = Some(listener);
        self
    }

    /// Sets the epoch, which must differ from those of all other runs of this member. Of two runs that live at the same time,
    /// the one with the larger epoch has the sessions. The default is the system time in nanoseconds. If the clock went back,
    /// a new run gets its sessions when the other members have noticed that the old one has ended.
    pub fn epoch(mut self, epoch: u64) -> ClusterBuilder {
        self.epoch = Some(epoch);
        self
    }

    /// Sets the key of the cluster, which must be the same at all members. Members prove to each other that they have it,
    /// before they establish a session. A recorded exchange can't be replayed.
    ///
    /// The key protects the exchange over TCP, and nothing else: the packets of RDMA are neither authenticated nor encrypted.
    pub fn key(mut self, key: &Key) -> ClusterBuilder {
        self.key = Some(key.clone());
        self
    }

    /// Sets whether a session is established only when one of its two brokers asks for it with [`Broker::connect`]. By
    /// default, all sessions are established when the cluster is joined, and again when they have ended. Members with
    /// different values can be combined.
    pub fn lazy(mut self, is_lazy: bool) -> ClusterBuilder {
        self.is_lazy = is_lazy;
        self
    }

    /// Joins the cluster as the member with this name, without waiting for other members.
    ///
    /// # Errors
    ///
    /// Returns an error if the member doesn't exist, if its address isn't one of this machine, or if a device, a listener
    /// or a thread can't be created.
    pub fn join(self, name: &str) -> Result<Cluster> {
        let ClusterBuilder {
            members,
            membership,
            threads,
            config,
            devices,
            connect_options,
            listener,
            epoch,
            key,
            is_lazy,
        } = self;
        let membership = membership.unwrap_or_else(|| Box::new(members));
        let names = membership.names();
        check_count("members", names.len(), usize::from(u16::MAX))?;
        check_count("threads", threads, MAX_THREADS)?;
        let duplicate = names.iter().enumerate().find(|(index, name)| names[..*index].contains(name));
        if let Some((_, name)) = duplicate {
            return Err(ClusterError::DuplicateMember { name: name.as_str().into() });
        }
        let unknown = || ClusterError::UnknownMember { name: name.into() };
        let this_member = names.iter().position(|other| other == name).ok_or_else(unknown)?;
        let unresolved = |source| ClusterError::Resolve { name: name.into(), source };
        let addr = membership.resolve(this_member).map_err(unresolved)?;
        let epoch = epoch.unwrap_or_else(clock_epoch);

        let devices = if devices.is_empty() { open_devices(addr.ip(), threads)? } else { devices };
        let failed = |action| move |source| ClusterError::System { action, source };
        let notices = Arc::new(Notices::new().map_err(failed("creating a socket"))?);
        let (mut brokers, mut domains, mut broker_threads) = (Vec::new(), Vec::new(), Vec::new());
        for (thread, device) in (0..).zip(devices.iter().cycle().take(threads)) {
            let domain = device.create_protection_domain()?;
            let mailbox = Mailbox::new(thread, Arc::clone(&notices)).map_err(failed("creating a socket"))?;
            let mailbox = Arc::new(mailbox);
            let broker = Broker::builder(&domain).config(config).peer_count(names.len());
            let mut broker = broker.epoch(epoch).create()?;
            broker.attach(Arc::clone(&mailbox))?;
            let mut queue_pairs = broker.queue_pair_builder();
            if !device.is_software() && device.has_addr(addr.ip()) {
                queue_pairs = queue_pairs.local_addr(addr.ip());
            }
            broker_threads.push(BrokerThread { mailbox, queue_pairs });
            brokers.push(Some(broker));
            domains.push(domain);
        }

        let listen_error = |source| ClusterError::Listen { addr, source };
        let listener = match listener {
            Some(listener) => listener,
            None => TcpListener::bind(addr).map_err(listen_error)?,
        };
        listener.set_nonblocking(true).map_err(listen_error)?;
        let shared = Arc::new(ClusterState {
            membership,
            connect_options,
            key: Arc::new(ExchangeKey::new(key.as_ref())),
            local: Local {
                cluster: exchange::fingerprint(&names, threads as u16),
                this_member: this_member as u16,
                member_count: names.len() as u16,
                thread_count: threads as u16,
            },
            epoch,
            threads: broker_threads,
            status: Mutex::new(vec![MemberStatus::new(); names.len()]),
            notices,
        });
        let driver = Driver::new(Arc::clone(&shared), listener, is_lazy);
        let driver = std::thread::Builder::new().name("adverb-cluster".into()).spawn(|| driver.run());
        let driver = driver.map_err(failed("starting a thread"))?;
        let brokers = Mutex::new(brokers);
        let owner = OwnerProcess::current();
        Ok(Cluster { names, shared, domains, brokers, driver: Some(driver), owner })
    }
}

impl Cluster {
    /// Returns a builder without members, with one thread.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder {
            members: Vec::new(),
            membership: None,
            threads: 1,
            config: BrokerConfig::default(),
            devices: Vec::new(),
            connect_options: ConnectOptions::default(),
            listener: None,
            epoch: None,
            key: None,
            is_lazy: false,
        }
    }

    /// Leaves the cluster: no more sessions are established, and each broker leaves its sessions when its thread polls it
    /// next, as [`Broker::leave`] does without waiting. At the other members, the sessions end with
    /// [`EndReason::Left`](crate::EndReason::Left).
    ///
    /// The threads should poll until their sessions have ended. A thread that stops calls [`Broker::leave`] instead. The
    /// manual's chapter about clusters compares the ways to leave.
    pub fn leave(self) {
        let mailboxes = self.shared.threads.iter().map(|thread| Arc::clone(&thread.mailbox));
        let mailboxes = Vec::from_iter(mailboxes);
        drop(self);
        mailboxes.iter().for_each(|mailbox| mailbox.send(Command::Leave));
    }

    /// Takes the broker of a thread, which must poll it. The sessions of the thread are established only after this call.
    ///
    /// # Errors
    ///
    /// Returns [`ClusterError::BrokerTaken`] if the broker was taken before, or if the member has fewer threads.
    pub fn take_broker(&self, thread: usize) -> Result<Broker> {
        let broker = self.brokers.lock().get_mut(thread).and_then(Option::take);
        let broker = broker.ok_or(ClusterError::BrokerTaken { thread })?;
        self.shared.threads[thread].mailbox.set_taken();
        Ok(broker)
    }

    /// Returns the names of all members, in the order of their numbers.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of another member, or `None` if no other member has this name.
    pub fn peer(&self, name: &str) -> Option<PeerId> {
        let index = self.names.iter().position(|other| other == name)?;
        let peer = PeerId(index as u16);
        (peer != self.this_member()).then_some(peer)
    }

    /// Returns the state of the sessions with another member, or `None` if no other member has this number.
    ///
    /// If a member has no session, the state has the reasons why the last attempt failed
    /// ([`last_error`](MemberStatus::last_error)) and why the last session ended ([`last_end`](MemberStatus::last_end)),
    /// which a program can match: for example, the member doesn't run, has another list of members, or has left. After
    /// the death of a member, the members with smaller numbers, which don't dial it, have only the end of the session.
    /// Both are `None` if no session was open and no attempt has failed, for example because no broker has asked for a
    /// lazy session.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use adverb::cluster::{Cluster, EstablishError, Member, PeerId};
    ///
    /// let cluster = Cluster::builder()
    ///     .member(Member::new("a", "127.0.0.1:1")) // no member runs there
    ///     .member(Member::new("b", "127.0.0.1:0"))
    ///     .join("b")?;
    /// let mut broker = cluster.take_broker(0)?;
    /// let error = loop {
    ///     broker.wait(std::time::Duration::from_millis(10))?;
    ///     broker.poll(|_, event| println!("{event:?}"))?;
    ///     let status = cluster.status(PeerId(0)).expect("another member");
    ///     if let Some(error) = status.last_error {
    ///         break error;
    ///     }
    /// };
    /// assert!(matches!(error, EstablishError::Unreachable { .. }));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    pub fn status(&self, peer: PeerId) -> Option<MemberStatus> {
        if peer == self.this_member() {
            return None;
        }
        self.shared.status.lock().get(usize::from(peer.0)).cloned()
    }

    /// Returns the number of this member.
    pub fn this_member(&self) -> PeerId {
        PeerId(self.shared.local.this_member)
    }

    /// Returns the epoch of this member, which is in its [`RemoteRange`](crate::RemoteRange)s and
    /// [`RemotePtr`](crate::RemotePtr)s.
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Returns the protection domains of the brokers, by thread, for [`ArenaBuilder::create`](crate::ArenaBuilder::create). Then
    /// the `remotes` of a [segment](crate::arena::SegmentInfo) are by thread, too.
    pub fn protection_domains(&self) -> &[ProtectionDomain] {
        &self.domains
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        if !self.owner.is_current() {
            // A forked child doesn't have the thread, and the descriptor that wakes it is the parent's.
            return std::mem::forget(driver);
        }
        self.shared.notices.push(Notice::Stop);
        // The listener's address is free when the thread has ended.
        let _ = driver.join();
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("names", &self.names)
            .field("this_member", &self.this_member())
            .field("epoch", &self.epoch())
            .finish_non_exhaustive()
    }
}

fn check_count(option: &'static str, requested: usize, max: usize) -> Result<()> {
    if (1..=max).contains(&requested) {
        return Ok(());
    }
    Err(ClusterError::OutOfRange { option, requested, max })
}

/// Opens the devices of the threads at an address of this machine.
fn open_devices(addr: IpAddr, threads: usize) -> Result<Vec<Device>> {
    #[cfg(feature = "soft")]
    {
        use adverb_verbs::SoftDevice;

        let is_hardware = |device: &Device| !device.is_software();
        if let Some(device) = Device::open_by_addr(addr).ok().filter(is_hardware) {
            return Ok(vec![device]);
        }
        // A device for each thread: the threads don't wait for each other's locks.
        let open = |_| SoftDevice::at_addr(addr).open();
        Ok((0..threads).map(open).collect::<adverb_verbs::Result<Vec<Device>>>()?)
    }
    #[cfg(not(feature = "soft"))]
    {
        let _ = threads;
        Ok(vec![Device::open_by_addr(addr)?])
    }
}
