//! The objects of the connection manager may be dropped in any order, and leak nothing.

use super::*;

#[test]
fn listeners_and_their_connections_are_dropped_in_any_order() {
    let Some(address) = ipv4() else { return };
    // The listener is dropped first: accepted requests and connections don't need it.
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap());
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    drop(listener);
    let (server, mut side) = accept(request);
    let (client, client_side) = client.join().unwrap();
    client_side.send(&client, b"still here");
    assert_eq!(side.receive(&server), b"still here");
    // The objects that a queue pair uses are dropped before the connection.
    drop((client_side, side));
    drop(server);
    assert_eq!(client.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
}

#[test]
fn the_parts_of_a_connection_are_dropped_in_any_order() {
    let Some(address) = ipv4() else { return };
    for handle_first in [true, false] {
        let ((client, client_side), (server, mut side)) = connected(address);
        let ConnectionParts { queue_pair, handle, path, peer, .. } = client.into_parts();
        assert_eq!(path.peer_addr(), server.path().local_addr());
        assert_eq!(peer.map(|peer| peer.qpn), Some(server.queue_pair().qpn()), "a connector knows the peer");
        assert!(handle.is_connected());
        assert_eq!(handle.try_event().unwrap(), None);
        let message = client_side.domain.allocate_buffer(5).unwrap();
        queue_pair.post_send(SendRequest::send(message)).unwrap();
        assert_eq!(side.receive(&server).len(), 5);
        if handle_first {
            drop(handle);
            // The queue pair is no longer connected to anything, but it is alive.
            let request = SendRequest::send(client_side.domain.allocate_buffer(5).unwrap());
            assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
            queue_pair.post_send(request).unwrap();
            queue_pair.drain(TIMEOUT).unwrap();
            assert!(queue_pair.reset().unwrap().is_empty());
        } else {
            // The connection lasts until the handle is dropped.
            drop(queue_pair);
            assert_eq!(server.wait_event(Duration::from_millis(100)).unwrap(), None);
            drop((client_side, handle));
            assert_eq!(server.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
        }
    }
}

#[test]
fn the_handle_of_a_connection_reports_that_the_peer_disconnected() {
    let Some(address) = ipv4() else { return };
    let ((client, _client_side), (server, _side)) = connected(address);
    let ConnectionParts { queue_pair, handle, .. } = client.into_parts();
    // The handle replies to the peer, so closing succeeds.
    let closing = thread::spawn(move || server.close(TIMEOUT));
    let event = loop {
        wait_readable(&handle);
        // The descriptor may be readable without an event.
        if let Some(event) = handle.try_event().unwrap() {
            break event;
        }
    };
    assert_eq!(event, ConnectionEvent::Disconnected);
    assert!(!handle.is_connected());
    closing.join().unwrap().unwrap();
    assert_eq!(queue_pair.state().unwrap(), QpState::ReadyToSend, "the handle has changed the queue pair");
}

#[test]
fn a_listener_dropped_with_requests_pending_rejects_them() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let clients: Vec<_> = (0..3)
        .map(|_| thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap_err()))
        .collect();
    wait_readable(&listener);
    thread::sleep(Duration::from_millis(300));
    drop(listener);
    for client in clients {
        let error = client.join().unwrap();
        assert!(matches!(error, Error::CmRejected { .. }), "{error}");
    }
}

#[test]
fn a_connection_attempt_can_be_dropped_at_every_step() {
    let Some(address) = ipv4() else { return };
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let connector = Connector::new().timeout(TIMEOUT);
    drop(connector.begin_resolve(peer).unwrap());
    let route = connector.resolve(peer).unwrap();
    let (queue_pair, side) = Side::new(route.path()).unwrap();
    drop(route);
    drop((side, queue_pair));
    let route = connector.resolve(peer).unwrap();
    let (queue_pair, _side) = Side::new(route.path()).unwrap();
    drop(route.begin_connect(queue_pair).unwrap());
    // The request may have arrived before it was dropped. Accepting it fails, immediately or at the deadline.
    if let Some(request) = listener.accept_timeout(Duration::from_millis(500)).unwrap() {
        let (queue_pair, _side) = Side::new(request.path()).unwrap();
        request.accept(queue_pair, b"").unwrap_err();
    }
    // The accepting side is dropped. This uses another listener, because the request above may still be in flight.
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    let connecting = {
        let route = connector.resolve(peer).unwrap();
        let (queue_pair, _side) = Side::new(route.path()).unwrap();
        route.begin_connect(queue_pair).unwrap()
    };
    let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
    let (queue_pair, _side) = Side::new(request.path()).unwrap();
    drop(request.begin_accept(queue_pair, b"").unwrap());
    match connecting.wait() {
        // The reply may have been sent before the drop. Then the connection is disconnected right after it is
        // established.
        Ok(connection) => {
            let ended = connection.wait_event(TIMEOUT).unwrap();
            assert_eq!(ended, Some(ConnectionEvent::Disconnected));
        }
        Err(error) => println!("{error}"),
    }
}

#[test]
fn connections_leak_no_descriptors() {
    let Some(address) = ipv4() else { return };
    // The first connection opens the descriptors that librdmacm keeps open.
    drop(connected(address));
    let device = Device::open_by_addr(address).unwrap();
    let before = descriptors();
    for _ in 0..20 {
        let ((client, mut client_side), (server, side)) = connected(address);
        side.send(&server, b"hello");
        assert_eq!(client_side.receive(&client), b"hello");
        drop(server);
        drop(client);
    }
    // Other tests open and close descriptors meanwhile, but fewer than 20 connections would leak.
    let after = descriptors();
    println!("descriptors: {before} before, {after} after");
    assert!(after < before + 60, "{before} before, {after} after");
    drop(device);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn dropping_objects_in_a_forked_child_doesnt_affect_the_parent() {
    let Some(address) = ipv4() else { return };
    let ((client, client_side), (server, mut side)) = connected(address);
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let peer = listener.local_addr();
    // SAFETY: the child only drops objects, and exits without running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((client, server, listener));
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status may be written.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(server.wait_event(Duration::from_millis(300)).unwrap(), None);
    client_side.send(&client, b"still here");
    assert_eq!(side.receive(&server), b"still here");
    let client = thread::spawn(move || connect(&Connector::new().timeout(TIMEOUT), peer).unwrap());
    let _server = accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    client.join().unwrap();
}
