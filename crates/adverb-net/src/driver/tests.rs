//! Access to a driver for the crate's tests, and tests of a driver without a bootstrap.

use std::net::Ipv4Addr;

use adverb_net_proto::{EndReason, Hello, Post, Tag};
use adverb_verbs::{PeerAttributes, ProtectionDomain, RemoteAddress, SendRequest, SoftDevice, Transport};

use super::progress::post_hello;
use super::{Core, Driver, HelloExchange, Lane, LaneParts, LanePurpose};
use crate::options::Options;

impl Driver {
    /// Returns the number of the current lane.
    pub(crate) fn lane_number(&self) -> u32 {
        self.lock().connection.lane()
    }

    /// Whether the connection has its first lane. Panics if the connection has ended, because it gets no other lane then.
    pub(crate) fn has_first_lane(&self) -> bool {
        let core = self.lock();
        assert_eq!(core.end_reason(), None, "the connection has ended");
        core.connection.lane() == 0
    }

    /// Whether the connection has failed, and is being re-established.
    pub(crate) fn is_reconnecting(&self) -> bool {
        self.lock().is_reconnecting()
    }

    /// Returns the attributes of the current lane's connection to the peer.
    pub(crate) fn peer_attributes(&self) -> PeerAttributes {
        self.lane().queue_pair.query().unwrap().peer.expect("a connected queue pair")
    }

    /// Moves the queue pair of the current lane to the error state. Returns whether that was possible.
    pub(crate) fn fail_lane(&self) -> bool {
        self.lane().queue_pair.move_to_error().is_ok()
    }

    /// Ends the connection without a close.
    pub(crate) fn abort(&self) {
        let mut core = self.lock();
        core.connection.abort();
        self.advance(&mut core);
    }

    /// Returns the address and the key of the peer's ring.
    pub(crate) fn peer_ring(&self) -> RemoteAddress {
        match self.lock().connection.abort_write() {
            Some(Post::Write { remote, .. }) => remote,
            _ => panic!("the lane is not established"),
        }
    }

    pub(crate) fn has_peer_closed(&self) -> bool {
        self.lock().connection.has_peer_closed()
    }

    /// Whether the completion queue is armed, and needs no poll before its event is taken.
    pub(crate) fn is_armed(&self) -> bool {
        self.lock().waiters.is_armed()
    }

    /// Posts a request that no connection posts. Returns whether that was possible.
    pub(crate) fn post(&self, request: SendRequest) -> bool {
        self.lane().queue_pair.post_send(request).is_ok()
    }
}

impl Core {
    /// Fails the lane, as a poll of a failed device does.
    pub(crate) fn fail_lane(&mut self) {
        let now = self.now;
        self.connection.handle_lane_failed(now);
    }

    pub(crate) fn end_reason(&self) -> Option<EndReason> {
        self.connection.end_reason()
    }
}

#[test]
fn a_peer_without_a_hello_costs_no_ring() {
    // Other tests use the shared device, and the connection manager finds devices by their addresses.
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    let device = SoftDevice::at_addr(Ipv4Addr::new(127, 79, high, low).into()).open().unwrap();
    let options = Options::new().device(&device).recv_ring_size(1 << 20);
    let peer = "127.0.0.1:1".parse().unwrap();
    let make = |domain: &ProtectionDomain| Ok(domain.queue_pair(Transport::Rc));
    let [left, right] = [(); 2].map(|()| LaneParts::new(&device, peer, &options, make).unwrap());
    left.1.connect_with(&right.1.endpoint(), &LaneParts::connect_options(&Options::default())).unwrap();
    right.1.connect_with(&left.1.endpoint(), &LaneParts::connect_options(&Options::default())).unwrap();
    let [connector, listener] =
        [left, right].map(|(parts, queue_pair)| Lane::new(parts, queue_pair, None, None, None));
    let regions = || device.resource_counts().unwrap().regions;
    let before = regions();
    let mut exchange = HelloExchange::begin(listener, &LanePurpose::Accept(|_| None)).unwrap();
    assert!(exchange.poll().unwrap().is_none());
    assert_eq!(regions(), before);
    post_hello(&connector, &Hello::unknown_session().emit(), Tag::Hello.wr_id()).unwrap();
    // The listener registers its ring before it answers.
    let before = regions();
    while regions() == before {
        exchange.poll().unwrap();
    }
}
