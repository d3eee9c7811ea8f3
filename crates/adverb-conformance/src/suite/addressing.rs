//! The addresses that a port has, and connections between them.

use std::net::{IpAddr, UdpSocket};

use adverb::memory::RemoteMemory;
use adverb::verbs::{
    ConnectOptions, Endpoint, Error, Gid, GidType, LinkLayer, PathMtu, Traffic, Transport, Transport::Rc,
};
use anyhow::{Context, Result, ensure};

use super::devices::UNREACHABLE_ADDR;
use crate::Need;
use crate::fixture::{Fixture, READ_WRITE, check, pattern, read};
use crate::registry::tests;

tests! { "addressing";
    the_gid_table_has_used_entries_only,
    the_chosen_gid_is_the_best_there_is,
    an_address_chooses_its_gid,
    an_address_that_the_port_lacks_is_an_error_that_lists_its_addresses,
    a_queue_pair_has_the_gid_of_its_address,
    a_gid_index_without_an_entry_is_refused,
    connections_work_over_every_gid,
    [Need::Ipv4AndIpv6] a_connection_from_ipv4_to_ipv6_is_refused_with_a_hint,
    an_endpoint_has_the_data_that_a_peer_needs,
    connections_work_with_every_mtu,
    the_smaller_mtu_of_both_ends_is_used,
    connections_work_with_every_traffic_class_and_label,
    serialization_keeps_endpoints,
    serialization_keeps_remote_memory,
    numbers_beyond_24_bits_are_refused,
}

fn the_gid_table_has_used_entries_only(fixture: &Fixture) -> Result<()> {
    let gids = fixture.device.gids()?;
    ensure!(!gids.is_empty(), "there are no addresses");
    for entry in gids {
        ensure!(!entry.gid.is_zero(), "entry {} is empty", entry.index);
        ensure!(entry.index < fixture.device.port(entry.port)?.gid_table_len, "index {}", entry.index);
        let roce = entry.gid_type != GidType::InfiniBand;
        ensure!(roce == (fixture.port.link_layer == LinkLayer::Ethernet), "{} on this link", entry.gid_type);
        // An in-memory network has addresses that no interface has.
        let is_this_machines = UdpSocket::bind((entry.gid.udp_addr().ip(), 0)).is_ok();
        let has_interface = entry.netdev.is_some() || !is_this_machines;
        ensure!(!roce || has_interface, "{} has no network interface", entry.gid);
    }
    Ok(())
}

fn the_chosen_gid_is_the_best_there_is(fixture: &Fixture) -> Result<()> {
    let chosen = fixture.device.gid_for(fixture.port.number, None)?;
    let gids = fixture.device.gids()?;
    let any = |is_good: &dyn Fn(Gid) -> bool| gids.iter().any(|entry| is_good(entry.gid));
    ensure!(
        !chosen.gid.is_link_local() || !any(&|gid| !gid.is_link_local()),
        "the GID is link-local: {}",
        chosen.gid
    );
    ensure!(
        chosen.gid.ip().is_ipv4() || !any(&|gid| gid.ip().is_ipv4()),
        "the GID is not IPv4: {}",
        chosen.gid
    );
    let v2 = gids.iter().any(|entry| entry.gid_type == GidType::RoceV2);
    ensure!(chosen.gid_type == GidType::RoceV2 || !v2, "the GID has type {}", chosen.gid_type);
    Ok(())
}

fn an_address_chooses_its_gid(fixture: &Fixture) -> Result<()> {
    for entry in fixture.device.gids()? {
        let chosen = fixture.device.gid_for(entry.port, Some(entry.gid.ip()))?;
        ensure!(chosen.gid == entry.gid, "requested {}, but {} was chosen", entry.gid, chosen.gid);
    }
    Ok(())
}

