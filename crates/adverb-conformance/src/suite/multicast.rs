//! Multicast datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use adverb::verbs::{Error, Gid, Qpn, SendRequest, Transport, Transport::Ud};
use anyhow::{Context, Result, ensure};

use super::datagrams::post_receive;
use crate::Need;
use crate::fixture::{Fixture, QKEY, Side, check};
use crate::registry::tests;

tests! { "multicast";
    [Need::Multicast] a_datagram_to_a_group_reaches_all_its_members,
    [Need::Multicast, Need::Ipv6] a_datagram_to_a_group_of_ipv6_reaches_all_its_members,
    [Need::Multicast] a_datagram_to_a_group_names_the_group_and_its_sender,
    [Need::Multicast] a_member_may_send_to_its_own_group,
    [Need::Multicast] non_members_receive_nothing,
    [Need::Multicast] former_members_receive_nothing,
    [Need::Multicast] former_members_may_join_again,
    [Need::Multicast] a_member_of_two_groups_receives_from_both,
    [Need::Multicast] a_datagram_to_a_group_needs_the_members_queue_key,
    [Need::Multicast] a_datagram_to_a_group_delivers_its_immediate_data,
    [Need::Multicast] a_member_may_be_dropped,
    [Need::Multicast] a_member_still_receives_unicast_datagrams,
    [Need::Multicast] joining_twice_is_refused,
    [Need::Multicast] leaving_a_group_without_membership_is_refused,
    [Need::Multicast] only_groups_can_be_joined,
    [Need::Multicast, Need::Ipv4AndIpv6] a_group_of_another_family_is_refused,
    only_datagram_queue_pairs_can_join_groups,
}

/// Returns a group for use within an organization: of IPv4 (RFC 2365), and of IPv6 (RFC 4291).
fn group(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(239, 255, 77, number))
}

fn group_of_ipv6(number: u8) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0x7700, number.into()))
}

/// Returns a group of the same family as the queue pair's address.
fn group_for(side: &Side, number: u8) -> IpAddr {
    if side.qp.endpoint().gid.udp_addr().is_ipv4() { group(number) } else { group_of_ipv6(number) }
}

/// Creates queue pairs that are ready, at the default address of datagrams or at the given one.
fn sides(fixture: &Fixture, count: usize, address: Option<IpAddr>) -> Result<Vec<Side>> {
    let builder = fixture.pair(Ud).depth(8, 8);
    let builder = match address {
        Some(address) => builder.address(address),
        None => builder,
    };
    let side = || {
        let side = builder.side(None)?;
        side.qp.move_to_rts()?;
        Ok(side)
    };
    (0..count).map(|_| side()).collect()
}

/// Sends a datagram to a group.
fn send(from: &Side, group: IpAddr, seed: u64) -> Result<()> {
    let destination = from.qp.create_multicast_destination(group, QKEY)?;
    ensure!(destination.qpn == Qpn::MULTICAST, "the destination is {}", destination.qpn);
    from.execute(SendRequest::send(from.filled(100, seed)?).destination(&destination))
}

/// Checks that all members get a datagram to a group.
fn check_delivery(fixture: &Fixture, from: &Side, members: &[&Side], group: IpAddr, seed: u64) -> Result<()> {
    let receiving = members.iter().map(|member| post_receive(fixture, member)).collect::<Result<Vec<_>>>()?;
    send(from, group, seed)?;
    for (number, (member, receiving)) in members.iter().zip(receiving).enumerate() {
        let received = member.wait(receiving).with_context(|| format!("member {number}"))?.into_datagram()?;
        ensure!(received.message.len() == 100, "{} bytes arrived", received.message.len());
        check(&received.message, seed)?;
    }
    Ok(())
}

fn a_datagram_to_a_group_reaches_all_its_members(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 4, None)?;
    let [sender, members @ ..] = &sides[..] else { unreachable!() };
    let group = group_for(sender, 1);
    for member in members {
        member.qp.join_multicast(group)?;
    }
    for seed in 0..5 {
        check_delivery(fixture, sender, &members.iter().collect::<Vec<_>>(), group, seed)?;
    }
    Ok(())
}

