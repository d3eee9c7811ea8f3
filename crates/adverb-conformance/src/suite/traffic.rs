//! Traffic settings: traffic class, flow label, hop limit and service level.

use std::net::IpAddr;

use adverb::verbs::{
    ConnectOptions, Endpoint, Gid, IpHeader, PathMtu, QpState, SendRequest, Traffic, Transport,
    Transport::Rc, Transport::Ud, UdDestination,
};
use anyhow::{Context, Result, ensure};

use super::datagrams::{exchange, post_receive};
use crate::Need;
use crate::fixture::{Fixture, Pair, QKEY};
use crate::registry::tests;

tests! { "traffic";
    a_datagram_has_the_settings_of_its_address_handle,
    [Need::Ipv6] a_datagram_over_ipv6_has_the_settings_of_its_address_handle,
    [Need::Ipv6] a_datagram_over_ipv6_has_the_flow_label_of_its_address_handle,
    a_datagram_has_the_settings_of_its_queue_pair,
    a_datagram_has_the_hop_limit_of_its_address_handle,
    a_connection_has_the_hop_limit_of_its_options,
    the_most_specific_settings_apply_to_datagrams,
    a_reply_has_the_settings_of_the_replying_queue_pair,
    a_connection_has_the_settings_of_its_options,
    the_most_specific_settings_apply_to_connections,
    a_queue_pair_reports_its_connection,
    an_unconnected_queue_pair_reports_no_peer,
    equal_addresses_with_equal_settings_share_a_handle,
    a_thousand_addresses_can_be_answered,
}

/// Returns the traffic class and flow label of a received datagram.
fn marks(ip: Option<IpHeader>) -> Result<(u8, Option<u32>)> {
    Ok(match ip.context("the datagram has no IP header")? {
        IpHeader::V4(header) => (header.tos, None),
        IpHeader::V6(header) => (header.traffic_class, Some(header.flow_label)),
    })
}

/// Sends a datagram from left to right, and returns the traffic class and flow label of its packet.
fn send_and_read_marks(
    fixture: &Fixture,
    pair: &Pair,
    recipient: &UdDestination,
) -> Result<(u8, Option<u32>)> {
    let receiving = post_receive(fixture, &pair.right)?;
    let received = fixture.retry_after_loss(|| {
        pair.left.execute(SendRequest::send(pair.left.filled(20, 1)?).destination(recipient))?;
        pair.right.wait(receiving)
    })?;
    marks(received.into_datagram()?.ip_header)
}

fn datagrams(fixture: &Fixture, address: Option<IpAddr>) -> Result<Pair> {
    let builder = fixture.pair(Ud);
    match address {
        Some(address) => builder.address(address).connect(),
        None => builder.connect(),
    }
}

/// Checks that packets carry the settings of their address handle.
fn check_handle_settings(fixture: &Fixture, pair: &Pair) -> Result<()> {
    for (class, label) in [(0x68, 0x1_2345), (0, 0), (0xfc, 0xf_ffff)] {
        let traffic = Traffic::new().traffic_class(class).flow_label(label);
        let recipient = pair.left.qp.create_ud_destination_with(&pair.right.qp.endpoint(), QKEY, traffic)?;
        let (tos, _) = send_and_read_marks(fixture, pair, &recipient)?;
        ensure!(tos == class, "the traffic class is {tos:#x}, not {class:#x}");
    }
    Ok(())
}

fn a_datagram_has_the_settings_of_its_address_handle(fixture: &Fixture) -> Result<()> {
    check_handle_settings(fixture, &datagrams(fixture, None)?)
}

/// Returns a pair for datagrams between global IPv6 addresses.
fn datagrams_over_ipv6(fixture: &Fixture) -> Result<Pair> {
    let gids = fixture.device.gids()?;
    let global =
        gids.iter().map(|entry| entry.gid).find(|gid| !gid.is_link_local() && gid.udp_addr().is_ipv6());
    datagrams(fixture, global.map(Gid::ip))
}

fn a_datagram_over_ipv6_has_the_settings_of_its_address_handle(fixture: &Fixture) -> Result<()> {
    check_handle_settings(fixture, &datagrams_over_ipv6(fixture)?)
}

