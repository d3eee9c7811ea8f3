//! Connections, blocking and async.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adverb::net::{self, Options, blocking};
use adverb::verbs::Device;
use tokio::runtime::Runtime;

use crate::peer::{self, Peer};
use crate::{MESSAGE_LEN, Meter, Outcome, Work, cpu_time, print_result, print_round_trips, round_trips};

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
pub(crate) enum SendMethod {
    /// `send` of a slice, which is copied.
    Copied,
    /// `feed` of a slice, which is coalesced with others.
    Coalesced,
    /// `send` of a buffer of the connection's pool, which isn't copied.
    ZeroCopy,
}

pub(crate) fn run_client(peer: &mut Peer, device: &str, work: Work, method: SendMethod) -> Outcome {
    let options = options(device)?;
    let listener: SocketAddr = peer.receive_line()?.parse()?;
    let connection = blocking::Connector::new().options(&options).connect(listener)?;
    match work {
        Work::Rate { time, len } => {
            let bytes = connection.pool().allocate(len)?;
            let mut meter = Meter::new(time);
            let mut count = 0;
            while meter.should_continue(count) {
                match method {
                    SendMethod::Copied => connection.send(&bytes[..])?,
                    SendMethod::Coalesced => connection.feed(&bytes[..])?,
                    SendMethod::ZeroCopy => connection.send(connection.pool().allocate(len)?)?,
                }
                count += 1;
            }
            connection.flush()?;
            meter.print_result(count, len)?;
            connection.close()?;
        }
        Work::Latency { times } => {
            round_trips(times, || {
                connection.send(&[7; MESSAGE_LEN])?;
                connection.recv()?.ok_or("the peer closed the connection")?;
                Ok(())
            })?;
            connection.close()?;
        }
        Work::Idle { time } => {
            let cpu = cpu_time();
            _ = connection.recv_timeout(time);
            print_result("processor-seconds", (cpu_time() - cpu).as_secs_f64());
        }
    }
    Ok(())
}

pub(crate) fn serve(device: &str, work: Work) -> Outcome<Duration> {
    let listener = blocking::Listener::builder().options(&options(device)?).bind(address(device)?)?;
    peer::send_line(&listener.local_addr().to_string());
    let connection = listener.accept()?;
    let cpu = cpu_time();
    match work {
        Work::Rate { .. } => while connection.recv()?.is_some() {},
        Work::Latency { .. } => {
            while let Some(message) = connection.recv()? {
                connection.send(message)?;
            }
        }
        Work::Idle { time } => _ = connection.recv_timeout(time),
    }
    Ok(cpu_time() - cpu)
}

/// Creates a current-thread runtime.
pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub(crate) fn run_tasks_client(peer: &mut Peer, device: &str, work: Work) -> Outcome {
    let options = options(device)?;
    let listener: SocketAddr = peer.receive_line()?.parse()?;
    runtime()?.block_on(async {
        let connection = net::Connector::new().options(&options).connect(listener).await?;
        match work {
            Work::Rate { time, len } => {
                let bytes = connection.pool().allocate(len)?;
                let mut meter = Meter::new(time);
                let mut count = 0;
                while meter.should_continue(count) {
                    connection.send(&bytes[..]).await?;
                    count += 1;
                }
                meter.print_result(count, len)?;
                connection.close().await?;
            }
            Work::Latency { times } => {
                let mut rounds = Vec::with_capacity(times);
                for _ in 0..times {
                    let start = Instant::now();
                    connection.send(&[7; MESSAGE_LEN]).await?;
                    connection.recv().await?.ok_or("the peer closed the connection")?;
                    rounds.push(start.elapsed());
                }
                print_round_trips(rounds);
                connection.close().await?;
            }
            Work::Idle { time } => {
                let cpu = cpu_time();
                _ = connection.recv_timeout(time).await;
                print_result("processor-seconds", (cpu_time() - cpu).as_secs_f64());
            }
        }
        Ok(())
    })
}

pub(crate) fn serve_tasks(device: &str, work: Work) -> Outcome<Duration> {
    runtime()?.block_on(async {
        let listener = net::Listener::builder().options(&options(device)?).bind(address(device)?).await?;
        peer::send_line(&listener.local_addr().to_string());
        let connection = listener.accept().await?;
        let cpu = cpu_time();
        match work {
            Work::Rate { .. } => while connection.recv().await?.is_some() {},
            Work::Latency { .. } => {
                while let Some(message) = connection.recv().await? {
                    connection.send(message).await?;
                }
            }
            Work::Idle { time } => _ = connection.recv_timeout(time).await,
        }
        Ok(cpu_time() - cpu)
    })
}
