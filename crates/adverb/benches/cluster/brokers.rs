//! Messages and calls between brokers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use adverb::cluster::{Broker, BrokerConfig, Event, Offer, PeerId, PostError, Rpc, RpcConfig, RpcEvent};
use adverb::verbs::Device;

use crate::meter::Meter;
use crate::peer::{self, Peer};
use crate::{LEN, Outcome, TIMEOUT};

/// The peer of each broker.
const PEER: PeerId = PeerId(0);

/// The interval at which a waiting server checks whether the measurement is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The configuration for messages: small slots, and queues that hold several of the largest batches.
fn message_config(doorbell_batch: u16) -> BrokerConfig {
    BrokerConfig {
        send_slots: 256,
        recv_slots: 256,
        slot_size: 256,
        queue_depth: 256,
        send_queue_depth: 256,
        doorbell_batch,
        ..BrokerConfig::default()
    }
}

fn broker(device: &str, config: BrokerConfig) -> Outcome<(Broker, String)> {
    let domain = Device::open(device)?.create_protection_domain()?;
    let mut broker = Broker::builder(&domain).config(config).epoch(1).create()?;
    let offer = broker.prepare(PEER)?.to_bytes();
    let offer = offer.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((broker, offer))
}

fn establish(broker: &mut Broker, offer: &str) -> Outcome {
    let mut bytes = [0; Offer::ENCODED_LEN];
    for (index, byte) in bytes.iter_mut().enumerate() {
        let digits = offer.get(2 * index..2 * index + 2).ok_or("the offer is too short")?;
        *byte = u8::from_str_radix(digits, 16)?;
    }
    Ok(broker.establish(PEER, &Offer::from_bytes(&bytes)?)?)
}

/// Establishes a session with the broker of the process that this one started.
fn connect(peer: &mut Peer, device: &str, config: BrokerConfig) -> Outcome<Broker> {
    let (mut broker, offer) = broker(device, config)?;
    establish(&mut broker, &peer.receive_line()?)?;
    peer.send_line(&offer)?;
    peer.receive_line()?;
    Ok(broker)
}

/// Establishes a session with the broker of the process that started this one, and returns whether the measurement is
/// over, which another thread sets.
fn accept(device: &str, config: BrokerConfig) -> Outcome<(Broker, Arc<AtomicBool>)> {
    let (mut broker, offer) = broker(device, config)?;
    peer::send_line(&offer);
    establish(&mut broker, &peer::receive_line()?)?;
    peer::send_line("ready");
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    std::thread::spawn(move || {
        peer::wait_for_finish();
        seen.store(true, Ordering::Relaxed);
    });
    Ok((broker, is_over))
}

/// Sends messages, `batch` of them per doorbell.
pub(crate) fn send(peer: &mut Peer, device: &str, time: Duration, batch: u16) -> Outcome {
    let mut broker = connect(peer, device, message_config(batch))?;
    let meter = Meter::new(time);
    let (message, mut sent, mut started) = ([7; LEN], 0_u64, None);
    let (count, since) = loop {
        let now = meter.now();
        match started {
            None if meter.has_started(now) => started = Some((sent, now)),
            Some((before, since)) if meter.is_over(now) => break (sent - before, since),
            _ => {}
        }
        // A burst is a multiple of each batch, so it ends with a doorbell, and a quarter of the slots: the peer grants credits
        // for half of them at a time.
        for _ in 0..64 {
            match broker.send(PEER, &message) {
                Ok(()) => sent += 1,
                Err(PostError::WouldBlock { .. }) => {
                    wait_until_unblocked(&mut broker)?;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    meter.print_messages(count, since);
    broker.flush_all();
    Ok(())
}

/// Polls until messages can be sent again.
fn wait_until_unblocked(broker: &mut Broker) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    let mut is_unblocked = false;
    while !is_unblocked {
        let events = broker.poll(|_, event| is_unblocked |= matches!(event, Event::Unblocked { .. }))?;
        if events == 0 && !is_unblocked && !broker.wait(CHECK_INTERVAL)? && Instant::now() > deadline {
            return Err("the peer granted no credit".into());
        }
    }
    Ok(())
}

/// Receives messages until the measurement is over.
pub(crate) fn receive(device: &str) -> Outcome {
    let (mut broker, is_over) = accept(device, message_config(BrokerConfig::default().doorbell_batch))?;
    let mut wrong_count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let events = broker.poll(|_, event| {
            if let Event::Message { bytes, .. } = event {
                wrong_count += u64::from(bytes != [7; LEN]);
            }
        })?;
        if events == 0 {
            broker.wait(CHECK_INTERVAL)?;
        }
    }
    if wrong_count > 0 { Err(format!("{wrong_count} messages have other data").into()) } else { Ok(()) }
}

fn rpc_config(outstanding: usize) -> Outcome<RpcConfig> {
    let count = u16::try_from(outstanding)?;
    Ok(RpcConfig { max_calls: count, max_requests: count })
}

/// Makes calls, with a number of them outstanding.
pub(crate) fn call(peer: &mut Peer, device: &str, time: Duration, outstanding: usize) -> Outcome {
    let mut rpc = Rpc::new(connect(peer, device, BrokerConfig::default())?, rpc_config(outstanding)?)?;
    let mut meter = Meter::new(time);
    let mut failure = None;
    let mut last_reply = Instant::now();
    for _ in 0..outstanding {
        rpc.call(PEER, 1, &meter.request(meter.now()), None)?;
    }
    while rpc.outstanding_call_count(PEER) > 0 {
        let events = rpc.poll(|rpc, event| {
            let RpcEvent::CallEnded { result, .. } = event else { return };
            let counted = result.map_err(Into::into).and_then(|reply| meter.count(reply));
            let called = counted.and_then(|request| {
                if let Some(request) = request {
                    rpc.call(PEER, 1, &request, None)?;
                }
                Ok(())
            });
            failure = called.err().or(failure.take());
        })?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if events > 0 {
            last_reply = Instant::now();
        } else if !rpc.wait(CHECK_INTERVAL)? && last_reply.elapsed() > TIMEOUT {
            return Err("the peer does not reply".into());
        }
    }
    meter.print_calls()
}

/// Answers calls until the measurement is over.
pub(crate) fn answer(device: &str, outstanding: usize) -> Outcome {
    let (broker, is_over) = accept(device, BrokerConfig::default())?;
    let mut rpc = Rpc::new(broker, rpc_config(outstanding)?)?;
    let mut failure = None;
    while !is_over.load(Ordering::Relaxed) {
        let events = rpc.poll(|rpc, event| {
            if let RpcEvent::Request { bytes, reply, .. } = event {
                failure = rpc.reply(reply, bytes).err().or(failure.take());
            }
        })?;
        if let Some(failure) = failure {
            return Err(failure.error.into());
        }
        if events == 0 {
            rpc.wait(CHECK_INTERVAL)?;
        }
    }
    Ok(())
}
