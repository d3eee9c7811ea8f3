//! Calls allocate nothing after every list has grown to its size. This test has its own process, whose allocations are
//! counted.

#![cfg(all(feature = "soft", feature = "cluster"))]

#[path = "common/counting.rs"]
mod counting;

use std::time::Duration;

use adverb::cluster::{Broker, BrokerConfig, PeerId, PostError, Reply, Rpc, RpcConfig, RpcEvent};
use adverb::verbs::SoftDevice;

const PEER: PeerId = PeerId(0);
const CALLS: usize = 300;

fn pair(config: BrokerConfig) -> (Rpc, Rpc) {
    let domain = SoftDevice::loopback().open().unwrap().create_protection_domain().unwrap();
    let mut a = Broker::builder(&domain).config(config).epoch(1).create().unwrap();
    let mut b = Broker::builder(&domain).config(config).epoch(2).create().unwrap();
    let (offer_of_a, offer_of_b) = (a.prepare(PEER).unwrap(), b.prepare(PEER).unwrap());
    a.establish(PEER, &offer_of_b).unwrap();
    b.establish(PEER, &offer_of_a).unwrap();
    let rpc = |broker| Rpc::new(broker, RpcConfig::default()).unwrap();
    (rpc(a), rpc(b))
}

/// Makes calls with up to `window` outstanding. The server replies when it has `batch` requests.
fn run(client: &mut Rpc, server: &mut Rpc, window: usize, batch: usize, replies: &mut Vec<Reply>) {
    let (mut started, mut ended) = (0, 0);
    while ended < CALLS {
        while started < CALLS && started < ended + window {
            match client.call(PEER, 1, &[started as u8; 100], Some(Duration::from_secs(600))) {
                Ok(_) => started += 1,
                Err(PostError::WouldBlock { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        server
            .poll(|server, event| {
                let RpcEvent::Request { bytes, reply, .. } = event else { return };
                if batch == 1 {
                    server.reply(reply, bytes).unwrap();
                } else {
                    replies.push(reply);
                }
            })
            .unwrap();
        if replies.len() >= batch || started == CALLS {
            // Every fourth reply is dropped.
            for (index, reply) in replies.drain(..).enumerate() {
                if index % 4 == 3 {
                    drop(reply);
                } else {
                    server.reply(reply, &[0; 100]).unwrap();
                }
            }
        }
        client
            .poll(|_, event| {
                if let RpcEvent::CallEnded { result, .. } = event {
                    assert!(result.is_ok() || batch > 1);
                    ended += 1;
                }
            })
            .unwrap();
    }
}

#[test]
fn calls_allocate_nothing_after_a_warm_up() {
    let (mut client, mut server) = pair(BrokerConfig::default());
    let mut replies = Vec::with_capacity(64);
    counting::assert_no_allocations("300 calls", 4, || run(&mut client, &mut server, 16, 1, &mut replies));

    // With two credits, most replies wait, and with every fourth dropped, failures wait as well.
    let (mut client, mut server) = pair(BrokerConfig { recv_slots: 2, ..BrokerConfig::default() });
    counting::assert_no_allocations("300 calls with later replies", 8, || {
        run(&mut client, &mut server, 16, 8, &mut replies);
    });
}
