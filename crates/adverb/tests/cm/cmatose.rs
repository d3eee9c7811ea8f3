//! Interoperation with rdma-core's `ucmatose`, a C program on librdmacm.
//!
//! Its server sends messages on each of several connections, receives the same number of messages, and disconnects. Its
//! client receives messages, sends the same number back, and waits for the disconnect.

use super::*;

const CONNECTIONS: usize = 4;
const MESSAGES: usize = 5;
const LEN: usize = 3000;

/// The completion queue of a connection, and its posted receives.
struct Side {
    domain: ProtectionDomain,
    completions: CompletionQueue,
    receiving: Vec<RequestId>,
}

impl Side {
    fn new(path: &Path) -> adverb::verbs::Result<(QueuePair, Side)> {
        let device = path.open_device()?;
        let domain = device.create_protection_domain()?;
        let completions = device.completion_queue(64).events().create()?;
        let queue_pair = path.queue_pair(&domain)?.completion_queue(&completions).depth(16, 16).create()?;
        let post = |_| Ok(queue_pair.post_recv(domain.allocate_buffer(LEN)?)?);
        let receiving = (0..MESSAGES).map(post).collect::<adverb::verbs::Result<_>>()?;
        Ok((queue_pair, Side { domain, completions, receiving }))
    }

    fn send_all(&self, connection: &Connection) {
        let post = |_| {
            let buffer = self.domain.allocate_buffer(LEN).unwrap();
            connection.queue_pair().post_send(SendRequest::send(buffer)).unwrap()
        };
        let sending: Vec<RequestId> = (0..MESSAGES).map(post).collect();
        for id in sending {
            self.completions.wait(id, TIMEOUT).unwrap().result().unwrap();
        }
    }

    fn receive_all(&self) {
        for id in &self.receiving {
            let message = self.completions.wait(*id, TIMEOUT).unwrap().into_message().unwrap();
            assert_eq!(message.len(), LEN);
        }
    }
}

fn arguments<'a>(role: &'a str, ip: &'a str, port: &'a str) -> [&'a str; 10] {
    [role, ip, "-p", port, "-c", "4", "-C", "5", "-S", "3000"]
}

#[test]
fn several_connections_to_ucmatose_exchange_messages() {
    let programs = Programs::find();
    for (theirs, ours) in &programs.addresses {
        let port = free_port(*ours);
        let (ip, text) = (theirs.to_string(), port.to_string());
        let Some(mut server) = programs.start("ucmatose", &arguments("-b", &ip, &text)) else { return };
        let peer = SocketAddr::new(*theirs, port);
        let deadline = Instant::now() + TIMEOUT;
        let mut sides = Vec::new();
        while sides.len() < CONNECTIONS {
            let mut side = None;
            let connected = Connector::new().timeout(TIMEOUT).connect(peer, |path| {
                let (queue_pair, created) = Side::new(path)?;
                side = Some(created);
                Ok(queue_pair)
            });
            match connected {
                Ok(connection) => sides.push((connection, side.unwrap())),
                // The program has not started to listen yet.
                Err(Error::CmRejected { .. }) if sides.is_empty() && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(100));
                }
                Err(error) => panic!("{error}"),
            }
        }
        sides.iter().for_each(|(_, side)| side.receive_all());
        sides.iter().for_each(|(connection, side)| side.send_all(connection));
        for (connection, _) in &sides {
            assert_eq!(connection.wait_event(TIMEOUT).unwrap(), Some(ConnectionEvent::Disconnected));
        }
        assert!(server.wait().unwrap().success());
    }
}

#[test]
fn several_connections_from_ucmatose_exchange_messages() {
    let programs = Programs::find();
    for (_, ours) in &programs.addresses {
        let listener = Listener::bind(SocketAddr::new(*ours, 0)).unwrap();
        let (ip, text) = (ours.to_string(), listener.local_addr().port().to_string());
        let Some(mut client) = programs.start("ucmatose", &arguments("-s", &ip, &text)) else { return };
        let accept = |_| {
            let request = listener.accept_timeout(TIMEOUT).unwrap().expect("the client connects");
            let (queue_pair, side) = Side::new(request.path()).unwrap();
            (request.accept(queue_pair, b"").unwrap(), side)
        };
        let sides: Vec<(Connection, Side)> = (0..CONNECTIONS).map(accept).collect();
        sides.iter().for_each(|(connection, side)| side.send_all(connection));
        sides.iter().for_each(|(_, side)| side.receive_all());
        for (connection, _) in sides {
            connection.close(TIMEOUT).unwrap();
        }
        assert!(client.wait().unwrap().success());
    }
}
