//! Byte streams over tokio's TCP and over connections. Each message is written with one call.

use std::time::{Duration, Instant};

use adverb::net;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::connection::{address, options, runtime};
use crate::peer::{self, Peer};
use crate::{MESSAGE_LEN, Meter, Outcome, Work, cpu_time, print_result, print_round_trips};

pub(crate) fn run_client(peer: &mut Peer, work: Work) -> Outcome {
    let address = peer.receive_line()?;
    runtime()?.block_on(async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        write(stream, work).await
    })
}

pub(crate) fn run_stream_client(peer: &mut Peer, device: &str, work: Work) -> Outcome {
    let (options, address) = (options(device)?, peer.receive_line()?);
    runtime()?.block_on(async {
        write(net::Connector::new().options(&options).connect_stream(address).await?, work).await
    })
}

async fn write(mut stream: impl AsyncRead + AsyncWrite + Unpin, work: Work) -> Outcome {
    match work {
        Work::Rate { time, len } => {
            let bytes = vec![7; len];
            let mut meter = Meter::new(time);
            let mut count = 0;
            while meter.should_continue(count) {
                stream.write_all(&bytes).await?;
                count += 1;
            }
            stream.flush().await?;
            meter.print_result(count, len)?;
        }
        Work::Latency { times } => {
            let mut rounds = Vec::with_capacity(times);
            for _ in 0..times {
                let start = Instant::now();
                stream.write_all(&[7; MESSAGE_LEN]).await?;
                stream.read_exact(&mut [0; MESSAGE_LEN]).await?;
                rounds.push(start.elapsed());
            }
            print_round_trips(rounds);
        }
        Work::Idle { time } => {
            let cpu = cpu_time();
            _ = tokio::time::timeout(time, stream.read_u8()).await;
            print_result("processor-seconds", (cpu_time() - cpu).as_secs_f64());
        }
    }
    stream.shutdown().await?;
    // Waits until the peer is done, too.
    _ = tokio::time::timeout(crate::TIMEOUT, stream.read_u8()).await;
    Ok(())
}

pub(crate) fn serve(address: &str, work: Work) -> Outcome<Duration> {
    runtime()?.block_on(async {
        let listener = TcpListener::bind((address, 0)).await?;
        peer::send_line(&listener.local_addr()?.to_string());
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        read(stream, work).await
    })
}

pub(crate) fn serve_stream(device: &str, work: Work) -> Outcome<Duration> {
    runtime()?.block_on(async {
        let listener = net::Listener::builder().options(&options(device)?).bind(address(device)?).await?;
        peer::send_line(&listener.local_addr().to_string());
        read(listener.accept_stream().await?, work).await
    })
}

async fn read(mut stream: impl AsyncRead + AsyncWrite + Unpin, work: Work) -> Outcome<Duration> {
    let cpu = cpu_time();
    match work {
        Work::Rate { .. } => {
            let mut bytes = vec![0; 1 << 20];
            while stream.read(&mut bytes).await? > 0 {}
        }
        Work::Latency { .. } => {
            let mut bytes = [0; MESSAGE_LEN];
            while stream.read_exact(&mut bytes).await.is_ok() {
                stream.write_all(&bytes).await?;
            }
        }
        Work::Idle { time } => _ = tokio::time::timeout(time, stream.read_u8()).await,
    }
    let cpu = cpu_time() - cpu;
    stream.shutdown().await?;
    Ok(cpu)
}
