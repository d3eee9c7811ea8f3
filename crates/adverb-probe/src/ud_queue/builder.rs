//! The builder of queues.

use std::net::IpAddr;
use std::time::Duration;

use adverb_verbs::{Device, Traffic};

use super::{UdQueue, Waker};
use crate::error::{ProbeError, Result, check_range};

/// A builder of a [`UdQueue`], returned by [`UdQueue::builder`].
#[must_use = "a builder does nothing until `open` is called"]
pub struct UdQueueBuilder {
    opener: Opener,
    options: Options,
}

/// The maximum number of send or receive slots. Devices have a smaller one.
const MAX_SLOTS: u32 = 1 << 24;

/// Opens the device: at first, and after it has failed.
pub(super) type Opener = Box<dyn FnMut() -> adverb_verbs::Result<Device> + Send>;

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) local_addr: Option<IpAddr>,
    pub(super) send_slots: u32,
    pub(super) recv_slots: u32,
    pub(super) max_address_handles: usize,
    pub(super) traffic: Traffic,
    pub(super) spin: Duration,
    pub(super) process_stamps: bool,
    pub(super) min_reopen_delay: Duration,
    pub(super) max_reopen_delay: Duration,
}

impl UdQueueBuilder {
    pub(super) fn new(opener: Opener) -> UdQueueBuilder {
        let options = Options {
            local_addr: None,
            send_slots: 64,
            recv_slots: 256,
            max_address_handles: 1024,
            traffic: Traffic::new(),
            spin: Duration::ZERO,
            process_stamps: false,
            min_reopen_delay: Duration::from_millis(100),
            max_reopen_delay: Duration::from_secs(5),
        };
        UdQueueBuilder { opener, options }
    }

    /// Sets the local address, which selects the device's port and GID. By default, the first port's best GID is used.
    pub fn local_addr(mut self, addr: IpAddr) -> UdQueueBuilder {
        self.options.local_addr = Some(addr);
        self
    }

    /// Sets the number of send slots: the maximum number of datagrams in flight. The default is 64.
    pub fn send_slots(mut self, count: u32) -> UdQueueBuilder {
        self.options.send_slots = count;
        self
    }

    /// Sets the number of receive slots: the maximum number of datagrams that arrive before the caller polls. Further
    /// ones are dropped. The default is 256.
    pub fn recv_slots(mut self, count: u32) -> UdQueueBuilder {
        self.options.recv_slots = count;
        self
    }

    /// Sets the maximum number of cached address handles: pairs of a destination and traffic options, at least 1. The
    /// default is 1024.
    pub fn max_address_handles(mut self, count: usize) -> UdQueueBuilder {
        self.options.max_address_handles = count;
        self
    }

    /// Sets the traffic options of datagrams whose own options leave them unset.
    pub fn traffic(mut self, traffic: Traffic) -> UdQueueBuilder {
        self.options.traffic = traffic;
        self
    }

    /// Sets the time for which [`UdQueue::wait`] spins before it sleeps. The default is zero. Spinning makes the
    /// process's own stamps more accurate, and takes a core.
    pub fn spin(mut self, spin: Duration) -> UdQueueBuilder {
        self.options.spin = spin;
        self
    }

    /// Sets whether all stamps are the process's, even if the device or the kernel has better ones. The default is
    /// `false`. This is for comparisons.
    pub fn process_stamps(mut self, enabled: bool) -> UdQueueBuilder {
        self.options.process_stamps = enabled;
        self
    }

    /// Sets the delay before a failed device is opened again, and the maximum to which the delay doubles after each
    /// failure, which must not be below the minimum. The defaults are 100 ms and 5 s.
    pub fn reopen_delay(mut self, min: Duration, max: Duration) -> UdQueueBuilder {
        (self.options.min_reopen_delay, self.options.max_reopen_delay) = (min, max);
        self
    }

    /// Opens the device and creates the queue.
    ///
    /// # Errors
    ///
    /// Returns [`ProbeError::InvalidOption`] if an option is outside its range, [`ProbeError::Verbs`] if the device can't be opened, doesn't have the address, or
    /// can't create the objects, and [`ProbeError::System`] if the process has too many open
    /// descriptors.
    pub fn open(self) -> Result<UdQueue> {
        let Options { send_slots, recv_slots, max_address_handles, .. } = self.options;
        let max = u64::from(MAX_SLOTS);
        check_range("UdQueueBuilder::send_slots", send_slots.into(), 1..=max)?;
        check_range("UdQueueBuilder::recv_slots", recv_slots.into(), 1..=max)?;
        check_range("UdQueueBuilder::max_address_handles", max_address_handles as u64, 1..=u64::MAX)?;
        if self.options.max_reopen_delay < self.options.min_reopen_delay {
            return Err(ProbeError::ReopenDelays {
                min: self.options.min_reopen_delay,
                max: self.options.max_reopen_delay,
            });
        }
        let waker = Waker::new().map_err(super::open::watch_error)?;
        UdQueue::open(self.opener, self.options, waker)
    }
}

impl std::fmt::Debug for UdQueueBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UdQueueBuilder").field(&self.options).finish()
    }
}
