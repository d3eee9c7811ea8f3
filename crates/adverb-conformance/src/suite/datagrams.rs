//! Datagrams.

use adverb::memory::{Buffer, PayloadSegment};
use adverb::verbs::{
    CompletedOperation, Completion, Datagram, QpState, RecvRequest, RequestId, SendRequest, Transport::Ud,
    UdDestination,
};
use anyhow::{Context, Result, ensure};

use crate::Need;
use crate::fixture::{
    Fixture, Pair, QKEY, QUIET_PERIOD, READ_WRITE, Side, check, check_equal, check_in_order, pattern, read,
    take,
};
use crate::registry::tests;

tests! { "datagrams";
    datagrams_of_every_size_arrive_whole,
    a_datagram_delivers_all_bits_of_its_immediate_data,
    a_datagram_without_immediate_data_delivers_none,
    a_datagram_names_its_sender,
    a_datagram_can_be_answered,
    datagrams_reach_many_destinations,
    datagrams_arrive_from_many_senders,
    a_queue_pair_can_send_to_itself,
    [Need::Ipv6] datagrams_work_over_ipv6,
    datagrams_work_over_every_gid,
    datagrams_are_gathered_and_scattered,
    datagrams_can_be_sent_inline,
    unsignaled_datagrams_return_their_buffers,
    an_address_handle_serves_many_datagrams,
    an_address_handle_may_be_dropped_while_its_datagram_is_in_flight,
    an_address_handle_is_made_from_an_address,
    a_full_queue_of_datagrams_arrives,
}

/// Returns the destination of datagrams from one side to the other.
pub(super) fn destination_to(from: &Side, to: &Side) -> Result<UdDestination> {
    Ok(from.qp.create_ud_destination(&to.qp.endpoint(), QKEY)?)
}

/// Posts a receive for any datagram.
pub(super) fn post_receive(fixture: &Fixture, side: &Side) -> Result<RequestId> {
    side.post_receive(fixture.max_datagram_len())
}

/// Sends a datagram from left to right, and returns the received one.
pub(super) fn exchange(fixture: &Fixture, pair: &Pair, request: SendRequest) -> Result<Datagram> {
    let receiving = post_receive(fixture, &pair.right)?;
    pair.left.execute(request.destination(&destination_to(&pair.left, &pair.right)?))?;
    Ok(pair.right.wait(receiving)?.into_datagram()?)
}

/// Returns the datagrams of completions.
fn messages(completions: Vec<Completion>) -> Result<Vec<Buffer>> {
    completions.into_iter().map(|completion| Ok(completion.into_datagram()?.message)).collect()
}

fn datagrams_of_every_size_arrive_whole(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let mtu = fixture.mtu();
    for (seed, size) in (1..).zip([0, 1, 2, 3, 4, 100, mtu - 1, mtu]) {
        fixture.retry_after_loss(|| {
            // With injected packet loss, each attempt has new queue pairs, without the receives of lost datagrams.
            let pair = if fixture.loss > 0 { &fixture.pair(Ud).connect()? } else { &pair };
            let received = exchange(fixture, pair, SendRequest::send(pair.left.filled(size, seed)?))?;
            ensure!(
                received.message.len() == size,
                "{size} bytes were sent, but {} arrived",
                received.message.len()
            );
            check(&received.message, seed).with_context(|| format!("{size} bytes"))
        })?;
    }
    Ok(())
}

fn a_datagram_delivers_all_bits_of_its_immediate_data(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    for bits in [0, 1, 0x8000_0000, 0x0102_0304, u32::MAX] {
        for size in [0, 9] {
            let request = SendRequest::send_with_imm(pair.left.filled(size, 2)?, bits);
            let received = exchange(fixture, &pair, request)?;
            ensure!(
                received.immediate == Some(bits),
                "{bits:#x} was sent, but {:x?} arrived",
                received.immediate
            );
            check(&received.message, 2)?;
        }
    }
    Ok(())
}

fn a_datagram_without_immediate_data_delivers_none(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(9, 2)?))?;
    ensure!(
        received.immediate.is_none(),
        "immediate data arrived that was not sent: {:x?}",
        received.immediate
    );
    Ok(())
}

fn a_datagram_names_its_sender(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let receiving = post_receive(fixture, &pair.right)?;
    pair.left.execute(
        SendRequest::send(pair.left.filled(9, 2)?).destination(&destination_to(&pair.left, &pair.right)?),
    )?;
    let completion = pair.right.wait(receiving)?;
    let success = completion.result()?;
    // Vol. 1, 11.4.2.1: the length includes the header before the datagram.
    ensure!(success.length == 49, "the length is {}, not 49", success.length);
    let CompletedOperation::Recv { source, .. } = success.operation else {
        anyhow::bail!("the completion is not that of a receive: {:?}", success.operation)
    };
    ensure!(source == Some(pair.left.qp.qpn()), "the source is {source:?}");
    let received = completion.into_datagram()?;
    if let Some(ip) = received.ip_header {
        let (ours, theirs) = (pair.left.qp.endpoint().gid.ip(), pair.right.qp.endpoint().gid.ip());
        ensure!(ip.source() == ours, "the source is {}, not {ours}", ip.source());
        ensure!(ip.destination() == theirs, "the destination is {}, not {theirs}", ip.destination());
    }
    Ok(())
}

