//! The other side is rdma-core's `rping`, a C program on librdmacm.
//!
//! Its protocol: the client sends where its source is (address, rkey, length); the server reads it and says so; the client
//! sends where its sink is; the server writes there and says so.

use adverb::verbs::{Access, RemoteAddress};

use super::*;

const LEN: usize = 64;

fn info(remote: RemoteAddress) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&remote.addr.to_be_bytes());
    bytes[8..12].copy_from_slice(&remote.rkey.to_be_bytes());
    bytes[12..].copy_from_slice(&(LEN as u32).to_be_bytes());
    bytes
}

fn remote(info: &[u8]) -> RemoteAddress {
    assert_eq!(info.len(), 16);
    assert_eq!(info[12..], (LEN as u32).to_be_bytes());
    RemoteAddress {
        addr: u64::from_be_bytes(info[..8].try_into().unwrap()),
        rkey: u32::from_be_bytes(info[8..12].try_into().unwrap()),
    }
}

#[test]
fn a_client_plays_with_a_server_written_in_c() {
    let programs = Programs::find();
    for (theirs, ours) in &programs.addresses {
        play_with_a_server(&programs, *theirs, *ours);
    }
}

fn play_with_a_server(programs: &Programs, theirs: IpAddr, ours: IpAddr) {
    let port = free_port(ours);
    let (ip, text) = (theirs.to_string(), port.to_string());
    let arguments = ["-s", "-v", "-V", "-S", "64", "-C", "3", "-a", &ip, "-p", &text];
    let Some(mut server) = programs.start("rping", &arguments) else { return };
    let peer = SocketAddr::new(theirs, port);
    let deadline = Instant::now() + PATIENCE;
    let (connection, mut desk) = loop {
        match connect(&Connector::new().timeout(PATIENCE), peer) {
            Ok(connected) => break connected,
            // It isn't up yet.
            Err(Error::CmRejected { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let source = desk.domain.region(LEN, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let sink = desk.domain.region(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    for round in 0..3_u8 {
        let mut text = [b'a' + round; LEN];
        text[LEN - 1] = 0;
        source.write(0, &text).unwrap();
        desk.send(&connection, &info(source.remote().at(0)));
        assert_eq!(desk.receive(&connection).len(), 16);
        desk.send(&connection, &info(sink.remote().at(0)));
        assert_eq!(desk.receive(&connection).len(), 16);
        let mut back = [0; LEN];
        sink.read(0, &mut back).unwrap();
        assert_eq!(back, text);
    }
    connection.close(PATIENCE).unwrap();
    let status = server.wait().unwrap();
    println!("rping -s: {status}");
}

#[test]
fn a_server_plays_with_a_client_written_in_c() {
    let programs = Programs::find();
    for (_, ours) in &programs.addresses {
        play_with_a_client(&programs, *ours);
    }
}

fn play_with_a_client(programs: &Programs, address: IpAddr) {
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let (ip, port) = (address.to_string(), listener.local_addr().port().to_string());
    let arguments = ["-c", "-v", "-V", "-S", "64", "-C", "3", "-a", &ip, "-p", &port];
    let Some(mut client) = programs.start("rping", &arguments) else { return };
    let (connection, mut desk) = accept(listener.accept_timeout(PATIENCE).unwrap().expect("a request"));
    for _ in 0..3 {
        let queue_pair = connection.queue_pair();
        let source = remote(&desk.receive(&connection));
        let buffer = desk.domain.buffer(LEN).unwrap();
        let id = queue_pair.post_send(SendRequest::read(buffer, source)).unwrap();
        let completion = desk.completions.wait(id, PATIENCE).unwrap();
        completion.result().unwrap();
        let buffer = completion.into_buffer().unwrap();
        assert!(buffer.starts_with(b"rdma-ping-"), "{:?}", &buffer[..]);
        desk.send(&connection, &[0; 16]);
        let sink = remote(&desk.receive(&connection));
        let id = queue_pair.post_send(SendRequest::write(buffer, sink)).unwrap();
        desk.completions.wait(id, PATIENCE).unwrap().result().unwrap();
        desk.send(&connection, &[0; 16]);
    }
    assert_eq!(connection.wait_event(PATIENCE).unwrap(), Some(ConnectionEvent::Disconnected));
    let status = client.wait().unwrap();
    assert!(status.success(), "rping -c: {status}");
}
