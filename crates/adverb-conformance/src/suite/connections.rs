//! Connections by IP address and port.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use adverb::verbs::cm::{
    ConnectRequest, Connection, ConnectionEvent, Connector, Listener, Path, RejectReason,
};
use adverb::verbs::{CompletionQueue, Error, QpState, QueuePair, RequestId, SendRequest, Status};
use anyhow::{Context, Result, bail, ensure};

use crate::Need;
use crate::fixture::{COMPLETION_TIMEOUT, Fixture, QUIET_PERIOD};
use crate::registry::{address, tests};

tests! { "connection manager";
    [Need::ConnectionManager] peers_connect_by_address_and_exchange_messages,
    [Need::ConnectionManager] private_data_reaches_both_peers,
    [Need::ConnectionManager] a_rejection_reaches_the_peer_with_its_data,
    [Need::ConnectionManager] a_request_that_is_dropped_is_rejected,
    [Need::ConnectionManager] connecting_to_a_port_without_a_listener_fails_with_an_explanation,
    [Need::ConnectionManager] connecting_to_a_silent_listener_times_out,
    [Need::ConnectionManager] a_disconnect_reaches_the_peer_and_flushes_its_receives,
    [Need::ConnectionManager] a_dropped_connection_is_a_disconnect,
    [Need::ConnectionManager] many_connections_are_accepted_from_one_listener,
}

/// One end of a connection, which has a receive posted.
struct End {
    connection: Connection,
    completions: CompletionQueue,
    receiving: RequestId,
}

/// Creates a queue pair with a posted receive, and returns them with the completion queue.
fn queue_pair(path: &Path) -> adverb::verbs::Result<(QueuePair, CompletionQueue, RequestId)> {
    let device = path.open_device()?;
    let domain = device.create_protection_domain()?;
    let completions = device.completion_queue(8).events().create()?;
    let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(4, 4).create()?;
    let receiving = queue_pair.post_recv(domain.allocate_buffer(64)?)?;
    Ok((queue_pair, completions, receiving))
}

impl End {
    fn connect(connector: &Connector, peer: SocketAddr) -> adverb::verbs::Result<End> {
        let mut created = None;
        let connection = connector.connect(peer, |path| {
            let (queue_pair, completions, receiving) = queue_pair(path)?;
            created = Some((completions, receiving));
            Ok(queue_pair)
        })?;
        let (completions, receiving) = created.expect("the callback created them");
        Ok(End { connection, completions, receiving })
    }

    fn accept(request: ConnectRequest, private_data: &[u8]) -> Result<End> {
        let (queue_pair, completions, receiving) = queue_pair(request.path())?;
        Ok(End { connection: request.accept(queue_pair, private_data)?, completions, receiving })
    }

    fn send(&self, text: &[u8]) -> Result<()> {
        let mut buffer = self.connection.queue_pair().protection_domain().allocate_buffer(text.len())?;
        buffer.copy_from_slice(text);
        let id = self.connection.queue_pair().post_send(SendRequest::send(buffer)).map_err(Error::from)?;
        self.completions.wait(id, COMPLETION_TIMEOUT)?.result()?;
        Ok(())
    }

    fn expect_message(&self, text: &[u8]) -> Result<()> {
        let message = self.completions.wait(self.receiving, COMPLETION_TIMEOUT)?.into_message()?;
        ensure!(message[..] == *text, "received {:?}, not {text:?}", &message[..]);
        Ok(())
    }
}

fn listen(fixture: &Fixture) -> Result<Listener> {
    let address = address(&fixture.device)?.context("it has an address, or the test is skipped")?;
    Ok(Listener::bind(SocketAddr::new(address, 0))?)
}

/// Returns the next connection request.
fn request(listener: &Listener) -> Result<ConnectRequest> {
    listener.accept_timeout(COMPLETION_TIMEOUT)?.context("no connection request arrived")
}

/// Connects on another thread, while `serve` runs the listener's side.
fn connect_to_listener<T>(
    connector: &Connector,
    listener: &Listener,
    serve: impl FnOnce() -> Result<T>,
) -> Result<(adverb::verbs::Result<End>, T)> {
    thread::scope(|scope| {
        let client = scope.spawn(|| End::connect(connector, listener.local_addr()));
        let served = serve();
        let client = client.join().ok().context("the thread panicked")?;
        Ok((client, served?))
    })
}

fn connected(fixture: &Fixture) -> Result<(End, End)> {
    let listener = listen(fixture)?;
    let serve = || End::accept(request(&listener)?, b"");
    let (client, server) =
        connect_to_listener(&Connector::new().timeout(COMPLETION_TIMEOUT), &listener, serve)?;
    Ok((client?, server))
}

fn peers_connect_by_address_and_exchange_messages(fixture: &Fixture) -> Result<()> {
    let (client, server) = connected(fixture)?;
    client.send(b"ping")?;
    server.expect_message(b"ping")?;
    server.send(b"pong")?;
    client.expect_message(b"pong")
}

