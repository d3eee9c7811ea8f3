//! The objects of a queue whose device is open.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use adverb_verbs::cm::{DatagramListener, UD_QKEY};
use adverb_verbs::internal::Watch;
use adverb_verbs::memory::Buffer;
use adverb_verbs::{
    ClockSample, Completion, CompletionQueue, Device, DeviceEvent, Failure, Gid, GidEntry, GidType,
    ProtectionDomain, QpState, QueuePair, RecvRequest, SendRequest, Status, TimestampSource, Traffic,
    Transport,
};

use super::addresses::AddressCache;
use super::builder::Options;
use super::nic_clock::NicClock;
use super::service::PendingLookup;
use super::slots::{InFlight, SendSlots};
use super::{Destination, Posted, Waker};
use crate::error::{ProbeError, Result};
use crate::stamp::{Stamp, StampKind};

/// A device and the objects on it.
#[derive(Debug)]
pub(super) struct OpenQueue {
    pub(super) queue_pair: QueuePair,
    pub(super) completions: CompletionQueue,
    /// Completions that were polled and not yet handled, the last one first.
    pub(super) batch: Vec<Completion>,
    pub(super) slots: SendSlots,
    pub(super) addresses: AddressCache,
    pub(super) listener: Option<DatagramListener>,
    pub(super) lookups: Vec<PendingLookup>,
    /// Readable when the caller must poll.
    pub(super) watch: Watch,
    /// The number of receives in the queue pair's receive queue.
    pub(super) posted_receives: u32,
    recv_slots: u32,
    recv_slot_size: usize,
    pub(super) gid: GidEntry,
    clock: Clock,
    domain: ProtectionDomain,
    pub(super) device: Device,
    /// The time of the last check of events that are rare.
    pub(super) checked_at: Instant,
}

/// The tag of receive requests. The tags of send requests are the numbers of their slots.
pub(super) const RECV_TAG: u64 = u64::MAX;

/// The space for the GRH in a receive buffer.
pub(super) const GRH_LEN: usize = 40;

/// The source of stamps.
#[derive(Debug)]
enum Clock {
    /// The device has no timestamps, or the caller wants none.
    Process,
    /// A NIC's own clock.
    Nic(NicClock),
    /// The software NIC's clock, which is the process's.
    Software(ClockSample),
}

impl OpenQueue {
    pub(super) fn open(device: Device, options: &Options, waker: &Waker) -> Result<OpenQueue> {
        let gid = choose_gid(&device, options.local_addr)?;
        let (clock, completions) = completion_queue(&device, options)?;
        let domain = device.create_protection_domain()?;
        let queue_pair = domain
            .queue_pair(Transport::Ud)
            .completion_queue(&completions)
            .depth(options.send_slots, options.recv_slots)
            .port(gid.port)
            .local_addr(gid.gid.ip())
            .qkey(UD_QKEY)
            .traffic(options.traffic)
            .create()?;
        let mtu = queue_pair.max_message_size() as usize;
        let slots = SendSlots::new(domain.allocate_buffer(options.send_slots as usize * mtu)?, mtu)?;
        let watch = Watch::new().map_err(watch_error)?;
        let mut queue = OpenQueue {
            queue_pair,
            completions,
            batch: Vec::with_capacity((options.send_slots + options.recv_slots) as usize),
            slots,
            addresses: AddressCache::new(options.max_address_handles),
            listener: None,
            lookups: Vec::new(),
            watch,
            posted_receives: 0,
            recv_slots: options.recv_slots,
            recv_slot_size: GRH_LEN + mtu,
            gid,
            clock,
            domain,
            device,
            checked_at: Instant::now(),
        };
        // A datagram of another host may have any length up to the MTU. A shorter receive would fail, and with some
        // devices the whole queue pair.
        let mut memory = queue.domain.allocate_buffer(queue.recv_slots as usize * queue.recv_slot_size)?;
        while memory.capacity() > queue.recv_slot_size {
            let rest = memory.split_off(queue.recv_slot_size)?;
            queue.post_recv(std::mem::replace(&mut memory, rest))?;
        }
        queue.post_recv(memory)?;
        queue.queue_pair.move_to_rts()?;
        let watched = [Some(waker.as_fd()), queue.completions.event_fd(), Some(queue.device.event_fd())];
        for fd in watched.into_iter().flatten() {
            queue.watch.add(fd).map_err(watch_error)?;
        }
        Ok(queue)
    }

    /// Posts a receive.
    pub(super) fn post_recv(&mut self, mut buffer: Buffer) -> Result<()> {
        buffer.reset_range();
        self.queue_pair.post_recv(RecvRequest::new(buffer).tag(RECV_TAG)).map_err(|failed| failed.error)?;
        self.posted_receives += 1;
        Ok(())
    }

    /// Replaces receive slots that were lost because posting them failed, or because the caller's function panicked.
    pub(super) fn replace_receives(&mut self) -> Result<()> {
        // Receives in the batch are not lost.
        let polled = self.batch.iter().filter(|completion| completion.tag() == RECV_TAG).count();
        let present = self.posted_receives.saturating_add(u32::try_from(polled).unwrap_or(u32::MAX));
        for _ in present..self.recv_slots {
            let buffer = self.domain.allocate_buffer(self.recv_slot_size)?;
            self.post_recv(buffer)?;
        }
        Ok(())
    }

