//! hyper's HTTP/1.1 and HTTP/2 over Adverb's streams: many requests on one connection, with long bodies.

use std::convert::Infallible;

use adverb::net::{Connector, Listener, Options, Stream};
use adverb::verbs::Device;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

async fn pair() -> (TokioIo<Stream>, TokioIo<Stream>) {
    let options = Options::new().device(&Device::open("soft").unwrap());
    let listener = Listener::builder().options(&options).bind("127.0.0.1:0").await.unwrap();
    let connector = Connector::new().options(&options);
    let connecting = connector.connect_stream(listener.local_addr());
    let (client, server) = tokio::join!(connecting, listener.accept_stream());
    (TokioIo::new(client.unwrap()), TokioIo::new(server.unwrap()))
}

/// Returns the body of the request, with 1 added to each byte.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(Response::new(body.iter().map(|byte| byte.wrapping_add(1)).collect::<Vec<_>>().into()))
}

fn body(number: usize) -> Vec<u8> {
    (0..(number * 12_347) % 300_000).map(|at| (number ^ at ^ at >> 8) as u8).collect()
}

async fn check(number: usize, response: Response<Incoming>) {
    assert_eq!(response.status(), StatusCode::OK);
    let answer = response.into_body().collect().await.unwrap().to_bytes();
    let expected: Vec<u8> = body(number).iter().map(|byte| byte.wrapping_add(1)).collect();
    assert!(answer == expected, "{} bytes of request {number}", answer.len());
}

fn request(number: usize) -> Request<Full<Bytes>> {
    Request::post("/").header("host", "adverb").body(body(number).into()).unwrap()
}

#[tokio::test]
async fn http_1_works_over_a_stream() {
    let (client, server) = pair().await;
    let server =
        tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(server, service_fn(answer)));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(client).await.unwrap();
    let client = tokio::spawn(connection);
    for number in 0..50 {
        check(number, sender.send_request(request(number)).await.unwrap()).await;
    }
    // Without a sender, the client closes its stream, and the end of the stream ends the server.
    drop(sender);
    client.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_works_over_a_stream_with_many_outstanding_requests() {
    let (client, server) = pair().await;
    let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let server = tokio::spawn(http2.serve_connection(server, service_fn(answer)));
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), client).await.unwrap();
    let client = tokio::spawn(connection);
    let mut requests = tokio::task::JoinSet::new();
    for number in 0..50 {
        let mut sender = sender.clone();
        requests
            .spawn(async move { check(number, sender.send_request(request(number)).await.unwrap()).await });
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    drop(sender);
    client.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}
