//! Timestamps of completions.

use std::io;

use adverb_proto::types::TimestampSource;
use adverb_proto::{Cq, Time, Timestamp};
use adverb_wire::Qpn;

use super::Engine;

/// The state of completion queues with timestamps.
pub(super) struct Timestamps {
    /// The number of these queues.
    cq_count: u32,
    /// The queues with the kernel's send times.
    send_timed_cqs: Vec<Cq>,
    /// The queue pair of the last queued packet, if that packet completes a request with a timestamp.
    sending: Option<Qpn>,
    /// The source of the link's receive times.
    receive_source: TimestampSource,
}

impl Timestamps {
    pub(super) const fn new() -> Timestamps {
        Timestamps {
            cq_count: 0,
            send_timed_cqs: Vec::new(),
            sending: None,
            receive_source: TimestampSource::Process,
        }
    }

    /// Whether a completion queue has timestamps.
    #[inline]
    pub(super) const fn are_visible(&self) -> bool {
        self.cq_count > 0
    }

    /// Whether the last queued packet completes a request with a timestamp.
    #[inline]
    pub(super) const fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Returns the source of the link's receive times.
    #[inline]
    pub(super) const fn receive_source(&self) -> TimestampSource {
        self.receive_source
    }
}

impl Engine {
    /// Creates a completion queue with timestamps. The link stamps packets only while such a queue exists, because
    /// stamping costs time.
    pub(in crate::nic) fn create_timed_cq(&mut self, capacity: u32) -> io::Result<Cq> {
        if self.timestamps.cq_count == 0
            && let Some(source) = self.port.start_timestamps()?
        {
            self.timestamps.receive_source = source;
        }
        self.timestamps.cq_count += 1;
        Ok(self.device.create_timed_cq(capacity))
    }

    /// Creates a completion queue with timestamps, and with the kernel's send times of datagrams.
    pub(in crate::nic) fn create_send_timed_cq(&mut self, capacity: u32) -> io::Result<Cq> {
        let cq = self.create_timed_cq(capacity)?;
        self.timestamps.send_timed_cqs.push(cq);
        Ok(cq)
    }

    /// Destroys a completion queue, and returns whether it existed and no queue pair used it.
    pub(in crate::nic) fn destroy_cq(&mut self, cq: Cq) -> bool {
        let has_timestamps = self.device.has_timestamps(cq);
        let is_destroyed = self.device.destroy_cq(cq);
        if is_destroyed && has_timestamps {
            let timestamps = &mut self.timestamps;
            timestamps.send_timed_cqs.retain(|timed| *timed != cq);
            timestamps.cq_count -= 1;
            if timestamps.cq_count == 0 {
                self.port.stop_timestamps();
            }
        }
        is_destroyed
    }

    /// Sends the packet that completes a request of this queue pair with a timestamp, and returns whether the link
    /// accepted it. A refused packet is sent by the next call of [`send_timed`](Engine::send_timed), which gets another time.
    pub(super) fn begin_timed(&mut self, now: Time, qpn: Qpn) -> io::Result<bool> {
        self.timestamps.sending = Some(qpn);
        self.send_timed(now)
    }

    /// Sends the packet that completes a request with a timestamp, and returns whether the link accepted it. The
    /// timestamp is the kernel's send time if a completion queue needs it and the link knows it. Otherwise it is `now`,
    /// the time before the system call: over loopback and veth, the call returns after the receiver's kernel has received
    /// the packet.
    #[cold]
    pub(super) fn send_timed(&mut self, now: Time) -> io::Result<bool> {
        let mut sent_at = Timestamp::from(now);
        if self.timestamps.send_timed_cqs.is_empty() {
            self.port.send()?;
        } else if let Some(time) = self.port.send_timed()? {
            sent_at = Timestamp { time: self.clock.time_of(time), source: TimestampSource::Kernel };
        }
        let is_sent = self.port.is_queue_empty();
        if is_sent && let Some(qpn) = self.timestamps.sending.take() {
            self.device.packet_sent(sent_at, qpn);
        }
        Ok(is_sent)
    }
}
