//! The event channels of a NIC.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use adverb_proto::{Cq, QueueEvent, TraceEvent};

use super::Engine;
use crate::channel::Channel;
use crate::nic::NicEvent;
use crate::nic::lock::Notifications;

/// The asynchronous events of a NIC, and the channels that are notified of events.
pub(in crate::nic) struct Events {
    /// The event channels of completion queues.
    cq_channels: BTreeMap<Cq, Arc<Channel>>,
    /// The asynchronous events that the application has not taken yet.
    queue: VecDeque<NicEvent>,
    /// The channel that is notified of asynchronous events.
    channel: Arc<Channel>,
    /// The channel that is notified when the recorder stops by itself.
    recorder_channel: Option<Arc<Channel>>,
}

impl Events {
    pub(super) const fn new(channel: Arc<Channel>) -> Events {
        Events { cq_channels: BTreeMap::new(), queue: VecDeque::new(), channel, recorder_channel: None }
    }

    /// Sets the event channel of a new completion queue.
    pub(in crate::nic) fn add_cq(&mut self, cq: Cq, channel: Option<Arc<Channel>>) {
        self.cq_channels.extend(channel.map(|channel| (cq, channel)));
    }

    /// Removes the event channel of a completion queue.
    pub(in crate::nic) fn remove_cq(&mut self, cq: Cq) {
        self.cq_channels.remove(&cq);
    }

    /// Sets the channel that is notified when the recorder stops by itself.
    pub(in crate::nic) fn set_recorder_channel(&mut self, channel: Option<Arc<Channel>>) {
        self.recorder_channel = channel;
    }

    /// Removes and returns the oldest asynchronous event.
    pub(in crate::nic) fn pop(&mut self) -> Option<NicEvent> {
        self.queue.pop_front()
    }

    /// Adds an asynchronous event.
    pub(super) fn push(&mut self, event: NicEvent, notifications: &mut Notifications) {
        self.queue.push_back(event);
        notifications.push(&self.channel);
    }

    /// Notifies the channels of all completion queues, even if their queue isn't armed.
    pub(super) fn notify_all_cqs(&self, notifications: &mut Notifications) {
        for channel in self.cq_channels.values() {
            notifications.push(channel);
        }
    }

    #[cold]
    fn notify_stopped_recorder(&mut self, notifications: &mut Notifications) {
        if let Some(channel) = self.recorder_channel.take() {
            notifications.push(&channel);
        }
    }
}

impl Engine {
    /// Delivers pending events to their channels.
    pub(super) fn deliver_events(&mut self) {
        while let Some(cq) = self.device.poll_cq_event() {
            if self.gsi.owns_cq(cq) {
                self.gsi.request_serve();
            } else if let Some(channel) = self.events.cq_channels.get(&cq) {
                self.notifications.push(channel);
                self.schedule.record_event();
                self.record(|| TraceEvent::CqEventDelivered { cq });
            }
        }
        while let Some(event) = self.device.poll_queue_event() {
            if let QueueEvent::Established(qpn) = event {
                self.gsi.manager.communication_established(qpn);
                self.gsi.request_serve();
            }
            self.events.push(NicEvent::Queue(event), &mut self.notifications);
            self.record(|| TraceEvent::QueueEventDelivered { event });
        }
        if self.events.recorder_channel.is_some() && self.device.sink().stop_cause().is_some() {
            self.events.notify_stopped_recorder(&mut self.notifications);
        }
    }

    /// Discards the events of a destroyed object, because its number may be reused soon.
    pub(in crate::nic) fn discard_events(&mut self, is_stale: impl Fn(&QueueEvent) -> bool) {
        // Events that are still in the engine would be delivered later.
        self.deliver_events();
        // The channel may then have more notifications than events, so a caller may find no event.
        self.events.queue.retain(|event| !matches!(event, NicEvent::Queue(event) if is_stale(event)));
    }
}