fn a_datagram_over_ipv6_has_the_flow_label_of_its_address_handle(fixture: &Fixture) -> Result<()> {
    let pair = datagrams_over_ipv6(fixture)?;
    let traffic = Traffic::new().flow_label(0x1_2345);
    let recipient = pair.left.qp.create_ud_destination_with(&pair.right.qp.endpoint(), QKEY, traffic)?;
    let (_, label) = send_and_read_marks(fixture, &pair, &recipient)?;
    let label = label.context("the datagram has an IPv4 header")?;
    ensure!(label == 0x1_2345, "the flow label is {label:#x}, not 0x12345");
    Ok(())
}

fn a_datagram_has_the_settings_of_its_queue_pair(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).traffic(Traffic::new().dscp(26)).connect()?;
    let recipient = pair.left.qp.create_ud_destination(&pair.right.qp.endpoint(), QKEY)?;
    let (class, _) = send_and_read_marks(fixture, &pair, &recipient)?;
    ensure!(class == 26 << 2, "class {class:#x}");
    Ok(())
}

fn a_datagram_has_the_hop_limit_of_its_address_handle(fixture: &Fixture) -> Result<()> {
    let pair = datagrams(fixture, None)?;
    let traffic = Traffic::new().hop_limit(17);
    let recipient = pair.left.qp.create_ud_destination_with(&pair.right.qp.endpoint(), QKEY, traffic)?;
    let receiving = post_receive(fixture, &pair.right)?;
    pair.left.execute(SendRequest::send(pair.left.filled(20, 1)?).destination(&recipient))?;
    let ip =
        pair.right.wait(receiving)?.into_datagram()?.ip_header.context("the datagram has no IP header")?;
    let hops = match ip {
        IpHeader::V4(header) => header.ttl,
        IpHeader::V6(header) => header.hop_limit,
    };
    ensure!(hops == 17, "the hop limit is {hops}, not 17");
    Ok(())
}

fn a_connection_has_the_hop_limit_of_its_options(fixture: &Fixture) -> Result<()> {
    let traffic = Traffic::new().hop_limit(12);
    let pair = fixture.pair(Rc).options(ConnectOptions::new().traffic(traffic)).connect()?;
    let peer = pair.left.qp.query()?.peer.context("the queue pair reports no peer")?;
    ensure!(peer.hop_limit == 12, "the hop limit is {}, not 12", peer.hop_limit);
    Ok(())
}

fn the_most_specific_settings_apply_to_datagrams(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).traffic(Traffic::new().dscp(2)).connect()?;
    let remote = pair.right.qp.endpoint();
    let near = pair.left.qp.create_ud_destination_with(&remote, QKEY, Traffic::new().dscp(3))?;
    let (class, _) = send_and_read_marks(fixture, &pair, &near)?;
    ensure!(class == 12, "the handle's: class {class:#x}");
    let (class, _) =
        send_and_read_marks(fixture, &pair, &pair.left.qp.create_ud_destination(&remote, QKEY)?)?;
    ensure!(class == 8, "the queue pair's: class {class:#x}");
    Ok(())
}

fn a_reply_has_the_settings_of_the_replying_queue_pair(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).traffic(Traffic::new().dscp(7)).connect()?;
    let reply = post_receive(fixture, &pair.left)?;
    let request = exchange(fixture, &pair, SendRequest::send(pair.left.filled(40, 1)?))?;
    let sender = request.create_reply_destination(&pair.right.qp, QKEY)?;
    pair.right.execute(SendRequest::send(request.message).destination(&sender))?;
    let (class, _) = marks(pair.left.wait(reply)?.into_datagram()?.ip_header)?;
    ensure!(class == 28, "the class is {class:#x}");
    Ok(())
}

fn a_connection_has_the_settings_of_its_options(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let traffic = Traffic::new().traffic_class(0x6a).flow_label(0x4_5678).service_level(3);
        let pair = fixture.pair(transport).options(ConnectOptions::new().traffic(traffic)).connect()?;
        pair.ping()?;
        let peer = pair.left.qp.query()?.peer.context("the queue pair reports no peer")?;
        let reported = (peer.traffic_class, peer.flow_label);
        ensure!(reported == (0x6a, 0x4_5678), "{transport}: the queue pair reports {reported:x?}");
    }
    Ok(())
}

