use super::*;

#[test]
fn reregistered_memory_keeps_its_key() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    let (a, b) = pair(&nic);
    let (source, new, old) =
        (Area::new(&nic, a.pd, 64), Area::new(&nic, b.pd, 64), Area::new(&nic, b.pd, 64));
    source.fill(5);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let address = NonNull::from(new.words.as_slice()).cast::<u8>();
    // SAFETY: the words of `new` outlive the region of `old`, which is dropped first, and tests access them as atomics.
    unsafe { nic.reregister(old.key, b.pd, address, 64, 0x1000, access) }.unwrap();
    let remote = RemoteAddress { addr: 0x1000, rkey: old.key };
    a.send(1, SendOperation::Write(remote), &[source.segment(0, 64)]).unwrap();
    assert!(a.completion().outcome.is_ok());
    let words =
        |area: &Area<'_>| area.words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<_>>();
    assert_eq!(words(&new), words(&source));
    assert_eq!(words(&old), [0; 8]);
}

#[test]
fn failed_reregistration_changes_nothing() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    let pd = nic.create_domain().unwrap();
    let area = Area::new(&nic, pd, 64);
    let address = NonNull::from(area.words.as_slice()).cast::<u8>();
    let regions = nic.resource_counts().regions;
    // SAFETY: no region is created.
    let changed = unsafe { nic.reregister(area.key, pd, address, 0, 0x1000, Access::empty()) };
    assert_eq!(changed, Err(Error::Register(RegisterError::InvalidRange)));
    // SAFETY: as above.
    let changed = unsafe { nic.reregister(area.key ^ 1, pd, address, 64, 0x1000, Access::empty()) };
    assert!(matches!(changed, Err(Error::Deregister(_))), "{changed:?}");
    assert_eq!(nic.resource_counts().regions, regions);
}

#[test]
fn discarded_completions_are_not_polled() {
    let nic = Nic::open(NicOptions::loopback()).unwrap();
    let (a, b) = pair(&nic);
    let area = Area::new(&nic, a.pd, 8);
    nic.modify_qp(a.qpn, &Transition::Error).unwrap();
    a.send(1, SendOperation::Send, &[area.segment(0, 8)]).unwrap();
    nic.discard_completions(a.cq, b.qpn);
    assert_eq!(nic.resource_counts().completions, 1);
    nic.discard_completions(a.cq, a.qpn);
    assert_eq!(nic.resource_counts().completions, 0);
    assert_eq!(nic.poll(a.cq, 1, |_| ()), 0);
}
