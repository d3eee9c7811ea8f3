//! Exchanges RoCEv2 datagrams with a real RDMA device from a UDP socket, without RDMA hardware, kernel module or
//! privileges on this machine.
//!
//! This is a client for rdma-core's `ibv_ud_pingpong`. Start the server on the machine with the device (here GID 1 is
//! the device's IPv4 address), then this client:
//!
//! ```text
//! $ ibv_ud_pingpong -d mlx5_0 -g 1 -n 1000 -s 1024
//! $ ud_pingpong --local 192.0.2.1 --remote 192.0.2.2 --count 1000 --size 1024
//! ```
//!
//! For IPv6, pass the server a GID that is an IPv6 address, and the client `--server` with the peer's IPv4 address, on
//! which `ibv_ud_pingpong` listens for TCP.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use adverb_wire::{Flow, Header, MAX_HEADER_LEN, Operation, Packet, Psn, Qpn, ROCE_PORT, Ud};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt::SetBool, sockopt::SetStruct};

/// The queue key that `ibv_ud_pingpong` uses.
const QKEY: u32 = 0x1111_1111;
/// The client's queue pair number. Any number works, because there is only one queue pair.
const LOCAL_QP: Qpn = Qpn::truncate(0x4242);

fn main() -> Result<(), Box<dyn Error>> {
    let Options { local, remote, server, count, size } = Options::from_args()?;
    let peer_qp = exchange(local, server)?;
    let socket = roce_socket(local)?;
    let outgoing = Flow::new(SocketAddr::new(local, ROCE_PORT), SocketAddr::new(remote, ROCE_PORT))
        .ok_or("both addresses must be IPv4, or both IPv6")?;

    let (mut received, mut intact) = (0, 0);
    for n in 0..count {
        // The peer sends from the buffer into which it receives, so it echoes the payload. Successive payloads differ,
        // so that a late echo is noticed.
        let payload: Vec<u8> =
            (0..size).map(|i| (n.wrapping_mul(31).wrapping_add(i)).to_le_bytes()[0]).collect();
        let datagram = Ud { qkey: QKEY, source_qp: LOCAL_QP, immediate: None };
        let header = Header::new(peer_qp, Psn::wrapping(n), Operation::Ud(datagram));
        let mut head = [0; MAX_HEADER_LEN];
        // An unconnected socket with path MTU discovery sends IP ID 0.
        let emitted = outgoing.emit(&header, 0, &[&payload], &mut head)?;
        let packet = [&head[..emitted.header_len], &payload, &emitted.trailer].concat();
        socket.send_to(&packet, (remote, ROCE_PORT))?;

        let mut buffer = [0; 9000];
        let (len, source) = match socket.recv_from(&mut buffer) {
            Ok(reply) => reply,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                println!("message {n}: no reply within 5 s");
                break;
            }
            Err(error) => return Err(error.into()),
        };
        let packet = Packet::parse(&buffer[..len])?;
        // A UDP socket doesn't report the peer's IP ID, so it is recovered from the ICRC.
        let incoming = Flow::new(source, SocketAddr::new(local, ROCE_PORT))
            .ok_or("the reply is from an address of another family")?;
        match incoming.recover_ip_id(&packet) {
            Ok(_) => intact += 1,
            Err(mismatch) => println!("message {n}: {mismatch}"),
        }
        if n == 0 {
            println!("first reply from {source}: {packet}");
        }
        let to_local_qp = packet.header().dest_qp == LOCAL_QP;
        received += u32::from(to_local_qp && packet.payload() == payload);
    }
    let lost = count - received;
    println!("{count} sent, {received} received, {lost} lost, ICRC correct in {intact} of {received}");
    if lost == 0 && intact == received { Ok(()) } else { Err("messages were lost or corrupted".into()) }
}

/// Exchanges queue pair numbers and addresses with the peer over TCP, in the format of `ibv_ud_pingpong`.
fn exchange(local: IpAddr, server: IpAddr) -> Result<Qpn, Box<dyn Error>> {
    let gid = match local {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let mut tcp = TcpStream::connect((server, 18515))?;
    // The peer reads only once, so all bytes are sent in one write.
    tcp.write_all(format!("0000:{:06x}:{:06x}:{:032x}\0", LOCAL_QP.get(), 0, gid.to_bits()).as_bytes())?;
    let mut reply = [0; "0000:000000:000000:".len() + 33];
    tcp.read_exact(&mut reply)?;
    tcp.write_all(b"done\0")?;
    let peer_qp =
        str::from_utf8(&reply)?.split(':').nth(1).ok_or("the peer's reply has no queue pair number")?;
    Ok(Qpn::new(u32::from_str_radix(peer_qp, 16)?)
        .ok_or("the peer's queue pair number has more than 24 bits")?)
}

/// Opens a UDP socket on the RoCE port whose packets have IP ID 0.
fn roce_socket(local: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((local, ROCE_PORT))?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    match local {
        // The IP ID is always 0 only with "don't fragment" on an unconnected socket.
        IpAddr::V4(_) => setsockopt(&socket, MtuDiscover, &libc::IP_PMTUDISC_DO)?,
        // Kernel soft-RoCE sends IPv6 without a UDP checksum, which sockets drop by default.
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
    /// The address of the peer's TCP listener; in many releases, IPv4 only.
    server: IpAddr,
    count: u32,
    size: u32,
}

impl Options {
    fn from_args() -> Result<Options, Box<dyn Error>> {
        let (mut local, mut remote, mut server, mut count, mut size) = (None, None, None, 1000, 1024);
        let mut args = std::env::args().skip(1);
        while let Some(option) = args.next() {
            let value = args.next().ok_or_else(|| format!("{option} needs a value"))?;
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