    /// Posts the datagram that `write` writes into a free slot.
    pub(super) fn send(
        &mut self,
        id: u64,
        destination: &Destination,
        traffic: Traffic,
        write: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<Posted> {
        let route = self.addresses.get(&self.queue_pair, destination, traffic)?;
        let source_port = route.address_handle.source_port();
        let Some((number, mut buffer)) = self.slots.take() else {
            return Err(ProbeError::SendSlotsFull { slots: self.slots.count() });
        };
        let (len, max) = (write(&mut buffer), buffer.capacity());
        if buffer.set_range(0..len).is_err() {
            self.slots.set_not_posted(number, Some(buffer));
            return Err(ProbeError::PayloadTooLong { len, max });
        }
        let request = SendRequest::send(buffer).tag(u64::from(number)).destination(&route);
        let at = Stamp::now();
        match self.queue_pair.post_send(request) {
            Ok(request) => {
                self.slots.set_posted(number, InFlight { id, request, posted_at: at });
                Ok(Posted { at, source_port })
            }
            Err(mut failed) => {
                let buffer = failed.requests.pop().and_then(|request| request.into_payload().into_buffer());
                self.slots.set_not_posted(number, buffer);
                Err(failed.error.into())
            }
        }
    }

    /// Returns the time of a completion that was polled at `polled_at`.
    pub(super) fn stamp(&mut self, completion: &Completion, polled_at: Stamp) -> Stamp {
        let stamp = match (&mut self.clock, completion.timestamp()) {
            (Clock::Nic(clock), Some(timestamp)) => clock.stamp(timestamp),
            (Clock::Software(sample), Some(timestamp)) => {
                let kind = match completion.timestamp_source() {
                    Some(TimestampSource::Kernel) => StampKind::Kernel,
                    _ => StampKind::Process,
                };
                sample.instant_of(timestamp).map(|instant| Stamp::from_instant(instant, kind))
            }
            _ => None,
        };
        stamp.unwrap_or(polled_at)
    }

    /// Answers lookups at a port of the queue's address from now on, and returns both.
    pub(super) fn listen(&mut self, port: u16) -> Result<SocketAddr> {
        // A listener that is there already may have the same port.
        self.listener = None;
        let listener = DatagramListener::bind(SocketAddr::new(self.gid.gid.ip(), port))?;
        self.watch.add(listener.as_fd()).map_err(watch_error)?;
        let address = listener.local_addr();
        self.listener = Some(listener);
        Ok(address)
    }

    /// Returns an error if a failed request shows that the queue pair no longer works.
    pub(super) fn check_state(&self, failure: Failure) -> Result<()> {
        if failure.status == Status::Flushed || self.queue_pair.state()? == QpState::Error {
            return Err(ProbeError::RequestFailed { failure });
        }
        Ok(())
    }

    /// Returns the next event of the device.
    pub(super) fn device_event(&self) -> Result<Option<DeviceEvent>> {
        Ok(self.device.wait_event(Duration::ZERO)?)
    }

    /// Whether an event of the device ends the queue.
    pub(super) fn is_fatal(&self, event: DeviceEvent) -> bool {
        match event {
            DeviceEvent::DeviceFatal | DeviceEvent::CompletionQueueError => true,
            DeviceEvent::QueuePairFatal(qpn)
            | DeviceEvent::QueuePairRequestError(qpn)
            | DeviceEvent::QueuePairAccessError(qpn) => qpn == self.queue_pair.qpn(),
            _ => false,
        }
    }

    /// Returns the error of an event that ends the queue.
    pub(super) fn failure(&self, event: DeviceEvent) -> ProbeError {
        ProbeError::FatalEvent { device: self.device.name().into(), event }
    }

    /// Returns the earliest time at which the caller must poll without a readable descriptor.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.lookups.iter().map(PendingLookup::deadline).min()
    }
}

/// Creates the completion queue, with timestamps if the device has a clock of known frequency.
fn completion_queue(device: &Device, options: &Options) -> Result<(Clock, CompletionQueue)> {
    let builder = device.completion_queue(options.send_slots + options.recv_slots).events();
    let clock = match device.attributes().timestamp_clock {
        _ if options.process_stamps => Clock::Process,
        None => Clock::Process,
        Some(_) if device.is_software() => Clock::Software(device.query_clock()?),
        Some(clock) => NicClock::new(clock).map_or(Clock::Process, Clock::Nic),
    };
    let builder = if matches!(clock, Clock::Process) { builder } else { builder.send_timestamps() };
    Ok((clock, builder.create()?))
}

/// Chooses the GID of an address, or the best GID of the first port that has one.
fn choose_gid(device: &Device, address: Option<IpAddr>) -> Result<GidEntry> {
    let gids = device.gids()?;
    let has_addr = |gid: Gid, address| gid == Gid::from(address) || gid.udp_addr().ip() == address;
    let entry = gids
        .iter()
        .find(|entry| match address {
            Some(address) => has_addr(entry.gid, address),
            None => entry.gid_type != GidType::RoceV1 && !entry.gid.is_link_local(),
        })
        .or_else(|| gids.first().filter(|_| address.is_none()));
    let port = entry.map_or(1, |entry| entry.port);
    Ok(device.gid_for(port, address)?)
}

pub(super) fn watch_error(source: std::io::Error) -> ProbeError {
    ProbeError::System { action: "watching the descriptors of a UD queue".into(), source }
}