fn a_datagram_to_a_group_of_ipv6_reaches_all_its_members(fixture: &Fixture) -> Result<()> {
    let gids = fixture.device.gids()?;
    let global =
        gids.iter().map(|entry| entry.gid).find(|gid| !gid.is_link_local() && gid.udp_addr().is_ipv6());
    let sides = sides(fixture, 3, global.map(Gid::ip))?;
    for member in &sides[1..] {
        member.qp.join_multicast(group_of_ipv6(1))?;
    }
    check_delivery(fixture, &sides[0], &[&sides[1], &sides[2]], group_of_ipv6(1), 1)
}

fn a_datagram_to_a_group_names_the_group_and_its_sender(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 2);
    sides[1].qp.join_multicast(group)?;
    let receiving = post_receive(fixture, &sides[1])?;
    send(&sides[0], group, 3)?;
    let received = sides[1].wait(receiving)?.into_datagram()?;
    ensure!(received.source_qpn == sides[0].qp.qpn(), "the source is {}", received.source_qpn);
    let ip = received.ip_header.context("the datagram has no IP header")?;
    ensure!(ip.destination() == group, "the destination is {}", ip.destination());
    ensure!(ip.source() == sides[0].qp.endpoint().gid.ip(), "the source is {}", ip.source());
    Ok(())
}

fn a_member_may_send_to_its_own_group(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 3);
    for side in &sides {
        side.qp.join_multicast(group)?;
    }
    check_delivery(fixture, &sides[0], &[&sides[1]], group, 1)
}

fn non_members_receive_nothing(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 3, None)?;
    let [sender, member, other] = &sides[..] else { unreachable!() };
    member.qp.join_multicast(group_for(sender, 4))?;
    other.qp.join_multicast(group_for(sender, 5))?;
    post_receive(fixture, other)?;
    check_delivery(fixture, sender, &[member], group_for(sender, 4), 1)?;
    other.expect_no_completion()
}

fn former_members_receive_nothing(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 3, None)?;
    let [sender, member, leaving] = &sides[..] else { unreachable!() };
    let group = group_for(sender, 6);
    member.qp.join_multicast(group)?;
    leaving.qp.join_multicast(group)?;
    check_delivery(fixture, sender, &[member, leaving], group, 1)?;
    leaving.qp.leave_multicast(group)?;
    post_receive(fixture, leaving)?;
    check_delivery(fixture, sender, &[member], group, 2)?;
    leaving.expect_no_completion()
}

fn former_members_may_join_again(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 7);
    for seed in 0..5 {
        sides[1].qp.join_multicast(group)?;
        check_delivery(fixture, &sides[0], &[&sides[1]], group, seed)?;
        sides[1].qp.leave_multicast(group)?;
    }
    Ok(())
}

fn a_member_of_two_groups_receives_from_both(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let groups = [8, 9].map(|number| group_for(&sides[0], number));
    for group in groups {
        sides[1].qp.join_multicast(group)?;
    }
    for (seed, group) in (1..).zip(groups) {
        check_delivery(fixture, &sides[0], &[&sides[1]], group, seed)?;
    }
    sides[1].qp.leave_multicast(groups[0])?;
    check_delivery(fixture, &sides[0], &[&sides[1]], groups[1], 3)
}

/// Vol. 1, 9.6.1.4: a member with another key drops the datagram.
fn a_datagram_to_a_group_needs_the_members_queue_key(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 10);
    sides[1].qp.join_multicast(group)?;
    let receiving = post_receive(fixture, &sides[1])?;
    let wrong = sides[0].qp.create_multicast_destination(group, QKEY + 1)?;
    sides[0].execute(SendRequest::send(sides[0].filled(100, 1)?).destination(&wrong))?;
    sides[1].expect_no_completion()?;
    send(&sides[0], group, 2)?;
    check(&sides[1].wait(receiving)?.into_datagram()?.message, 2)
}

