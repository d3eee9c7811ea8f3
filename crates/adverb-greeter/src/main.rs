//! gRPC over RDMA: tonic's server and client over Adverb's streams instead of TCP.
//!
//! ```text
//! $ cargo run --release -p adverb-greeter -- serve 127.0.0.1:7471
//! $ cargo run --release -p adverb-greeter -- 127.0.0.1:7471 Ann
//! ```

use std::net::SocketAddr;

use adverb::net::{Listener, connect_stream};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match &std::env::args().skip(1).collect::<Vec<_>>()[..] {
        [command, address] if command == "serve" => serve(address).await,
        [address, name] => greet(address.parse()?, name).await,
        _ => anyhow::bail!("usage: adverb-greeter serve ADDRESS:PORT, or ADDRESS:PORT NAME"),
    }
}

async fn serve(address: &str) -> anyhow::Result<()> {
    let listener = Listener::bind(address).await?;
    println!("listening on {}", listener.local_addr());
    // A real program uses the `GreeterServer` from tonic's code generator. (A String is protobuf's `StringValue`.)
    let hello = |name: Request<String>| async move {
        Ok::<_, Status>(Response::new(format!("hello, {}", name.into_inner())))
    };
    let greeter = service_fn(move |request| async move {
        let mut server = tonic::server::Grpc::new(ProstCodec::default());
        Ok::<_, Status>(server.unary(service_fn(hello), request).await)
    });
    loop {
        let stream = TokioIo::new(listener.accept_stream().await?);
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            http.serve_connection(stream, TowerToHyperService::new(greeter)).await
        });
    }
}

async fn greet(address: SocketAddr, name: &str) -> anyhow::Result<()> {
    let connector = service_fn(move |_| async move { connect_stream(address).await.map(TokioIo::new) });
    let channel = Endpoint::from_static("http://greeter").connect_with_connector(connector).await?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let (name, path) = (Request::new(name.to_owned()), "/greeter.Greeter/SayHello".parse()?);
    let reply: Response<String> = client.unary(name, path, ProstCodec::default()).await?;
    println!("{}", reply.into_inner());
    Ok(())
}
