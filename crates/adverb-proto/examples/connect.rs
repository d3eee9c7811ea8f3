//! A connection manager on an ordinary UDP socket. It connects to Linux's `rdma_cm`, accepts its connections and
//! resolves its datagram queue pairs, without an RDMA device, a kernel module or privileges. The program has no queue
//! pair, only a number for one, so it sends nothing over a connection.
//!
//! Run the left command on a machine with an RDMA device, and the right one here:
//!
//! ```text
//! $ ucmatose -C 0                        $ connect 192.0.2.1 connect 192.0.2.2
//! $ udaddy -C 0                          $ connect 192.0.2.1 resolve 192.0.2.2
//! $ ucmatose -C 0 -s 192.0.2.1           (first:) $ connect 192.0.2.1 listen
//! ```

use std::collections::hash_map::RandomState;
use std::error::Error;
use std::hash::BuildHasher;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use adverb_proto::Time;
use adverb_proto::cm::{
    AddrPair, BindAddr, Config, ConnectParams, Event, ListenParams, LocalQp, Manager, ResolveParams,
};
use adverb_proto::types::{Qpn, Transport};
use adverb_wire::cm::{GSI_QKEY, ServiceId};
use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, ROCE_PORT, Ud};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt::SetStruct};

/// The ports on which `ucmatose` and `udaddy` listen.
const PORTS: [u16; 2] = [7471, 7174];
/// The queue pair number in the messages. No such queue pair exists.
const QPN: Qpn = Qpn::truncate(0x4242);
const TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut endpoint = match words[..] {
        [local, ..] => CmEndpoint::new(local.parse()?)?,
        [] => return Err("usage: connect LOCAL (listen | connect REMOTE | resolve REMOTE)".into()),
    };
    let deadline = endpoint.now() + TIMEOUT;
    let (local, local_qp) = (endpoint.local, LocalQp::new(QPN));
    let [connections, datagrams] = [ServiceId::tcp_port(PORTS[0]), ServiceId::udp_port(PORTS[1])];
    match words[1..] {
        ["listen"] => {
            let transport = Transport::Rc;
            let listen =
                ListenParams { service: connections, bind: BindAddr::Address(local), transport, backlog: 1 };
            endpoint.manager.listen(listen)?;
        }
        ["connect", remote] => {
            let addrs = AddrPair { local, remote: remote.parse()? };
            let mut connect = ConnectParams::new(addrs, connections, local_qp, deadline);
            connect.source_port = 40_000;
            endpoint.manager.connect(endpoint.now(), &connect, &mut random)?;
        }
        ["resolve", remote] => {
            let addrs = AddrPair { local, remote: remote.parse()? };
            let resolve =
                ResolveParams { addrs, service: datagrams, source_port: 40_000, private_data: &[], deadline };
            endpoint.manager.resolve_service(endpoint.now(), &resolve, &mut random)?;
        }
        _ => return Err("listen, connect REMOTE, or resolve REMOTE".into()),
    }
    while endpoint.now() < deadline {
        if endpoint.step()? {
            return Ok(());
        }
    }
    Err("no result before the timeout".into())
}

struct CmEndpoint {
    local: IpAddr,
    socket: UdpSocket,
    manager: Manager,
    start: Instant,
    psn: u32,
}

impl CmEndpoint {
    fn new(local: IpAddr) -> Result<CmEndpoint, Box<dyn Error>> {
        let socket = UdpSocket::bind((local, ROCE_PORT))?;
        // Only packets of an unconnected socket with "don't fragment" always have IP ID 0.
        setsockopt(&socket, MtuDiscover, &libc::IP_PMTUDISC_DO)?;
        let ca_guid = u64::from(random()) << 32 | u64::from(random());
        let manager = Manager::new(Config::new(ca_guid));
        Ok(CmEndpoint { local, socket, manager, start: Instant::now(), psn: 0 })
    }

    fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    /// Handles timers and events, sends pending messages, and handles one received message, if one arrives before the
    /// next timer. Returns whether the program is done.
    fn step(&mut self) -> Result<bool, Box<dyn Error>> {
        self.manager.handle_timeout(self.now());
        while let Some(event) = self.manager.poll_event() {
            if self.handle_event(event)? {
                self.send()?;
                return Ok(true);
            }
        }
        self.send()?;
        let wait = self.manager.poll_timeout().map_or(TIMEOUT, |next| next - self.now());
        self.socket.set_read_timeout(Some(wait.clamp(Duration::from_millis(1), TIMEOUT)))?;
        let mut buffer = [0; 2048];
        let (length, source) = match self.socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let packet = Packet::parse(&buffer[..length])?;
        let flow = flow(source, (self.local, ROCE_PORT).into())?;
        let header = packet.header();
        if header.dest_qp == Qpn::GSI
            && matches!(header.operation, Operation::Ud(ud) if ud.qkey == GSI_QKEY)
            && flow.recover_ip_id(&packet).is_ok()
        {
            if let Ok(mad) = adverb_wire::cm::Mad::parse(packet.payload()) {
                println!("< {}", mad.message);
            }
            let addrs = AddrPair { local: self.local, remote: source.ip() };
            self.manager.handle(self.now(), addrs, packet.payload(), &mut random);
        }
        Ok(false)
    }

    fn send(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(datagram) = self.manager.poll_transmit() {
            println!("> {}", datagram.mad.message);
            let to = SocketAddr::new(datagram.addrs.remote, ROCE_PORT);
            let operation = Operation::Ud(Ud { qkey: GSI_QKEY, source_qp: Qpn::GSI, immediate: None });
            let header = Header::new(Qpn::GSI, Psn::wrapping(self.psn), operation);
            self.psn += 1;
            let (mut head, payload) = ([0; MAX_HEADER_LEN], datagram.mad.emit());
            let flow = flow((self.local, ROCE_PORT).into(), to)?;
            let emitted = flow.emit(&header, 0, &[&payload], &mut head)?;
            self.socket.send_to(&[&head[..emitted.header_len], &payload, &emitted.trailer].concat(), to)?;
        }
        Ok(())
    }

    fn handle_event(&mut self, event: Event) -> Result<bool, Box<dyn Error>> {
        let (now, deadline) = (self.now(), self.now() + TIMEOUT);
        match event {
            Event::Request(request) => {
                println!(
                    "{:?} requests a connection for its queue pair {}",
                    request.source, request.remote_qpn
                );
                self.manager.accept(now, request.id, &LocalQp::new(QPN), b"welcome", deadline)?;
            }
            Event::Accepted(acceptance) => {
                let attributes = self.manager.qp_attributes(acceptance.id, &LocalQp::new(QPN))?;
                println!("{attributes:?}");
                self.manager.establish(now, acceptance.id)?;
            }
            Event::Established(id) => {
                println!("established");
                self.manager.disconnect(now, id, deadline)?;
            }
            Event::Disconnected(_) => {
                println!("disconnected");
                return Ok(true);
            }
            Event::Resolved(resolution) => {
                println!("resolved: queue pair {} with Q_Key {:#010x}", resolution.qpn, resolution.qkey);
                return Ok(true);
            }
            other => return Err(format!("{other:?}").into()),
        }
        Ok(false)
    }
}

fn flow(from: SocketAddr, to: SocketAddr) -> Result<Flow, Box<dyn Error>> {
    Flow::new(from, to).ok_or_else(|| "the two addresses must be of one family".into())
}

/// Returns a random number. The seed of a hash table is random enough for an example.
fn random() -> u32 {
    RandomState::new().hash_one(0) as u32
}

#[derive(Clone, Copy)]
struct MtuDiscover;
nix::setsockopt_impl!(MtuDiscover, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, i32, SetStruct<'_, i32>);