fn an_address_that_the_port_lacks_is_an_error_that_lists_its_addresses(fixture: &Fixture) -> Result<()> {
    let error = fixture
        .device
        .gid_for(fixture.port.number, Some(UNREACHABLE_ADDR))
        .err()
        .context("the call succeeded")?;
    ensure!(matches!(error, Error::NoDevice { .. }), "refused with another error: {error}");
    let best = fixture.device.gid_for(fixture.port.number, None)?.gid.ip().to_string();
    ensure!(error.hint().is_some_and(|hint| hint.contains(&best)), "the hint does not list {best}: {error}");
    let refused =
        fixture.pair(Rc).address(UNREACHABLE_ADDR).side(None).err().context("a queue pair was created")?;
    ensure!(refused.to_string().contains("192.0.2.1"), "refused with another error: {refused}");
    Ok(())
}

fn a_queue_pair_has_the_gid_of_its_address(fixture: &Fixture) -> Result<()> {
    for entry in fixture.device.gids()? {
        let side = fixture.pair(Rc).address(entry.gid.ip()).side(None)?;
        let gid = side.qp.endpoint().gid;
        ensure!(gid == entry.gid, "requested {}, but the queue pair has {gid}", entry.gid);
    }
    Ok(())
}

fn a_gid_index_without_an_entry_is_refused(fixture: &Fixture) -> Result<()> {
    let used: Vec<u32> = fixture.device.gids()?.iter().map(|entry| entry.index).collect();
    let unused = (0..=u8::MAX).find(|index| !used.contains(&u32::from(*index)));
    let Some(unused) = unused else { return Ok(()) };
    let error = fixture.pair(Rc).gid_index(unused).side(None).err().context("the call succeeded")?;
    ensure!(
        format!("{error:#}").contains(&format!("index {unused}")),
        "refused with another error: {error:#}"
    );
    Ok(())
}

fn connections_work_over_every_gid(fixture: &Fixture) -> Result<()> {
    for entry in fixture.device.gids()?.iter().filter(|entry| entry.port == fixture.port.number) {
        let Ok(index) = u8::try_from(entry.index) else { continue };
        for transport in [Transport::Rc, Transport::Uc] {
            let pair = fixture.pair(transport).gid_index(index).connect()?;
            pair.ping().with_context(|| format!("{transport} over {}", entry.gid))?;
        }
    }
    Ok(())
}

fn a_connection_from_ipv4_to_ipv6_is_refused_with_a_hint(fixture: &Fixture) -> Result<()> {
    let gids = fixture.device.gids()?;
    let find = |kind: fn(&IpAddr) -> bool| {
        gids.iter().map(|entry| entry.gid).find(|gid| !gid.is_link_local() && kind(&gid.udp_addr().ip()))
    };
    let (v4, v6) = (find(IpAddr::is_ipv4), find(IpAddr::is_ipv6));
    let (v4, v6) = (v4.context("no IPv4")?, v6.context("no IPv6")?);
    for (ours, theirs) in [(v4, v6), (v6, v4)] {
        let left = fixture.pair(Rc).address(ours.ip()).side(None)?;
        let right = fixture.pair(Rc).address(theirs.ip()).side(None)?;
        let error = left.qp.connect(&right.qp.endpoint()).err().context("the call succeeded")?;
        let text = error.to_string();
        for gid in [ours, theirs] {
            ensure!(text.contains(&gid.to_string()), "the error does not name {gid}: {error}");
        }
        ensure!(error.hint().is_some(), "the error has no hint: {error}");
    }
    Ok(())
}

fn an_endpoint_has_the_data_that_a_peer_needs(fixture: &Fixture) -> Result<()> {
    let side = fixture.pair(Rc).side(None)?;
    let endpoint = side.qp.endpoint();
    ensure!(endpoint.qpn == side.qp.qpn(), "the endpoint has another queue pair number");
    ensure!(endpoint.mtu == fixture.port.active_mtu.bytes(), "the MTU is {}", endpoint.mtu);
    ensure!(endpoint.lid == fixture.port.lid, "the LID is {}", endpoint.lid);
    let best = fixture.device.gid_for(fixture.port.number, None)?.gid;
    ensure!(endpoint.gid == best, "the GID is {}, not {best}", endpoint.gid);
    Ok(())
}

