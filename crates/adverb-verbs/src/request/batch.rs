//! Batches of send requests, as they are posted.

use adverb_proto::types::{self as plain, Segment};

use super::{InFlight, SendRequest};
use crate::backend::{self, SendList};
use crate::device::UdDestination;
use crate::memory::{Payload, PayloadSegment};

/// Send requests that are posted together.
pub(crate) struct Batch {
    /// The requests in the backend's form, without identifiers.
    pub(crate) list: SendList,
    /// The requests' memory, until they complete.
    pub(crate) in_flight: Vec<InFlight>,
    /// The requests off the fast path, and their indices. They are checked in detail, and added to the list, under
    /// the queue's lock.
    pub(crate) slow: Vec<(usize, SendRequest)>,
}

impl Batch {
    pub(crate) fn new(device: &backend::Device) -> Batch {
        Batch { list: device.send_list(), in_flight: Vec::new(), slow: Vec::new() }
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.in_flight.clear();
        self.slow.clear();
    }

    /// Adds a request that is off the fast path.
    #[cold]
    pub(crate) fn add_slow(&mut self, request: SendRequest) {
        self.slow.push((self.list.len(), request));
        self.list.add_slot();
        self.in_flight.push(InFlight { payload: Payload::Empty, tag: 0, opcode: 0, address_handle: None });
    }

    /// Adds the checked requests that are off the fast path to the list, and moves their memory.
    #[cold]
    pub(crate) fn encode_slow(&mut self, segment_buf: &mut Vec<Segment>) {
        for (index, request) in &mut self.slow {
            let SendRequest { operation, flags, payload, tag, destination } = request;
            segment_buf.clear();
            segment_buf.extend(payload.segments().iter().map(PayloadSegment::segment));
            let plain = plain::SendRequest {
                wr_id: 0,
                tag: *tag,
                operation: *operation,
                flags: *flags,
                segments: segment_buf,
                destination: destination.as_ref().map(UdDestination::plain),
            };
            self.list.put(*index, &plain);
            if let Payload::Window(window) = payload {
                window.encode_bind(operation, &mut self.list, *index);
            }
            self.in_flight[*index] = InFlight {
                payload: std::mem::take(payload),
                tag: *tag,
                opcode: operation.completed().code(),
                address_handle: destination.as_ref().map(|destination| destination.address_handle.clone()),
            };
        }
    }

    /// Returns the requests from index `from` on, with their memory.
    #[cold]
    pub(crate) fn into_requests(self, from: usize, in_flight: Vec<InFlight>) -> Vec<SendRequest> {
        let Batch { list, slow, .. } = self;
        let mut slow = slow.into_iter().filter(|(index, _)| *index >= from).peekable();
        let request = |(index, InFlight { payload, tag, .. })| match slow.next_if(|(at, _)| *at == index) {
            Some((_, mut request)) => {
                // The request still has its payload if it was not encoded yet.
                if matches!(request.payload, Payload::Empty) {
                    request.payload = payload;
                }
                request
            }
            None => {
                let plain::SendRequest { operation, flags, .. } = list.posted_request(index);
                SendRequest { operation, flags, payload, tag, destination: None }
            }
        };
        (from..).zip(in_flight).map(request).collect()
    }
}