/// The private data is padded with zeros, as the protocol demands.
fn private_data_reaches_both_peers(fixture: &Fixture) -> Result<()> {
    let listener = listen(fixture)?;
    let connector = Connector::new().timeout(COMPLETION_TIMEOUT).private_data(b"who is there?");
    let (client, server) = connect_to_listener(&connector, &listener, || {
        let request = request(&listener)?;
        ensure!(request.private_data().starts_with(b"who is there?\0"), "{:?}", request.private_data());
        End::accept(request, b"a friend")
    })?;
    let client = client?;
    let received = client.connection.private_data();
    ensure!(received.starts_with(b"a friend\0"), "{received:?}");
    drop(server);
    Ok(())
}

fn a_rejection_reaches_the_peer_with_its_data(fixture: &Fixture) -> Result<()> {
    let listener = listen(fixture)?;
    let reject = || Ok(request(&listener)?.reject(b"not you")?);
    let (client, ()) = connect_to_listener(&Connector::new().timeout(COMPLETION_TIMEOUT), &listener, reject)?;
    match client.map(|_| ()) {
        Err(Error::CmRejected { reason: RejectReason::ConsumerReject, private_data, .. }) => {
            ensure!(private_data.starts_with(b"not you\0"), "{private_data:?}");
            Ok(())
        }
        other => bail!("unexpected result: {other:?}"),
    }
}

fn a_request_that_is_dropped_is_rejected(fixture: &Fixture) -> Result<()> {
    let listener = listen(fixture)?;
    let (client, ()) = connect_to_listener(&Connector::new().timeout(COMPLETION_TIMEOUT), &listener, || {
        request(&listener).map(drop)
    })?;
    let ended = client.map(|_| ());
    ensure!(
        matches!(ended, Err(Error::CmRejected { reason: RejectReason::ConsumerReject, .. })),
        "unexpected result: {ended:?}"
    );
    Ok(())
}

fn connecting_to_a_port_without_a_listener_fails_with_an_explanation(fixture: &Fixture) -> Result<()> {
    // The port of a listener that was just dropped has no listener.
    let peer = listen(fixture)?.local_addr();
    let ended = End::connect(&Connector::new().timeout(COMPLETION_TIMEOUT), peer).map(|_| ());
    ensure!(
        matches!(ended, Err(Error::CmRejected { reason: RejectReason::InvalidServiceId, .. })),
        "unexpected result: {ended:?}"
    );
    Ok(())
}

fn connecting_to_a_silent_listener_times_out(fixture: &Fixture) -> Result<()> {
    let listener = listen(fixture)?;
    let timeout = Duration::from_millis(500);
    let start = Instant::now();
    let ended = End::connect(&Connector::new().timeout(timeout), listener.local_addr()).map(|_| ());
    let took = start.elapsed();
    ensure!(matches!(ended, Err(Error::Unreachable { .. })), "unexpected result: {ended:?}");
    ensure!(took >= timeout && took < timeout + COMPLETION_TIMEOUT / 2, "it took {took:?}");
    Ok(())
}

fn a_disconnect_reaches_the_peer_and_flushes_its_receives(fixture: &Fixture) -> Result<()> {
    let (client, server) = connected(fixture)?;
    ensure!(server.connection.wait_event(QUIET_PERIOD)?.is_none(), "an event was delivered without a cause");
    client.connection.disconnect()?;
    let event = server.connection.wait_event(COMPLETION_TIMEOUT)?;
    ensure!(event == Some(ConnectionEvent::Disconnected), "unexpected event: {event:?}");
    let completion = server.completions.wait(server.receiving, COMPLETION_TIMEOUT)?;
    let status = completion.outcome().err().map(|failure| failure.status);
    ensure!(status == Some(Status::Flushed), "the receive: {status:?}, not Flushed");
    let state = server.connection.queue_pair().state()?;
    ensure!(state == QpState::Error, "the queue pair is in state {state:?}");
    client.connection.close(COMPLETION_TIMEOUT)?;
    Ok(())
}

fn a_dropped_connection_is_a_disconnect(fixture: &Fixture) -> Result<()> {
    let (client, server) = connected(fixture)?;
    drop(client);
    let event = server.connection.wait_event(COMPLETION_TIMEOUT)?;
    ensure!(event == Some(ConnectionEvent::Disconnected), "unexpected event: {event:?}");
    Ok(())
}

fn many_connections_are_accepted_from_one_listener(fixture: &Fixture) -> Result<()> {
    let listener = listen(fixture)?;
    let mut ends = Vec::new();
    for number in 0..20_u8 {
        let serve = || End::accept(request(&listener)?, &[number]);
        let (client, server) =
            connect_to_listener(&Connector::new().timeout(COMPLETION_TIMEOUT), &listener, serve)?;
        ends.push((client?, server));
    }
    for (number, (client, server)) in (0..).zip(&ends) {
        ensure!(
            client.connection.private_data().first() == Some(&number),
            "replies reached the wrong connection"
        );
        client.send(&[number])?;
        server.expect_message(&[number])?;
    }
    Ok(())
}
