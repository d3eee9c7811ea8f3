//! Talks RoCEv2 to a real RDMA device from an ordinary UDP socket: no RDMA hardware here, no kernel module,
//! no privilege.
//!
//! It is the client of rdma-core's `ibv_ud_pingpong`. On the machine with the device (GID 1 is its IPv4
//! address, say), and then here:
//!
//! ```text
//! $ ibv_ud_pingpong -d mlx5_0 -g 1 -n 1000 -s 1024
//! $ ud_pingpong --local 192.0.2.1 --remote 192.0.2.2 --count 1000 --size 1024
//! ```
//!
//! For IPv6 give a GID that is an IPv6 address, and `--server` with the peer's IPv4 address, where
//! `ibv_ud_pingpong` listens for TCP.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, Qpn, ROCE_PORT, Ud};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt::SetBool, sockopt::SetStruct};

/// The queue key that `ibv_ud_pingpong` uses.
const QKEY: u32 = 0x1111_1111;
/// Our own queue pair number: any will do, since there is only one queue pair.
const OUR_QP: Qpn = Qpn::truncate(0x4242);

fn main() -> Result<(), Box<dyn Error>> {
    let Options { local, remote, server, count, size } = Options::from_args()?;
    let their_qp = exchange(local, server)?;
    let socket = roce_socket(local)?;
    let outgoing = Flow::new(SocketAddr::new(local, ROCE_PORT), SocketAddr::new(remote, ROCE_PORT))
        .ok_or("the two addresses must be of one family")?;

    let (mut received, mut intact) = (0, 0);
    for n in 0..count {
        // The peer receives into the buffer it sends from, so that it returns what it got: send something else
        // each time.
        let payload: Vec<u8> =
            (0..size).map(|i| (n.wrapping_mul(31).wrapping_add(i)).to_le_bytes()[0]).collect();
        let datagram = Ud { qkey: QKEY, source_qp: OUR_QP, immediate: None };
        let header = Header::new(their_qp, Psn::wrapping(n), Operation::Ud(datagram));
        let mut head = [0; MAX_HEADER_LEN];
        // An unconnected socket with path MTU discovery sends IPv4 identification 0.
        let emitted = outgoing.emit(&header, 0, &[&payload], &mut head)?;
        let packet = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
        socket.send_to(&packet, (remote, ROCE_PORT))?;

        let mut buffer = [0; 9000];
        let (len, source) = match socket.recv_from(&mut buffer) {
            Ok(answer) => answer,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                println!("message {n} was not answered");
                break;
            }
            Err(error) => return Err(error.into()),
        };
        let packet = Packet::parse(&buffer[..len])?;
        // The peer's identification isn't visible here, so the check solves for it.
        let incoming = Flow::new(source, SocketAddr::new(local, ROCE_PORT)).ok_or("mixed families")?;
        match incoming.recover_ip_id(&packet) {
            Ok(_) => intact += 1,
            Err(mismatch) => println!("message {n}: {mismatch}"),
        }
        if n == 0 {
            println!("{source} answers: {packet}");
        }
        let to_us = packet.header().dest_qp == OUR_QP;
        received += u32::from(to_us && packet.payload() == payload);
    }
    let lost = count - received;
    println!("{count} sent, {received} received, {lost} lost, ICRC right in {intact} of {received}");
    if lost == 0 && intact == received { Ok(()) } else { Err("not all came back as they were sent".into()) }
}

/// Tells the peer our queue pair number and address over TCP, as `ibv_ud_pingpong` does, and learns its own.
fn exchange(local: IpAddr, server: IpAddr) -> Result<Qpn, Box<dyn Error>> {
    let gid = match local {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut tcp = TcpStream::connect((server, 18515))?;
    // In one piece: the peer reads just once.
    tcp.write_all(format!("0000:{:06x}:{:06x}:{:032x}\0", OUR_QP.get(), 0, gid.to_bits()).as_bytes())?;
    let mut answer = [0; "0000:000000:000000:".len() + 33];
    tcp.read_exact(&mut answer)?;
    tcp.write_all(b"done\0")?;
    let their_qp =
        str::from_utf8(&answer)?.split(':').nth(1).ok_or("an answer without a queue pair number")?;
    Ok(Qpn::new(u32::from_str_radix(their_qp, 16)?).ok_or("a queue pair number of more than 24 bits")?)
}

/// A UDP socket on the RoCE port whose packets have a predictable IPv4 identification.
fn roce_socket(local: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((local, ROCE_PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    match local {
        // "Don't fragment" on an unconnected socket: only then is the identification always 0.
        IpAddr::V4(_) => setsockopt(&socket, MtuDiscover, &libc::IP_PMTUDISC_DO)?,
        // Kernel soft-RoCE sends IPv6 without a UDP checksum, which a socket must be told to accept.
        IpAddr::V6(_) => setsockopt(&socket, NoChecksum6, &true)?,
    }
    Ok(socket)
}

#[derive(Clone, Copy)]
struct MtuDiscover;
nix::setsockopt_impl!(MtuDiscover, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, i32, SetStruct<'_, i32>);

#[derive(Clone, Copy)]
struct NoChecksum6;
nix::setsockopt_impl!(NoChecksum6, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, bool, SetBool);

struct Options {
    local: IpAddr,
    remote: IpAddr,
    /// Where the peer's TCP exchange listens: IPv4 only, in many releases.
    server: IpAddr,
    count: u32,
    size: u32,
}

impl Options {
    fn from_args() -> Result<Options, Box<dyn Error>> {
        let (mut local, mut remote, mut server, mut count, mut size) = (None, None, None, 1000, 1024);
        let mut args = std::env::args().skip(1);
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option} wants a value"))?;
            match option.as_str() {
                "--local" => local = Some(value.parse()?),
                "--remote" => remote = Some(value.parse()?),
                "--server" => server = Some(value.parse()?),
                "--count" => count = value.parse()?,
                "--size" => size = value.parse()?,
                _ => return Err(format!("unknown option {option}").into()),
            }
        }
        match (local, remote) {
            (Some(local), Some(remote)) => {
                Ok(Options { local, remote, server: server.unwrap_or(remote), count, size })
            }
            _ => Err("usage: ud_pingpong --local ADDRESS --remote ADDRESS [--server ADDRESS] [--count N] [--size BYTES]".into()),
        }
    }
}
