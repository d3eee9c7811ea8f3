//! Completion queues and their event channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use adverb_proto::Cq;
use adverb_proto::explain::Call;
use adverb_proto::types::ArmFor;
use adverb_soft::Channel;

use super::{Device, nic_error};
use crate::backend::{self, CompletionQueueKind, RawCompletion, RawOutcome};
use crate::error::{Error, Feature, Limit, Result, call_failed};

pub(crate) struct CompletionQueue {
    pub(super) device: Arc<Device>,
    pub(super) cq: Cq,
    /// The queue's own channel, so that no caller consumes an event of another queue.
    channel: Option<Arc<Channel>>,
    /// The number of entries. Resizing changes it.
    depth: AtomicU32,
    has_timestamps: bool,
}

impl CompletionQueue {
    pub(in crate::backend) fn new(
        device: &Arc<Device>,
        depth: u32,
        has_events: bool,
        vector: u32,
        kind: CompletionQueueKind,
    ) -> Result<CompletionQueue> {
        let action = || format!("creating a completion queue of depth {depth} on {}", device.name);
        if vector != 0 {
            let (limit, requested) = (Limit::CompletionVector, vector.into());
            return Err(Error::LimitExceeded { limit, requested, max: 0 });
        }
        let channel_error = |error| call_failed(Call::Create, action(), error);
        let channel = if has_events { Some(Arc::new(Channel::new().map_err(channel_error)?)) } else { None };
        let has_timestamps = kind.has_timestamps();
        let created = match kind {
            CompletionQueueKind::SendTimestamps => device.nic.create_send_timed_cq(depth, channel.clone()),
            CompletionQueueKind::Timestamps => device.nic.create_timed_cq(depth, channel.clone()),
            CompletionQueueKind::Plain | CompletionQueueKind::Extended => {
                device.nic.create_cq(depth, channel.clone())
            }
        };
        let cq = created.map_err(|error| nic_error(Call::Create, error, action()))?;
        let (device, depth) = (Arc::clone(device), AtomicU32::new(depth));
        Ok(CompletionQueue { device, cq, channel, depth, has_timestamps })
    }

    pub(in crate::backend) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire)
    }

    pub(in crate::backend) fn resize(&self, depth: u32) -> Result<()> {
        let resized = self.device.nic.resize_cq(self.cq, depth);
        resized.map_err(|error| {
            nic_error(
                Call::Create,
                error,
                format!("resizing a completion queue on {} to depth {depth}", self.device.name),
            )
        })?;
        self.depth.store(depth, Ordering::Release);
        Ok(())
    }

    pub(in crate::backend) fn moderate(&self, _count: u16, _period: u16) -> Result<()> {
        Err(Error::Unsupported { feature: Feature::Moderation, device: self.device.name.as_str().into() })
    }

    #[cold]
    #[inline(never)]
    pub(in crate::backend) fn poll(&self, out: &mut [RawCompletion]) -> usize {
        let max_count = out.len();
        let mut slots = out.iter_mut();
        if self.has_timestamps {
            return self.device.nic.poll_timed(self.cq, max_count, |completion, stamp| {
                if let Some(slot) = slots.next() {
                    *slot = RawCompletion::of(&completion);
                    if let Some(stamp) = stamp {
                        slot.outcome.store_timestamp_from(stamp.time.as_nanos(), stamp.source);
                    }
                }
            });
        }
        self.device.nic.poll(self.cq, max_count, |completion| {
            if let Some(slot) = slots.next() {
                *slot = RawCompletion::of(&completion);
            }
        })
    }

    /// Does nothing: this device uses the common format.
    pub(in crate::backend) fn normalize(&self, _outcome: &mut RawOutcome) {}

    pub(in crate::backend) fn arm(&self, arm_for: ArmFor) -> Result<()> {
        let armed = self.device.nic.arm_cq(self.cq, arm_for);
        armed.map_err(|error| {
            nic_error(Call::Poll, error, format!("arming a completion queue on {}", self.device.name))
        })
    }

    pub(in crate::backend) fn has_events(&self) -> bool {
        self.channel.is_some()
    }

    pub(in crate::backend) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.channel.as_ref().map(|channel| channel.as_fd())
    }

    pub(in crate::backend) fn try_event(&self) -> Result<bool> {
        let taken = self.channel()?.take();
        taken.map_err(|error| call_failed(Call::Poll, "reading an event of a completion queue", error))
    }

    pub(in crate::backend) fn wait_event(&self, timeout: Option<Duration>) -> Result<bool> {
        let waited = self.device.nic.wait(self.channel()?, timeout);
        waited.map_err(|error| call_failed(Call::Poll, "waiting for an event of a completion queue", error))
    }

    fn channel(&self) -> Result<&Channel> {
        self.channel.as_deref().ok_or_else(backend::no_event_channel)
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.device.is_owned()
            && let Err(error) = self.device.nic.destroy_cq(self.cq)
        {
            tracing::error!(%error, "destroying a completion queue failed");
        }
    }
}