fn a_datagram_can_be_answered(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let reply = post_receive(fixture, &pair.left)?;
    let request = exchange(fixture, &pair, SendRequest::send(pair.left.filled(40, 1)?))?;
    let sender = request.create_reply_destination(&pair.right.qp, QKEY)?;
    ensure!(sender.qpn == pair.left.qp.qpn(), "the reply's destination is {}", sender.qpn);
    pair.right.execute(SendRequest::send(request.message).destination(&sender))?;
    let received = pair.left.wait(reply)?.into_datagram()?;
    ensure!(received.source_qpn == pair.right.qp.qpn(), "the reply's source is {}", received.source_qpn);
    check(&received.message, 1)
}

fn datagrams_reach_many_destinations(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Ud).depth(16, 16);
    let pair = builder.clone().connect()?;
    let others = (0..8).map(|_| builder.side(None)).collect::<Result<Vec<_>>>()?;
    for (seed, other) in (0..).zip(&others) {
        other.qp.move_to_rts()?;
        post_receive(fixture, other)?;
        let request = SendRequest::send(pair.left.filled(64, seed)?);
        pair.left.post(request.destination(&destination_to(&pair.left, other)?))?;
    }
    for (seed, other) in (0..).zip(&others) {
        for completion in other.take(1)? {
            check(&completion.into_datagram()?.message, seed)?;
        }
    }
    pair.right.expect_no_completion()
}

fn datagrams_arrive_from_many_senders(fixture: &Fixture) -> Result<()> {
    let builder = fixture.pair(Ud).depth(16, 16);
    let pair = builder.clone().connect()?;
    let others = (0..8).map(|_| builder.side(None)).collect::<Result<Vec<_>>>()?;
    for (seed, other) in (0..).zip(&others) {
        other.qp.move_to_rts()?;
        post_receive(fixture, &pair.right)?;
        other.execute(
            SendRequest::send(other.filled(64, seed)?).destination(&destination_to(other, &pair.right)?),
        )?;
    }
    for completion in pair.right.take(8)? {
        let received = completion.into_datagram()?;
        let seed = others
            .iter()
            .position(|other| other.qp.qpn() == received.source_qpn)
            .context("the datagram has no source")?;
        check(&received.message, seed as u64)?;
    }
    Ok(())
}

fn a_queue_pair_can_send_to_itself(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let receiving = post_receive(fixture, &pair.left)?;
    pair.left.execute(
        SendRequest::send(pair.left.filled(64, 5)?).destination(&destination_to(&pair.left, &pair.left)?),
    )?;
    let received = pair.left.wait(receiving)?.into_datagram()?;
    ensure!(received.source_qpn == pair.left.qp.qpn(), "the source is {}", received.source_qpn);
    check(&received.message, 5)
}

fn datagrams_work_over_ipv6(fixture: &Fixture) -> Result<()> {
    let gids = fixture.device.gids()?;
    let is_good = |gid: adverb::verbs::Gid| gid.udp_addr().is_ipv6() && !gid.is_link_local();
    let gid = gids.iter().map(|entry| entry.gid).find(|gid| is_good(*gid)).context("no IPv6")?;
    let pair = fixture.pair(Ud).address(gid.ip()).connect()?;
    let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(fixture.mtu(), 3)?))?;
    check(&received.message, 3)?;
    let ip = received.ip_header.context("the datagram has no route header")?;
    ensure!(
        ip.source() == gid.ip() && ip.destination() == gid.ip(),
        "from {} to {}",
        ip.source(),
        ip.destination()
    );
    Ok(())
}

fn datagrams_work_over_every_gid(fixture: &Fixture) -> Result<()> {
    for entry in fixture.device.gids()?.iter().filter(|entry| entry.port == fixture.port.number) {
        let Ok(index) = u8::try_from(entry.index) else { continue };
        let pair = fixture.pair(Ud).gid_index(index).connect()?;
        let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(64, 3)?));
        let received = received.with_context(|| format!("over {}", entry.gid))?;
        check(&received.message, 3)?;
        let back = received
            .create_reply_destination(&pair.right.qp, QKEY)
            .with_context(|| format!("over {}", entry.gid))?;
        ensure!(
            back.address_handle.gid() == entry.gid,
            "the reply's destination is {}",
            back.address_handle.gid()
        );
    }
    Ok(())
}

