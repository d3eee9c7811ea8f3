//! The rate of tonic's unary calls over Adverb's streams and over TCP: a part of `cargo xtask bench net` and
//! `cargo xtask bench cluster`.
//!
//! ```text
//! calls WHO OURS THEIRS [MILLISECONDS] [AT_ONCE]       calls of one process to another: a second, and µs each
//! ```
//!
//! `WHO` is `stream` or `tcp` (then there are addresses for devices); so many calls are under way at once, over one
//! connection. With `PEER_CPU` in the environment the other process runs on that processor. Results are lines of a name and a
//! number.

// What the bench `net` of adverb has for two processes serves here, too; this needs a part of it.
#[allow(dead_code, reason = "not all of it is used here")]
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

/// Who is called, and how long a name is said to it.
const PATH: &str = "/greeter.Greeter/SayHello";
const NAME: &str = "somebody whose name makes sixty-four bytes of this message, or so";

/// For how long calls go before the time counts.
const WARM: Duration = Duration::from_millis(50);

fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse::<u64>());
    match words[..] {
        [] => println!("nothing to do: this is run by `cargo xtask bench net`"),
        ["serve", who, place] => runtime()?.block_on(serve(who, place))?,
        [who, ours, theirs, ..] => {
            let mut peer = Peer::start(who, theirs, &[])?;
            let (time, at_once) = (Duration::from_millis(number(3, 700)?), number(4, 1)?);
            runtime()?.block_on(call(who, ours, &peer.receive_line()?, time, at_once))?;
            peer.finish()?;
        }
        _ => return Err("see the head of benches/calls.rs for what can be said".into()),
    }
    Ok(())
}

/// A runtime as the bench `net` has it.
fn runtime() -> Outcome<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

fn options(device: &str) -> Outcome<Options> {
    Ok(Options::new().device(&Device::open(device)?))
}

async fn serve(who: &str, place: &str) -> Outcome {
    match who {
        "stream" => {
            let address: IpAddr = place.split_once(':').ok_or("the device needs an address")?.1.parse()?;
            let listener = Listener::bind_with((address, 0), &options(place)?).await?;
            peer::send_line(&listener.local_addr().to_string());
            answer(listener.accept().await?.into_stream()).await?;
        }
        "tcp" => {
            let listener = TcpListener::bind((place, 0)).await?;
            peer::send_line(&listener.local_addr()?.to_string());
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            answer(stream).await?;
        }
        _ => return Err(format!("nobody is {who}").into()),
    }
    Ok(())
}

/// Answers calls until the process that started this one says that it is over.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Outcome {
    let hello = |name: Request<String>| async move {
        Ok::<_, Status>(Response::new(format!("hello, {}", name.into_inner())))
    };
    let greeter = service_fn(move |request| async move {
        let mut server = tonic::server::Grpc::new(ProstCodec::default());
        Ok::<_, Status>(server.unary(service_fn(hello), request).await)
    });
    let http = auto::Builder::new(TokioExecutor::new());
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(greeter));
    let mut is_over = tokio::task::spawn_blocking(peer::wait_for_finish);
    tokio::select! {
        // How a client goes is nothing to the server.
        _ = served => is_over.await?,
        is_over = &mut is_over => is_over?,
    }
    peer::send_line("done");
    Ok(())
}

async fn call(who: &str, ours: &str, address: &str, time: Duration, at_once: u64) -> Outcome {
    let address: SocketAddr = address.parse()?;
    let endpoint = Endpoint::from_static("http://greeter");
    let channel = match who {
        "stream" => {
            let connector = Connector::new().options(&options(ours)?);
            let connect = service_fn(move |_| {
                let connector = connector.clone();
                async move { connector.connect(address).await.map(|peer| TokioIo::new(peer.into_stream())) }
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
        _ => return Err(format!("nobody is {who}").into()),
    };
    let begin = Instant::now() + WARM;
    let mut callers: JoinSet<Result<_, Status>> =
        (0..at_once).map(|_| call_until(Grpc::new(channel.clone()), begin, begin + time)).collect();
    let mut calls = Vec::new();
    while let Some(called) = callers.join_next().await {
        calls.extend(called??);
    }
    calls.sort_unstable();
    println!("rate {:.1}", calls.len() as f64 / time.as_secs_f64());
    for (name, per_mille) in [("call-us-p50", 500), ("call-us-p99", 990), ("call-us-p999", 999)] {
        let at = calls.get(calls.len() * per_mille / 1000).ok_or("there were too few calls")?;
        println!("{name} {:.2}", at.as_secs_f64() * 1e6);
    }
    Ok(())
}

/// Calls, one call after the other, and gives how long each took that ended in this time.
async fn call_until(
    mut client: Grpc<Channel>,
    begin: Instant,
    end: Instant,
) -> Result<Vec<Duration>, Status> {
    let mut calls = Vec::new();
    loop {
        let start = Instant::now();
        client.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PATH.parse().expect("it is a path");
        let reply: Response<String> =
            client.unary(Request::new(NAME.to_owned()), path, ProstCodec::default()).await?;
        assert_eq!(reply.into_inner().len(), "hello, ".len() + NAME.len());
        let now = Instant::now();
        if now >= end {
            return Ok(calls);
        }
        if now >= begin {
            calls.push(now - start);
        }
    }
}
