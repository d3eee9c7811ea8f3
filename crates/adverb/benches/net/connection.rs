//! Connections, blocking and async.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adverb::net::{self, Options, blocking};
use adverb::verbs::Device;
use tokio::runtime::Runtime;

use crate::peer::{self, Peer};
use crate::{Meter, Outcome, SHORT, Work, processor_time, round_trips, say, say_round_trips};

/// The default options with a timeout.
pub(crate) fn options(device: &str) -> Outcome<Options> {
    Ok(Options::new().device(&Device::open(device)?).timeout(crate::TIMEOUT))
}

/// The address in the name of a device.
pub(crate) fn address(device: &str) -> Outcome<SocketAddr> {
    let address: IpAddr =
        device.split_once(':').map_or(Ok([127, 0, 0, 1].into()), |(_, address)| address.parse())?;
    Ok(SocketAddr::new(address, 0))
}

/// The way to send messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// `send` of a slice, which is copied.
    Sent,
    /// `feed` of a slice, which is coalesced with others.
    Fed,
    /// `send` of a buffer of the connection's pool, which isn't copied.
    Given,
}

pub(crate) fn begin(peer: &mut Peer, device: &str, work: Work, how: How) -> Outcome {
    let options = options(device)?;
    let listener: SocketAddr = peer.hear()?.parse()?;
    let connection = blocking::Connector::new().options(&options).connect(listener)?;
    match work {
        Work::Rate { time, len } => {
            let bytes = connection.pool().alloc(len)?;
            let mut meter = Meter::new(time);
            let mut count = 0;
            while meter.goes_on(count) {
                match how {
                    How::Sent => connection.send(&bytes[..])?,
                    How::Fed => connection.feed(&bytes[..])?,
                    How::Given => connection.send(connection.pool().alloc(len)?)?,
                }
                count += 1;
            }
            connection.flush()?;
            meter.say(count, len)?;
            connection.close()?;
        }
        Work::Latency { times } => {
            round_trips(times, || {
                connection.send(&[7; SHORT])?;
                connection.recv()?.ok_or("the peer closed the connection")?;
                Ok(())
            })?;
            connection.close()?;
        }
        Work::Idle { time } => {
            let processor = processor_time();
            _ = connection.recv_timeout(time);
            say("processor-seconds", (processor_time() - processor).as_secs_f64());
        }
    }
    Ok(())
}

pub(crate) fn serve(device: &str, work: Work) -> Outcome<Duration> {
    let listener = blocking::Listener::bind_with(address(device)?, &options(device)?)?;
    peer::tell(&listener.local_addr().to_string());
    let connection = listener.accept()?;
    let processor = processor_time();
    match work {
        Work::Rate { .. } => while connection.recv()?.is_some() {},
        Work::Latency { .. } => {
            while let Some(message) = connection.recv()? {
                connection.send(message)?;
            }
        }
        Work::Idle { time } => _ = connection.recv_timeout(time),
    }
    Ok(processor_time() - processor)
}

/// Creates a current-thread runtime.
pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub(crate) fn begin_tasks(peer: &mut Peer, device: &str, work: Work) -> Outcome {
    let options = options(device)?;
    let listener: SocketAddr = peer.hear()?.parse()?;
    runtime()?.block_on(async {
        let connection = net::Connector::new().options(&options).connect(listener).await?;
        match work {
            Work::Rate { time, len } => {
                let bytes = connection.pool().alloc(len)?;
                let mut meter = Meter::new(time);
                let mut count = 0;
                while meter.goes_on(count) {
                    connection.send(&bytes[..]).await?;
                    count += 1;
                }
                meter.say(count, len)?;
                connection.close().await?;
            }
            Work::Latency { times } => {
                let mut rounds = Vec::with_capacity(times);
                for _ in 0..times {
                    let start = Instant::now();
                    connection.send(&[7; SHORT]).await?;
                    connection.recv().await?.ok_or("the peer closed the connection")?;
                    rounds.push(start.elapsed());
                }
                say_round_trips(rounds);
                connection.close().await?;
            }
            Work::Idle { time } => {
                let processor = processor_time();
                _ = connection.recv_timeout(time).await;
                say("processor-seconds", (processor_time() - processor).as_secs_f64());
            }
        }
        Ok(())
    })
}

pub(crate) fn serve_tasks(device: &str, work: Work) -> Outcome<Duration> {
    runtime()?.block_on(async {
        let listener = net::Listener::bind_with(address(device)?, &options(device)?).await?;
        peer::tell(&listener.local_addr().to_string());
        let connection = listener.accept().await?;
        let processor = processor_time();
        match work {
            Work::Rate { .. } => while connection.recv().await?.is_some() {},
            Work::Latency { .. } => {
                while let Some(message) = connection.recv().await? {
                    connection.send(message).await?;
                }
            }
            Work::Idle { time } => _ = connection.recv_timeout(time).await,
        }
        Ok(processor_time() - processor)
    })
}
