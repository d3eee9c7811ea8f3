//! A receiver that must read packets before it gets more.

use super::*;

/// The number of messages to the full receiver, which fit a completion queue.
const COUNT: u64 = 50;

#[test]
fn packets_to_a_full_receiver_delay_no_other_queue_pair() {
    for transport in [Transport::Rc, Transport::Uc] {
        let (one, other, mode) = two_nics();
        let connected_pair = |transport| {
            let ends = (End::new(&one, transport), End::new(&other, transport));
            // The timeout is long, so that no request is retransmitted.
            ends.0.connect_with_timeout(&ends.1, Timeout::new(22).unwrap());
            ends.1.connect(&ends.0);
            ends
        };
        let ((blocked, full), (sender, receiver)) =
            (connected_pair(transport), connected_pair(Transport::Rc));
        *mode.lock() = Some(WireMode::Blocks(full.qpn));
        for number in 0..COUNT {
            full.post_recv(number, &[]).unwrap();
            blocked.send(number, SendOperation::Send, &[]).unwrap();
        }
        for number in 0..200 {
            receiver.post_recv(number, &[]).unwrap();
            sender.send(number, SendOperation::Send, &[]).unwrap();
            assert!(sender.completion().outcome.is_ok());
            assert_eq!(receiver.completion().wr_id, number);
        }
        assert_eq!(full.poll(), None);
        // Requests of an unreliable connection complete when they are sent, so they also wait.
        let completed: Vec<u64> = std::iter::from_fn(|| blocked.poll()).map(|done| done.wr_id).collect();
        assert!(completed.len() <= 2, "{transport:?}: {completed:?}");
        *mode.lock() = Some(WireMode::AcceptsAll);
        for number in 0..COUNT {
            assert_eq!(full.completion().wr_id, number);
        }
        for number in completed.len() as u64..COUNT {
            assert_eq!(blocked.completion().wr_id, number);
        }
        assert_eq!(one.statistics().retransmitted_packets, 0);
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_while_its_packets_wait_affects_no_other() {
    let (one, other, mode) = two_nics();
    let (first, full) = (End::new(&one, Transport::Uc), End::new(&other, Transport::Uc));
    first.connect(&full);
    full.connect(&first);
    *mode.lock() = Some(WireMode::Blocks(full.qpn));
    full.post_recv(1, &[]).unwrap();
    first.send(1, SendOperation::Send, &[]).unwrap();
    first.send(2, SendOperation::Send, &[]).unwrap();
    assert!(one.destroy_qp(first.qpn));
    *mode.lock() = Some(WireMode::AcceptsAll);
    assert_eq!(full.completion().wr_id, 1, "a packet that waits is still sent");
    let (sender, receiver) = (End::new(&one, Transport::Rc), End::new(&other, Transport::Rc));
    sender.connect(&receiver);
    receiver.connect(&sender);
    receiver.post_recv(7, &[]).unwrap();
    sender.send(7, SendOperation::Send, &[]).unwrap();
    assert!(sender.completion().outcome.is_ok());
    assert_eq!(receiver.completion().wr_id, 7);
}
