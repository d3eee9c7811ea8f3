//! Interoperation with rdma-core's `rping`, a C program on librdmacm.
//!
//! Its protocol: the client sends the address, rkey and length of its source buffer; the server reads it and confirms.
//! The client sends those of its sink buffer; the server writes to it and confirms.

use adverb::verbs::{Access, RemoteAddress};

use super::*;

const LEN: usize = 64;

fn encode_buffer(remote: RemoteAddress) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&remote.addr.to_be_bytes());
    bytes[8..12].copy_from_slice(&remote.rkey.to_be_bytes());
    bytes[12..].copy_from_slice(&(LEN as u32).to_be_bytes());
    bytes
}

fn decode_buffer(bytes: &[u8]) -> RemoteAddress {
    assert_eq!(bytes.len(), 16);
    assert_eq!(bytes[12..], (LEN as u32).to_be_bytes());
    RemoteAddress {
        addr: u64::from_be_bytes(bytes[..8].try_into().unwrap()),
        rkey: u32::from_be_bytes(bytes[8..12].try_into().unwrap()),
    }
}

#[test]
fn a_client_completes_all_rounds_with_an_rping_server() {
    let programs = Programs::find();
    for (theirs, ours) in &programs.addresses {
        run_with_a_server(&programs, *theirs, *ours);
    }
}

fn run_with_a_server(programs: &Programs, theirs: IpAddr, ours: IpAddr) {
    let port = free_port(ours);
    let (ip, text) = (theirs.to_string(), port.to_string());
    let arguments = ["-s", "-v", "-V", "-S", "64", "-C", "3", "-a", &ip, "-p", &text];
    let Some(mut server) = programs.start("rping", &arguments) else { return };
    let peer = SocketAddr::new(theirs, port);
    let deadline = Instant::now() + TIMEOUT;
    let (connection, mut side) = loop {
        match connect(&Connector::new().timeout(TIMEOUT), peer) {
            Ok(connected) => break connected,
            // The program has not started to listen yet.
            Err(Error::CmRejected { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let source = side.domain.allocate_region(LEN, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let sink = side.domain.allocate_region(LEN, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    for round in 0..3_u8 {
        let mut text = [b'a' + round; LEN];
        text[LEN - 1] = 0;
        source.write(0, &text).unwrap();
        side.send(&connection, &encode_buffer(source.remote().at(0)));
        assert_eq!(side.receive(&connection).len(), 16);
        side.send(&connection, &encode_buffer(sink.remote().at(0)));
        assert_eq!(side.receive(&connection).len(), 16);
        let mut back = [0; LEN];
        sink.read(0, &mut back).unwrap();
        assert_eq!(back, text);
    }
    connection.close(TIMEOUT).unwrap();
    let status = server.wait().unwrap();
    println!("rping -s: {status}");
}

#[test]
fn a_server_completes_all_rounds_with_an_rping_client() {
    let programs = Programs::find();
    for (_, ours) in &programs.addresses {
        run_with_a_client(&programs, *ours);
    }
}

fn run_with_a_client(programs: &Programs, address: IpAddr) {
    let listener = Listener::bind(SocketAddr::new(address, 0)).unwrap();
    let (ip, port) = (address.to_string(), listener.local_addr().port().to_string());
    let arguments = ["-c", "-v", "-V", "-S", "64", "-C", "3", "-a", &ip, "-p", &port];
    let Some(mut client) = programs.start("rping", &arguments) else { return };
    let (connection, mut side) =
        accept(listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects"));
    for _ in 0..3 {
        let queue_pair = connection.queue_pair();
        let source = decode_buffer(&side.receive(&connection));
        let buffer = side.domain.allocate_buffer(LEN).unwrap();
        let id = queue_pair.post_send(SendRequest::read(buffer, source)).unwrap();
        let completion = side.completions.wait(id, TIMEOUT).unwrap();
        completion.result().unwrap();
        let buffer = completion.into_buffer().unwrap();
        assert!(buffer.starts_with(b"rdma-ping-"), "{:?}", &buffer[..]);
        side.send(&connection, &[0; 16]);
        let sink = decode_buffer(&side.receive(&connection));
        let id = queue_pair.post_send(SendRequest::write(buffer, sink)).unwrap();
        side.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
        side.send(&connection, &[0; 16]);
    }
    assert_eq!(connection.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
    let status = client.wait().unwrap();
    assert!(status.success(), "rping -c: {status}");
}
