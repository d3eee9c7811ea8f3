//! Requests that a program doesn't take from its channel.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use adverb_sys::*;

use super::children::{is_part, run};
use super::{DEADLINE, own_addr};
use crate::entry::errno;
use crate::rdmacm::{self, Status};

#[test]
fn a_listener_queues_as_many_requests_as_its_backlog() {
    run("backlog::requests");
}

/// An identifier with a channel that doesn't block.
struct End {
    channel: *mut rdma_event_channel,
    id: *mut rdma_cm_id,
}

impl End {
    fn new() -> End {
        // SAFETY: the objects are alive.
        unsafe {
            let channel = rdmacm::rdma_create_event_channel();
            libc::fcntl((*channel).fd, libc::F_SETFL, libc::O_NONBLOCK);
            let mut id = null_mut();
            assert_eq!(
                rdmacm::rdma_create_id(channel, &raw mut id, null_mut(), RDMA_PS_TCP),
                Status::SUCCESS
            );
            End { channel, id }
        }
    }

    /// Takes an event, and returns its type.
    fn event(&self) -> Option<u32> {
        let mut event = null_mut();
        // SAFETY: the channel is alive; the event is acknowledged once.
        unsafe {
            if rdmacm::rdma_get_cm_event(self.channel, &raw mut event) != Status::SUCCESS {
                assert_eq!(errno(), libc::EAGAIN);
                return None;
            }
            let kind = (*event).event;
            assert_eq!(rdmacm::rdma_ack_cm_event(event), Status::SUCCESS);
            Some(kind)
        }
    }

    /// Waits for an event of a type.
    fn expect(&self, kind: u32) {
        let start = Instant::now();
        loop {
            match self.event() {
                Some(found) => return assert_eq!(found, kind),
                None => assert!(start.elapsed() < DEADLINE, "event {kind} did not arrive"),
            }
            std::thread::yield_now();
        }
    }

    /// Sends a request to a port.
    fn request(addr: &mut libc::sockaddr_in) -> End {
        let end = End::new();
        let mut param = rdma_conn_param::zeroed();
        static QPNS: AtomicU32 = AtomicU32::new(100);
        param.qp_num = QPNS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the identifier is alive, and the address is complete.
        unsafe {
            let addr = std::ptr::from_mut(addr).cast();
            assert_eq!(rdmacm::rdma_resolve_addr(end.id, null_mut(), addr, 1000), Status::SUCCESS);
            end.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
            assert_eq!(rdmacm::rdma_resolve_route(end.id, 1000), Status::SUCCESS);
            end.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
            assert_eq!(rdmacm::rdma_connect(end.id, &raw mut param), Status::SUCCESS);
        }
        end
    }
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "the requests did not arrive");
        std::thread::yield_now();
    }
}

#[test]
fn requests() {
    if !is_part("backlog::requests") {
        return;
    }
    let listener = End::new();
    let mut addr = own_addr();
    // SAFETY: the identifier is alive, and the address is complete.
    unsafe {
        assert_eq!(rdmacm::rdma_bind_addr(listener.id, (&raw mut addr).cast()), Status::SUCCESS);
        assert_eq!(rdmacm::rdma_listen(listener.id, 2), Status::SUCCESS);
        addr.sin_port = rdmacm::rdma_get_src_port(listener.id);
    }
    // Two requests are queued, and stay there though the requesters abandon them.
    for left in [1, 0] {
        let end = End::request(&mut addr);
        wait_until(|| rdmacm::backlog_of(listener.id) == left);
        // SAFETY: the identifier is alive.
        unsafe { assert_eq!(rdmacm::rdma_destroy_id(end.id), Status::SUCCESS) };
    }
    // A request that finds no place in the NIC's own backlog is repeated.
    for _ in 0..4 {
        End::request(&mut addr).expect(RDMA_CM_EVENT_REJECTED);
    }
    let mut taken = 0;
    wait_until(|| {
        taken += u32::from(listener.event() == Some(RDMA_CM_EVENT_CONNECT_REQUEST));
        taken == 2
    });
    while let Some(kind) = listener.event() {
        assert_ne!(kind, RDMA_CM_EVENT_CONNECT_REQUEST, "the backlog is 2");
    }
    // There is room again.
    let _end = End::request(&mut addr);
    wait_until(|| listener.event() == Some(RDMA_CM_EVENT_CONNECT_REQUEST));
    // SAFETY: the function has no preconditions.
    unsafe { libc::_exit(0) };
}