fn datagrams_are_gathered_and_scattered(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).max_sge(3, 3).connect()?;
    let (size, max_len) = (fixture.mtu(), fixture.max_datagram_len());
    let (from, to) = (pair.left.region(size, READ_WRITE)?, pair.right.region(max_len, READ_WRITE)?);
    from.write(0, &pattern(size, 6))?;
    let split = |region: &adverb::memory::MemoryRegion, at: [usize; 4]| -> Result<Vec<PayloadSegment>> {
        at.windows(2).map(|ends| Ok(PayloadSegment::Region(region.slice(ends[0]..ends[1])?))).collect()
    };
    // The first segment is exactly the header, the second is one byte, and the third is the rest.
    let receiving = pair.right.recv(RecvRequest::new(split(&to, [0, 40, 41, max_len])?))?;
    let request = SendRequest::send(split(&from, [0, 1, 100, size])?);
    pair.left.execute(request.destination(&destination_to(&pair.left, &pair.right)?))?;
    let length = pair.right.wait(receiving)?.result()?.length as usize;
    ensure!(length == max_len, "{max_len} bytes were expected, but {length} arrived");
    check_equal(&read(&to, 40, size)?, &pattern(size, 6))
}

fn datagrams_can_be_sent_inline(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).max_inline_data(64).connect()?;
    for size in [0, 1, 64] {
        let received = exchange(fixture, &pair, SendRequest::send(pair.left.filled(size, 4)?).inline())?;
        ensure!(
            received.message.len() == size,
            "{size} bytes were sent, but {} arrived",
            received.message.len()
        );
        check(&received.message, 4)?;
    }
    Ok(())
}

fn unsignaled_datagrams_return_their_buffers(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).depth(16, 16).connect()?;
    let recipient = destination_to(&pair.left, &pair.right)?;
    for _ in 0..4 {
        let request = SendRequest::send(pair.left.filled(8, 1)?).destination(&recipient).unsignaled();
        pair.left.post(request)?;
    }
    pair.left.expect_no_completion()?;
    pair.left.post(SendRequest::send(pair.left.filled(8, 1)?).destination(&recipient))?;
    pair.left.take(5)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    Ok(())
}

fn an_address_handle_serves_many_datagrams(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let recipient = destination_to(&pair.left, &pair.right)?;
    let mut received = Vec::new();
    for seed in 0..50 {
        post_receive(fixture, &pair.right)?;
        pair.left.execute(SendRequest::send(pair.left.filled(64, seed)?).destination(&recipient))?;
        received.extend(messages(pair.right.take_up_to(1)?)?);
    }
    check_in_order(received, 0..50).map(drop)
}

fn an_address_handle_may_be_dropped_while_its_datagram_is_in_flight(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).depth(64, 64).connect()?;
    (0..64).try_for_each(|_| post_receive(fixture, &pair.right).map(drop))?;
    for seed in 0..64 {
        // The handle is dropped as soon as the request is posted.
        let recipient = destination_to(&pair.left, &pair.right)?;
        pair.left.post(SendRequest::send(pair.left.filled(64, seed)?).destination(&recipient))?;
    }
    pair.left.take(64)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    check_in_order(messages(pair.right.take_up_to(64)?)?, 0..64).map(drop)
}

fn an_address_handle_is_made_from_an_address(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).connect()?;
    let gid = pair.right.qp.endpoint().gid;
    let address = pair.left.qp.create_address_handle(gid.ip())?;
    ensure!(address.gid() == gid, "the address handle's GID is {}, not {gid}", address.gid());
    let receiving = post_receive(fixture, &pair.right)?;
    let recipient = UdDestination { address_handle: address, qpn: pair.right.qp.qpn(), qkey: QKEY };
    pair.left.execute(SendRequest::send(pair.left.filled(64, 5)?).destination(&recipient))?;
    check(&pair.right.wait(receiving)?.into_datagram()?.message, 5)
}

fn a_full_queue_of_datagrams_arrives(fixture: &Fixture) -> Result<()> {
    let pair = fixture.pair(Ud).depth(128, 128).connect()?;
    let recipient = destination_to(&pair.left, &pair.right)?;
    (0..128).try_for_each(|_| post_receive(fixture, &pair.right).map(drop))?;
    let requests = (0..128)
        .map(|seed| Ok(SendRequest::send(pair.left.filled(64, seed)?).destination(&recipient)))
        .collect::<Result<Vec<_>>>()?;
    pair.left.qp.post_sends(requests).map_err(adverb::verbs::Error::from)?;
    take(&pair.left.cq, 128)?.iter().try_for_each(|completion| completion.result().map(drop))?;
    check_in_order(messages(pair.right.take_up_to(128)?)?, 0..128)?;
    std::thread::sleep(QUIET_PERIOD);
    pair.right.expect_state(QpState::ReadyToSend)
}
