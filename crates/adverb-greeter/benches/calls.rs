//! Rate and latency of tonic's unary calls over Adverb's streams and over TCP. `cargo xtask bench net` and
//! `cargo xtask bench cluster` run it.
//!
//! ```text
//! calls KIND OURS THEIRS [MILLISECONDS] [OUTSTANDING]      calls from one process to another: calls/s, and µs for each
//! ```
//!
//! `KIND` is `stream`, or `tcp`, with addresses in place of devices. `OUTSTANDING` is the number of outstanding calls,
//! all on one connection. `OURS` and `THEIRS` are the devices of the two processes. The environment variable `PEER_CPU`
//! pins the other process to a CPU. Each result is a line with a name and a number.

#[allow(dead_code, reason = "the benchmark `net` of adverb, which shares it, uses more of it")]
#[path = "../../adverb/benches/net/peer.rs"]
mod peer;

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use adverb::net::{Connector, Listener, Options};
use adverb::verbs::Device;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use peer::Peer;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// The path of the called method.
const PATH: &str = "/greeter.Greeter/SayHello";

/// The request's data, of about 64 bytes.
const NAME: &str = "somebody whose name makes sixty-four bytes of this message, or so";

/// The duration of the calls before the measurement starts.
const WARM_UP: Duration = Duration::from_millis(50);

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| words.get(at).map_or(Ok(default), |word| word.parse::<u64>());
    match words[..] {
        [] => println!("nothing to do: `cargo xtask bench net` runs this with arguments"),
        ["serve", kind, place] => runtime()?.block_on(serve(kind, place))?,
        [kind, ours, theirs, ..] => {
            let mut peer = Peer::start(kind, theirs, &[])?;
            let (time, outstanding) = (Duration::from_millis(number(3, 700)?), number(4, 1)?);
            runtime()?.block_on(measure(kind, ours, &peer.receive_line()?, time, outstanding))?;
            peer.finish()?;
        }
        _ => return Err("usage: see the top of benches/calls.rs".into()),
    }
    Ok(())
}

/// Creates a runtime of one thread, as the benchmark `net` does.
fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn options(device: &str) -> Outcome<Options> {
    Ok(Options::new().device(&Device::open(device)?))
}

/// Accepts a connection, and serves it. `place` is a device, or an address for TCP.
async fn serve(kind: &str, place: &str) -> Outcome {
    match kind {
        "stream" => {
            let address: IpAddr = place.split_once(':').ok_or("the device needs an address")?.1.parse()?;
            let listener = Listener::builder().options(&options(place)?).bind((address, 0)).await?;
            peer::send_line(&listener.local_addr().to_string());
            answer_calls(listener.accept_stream().await?).await?;
        }
        "tcp" => {
            let listener = TcpListener::bind((place, 0)).await?;
            peer::send_line(&listener.local_addr()?.to_string());
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            answer_calls(stream).await?;
        }
        _ => return Err(format!("unknown kind {kind}").into()),
    }
    Ok(())
}

/// Answers calls until the process that started this one ends the measurement.
async fn answer_calls(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Outcome {
    let hello = |name: Request<String>| async move {
        Ok::<_, Status>(Response::new(format!("hello, {}", name.into_inner())))
    };
    let greeter = service_fn(move |request| async move {
        let mut server = tonic::server::Grpc::new(ProstCodec::default());
        Ok::<_, Status>(server.unary(service_fn(hello), request).await)
    });
    let http = auto::Builder::new(TokioExecutor::new());
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(greeter));
    let mut finish = tokio::task::spawn_blocking(peer::wait_for_finish);
    tokio::select! {
        // The result is ignored, because a client may end its connection in any way.
        _ = served => finish.await?,
        finished = &mut finish => finished?,
    }
    peer::send_line("done");
    Ok(())
}

/// Makes calls, and prints their rate and the percentiles of their durations.
async fn measure(kind: &str, ours: &str, address: &str, time: Duration, outstanding: u64) -> Outcome {
    let address: SocketAddr = address.parse()?;
    let endpoint = Endpoint::from_static("http://greeter");
    let channel = match kind {
        "stream" => {
            let connector = Connector::new().options(&options(ours)?);
            let connect = service_fn(move |_| {
                let connector = connector.clone();
                async move { connector.connect_stream(address).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connect).await?
        }
        "tcp" => {
            let connect = service_fn(move |_| async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            });
            endpoint.connect_with_connector(connect).await?
        }
        _ => return Err(format!("unknown kind {kind}").into()),
    };
    let begin = Instant::now() + WARM_UP;
    let mut callers: JoinSet<Result<_, Status>> =
        (0..outstanding).map(|_| call_until(Grpc::new(channel.clone()), begin, begin + time)).collect();
    let mut durations = Vec::new();
    while let Some(caller) = callers.join_next().await {
        durations.extend(caller??);
    }
    durations.sort_unstable();
    println!("rate {:.1}", durations.len() as f64 / time.as_secs_f64());
    for (name, per_mille) in [("call-us-p50", 500), ("call-us-p99", 990), ("call-us-p999", 999)] {
        let duration = durations.get(durations.len() * per_mille / 1000).ok_or("no call ended in time")?;
        println!("{name} {:.2}", duration.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// Makes one call after another, and returns the durations of those that ended between `begin` and `end`.
async fn call_until(
    mut client: Grpc<Channel>,
    begin: Instant,
    end: Instant,
) -> Result<Vec<Duration>, Status> {
    let mut durations = Vec::new();
    loop {
        let start = Instant::now();
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PATH.parse().expect("the path is valid");
        let reply: Response<String> =
            client.unary(Request::new(NAME.to_owned()), path, ProstCodec::default()).await?;
        assert_eq!(reply.into_inner().len(), "hello, ".len() + NAME.len());
        let now = Instant::now();
        if now >= end {
            return Ok(durations);
        }
        if now >= begin {
            durations.push(now - start);
        }
    }
}
