//! Messages and calls between two brokers.

use adverb::cluster::{Broker, BrokerConfig, Event, PeerId, Rpc, RpcConfig, RpcEvent};

use crate::{MESSAGE, Result, device};

const PEER: PeerId = PeerId(0);

/// The number of messages that are sent before they are received.
const BURST: u64 = 64;

fn pair(doorbell_batch: u16, slot_size: u32) -> Result<(Broker, Broker)> {
    let domain = device()?.create_protection_domain()?;
    let (send_slots, recv_slots, send_queue_depth) = (128, 128, 128);
    let config = BrokerConfig {
        send_slots,
        recv_slots,
        send_queue_depth,
        slot_size,
        doorbell_batch,
        ..BrokerConfig::default()
    };
    let broker = |epoch| {
        Broker::builder(&domain).config(config).epoch(epoch).create().expect("the configuration is valid")
    };
    let (mut left, mut right) = (broker(1), broker(2));
    let [left_offer, right_offer] =
        [&mut left, &mut right].map(|broker| broker.prepare(PEER).expect("no session exists"));
    left.establish(PEER, &right_offer).expect("the session is prepared");
    right.establish(PEER, &left_offer).expect("the session is prepared");
    Ok((left, right))
}

/// Sends messages in one direction, `batch` of them per doorbell.
pub(crate) fn send(rounds: u64, batch: u16) -> Result<()> {
    let (mut left, mut right) = pair(batch, 256)?;
    for _ in 0..rounds / BURST {
        for _ in 0..BURST {
            left.send(PEER, &MESSAGE).expect("the peer granted credits for a burst");
        }
        left.flush_all();
        let mut received = 0;
        while received < BURST {
            let polled = right.poll(|_, event| received += u64::from(matches!(event, Event::Message { .. })));
            polled.expect("the device works");
            left.poll(|_, _| {}).expect("the device works");
        }
    }
    Ok(())
}

/// Makes calls, which are echoed.
pub(crate) fn call(rounds: u64) -> Result<()> {
    let default = BrokerConfig::default();
    let (left, right) = pair(default.doorbell_batch, default.slot_size)?;
    let rpc = |broker| Rpc::new(broker, RpcConfig::default()).expect("the configuration is valid");
    let (mut left, mut right) = (rpc(left), rpc(right));
    for _ in 0..rounds / BURST {
        for _ in 0..BURST {
            left.call(PEER, 1, &MESSAGE, None).expect("the peer granted credits for a burst");
        }
        left.flush_all();
        let mut ended = 0;
        while ended < BURST {
            let answered = right.poll(|right, event| {
                if let RpcEvent::Request { bytes, reply, .. } = event {
                    right.reply(reply, bytes).expect("the caller waits");
                }
            });
            answered.expect("the device works");
            let polled = left.poll(|_, event| {
                if let RpcEvent::CallEnded { result, .. } = event {
                    assert_eq!(result, Ok(&MESSAGE[..]));
                    ended += 1;
                }
            });
            polled.expect("the device works");
        }
    }
    Ok(())
}