fn a_datagram_to_a_group_delivers_its_immediate_data(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 11);
    sides[1].qp.join_multicast(group)?;
    let receiving = post_receive(fixture, &sides[1])?;
    let destination = sides[0].qp.create_multicast_destination(group, QKEY)?;
    let request = SendRequest::send_with_imm(sides[0].filled(fixture.mtu(), 5)?, 0x0102_0304);
    sides[0].execute(request.destination(&destination))?;
    let received = sides[1].wait(receiving)?.into_datagram()?;
    ensure!(received.immediate == Some(0x0102_0304), "received {:x?}", received.immediate);
    check(&received.message, 5)
}

/// A device doesn't destroy a queue pair that is a member of a group, so the drop must leave the groups first.
fn a_member_may_be_dropped(fixture: &Fixture) -> Result<()> {
    let mut sides = sides(fixture, 3, None)?;
    let group = group_for(&sides[0], 12);
    for side in &sides[1..] {
        side.qp.join_multicast(group)?;
    }
    let dropped = sides.pop().context("there are three")?;
    let Side { qp, cq, domain } = dropped;
    let region = domain.allocate_region(fixture.max_datagram_len(), adverb::verbs::Access::LOCAL_WRITE)?;
    let slice = region.slice(0..region.len())?;
    let _ = qp.post_recv(adverb::verbs::RecvRequest::new(slice)).map_err(Error::from)?;
    drop(qp);
    // If the queue pair had not been destroyed, its receive would still use the memory.
    ensure!(region.into_buffer().is_ok(), "the member's memory is still in use");
    drop((cq, domain));
    check_delivery(fixture, &sides[0], &[&sides[1]], group, 1)
}

fn a_member_still_receives_unicast_datagrams(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    sides[1].qp.join_multicast(group_for(&sides[0], 13))?;
    let receiving = post_receive(fixture, &sides[1])?;
    let alone = sides[0].qp.create_ud_destination(&sides[1].qp.endpoint(), QKEY)?;
    sides[0].execute(SendRequest::send(sides[0].filled(50, 5)?).destination(&alone))?;
    check(&sides[1].wait(receiving)?.into_datagram()?.message, 5)
}

fn expect_invalid_request(result: Result<(), Error>) -> Result<()> {
    let error = result.err().context("the call succeeded")?;
    ensure!(matches!(error, Error::InvalidRequest { .. }), "refused with another error: {error}");
    Ok(())
}

fn joining_twice_is_refused(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 2, None)?;
    let group = group_for(&sides[0], 14);
    sides[1].qp.join_multicast(group)?;
    expect_invalid_request(sides[1].qp.join_multicast(group))?;
    check_delivery(fixture, &sides[0], &[&sides[1]], group, 1)
}

fn leaving_a_group_without_membership_is_refused(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 1, None)?;
    let groups = [15, 16].map(|number| group_for(&sides[0], number));
    expect_invalid_request(sides[0].qp.leave_multicast(groups[0]))?;
    sides[0].qp.join_multicast(groups[0])?;
    expect_invalid_request(sides[0].qp.leave_multicast(groups[1]))?;
    sides[0].qp.leave_multicast(groups[0])?;
    expect_invalid_request(sides[0].qp.leave_multicast(groups[0]))
}

fn only_groups_can_be_joined(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 1, None)?;
    let own = sides[0].qp.endpoint().gid;
    expect_invalid_request(sides[0].qp.join_multicast(own.ip()))?;
    expect_invalid_request(sides[0].qp.attach_multicast(own, 0))?;
    expect_invalid_request(sides[0].qp.create_multicast_destination(own.ip(), QKEY).map(drop))
}

fn a_group_of_another_family_is_refused(fixture: &Fixture) -> Result<()> {
    let sides = sides(fixture, 1, None)?;
    let is_ipv4 = sides[0].qp.endpoint().gid.udp_addr().is_ipv4();
    let other = if is_ipv4 { group_of_ipv6(1) } else { group(1) };
    expect_invalid_request(sides[0].qp.join_multicast(other))?;
    expect_invalid_request(sides[0].qp.create_multicast_destination(other, QKEY).map(drop))
}

fn only_datagram_queue_pairs_can_join_groups(fixture: &Fixture) -> Result<()> {
    for transport in [Transport::Rc, Transport::Uc] {
        let side = fixture.pair(transport).side(None)?;
        expect_invalid_request(side.qp.attach_multicast(Gid::from(group(17)), 0))?;
    }
    Ok(())
}
