//! Device lists, names and attributes.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use adverb::verbs::{Device, DeviceEvent, Error, PortState};
use anyhow::{Context, Result, ensure};

use crate::fixture::{Fixture, QUIET_PERIOD};
use crate::registry::tests;

/// An address for documentation (RFC 5737), which no device has.
pub(super) const UNREACHABLE_ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

tests! { "devices";
    the_device_is_listed,
    a_device_can_be_opened_twice,
    an_unknown_name_is_an_error_that_lists_the_devices,
    a_device_is_found_by_each_of_its_addresses,
    an_unknown_address_is_an_error_that_lists_the_addresses,
    the_first_device_has_an_active_port,
    the_limits_are_plausible,
    ports_count_from_one,
    an_unknown_port_is_an_error,
    a_port_has_a_plausible_mtu_and_message_length,
    a_port_has_a_partition_key,
    an_idle_device_has_no_events,
}

fn the_device_is_listed(fixture: &Fixture) -> Result<()> {
    let list = Device::list()?;
    let found: Vec<_> = list.iter().filter(|info| info.name == fixture.device.name()).collect();
    ensure!(found.len() == 1, "it is listed {} times", found.len());
    ensure!(found[0].unsupported_reason.is_none(), "it is listed as unsupported");
    ensure!(found[0].guid == fixture.device.attributes().guid, "the list shows another GUID");
    Ok(())
}

/// Vol. 1, 10.9.2: the first key of the table is valid. A key whose low fifteen bits are zero isn't.
fn a_port_has_a_partition_key(fixture: &Fixture) -> Result<()> {
    let keys = fixture.device.pkeys(fixture.port.number)?;
    ensure!(keys.len() == usize::from(fixture.port.pkey_table_len), "{} keys", keys.len());
    ensure!(keys.first().is_some_and(|key| key & 0x7fff != 0), "the first key isn't valid: {keys:x?}");
    ensure!(fixture.device.pkeys(200).is_err(), "port 200 does not exist, but has keys");
    Ok(())
}

fn a_device_can_be_opened_twice(fixture: &Fixture) -> Result<()> {
    let again = Device::open(fixture.device.name())?;
    ensure!(again.attributes() == fixture.device.attributes(), "another device was opened");
    drop(again);
    fixture.rc()?.ping()
}

fn an_unknown_name_is_an_error_that_lists_the_devices(fixture: &Fixture) -> Result<()> {
    let error = Device::open("no such device").err().context("the call succeeded")?;
    ensure!(matches!(error, Error::NoDevice { .. }), "refused with another error: {error}");
    let named = error.hint().is_some_and(|hint| hint.contains(fixture.device.name()));
    ensure!(named, "the hint does not list the device: {error}");
    Ok(())
}

fn a_device_is_found_by_each_of_its_addresses(fixture: &Fixture) -> Result<()> {
    for entry in fixture.device.gids()?.iter().filter(|entry| !entry.gid.is_link_local()) {
        let found = Device::open_by_addr(entry.gid.ip())?;
        ensure!(found.name() == fixture.device.name(), "{} belongs to {}", entry.gid, found.name());
    }
    Ok(())
}

fn an_unknown_address_is_an_error_that_lists_the_addresses(fixture: &Fixture) -> Result<()> {
    let error = Device::open_by_addr(UNREACHABLE_ADDR).err().context("the call succeeded")?;
    ensure!(matches!(error, Error::NoDevice { .. }), "refused with another error: {error}");
    let best = fixture.device.gid_for(fixture.port.number, None)?.gid.ip().to_string();
    ensure!(error.hint().is_some_and(|hint| hint.contains(&best)), "the hint does not list {best}: {error}");
    Ok(())
}

fn the_first_device_has_an_active_port(_: &Fixture) -> Result<()> {
    let ports = Device::open_first()?.ports()?;
    ensure!(ports.iter().any(|port| port.state == PortState::Active), "no port is active");
    Ok(())
}

fn the_limits_are_plausible(fixture: &Fixture) -> Result<()> {
    let attributes = fixture.device.attributes();
    let limits = [
        ("ports", attributes.port_count.into()),
        ("queue pairs", attributes.max_queue_pairs),
        ("depth", attributes.max_queue_depth),
        ("segments", attributes.max_sge),
        ("completion queues", attributes.max_completion_queues),
        ("completions", attributes.max_completion_queue_depth),
        ("memory regions", attributes.max_memory_regions),
        ("protection domains", attributes.max_protection_domains),
        ("READs of a peer", attributes.max_dest_rd_atomic.into()),
        ("READs", attributes.max_rd_atomic.into()),
    ];
    for (name, max) in limits {
        ensure!(max > 0, "the limit of {name} is 0");
    }
    ensure!(attributes.max_memory_region_len >= 1 << 20, "the maximum size of a region is less than 1 MiB");
    Ok(())
}

fn ports_count_from_one(fixture: &Fixture) -> Result<()> {
    let ports = fixture.device.ports()?;
    ensure!(
        ports.len() == usize::from(fixture.device.attributes().port_count),
        "the device has {} ports",
        ports.len()
    );
    for (number, port) in (1..).zip(ports) {
        ensure!(port.number == number, "port {number} has the number {}", port.number);
    }
    Ok(())
}

fn an_unknown_port_is_an_error(fixture: &Fixture) -> Result<()> {
    for number in [0, fixture.device.attributes().port_count + 1, u8::MAX] {
        ensure!(fixture.device.port(number).is_err(), "port {number} exists");
    }
    Ok(())
}

fn a_port_has_a_plausible_mtu_and_message_length(fixture: &Fixture) -> Result<()> {
    let port = &fixture.port;
    ensure!(port.active_mtu <= port.max_mtu, "the active MTU exceeds the maximum MTU");
    // Vol. 1, 9.7.7: messages have up to 2³¹ bytes. Every known device supports at least several packets.
    ensure!(
        port.max_message_size >= 4096 && port.max_message_size <= 1 << 31,
        "the maximum message size is {} bytes",
        port.max_message_size
    );
    ensure!(port.gid_table_len > 0, "the GID table is empty");
    ensure!(port.pkey_table_len > 0, "the partition key table is empty");
    Ok(())
}

fn an_idle_device_has_no_events(fixture: &Fixture) -> Result<()> {
    let event: Option<DeviceEvent> = fixture.device.wait_event(Duration::ZERO)?;
    ensure!(event.is_none(), "unexpected event: {event:?}");
    let event = fixture.device.wait_event(QUIET_PERIOD)?;
    ensure!(event.is_none(), "unexpected event: {event:?}");
    Ok(())
}
