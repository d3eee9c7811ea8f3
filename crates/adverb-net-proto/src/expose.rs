//! Memory that this side exposes to the peer, and its registration for each lane.

/// A region that this side exposes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exposed<R> {
    /// The name; empty if the region is found by its addresses.
    pub(crate) name: String,
    /// The rights, as in [`ExposedRegion`](crate::ExposedRegion).
    pub(crate) rights: u8,
    pub(crate) registration: Registration<R>,
}

/// The registration of an exposed region.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Registration<R> {
    /// The region is registered for the lane of this number. For a later lane, it is registered again.
    Registered { region: R, lane: u32 },
    /// The driver is registering the memory.
    Registering,
}

impl<R> Exposed<R> {
    /// Returns the region, unless the driver has it.
    pub(crate) fn into_region(self) -> Option<R> {
        match self.registration {
            Registration::Registered { region, .. } => Some(region),
            Registration::Registering => None,
        }
    }
}

/// Takes the next region that must be registered for this lane, and returns its index too. The first `announced`
/// regions were announced over the lane.
pub(crate) fn take_stale<R>(exposed: &mut [Exposed<R>], announced: usize, lane: u32) -> Option<(usize, R)> {
    let item = exposed.get_mut(announced)?;
    match std::mem::replace(&mut item.registration, Registration::Registering) {
        Registration::Registered { region, lane: registered } if registered != lane => {
            Some((announced, region))
        }
        registration => {
            item.registration = registration;
            None
        }
    }
}