fn the_most_specific_settings_apply_to_connections(fixture: &Fixture) -> Result<()> {
    let options = ConnectOptions::new().traffic(Traffic::new().flow_label(8));
    let builder = fixture.pair(Rc).traffic(Traffic::new().dscp(11).flow_label(7));
    let pair = builder.options(options).connect()?;
    let peer = pair.left.qp.query()?.peer.context("the queue pair reports no peer")?;
    ensure!((peer.traffic_class, peer.flow_label) == (44, 8), "{peer:?}");
    pair.ping()
}

fn a_queue_pair_reports_its_connection(fixture: &Fixture) -> Result<()> {
    let options = ConnectOptions::new().mtu(PathMtu::Mtu256).ack_timeout(13).retry_count(5);
    let pair = fixture.pair(Rc).options(options.rnr_retry(4).min_rnr_timer(3)).create()?;
    let remote: Endpoint = pair.right.qp.endpoint();
    pair.connect()?;
    let attributes = pair.left.qp.query()?;
    ensure!(attributes.state == QpState::ReadyToSend, "the state is {}", attributes.state);
    ensure!(attributes.port == fixture.port.number, "the port is {}", attributes.port);
    ensure!(attributes.pkey_index == 0, "the P_Key index is {}", attributes.pkey_index);
    let peer = attributes.peer.context("the queue pair reports no peer")?;
    ensure!(peer.qpn == remote.qpn, "the peer's queue pair number is {}", peer.qpn);
    ensure!(peer.gid == remote.gid || peer.lid == remote.lid, "the peer's GID is {}", peer.gid);
    ensure!(peer.recv_psn == remote.psn, "the expected PSN is {}, but {} follows", peer.recv_psn, remote.psn);
    ensure!(peer.mtu == PathMtu::Mtu256, "the MTU is {:?}", peer.mtu);
    let reported = (peer.ack_timeout, peer.retry_count, peer.rnr_retry, peer.min_rnr_timer);
    ensure!(reported == (13, 5, 4, 3), "the timers and retries are {reported:?}");
    ensure!(peer.max_rd_atomic > 0 && peer.max_dest_rd_atomic > 0, "{peer:?}");
    Ok(())
}

fn an_unconnected_queue_pair_reports_no_peer(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).create()?;
    let attributes = pair.left.qp.query()?;
    ensure!(attributes.state == QpState::Init && attributes.peer.is_none(), "{attributes:?}");
    let pair = fixture.pair(Ud).connect()?;
    let attributes = pair.left.qp.query()?;
    ensure!(attributes.peer.is_none() && attributes.qkey == QKEY, "{attributes:?}");
    Ok(())
}

/// Creating a handle is a system call, so repeated replies to one peer create only one.
fn equal_addresses_with_equal_settings_share_a_handle(fixture: &Fixture) -> Result<()> {
    let pair = datagrams(fixture, None)?;
    let remote = pair.right.qp.endpoint();
    let handle = |traffic| {
        Ok::<_, anyhow::Error>(
            pair.left.qp.create_ud_destination_with(&remote, QKEY, traffic)?.address_handle,
        )
    };
    let first = handle(Traffic::new())?;
    ensure!(handle(Traffic::new())?.is_same(&first), "equal settings returned another handle");
    ensure!(!handle(Traffic::new().dscp(1))?.is_same(&first), "other settings returned the same handle");
    ensure!(handle(Traffic::new())?.is_same(&first), "the address handle was not kept");
    Ok(())
}

fn a_thousand_addresses_can_be_answered(fixture: &Fixture) -> Result<()> {
    let pair = datagrams(fixture, None)?;
    let remote = pair.right.qp.endpoint();
    for number in 0..1500 {
        let traffic = Traffic::new().flow_label(number);
        let recipient = pair.left.qp.create_ud_destination_with(&remote, QKEY, traffic)?;
        if number % 100 == 0 {
            send_and_read_marks(fixture, &pair, &recipient)?;
        }
    }
    Ok(())
}
