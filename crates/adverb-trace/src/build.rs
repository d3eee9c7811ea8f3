//! Builds traces from recordings.
//!
//! The first pass reads each device's events in order and creates its requests and packets. The second pass matches the
//! packets and messages of two ends. Each pass takes time in proportion to `n log n` for `n` events.

mod ends;
mod receiver;
mod sequence;
mod steps;

use adverb_proto::trace::Recording;

use crate::model::{DeviceId, Packet, PacketId, Request, RequestId, Trace};
use steps::{EventReader, Qp};

impl Trace {
    /// Builds a trace from the recordings of one or more devices. Packets and messages of two recorded ends are matched
    /// by queue pair numbers and sequence numbers.
    ///
    /// A trace of an incomplete recording is incomplete too: a request that was posted before the recording began, for
    /// example, has no [`posted`](Request::posted).
    ///
    /// ```
    /// # mod adverb {
    /// #     pub use adverb_trace as trace;
    /// #     pub mod verbs { pub use adverb_proto::trace as recording; }
    /// # }
    /// use adverb::trace::Trace;
    /// use adverb::verbs::recording::Recording;
    ///
    /// /// Returns the number of retransmitted packets that two devices have recorded.
    /// fn retransmission_count(recordings: [Recording; 2]) -> usize {
    ///     let trace = Trace::new(recordings);
    ///     trace.packets().iter().filter(|packet| packet.is_retransmission).count()
    /// }
    /// # use adverb_proto::{Device, trace::{ClockOrigin, Recorder, RecorderOptions}};
    /// # let recordings = ["soft0", "soft1"].map(|name| {
    /// #     let mut device = Device::new(Recorder::default());
    /// #     device.sink_mut().start(&RecorderOptions::default()).unwrap();
    /// #     device.sink_mut().stop(name, ClockOrigin::default()).unwrap()
    /// # });
    /// # assert_eq!(retransmission_count(recordings), 0);
    /// ```
    pub fn new(recordings: impl IntoIterator<Item = Recording>) -> Trace {
        let mut build = Build::default();
        for recording in recordings {
            EventReader::read(&mut build, recording);
        }
        ends::match_ends(&mut build);
        build.trace
    }
}

/// A trace that is being built.
#[derive(Default)]
struct Build {
    trace: Trace,
    /// The connections of queue pairs. A queue pair that was reset, or destroyed and replaced by one with the same
    /// number, has several elements.
    qps: Vec<Qp>,
    /// The queue pair of each packet.
    packet_qps: Vec<usize>,
    /// The send request of each packet that was sent.
    packet_requests: Vec<Option<RequestId>>,
    /// The first sequence number of each request, extended to 64 bits, if a packet of it was sent.
    first_numbers: Vec<Option<u64>>,
}

impl Build {
    fn packet(&self, id: PacketId) -> Option<&Packet> {
        self.trace.packets.get(id.0)
    }

    fn packet_mut(&mut self, id: PacketId) -> Option<&mut Packet> {
        self.trace.packets.get_mut(id.0)
    }

    fn request(&self, id: RequestId) -> Option<&Request> {
        self.trace.requests.get(id.0)
    }

    fn request_mut(&mut self, id: RequestId) -> Option<&mut Request> {
        self.trace.requests.get_mut(id.0)
    }

    fn add_request(&mut self, request: Request) -> RequestId {
        self.trace.requests.push(request);
        self.first_numbers.push(None);
        RequestId(self.trace.requests.len() - 1)
    }

    fn add_packet(&mut self, qp: usize, packet: Packet, request: Option<RequestId>) -> PacketId {
        self.trace.packets.push(packet);
        self.packet_qps.push(qp);
        self.packet_requests.push(request);
        PacketId(self.trace.packets.len() - 1)
    }

    fn add_qp(&mut self, qp: Qp) -> usize {
        self.qps.push(qp);
        self.qps.len() - 1
    }

    const fn next_device(&self) -> DeviceId {
        DeviceId(self.trace.devices.len())
    }
}
