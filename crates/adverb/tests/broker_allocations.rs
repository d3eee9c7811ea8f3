//! Messages and transfers of brokers allocate nothing after every list has grown to its size. This test has its own
//! process, whose allocations are counted.

#![cfg(all(feature = "soft", feature = "cluster"))]

#[path = "common/counting.rs"]
mod counting;

use adverb::cluster::{Broker, Event, PeerId, PostError, RemoteRange, Transfer, TransferOperation};
use adverb::memory::Payload;
use adverb::verbs::{Access, SoftDevice};

const PEER: PeerId = PeerId(0);
const MESSAGES: usize = 1000;

#[test]
fn messages_and_transfers_allocate_nothing_after_a_warm_up() {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let mut a = Broker::builder(&domain).epoch(1).create().unwrap();
    let mut b = Broker::builder(&domain).epoch(2).create().unwrap();
    let (offer_of_a, offer_of_b) = (a.prepare(PEER).unwrap(), b.prepare(PEER).unwrap());
    a.establish(PEER, &offer_of_b).unwrap();
    b.establish(PEER, &offer_of_a).unwrap();

    counting::assert_no_allocations("1000 messages and their echoes", 4, || {
        let (mut sent, mut echoed) = (0, 0);
        while echoed < MESSAGES {
            while sent < MESSAGES && sent < echoed + 16 {
                match a.send(PEER, &[sent as u8; 100]) {
                    Ok(()) => sent += 1,
                    Err(PostError::WouldBlock { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            b.poll(|b, event| {
                if let Event::Message { from, bytes } = event {
                    b.send(from, bytes).unwrap();
                }
            })
            .unwrap();
            a.poll(|_, event| {
                if let Event::Message { bytes, .. } = event {
                    assert_eq!(bytes, [echoed as u8; 100]);
                    echoed += 1;
                }
            })
            .unwrap();
        }
    });

    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = domain.allocate_region(4096, access).unwrap();
    let remote = RemoteRange { epoch: 2, memory: region.remote() };
    let mut buffers: Vec<Payload> = (0..16).map(|_| domain.allocate_buffer(64).unwrap().into()).collect();
    let mut batch = Vec::with_capacity(2);
    counting::assert_no_allocations("1000 READs, WRITEs and batches", 4, || {
        let mut completed = 0;
        while completed < MESSAGES {
            while buffers.len() >= 4 {
                a.post_write(PEER, buffers.pop().unwrap(), remote).unwrap();
                a.post_read(PEER, buffers.pop().unwrap(), remote).unwrap();
                for operation in [TransferOperation::Write, TransferOperation::Read] {
                    batch.push(Transfer { operation, local: buffers.pop().unwrap(), remote });
                }
                a.post_batch(PEER, &mut batch).unwrap();
            }
            a.poll(|_, event| {
                if let Event::Completed { result, payloads, .. } = event {
                    result.unwrap();
                    completed += 1;
                    buffers.extend(payloads);
                }
            })
            .unwrap();
        }
    });
}