fn connections_work_with_every_mtu(fixture: &Fixture) -> Result<()> {
    for mtu in PathMtu::ALL.into_iter().filter(|mtu| *mtu <= fixture.port.active_mtu) {
        for transport in [Transport::Rc, Transport::Uc] {
            let pair = fixture.pair(transport).mtu(mtu).connect()?;
            let bytes = usize::from(mtu.bytes());
            for (seed, size) in (1..).zip([bytes - 1, bytes, bytes + 1, 5 * bytes + 3]) {
                let message = pair.deliver(pair.left.filled(size, seed)?)?;
                check(&message, seed).with_context(|| format!("{transport}, {bytes}, {size} bytes"))?;
            }
        }
    }
    Ok(())
}

/// If the two ends have different MTUs, both use the smaller one.
fn the_smaller_mtu_of_both_ends_is_used(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).create()?;
    let mut small = pair.right.qp.endpoint();
    small.mtu = 256;
    pair.left.qp.connect(&small)?;
    let options = ConnectOptions::new().mtu(PathMtu::Mtu256);
    pair.right.qp.connect_with(&pair.left.qp.endpoint(), &options)?;
    let message = pair.deliver(pair.left.filled(10_000, 1)?)?;
    check(&message, 1)?;
    let region = pair.right.region(10_000, READ_WRITE)?;
    region.write(0, &pattern(10_000, 2))?;
    let request = adverb::verbs::SendRequest::read(pair.left.buffer(10_000)?, region.remote().at(0));
    check(&pair.left.completed(request)?.into_buffer().context("the completion returned no buffer")?, 2)?;
    check(&read(&region, 0, 10_000)?, 2)
}

fn connections_work_with_every_traffic_class_and_label(fixture: &Fixture) -> Result<()> {
    for (class, label, hops, level) in [(0, 0, 1, 0), (0x68, 0xf_ffff, 64, 3), (0xff, 1, 255, 7)] {
        let traffic = Traffic::new().traffic_class(class).flow_label(label);
        let options = ConnectOptions::new().traffic(traffic.hop_limit(hops).service_level(level));
        let pair = fixture.pair(Rc).options(options).connect()?;
        pair.ping().with_context(|| format!("class {class:#x}, label {label:#x}"))?;
    }
    Ok(())
}

fn serialization_keeps_endpoints(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Rc).create()?;
    let round_trip = |endpoint: Endpoint| -> Result<Endpoint> {
        let copy = serde_json::from_str(&serde_json::to_string(&endpoint)?)?;
        ensure!(copy == endpoint, "{endpoint:?} became {copy:?}");
        Ok(copy)
    };
    pair.left.qp.connect(&round_trip(pair.right.qp.endpoint())?)?;
    pair.right.qp.connect(&round_trip(pair.left.qp.endpoint())?)?;
    pair.ping()
}

fn serialization_keeps_remote_memory(fixture: &Fixture) -> Result<()> {
    let pair = fixture.rc()?;
    let region = pair.right.region(64, READ_WRITE)?;
    let copy: RemoteMemory = serde_json::from_str(&serde_json::to_string(&region.remote())?)?;
    ensure!(copy == region.remote() && copy.len == 64, "{:?} became {copy:?}", region.remote());
    pair.left.execute(adverb::verbs::SendRequest::write(pair.left.filled(64, 3)?, copy.at(0)))?;
    check(&read(&region, 0, 64)?, 3)
}

fn numbers_beyond_24_bits_are_refused(fixture: &Fixture) -> Result<()> {
    let side = fixture.pair(Rc).side(None)?;
    for field in ["qpn", "psn"] {
        let mut value = serde_json::to_value(side.qp.endpoint())?;
        value[field] = serde_json::Value::from(1 << 24);
        let parsed = serde_json::from_value::<Endpoint>(value);
        ensure!(parsed.is_err(), "{field} was accepted: {parsed:?}");
    }
    Ok(())
}
